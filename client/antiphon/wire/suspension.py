"""Turns that wait for decisions: how they are suspended, decided about and listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import AlreadyDecided, CorruptRecord, NotSuspended, UsageError
from antiphon.input.ids import TurnId
from antiphon.model import AtLimit, Decision, OpenCall, Usage, Wait, encode
from antiphon.model.suspension import IN_TIME
from antiphon.text import text_of, whole
from antiphon.wire.cell import KEEP_EVENTS, Cell
from antiphon.wire.editing import new_op
from antiphon.wire.errors import unexpected, unknown_turn
from antiphon.wire.lists.reading import Place, fields_of
from antiphon.wire.lists.sent_events import SentEvent
from antiphon.wire.records import DAMAGE, ClaimedTurn, readable


class SuspendedTurn(Struct):
    """A turn that waits for decisions. ``suspended`` is when it was suspended, in ms since 1970, by the clock of Redis.

    ``calls`` are the calls that it still waits for.
    """

    turn_id: str
    session_id: str
    suspended: int
    calls: list[OpenCall]
    queue: str = ""
    tenant: str | None = None


async def suspend(
    cell: Cell,
    turn: ClaimedTurn,
    calls: Sequence[OpenCall | Wait],
    *,
    bodies: Sequence[bytes],
    aside: Usage | None = None,
) -> str | None:
    """Suspend a turn until these calls are decided, and these sleeps and waits are over.

    With ``aside``, the usage of the turn, the session's next turns overtake it.

    Returns '', the reason to cancel the turn instead (then nothing is written), or None if another fence is in force.
    Raises ``StoreError``.
    """
    session = turn.session_id
    flat = [value for call in calls for value in _flat(cell, session, call)]
    answer = await cell.run(
        "suspend",
        session,
        turn.turn_id,
        turn.fence,
        "" if aside is None else encode(aside),
        len(calls),
        *flat,
        *cell.seal.seal_all(session, "event", bodies),
    )
    match answer:
        case [b"OK"]:
            return ""
        case [b"STOP", reason]:
            return cell.stop_word(session, reason)
        case [b"SUPERSEDED"]:
            return None
        case _:
            raise unexpected("suspend", answer)


def place_of(call: OpenCall | Wait) -> tuple[str, str, AtLimit]:
    """Return the id and the kind of what a turn waits for, and what happens at its time: a sleep ends."""
    return (
        (call.id, call.kind, "approve")
        if isinstance(call, Wait)
        else (call.call_id, call.kind, call.at_limit)
    )


def awaited(call: OpenCall | Wait) -> str:
    """Return the event that a wait is for, after the position that it has received; '' if it is not for an event."""
    return f"{call.after} {call.event}" if isinstance(call, Wait) and call.event else ""


def _flat(cell: Cell, session_id: str, call: OpenCall | Wait) -> tuple[str | int | bytes, ...]:
    """Return a call as the script takes it; the script adds ``until`` at the end of the JSON."""
    ms = "" if call.seconds is None else max(int(call.seconds * 1000), 0)
    body = cell.seal.seal(session_id, "call", encode(msgspec.structs.replace(call, until=None)))
    return *place_of(call), ms, body, _at_limit(cell, session_id, call), awaited(call)


def _at_limit(cell: Cell, session_id: str, call: OpenCall | Wait) -> bytes:
    """Return the decision at the call's time limit, encrypted, because a script cannot encrypt it."""
    call_id, _, at_limit = place_of(call)
    if not cell.seal.on or at_limit == "fail":
        return b""
    return cell.seal.seal(session_id, "decision", encode(Decision(call_id, at_limit, reason=IN_TIME)))


async def decide(cell: Cell, turn_id: TurnId, decision: Decision, *, keep_events: int = KEEP_EVENTS) -> None:
    """Decide about a pending tool call. When the last one is decided, the turn is queued.

    Raises ``AlreadyDecided`` with the first decision, ``NotSuspended``, ``TurnNotFound``, ``UsageError`` if the call is
    of another kind, and ``StoreError``.
    """
    call_id, kind, session = decision.call_id, decision.kind, await cell.place_of(turn_id)
    body = cell.seal.seal(session, "decision", encode(decision))
    answer = await cell.run("decide", turn_id, call_id, new_op(), kind, body, keep_events)
    match answer:
        case [b"DECIDED"]:
            return
        case [b"ALREADY", data]:
            first = cell.seal.open(session, "decision", data)
            raise AlreadyDecided(decision=decisions_of([first], turn_id)[0], turn_id=turn_id)
        case [b"NOT_SUSPENDED", status]:
            said = text_of(status)
            why = f"Turn {turn_id} is {said}: it is not suspended, so there is nothing to decide."
            raise NotSuspended(why, status=said, turn_id=turn_id)
        case [b"UNKNOWN_CALL"]:
            why = f"Turn {turn_id} has no pending tool call {call_id!r}: turn.info().calls lists them."
            raise NotSuspended(why, status="suspended", turn_id=turn_id)
        case [b"OTHER_KIND", other]:
            raise UsageError(f"The call {call_id!r} {_WANTED[other]}.", turn_id=turn_id)
        case [b"TURN_NOT_FOUND"]:
            raise unknown_turn(turn_id)
        case _:
            raise unexpected("decide", answer)


