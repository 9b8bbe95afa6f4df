"""The archived form of a session, and how it is restored.

It is the saved form (``antiphon.session.saved``), which ``Session.from_dict`` reads, with the additional key
``archived`` for fields that only Redis has. When a session begins anew under its id, the archived messages are inserted
before the new ones, as if the session had never ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord
from antiphon.model import Message, encode
from antiphon.redis.edits import Found
from antiphon.redis.fields import DICTIONARY_FIELDS, TEXT_FIELDS, encode_field, encode_fields
from antiphon.session.saved import SavedSession, read_saved, same_messages
from antiphon.wire.archiving import Ending, Refusal
from antiphon.wire.editing import FieldChange

__all__ = ["NewCopy", "Restoration", "archived_form", "new_copy", "restoration"]

ONLY_IN_REDIS = ("ttl", "window", "agent_queue")


class Restoration(Struct):
    """What a restored session needs. ``refuse`` says why turns that it has accepted must fail."""

    fields: list[FieldChange]
    messages: list[bytes]
    refuse: Refusal = ""


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
    if same_messages(before[len(before) - len(new) :], new):  # saved before but not marked
        new = []
    data["messages"] = [*former["messages"], *data["messages"][len(now) - len(new) :]]
    data["archived"].pop("window", None)  # it counted other messages, as the summary did
    data.pop("summary", None)
    if former.get("summary"):
        data["summary"] = former["summary"]
    return NewCopy(data, lost=len(before) - common)


def archived_form(ending: Ending) -> dict[str, Any]:
    """Return a session's saved form with the fields that only Redis has. Raises ``CorruptRecord``."""
    found = Found(ending.fields, ending.history, len(ending.history), [])
    more = {name: found.text(name) for name in ONLY_IN_REDIS if name in found.fields}
    return {**found.saved(ending.session_id).to_dict(), "archived": more}


def restoration(found: Found, data: Mapping[str, Any] | None) -> Restoration:
    """Fit what ``archived_form`` returned to the session as it is now; None means that it was never archived.

    Fields that were set since stay. Exceptions are those that are only set if missing (the agent, variables that an
    opening offers). Raises ``CorruptRecord`` if the data cannot be read.
    """
    if data is None:
        return Restoration(_changes(found, {"offered": b"", "origin": b""}), [])
    saved, kept = read_saved(data), _kept(data)
    foreign = found.text("tenant") not in ("", saved.tenant)
    cleared = found.text("restored") == "cleared" and not foreign
    live = Found({}, [], 0, []) if foreign else found
    fields = {**_merged(live, saved, kept), "offered": b"", "origin": b""}
    if not cleared:
        fields |= {"window": kept.get("window", b""), "summary": encode_field("summary", saved.summary)}
    refuse: Refusal = "tenant" if foreign else "closed" if saved.closed else ""
    messages = [] if cleared else [encode(message) for message in saved.messages]
    return Restoration(_changes(found, fields), messages, refuse)


def _merged(live: Found, saved: SavedSession, kept: Mapping[str, bytes]) -> dict[str, bytes]:
    archived = {**encode_fields(saved), **kept}
    fields = {name: live.fields.get(name) or archived[name] for name in TEXT_FIELDS}
    fields |= {name: archived[name] for name in ("closed", "created") if archived.get(name)}
    fields["ttl"] = live.fields.get("ttl") or archived.get("ttl", b"")
    if saved.agent is not None:
        fields |= {"agent": archived["agent"], "agent_queue": archived["agent_queue"]}
    merged = {name: getattr(saved, name) | live.value(name) for name in DICTIONARY_FIELDS}
    merged["variables"] = _variables(live, saved)
    merged["children"] = list(dict.fromkeys([*saved.children, *live.children]))
    return fields | {name: encode_field(name, value) for name, value in merged.items()}


def _variables(live: Found, saved: SavedSession) -> dict[str, Any]:
    """Merge variables: archived ones take precedence over those that an opening only offers."""
    offered = live.value("offered")
    known = live.value("variables")
    changed = {name: value for name, value in known.items() if name not in offered or offered[name] != value}
    return {**known, **saved.variables, **changed}


def _changes(found: Found, fields: Mapping[str, bytes]) -> list[FieldChange]:
    old = {name: found.fields.get(name, b"") for name in fields}
    return [FieldChange(name, old[name], new) for name, new in fields.items() if new != old[name]]


def _kept(data: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields that only Redis has. A copy that a local runtime has saved has none."""
    try:
        kept = msgspec.convert(data.get("archived") or {}, dict[str, str])
    except msgspec.ValidationError as exc:
        raise CorruptRecord(f"The archived fields of a session cannot be read: {exc}.") from exc
    return {name: kept[name].encode() for name in ONLY_IN_REDIS if name in kept}
