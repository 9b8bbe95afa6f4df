"""What is sealed in each kind of record, and what stays in the clear because scripts and lists read it.

Ids, kinds, counters, times, tokens used, codes of errors, and names of queues, tenants and workers stay in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.encryption.values import NEWER_THAN_UNSEALED, RAW_MARK, Opened, Sealer, member, members_of
from antiphon.text import text_of

# Of events: what readers follow a session by, and what says how a turn goes on.
EVENT_CLEAR = ("type", "session_id", "turn_id", "run", "attempt", "step", "kept", "keep", "code")
REQUEST_CLEAR = ("trace",)  # what watches a turn begins before it is opened
CALL_CLEAR = ("call_id", "kind", "seconds", "at_limit", "until")
DECISION_CLEAR = ("call_id", "kind", "at")

REQUEST = frozenset({"input", "request"})
JOURNAL = REQUEST | {"journal", "decision"}
EVENT = frozenset({"event", "input", "reason", "service", "call", "decision"})
MESSAGE = frozenset({"message"})

# Fields of a turn's record that are JSON, with the kinds that may stand in each. All others are in the clear.
TURN_JSON: dict[str, frozenset[str]] = {
    "request": REQUEST,
    "response": frozenset({"response"}),
    "service": frozenset({"service"}),
    "retry_service": frozenset({"service"}),
    "agent": frozenset({"agent"}),
    "metadata": frozenset({"metadata"}),
    "calls": frozenset({"call"}),
    "journal": JOURNAL,
    "steered": JOURNAL,
    "runs": JOURNAL | {"response", "service", "reason"},
}
# Fields of a turn's record that are text.
TURN_TEXT = {"error": "reason", "cancel": "reason", "retry_reason": "reason", "key": "key"}

# Fields of a session's record.
SESSION_JSON = ("agent", "variables", "offered", "metadata", "files")
SESSION_TEXT = ("system",)
WEBHOOK_TEXT = ("url", "agent", "secret", "error")
SUMMARY = "summary"  # behind the number of messages that it covers, which scripts read


def seal_request(seal: Sealer, session: str, request: bytes, shown_input: int) -> tuple[bytes, int]:
    """Seal a request: its input, which scripts copy into events and journals, apart from the rest, and no ``trace``.

    ``shown_input`` is the length of the input in the request, or 0. Returns the request and that length in it.
    """
    if not seal.on:
        return request, shown_input
    whole = members_of(request)
    said = seal.value(session, "input", whole.pop("messages", b"[]"))
    rest = b"{" + b",".join(member(*one) for one in {"version": b"1", **whole}.items()) + b"}"
    sealed = seal.members(session, "request", rest, REQUEST_CLEAR, NEWER_THAN_UNSEALED)
    return b'{"messages":' + said + b"," + sealed[1:], len(said) if shown_input else 0


def seal_event(seal: Sealer, session: str, body: bytes) -> bytes:
    return seal.members(session, "event", body, EVENT_CLEAR)


def seal_events(seal: Sealer, session: str, bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Seal the bodies of events."""
    return [seal_event(seal, session, body) for body in bodies] if seal.on else bodies


def open_event(seal: Sealer, session: str, event: bytes) -> bytes:
    """Open an event as it was published. Raises ``KeyMissing`` and ``SealBroken``, as all that opens does."""
    return seal.open(session, EVENT, event)


def seal_messages(seal: Sealer, session: str, messages: Sequence[bytes]) -> Sequence[bytes]:
    """Seal messages of a history."""
    return [seal.value(session, "message", one) for one in messages] if seal.on else messages


def seal_journal(seal: Sealer, session: str, entries: Sequence[bytes]) -> Sequence[bytes]:
    """Seal entries of a journal."""
    if not seal.on:
        return entries
    return [seal.members(session, "journal", one, (), NEWER_THAN_UNSEALED) for one in entries]


def open_journal(seal: Sealer, session: str, entries: Sequence[bytes]) -> list[bytes]:
    return [seal.open(session, JOURNAL, one) for one in entries]


def open_messages(seal: Sealer, session: str, messages: Sequence[bytes]) -> list[bytes]:
    """Open messages of a history."""
    return [seal.open(session, MESSAGE, one) for one in messages]


