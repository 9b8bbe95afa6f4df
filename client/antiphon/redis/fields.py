"""Encodes and decodes the fields of a session's hash in Redis. The hash leaves out fields without a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_origin

import msgspec

from antiphon.input.ids import check_queue
from antiphon.model import encode
from antiphon.model.usage import Usage
from antiphon.session.saved import FIELDS, SavedSession, Titled
from antiphon.window import SavedSummary
from antiphon.wire.records import readable

# Fields that are not JSON: how their values are written and read.
_CODECS: dict[Any, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    str | None: (str.encode, lambda data: data.decode() or None),
    list[str]: (
        lambda names: "\n".join(names).encode(),
        lambda data: data.decode().split("\n") if data else [],
    ),
    bool: (lambda _: b"1", bool),
    int: (lambda number: str(number).encode(), lambda data: int(data or 0)),
    SavedSummary | None: (SavedSummary.to_field, SavedSummary.from_field),
    Titled | None: (encode, lambda data: msgspec.json.decode(data, type=Titled) if data else None),
    Usage | None: (encode, lambda data: msgspec.json.decode(data, type=Usage) if data else None),
}

_KINDS = {name: field.kind for name, field in FIELDS.items()} | {"offered": dict[str, Any]}

_OF_ONE_SESSION = (
    "parent", "children", "fork_of", "fork_at", "branches", "closed", "usage", "title_usage", "created", "updated",
)  # fmt: skip
FORKED_FIELDS = [name for name in FIELDS if name not in _OF_ONE_SESSION] + [
    "window", "agent_queue", "restored", "offered", "origin", "pins", "ran", "media",
]  # fmt: skip
"""The fields that a fork takes from its source."""

TEXT_FIELDS = [name for name, kind in _KINDS.items() if kind == str | None]
"""The fields whose value is text or None."""

DICTIONARY_FIELDS = [name for name in FIELDS if get_origin(_KINDS[name]) is dict]


def encode_field(name: str, value: Any) -> bytes:
    """Encode a field for Redis; an empty value becomes empty bytes."""
    if not value:
        return b""
    write, _ = _CODECS.get(_KINDS[name], (encode, None))
    return write(value)


def decode_field(name: str, data: bytes) -> Any:
    """Decode what ``encode_field`` returned. Raises ``CorruptRecord``."""
    kind = _KINDS[name]
    with readable(f"The {name} of a session"):
        if kind in _CODECS:
            return _CODECS[kind][1](data)
        if not data:
            return None if name == "agent" else {}
        return msgspec.json.decode(data, type=kind)


def encode_fields(saved: SavedSession) -> dict[str, bytes]:
    """Return all fields of a saved session except the time of its last change.

    Raises ``UsageError`` if the queue of its agent is not a valid name.
    """
    queue = saved.agent.get("queue") if isinstance(saved.agent, Mapping) else None
    fields = {name: encode_field(name, getattr(saved, name)) for name in FIELDS if name != "updated"}
    return {**fields, "agent_queue": b"" if queue is None else check_queue(queue).encode()}
