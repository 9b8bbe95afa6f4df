"""Events as they were published, for whoever passes them on and needs to know only whose they are."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord
from antiphon.events import Event

__all__ = ["Published", "decode_published"]


class Published(NamedTuple):
    """An event as it was published, of which only this is read: for whoever passes it on as it is.

    ``json`` is the whole of it, perhaps of a newer release.
    """

    seq: int
    type: str
    turn_id: str
    run: int
    json: bytes

    @property
    def terminal(self) -> bool:
        """True for the one event that ends a run."""
        return self.type in ("turn_finished", "turn_failed", "turn_cancelled")

    @classmethod
    def of(cls, event: Event) -> Published:
        """This event as it would be published."""
        return cls(event.seq, event.type, event.turn_id, event.run, event.to_json())


class _Beginning(Struct):
    seq: int = 0
    type: str = ""
    turn_id: str = ""
    run: int = 0


_beginning = msgspec.json.Decoder(_Beginning)


def decode_published(data: bytes) -> Published:
    """Read the beginning of an event as published. Raises ``CorruptRecord``."""
    try:
        found = _beginning.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise CorruptRecord(f"An event is not readable: {exc}.") from exc
    return Published(found.seq, found.type, found.turn_id, found.run, data)
