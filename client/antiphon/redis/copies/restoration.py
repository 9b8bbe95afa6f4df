"""How the archived copy of a session comes before what the session has now.

When a session begins anew under its id, the archived messages are inserted before the new ones, as if the session had
never ended: by a worker for its first turn, and by a reader for what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord
from antiphon.model import encode
from antiphon.redis.edits import Found
from antiphon.redis.fields import DICTIONARY_FIELDS, TEXT_FIELDS, encode_field, encode_fields
from antiphon.session.saved import SavedSession, read_saved
from antiphon.wire.archiving import Refusal
from antiphon.wire.editing import FieldChange

__all__ = ["ONLY_IN_REDIS", "Restoration", "restoration"]

ONLY_IN_REDIS = ("ttl", "window", "agent_queue")
"""The fields of an archived copy that a saved session does not have."""


class Restoration(Struct):
    """What a restored session needs. ``refuse`` says why turns that it has accepted must fail."""

    fields: list[FieldChange]
    messages: list[bytes]
    refuse: Refusal = ""


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
