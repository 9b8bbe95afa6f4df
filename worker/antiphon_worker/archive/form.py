"""The archived form of a session.

It is the saved form (``antiphon.session.saved``), which ``Session.from_dict`` reads, with the additional key
``archived`` for fields that only Redis has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.errors import CorruptRecord
from antiphon.model import Message
from antiphon.redis.copies.restoration import ONLY_IN_REDIS
from antiphon.redis.edits import Found
from antiphon.session.saved import read_saved, same_messages
from antiphon.wire.archiving import Ending

__all__ = ["NewCopy", "archived_form", "new_copy"]


class NewCopy(Struct):
    """The new copy of a session for the store.

    ``lost`` counts messages that Redis has lost and the copy keeps. ``replaced`` is the earlier copy, if it holds
    messages that the new one does not, because the history was shortened on purpose.
    """

    data: dict[str, Any]
    lost: int = 0
    replaced: Mapping[str, Any] | None = None


def new_copy(ending: Ending, former: Mapping[str, Any] | None) -> NewCopy:
    """Make the copy of a session that ends. It holds no less than the earlier copy, unless that was asked for.

    Raises ``CorruptRecord`` if the session cannot be read. An earlier copy that cannot be read is replaced.
    """
    data = archived_form(ending)
    if former is None:
        return NewCopy(data)
    try:
        before = read_saved(former).messages
    except CorruptRecord:
        return NewCopy(data, replaced=former)
    now = read_saved(data).messages
    if same_messages(now[: len(before)], before):
        return NewCopy(data)
    if "shortened" in ending.fields:
        return NewCopy(data, replaced=former)
    return _completed(data, now, former, before)


def _completed(
    data: dict[str, Any], now: list[Message], former: Mapping[str, Any], before: list[Message]
) -> NewCopy:
    """Return all messages of the earlier copy, and those that the session has had since."""
    common = 0
    while common < min(len(before), len(now)) and same_messages(
        before[common : common + 1], now[common : common + 1]
    ):
        common += 1
    new = now[common:]
    saved = next(  # of these, since Redis has lost what was before them
        count
        for count in range(min(len(before), len(new)), -1, -1)
        if same_messages(before[len(before) - count :], new[:count])
    )
    data["messages"] = [*former["messages"], *data["messages"][common + saved :]]
    data["archived"].pop("window", None)  # it counted other messages, as the summary did
    data.pop("summary", None)
    if former.get("summary"):
        data["summary"] = former["summary"]
    return NewCopy(data, lost=len(before) - common - saved)


def archived_form(ending: Ending) -> dict[str, Any]:
    """Return a session's saved form with the fields that only Redis has. Raises ``CorruptRecord``."""
    found = Found(ending.fields, ending.history, len(ending.history), [])
    more = {name: found.text(name) for name in ONLY_IN_REDIS if name in found.fields}
    return {**found.saved(ending.session_id).to_dict(), "archived": more}