def seal_call(seal: Sealer, session: str, call: bytes) -> bytes:
    """Seal a tool call that waits for a decision."""
    return seal.members(session, "call", call, CALL_CLEAR)


def seal_decision(seal: Sealer, session: str, decision: bytes) -> bytes:
    return seal.members(session, "decision", decision, DECISION_CLEAR)


def open_decision(seal: Sealer, session: str, decision: bytes) -> bytes:
    return seal.open(session, frozenset({"decision"}), decision)


def seal_reason(seal: Sealer, session: str, text: str) -> str:
    """Seal why something was cancelled, failed or is tried again: it may quote users and model services."""
    return seal.text(session, "reason", text)


def open_reason(seal: Sealer, session: str, text: str) -> str:
    return text_of(seal.open_text(session, "reason", text.encode()))


def open_turn_field(seal: Sealer, session: str, name: str, data: bytes) -> bytes:
    """Open a field of a turn's record."""
    if name in TURN_TEXT:
        return seal.open_text(session, TURN_TEXT[name], data)
    if name.startswith("decision:"):
        return open_decision(seal, session, data)
    return seal.open(session, TURN_JSON.get(name, frozenset()), data)


def open_turn(seal: Sealer, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Open the record of a turn, which names its session."""
    session = text_of(fields.get("session"))
    return {name: open_turn_field(seal, session, name, data) for name, data in fields.items()}


def seal_field(seal: Sealer, session: str, name: str, data: bytes) -> bytes:
    """Seal a field of a session's record, if it is one that is sealed."""
    if not data:
        return data
    if not seal.on:
        return _unmarked(name, data)
    if name in SESSION_JSON:
        return seal.value(session, name, data)
    if name in SESSION_TEXT:
        return seal.text(session, name, text_of(data)).encode()
    if name == SUMMARY:
        messages, colon, text = text_of(data).partition(":")
        return f"{messages}{colon}{seal.text(session, name, text)}".encode()
    return data


def _unmarked(name: str, data: bytes) -> bytes:
    """A field that is not sealed must not look as if it were, whatever a user or a model wrote."""
    if name in SESSION_TEXT:
        return data.lstrip(RAW_MARK)
    if name == SUMMARY:
        messages, colon, text = data.partition(b":")
        return messages + colon + text.lstrip(RAW_MARK)
    return data


def open_field(seal: Sealer, session: str, name: str, data: bytes) -> bytes:
    """Open a field of a session's record. What was sealed is ``Opened``."""
    if name in SESSION_JSON:
        plain = seal.open(session, frozenset({name}), data)
    elif name in SESSION_TEXT:
        plain = seal.open_text(session, name, data)
    elif name == SUMMARY:
        messages, colon, text = data.partition(b":")
        plain = messages + colon + seal.open_text(session, name, text)
    else:
        return data
    if plain == data:
        return data
    opened = Opened(plain)
    opened.stored = data
    return opened


def stored(data: bytes) -> bytes:
    """Return the stored form of a field's value."""
    return data.stored if isinstance(data, Opened) else data


def open_fields(seal: Sealer, session: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """Open the record of a session."""
    return {name: open_field(seal, session, name, data) for name, data in fields.items()}


def seal_plan(seal: Sealer, session: str, plan: bytes) -> bytes:
    """Seal what a schedule submits."""
    return seal.value(session, "plan", plan)


def open_plan(seal: Sealer, session: str, plan: bytes) -> bytes:
    return seal.open(session, frozenset({"plan"}), plan)


def seal_webhook(seal: Sealer, name: str, fields: Mapping[str, str]) -> dict[str, str]:
    """Seal where a webhook sends, its secrets, and why a delivery failed."""
    return {
        field: seal.text(name, f"webhook_{field}", value) if field in WEBHOOK_TEXT else value
        for field, value in fields.items()
    }


def open_webhook(seal: Sealer, name: str, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        field: seal.open_text(name, f"webhook_{field}", value) if field in WEBHOOK_TEXT else value
        for field, value in fields.items()
    }


def seal_fact(seal: Sealer, scope: str, fact: bytes) -> bytes:
    """Seal a fact that a memory keeps of a scope."""
    return seal.value(scope, "fact", fact)


def open_fact(seal: Sealer, scope: str, fact: bytes) -> bytes:
    return seal.open(scope, frozenset({"fact"}), fact)