_WANTED = {
    b"tool": "waits for its result",
    b"approval": "waits to be approved or rejected",
    b"sleep": "sleeps until its time, and takes no decision",
    b"event": "waits for an event, and takes no decision",
    b"batch": "waits for the answer of a model service, and takes no decision",
}


def decisions_of(found: Sequence[bytes], turn_id: TurnId) -> list[Decision]:
    """Read decisions. Raises ``CorruptRecord``."""
    if not found:
        return []
    with readable("A decision", turn_id=turn_id):
        return [msgspec.json.decode(data, type=Decision) for data in found]


def claimed_decisions(turn: ClaimedTurn) -> dict[str, Decision]:
    """Return what a claimed turn has waited for, by the ids of its calls and waits.

    The ``arguments`` of a wait are what it has received: the ``position`` of the event, and its ``data``.
    Raises ``CorruptRecord``.
    """
    if not (turn.decisions or turn.received):
        return {}
    found = {one.call_id: one for one in decisions_of(turn.decisions, turn.turn_id)}
    with readable("An event that a turn has received", turn_id=turn.turn_id):
        for one in turn.received:
            got = {"position": one.position, "data": msgspec.json.decode(one.json, type=SentEvent).data}
            found[one.wait_id] = Decision(one.wait_id, "approve", arguments=got)
    return found


def waits_of(fields: Mapping[str, bytes], turn_id: TurnId) -> list[Wait]:
    """Return the sleeps and waits of a turn's last suspension. Raises ``CorruptRecord``."""
    with readable("The sleeps of a turn", turn_id=turn_id):
        return msgspec.json.decode(fields.get("waits") or b"[]", type=list[Wait])


def open_calls(fields: Mapping[str, bytes], turn_id: TurnId) -> tuple[list[OpenCall], list[Decision]]:
    """Return the undecided calls of a turn's last suspension, and the decisions about the others.

    Raises ``CorruptRecord``.
    """
    with readable("The pending tool calls of a turn", turn_id=turn_id):
        calls = msgspec.json.decode(fields.get("calls") or b"[]", type=list[OpenCall])
        made = [fields.get(name, b"").partition(b" ")[2] for name in _decision_fields(len(calls))]
        still = [call for call, decision in zip(calls, made, strict=True) if not decision]
    return still, decisions_of([decision for decision in made if decision], turn_id)


def _decision_fields(calls: int) -> list[str]:
    return [f"decision:{n}" for n in range(1, calls + 1)]


async def suspended_turns(cell: Cell, places: Sequence[Place]) -> list[SuspendedTurn | None]:
    """Read these suspended turns in two round trips. A turn that is damaged or no longer suspended is None."""
    turns = [turn for _, turn in places]
    records = await fields_of(cell, map(cell.keys.turn, turns), *_LISTED)
    found = [_suspended(cell, turn, fields) for turn, fields in zip(turns, records, strict=True)]
    there = [one for one in found if one is not None]
    most = max((len(one.calls) for one in there), default=0)
    names = _decision_fields(most) or [""]
    made = await fields_of(cell, (cell.keys.turn(one.turn_id) for one in there), *names)
    for one, decided in zip(there, made, strict=True):
        one.calls = [call for call, decision in zip(one.calls, decided, strict=False) if decision is None]
    return found


_LISTED = ("status", "session", "suspended_at", "queue", "tenant", "calls")


def _suspended(cell: Cell, turn: str, fields: Any) -> SuspendedTurn | None:
    try:
        status, session, since, queue, tenant, calls = fields
        if status != b"suspended":
            return None
        calls = cell.seal.open(text_of(session), "call", calls)
        opened = msgspec.json.decode(calls, type=list[OpenCall])
        return SuspendedTurn(
            turn,
            text_of(session),
            whole(float(since)),
            opened,
            text_of(queue),
            text_of(tenant) if tenant else None,
        )
    except (CorruptRecord, *DAMAGE):
        return None
