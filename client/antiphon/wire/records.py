"""What a cell answers, as values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import MsgspecError, Struct

from antiphon.errors import CorruptRecord
from antiphon.input.ids import Fence, SessionId, TurnId

__all__ = [
    "ClaimedTurn",
    "Claims",
    "Damaged",
    "Emit",
    "ForeignJob",
    "Reaped",
    "Snapshot",
    "TurnRecord",
    "claimed_turn",
    "claims",
    "pairs",
    "readable",
    "reaped",
    "snapshot",
    "turn_record",
]

DAMAGE = (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, MsgspecError)
"""What comes out of reading bytes that are not what was written."""


@contextmanager
def readable(what: str, **where: Any) -> Generator[None]:
    """Raise ``CorruptRecord`` where what is read within this is damaged. Around reading alone: it hides mistakes."""
    try:
        yield
    except DAMAGE as exc:
        raise CorruptRecord(f"{what} is not readable: {type(exc).__name__}: {exc}.", **where) from exc


class ClaimedTurn(Struct):
    """A turn that this worker holds, with all it needs to run it."""

    session_id: SessionId
    turn_id: TurnId
    fence: Fence
    stop: str
    system: bytes | None
    variables: bytes | None
    session_agent: bytes | None
    window: str
    request: bytes
    run: int
    attempt: int
    crashes: int
    errors: int
    step: int
    queue: str
    journal: list[bytes]
    history: list[bytes]
    history_length: int
    summary: bytes | None = None
    restored: str = ""
    refused: str = ""
    queued_seq: int = 0


class ForeignJob(NamedTuple):
    """A job in one of our queues that is no turn of ours; ``data`` is RQ's payload as it stands.

    An id that is no UTF-8 is spelt with surrogates, as Python spells names of files.
    """

    job_id: str
    queue: str
    data: bytes


class Damaged(NamedTuple):
    """A turn that cannot be claimed, because a key or field of its session is damaged."""

    session_id: str
    turn_id: str
    reason: str


class Claims(NamedTuple):
    """What a claim brought. ``alone`` are turns that must run in a process of their own."""

    turns: list[ClaimedTurn]
    foreign: list[ForeignJob]
    alone: list[TurnId]
    damaged: Sequence[Damaged] = ()
    suspended: bool = False


class Emit(NamedTuple):
    """One session's window of events: encoded bodies without seq and at."""

    session_id: SessionId
    fence: Fence
    batch: int
    bodies: Sequence[bytes]


class Reaped(NamedTuple):
    """What the reaper did with one session."""

    session_id: SessionId
    turn_id: TurnId
    what: str


class Snapshot(Struct):
    """A session at one moment. ``cursor`` is before the running turn's first event."""

    cursor: int
    turn_id: TurnId | None
    history_length: int
    history: list[bytes]
    fields: dict[str, bytes]
    inbox: list[TurnId]


class TurnRecord(Struct):
    """A turn as it stands in Redis."""

    turn_id: TurnId
    session_id: SessionId
    status: str
    run: int
    attempt: int
    queued_seq: int
    last_seq: int
    response: bytes
    error_code: str
    error: str
    fields: dict[str, bytes]


def claims(
    turns: list[list[Any]], foreign: list[list[bytes]], alone: list[bytes], damaged: list[list[bytes]]
) -> Claims:
    """What the claim script gives. A turn that cannot be read is damaged: its lease will expire."""
    found: list[ClaimedTurn] = []
    broken = [Damaged(*(value.decode(errors="replace") for value in one)) for one in damaged]
    for fields in turns:
        try:
            found.append(claimed_turn(fields))
        except (ValueError, AttributeError, TypeError) as exc:
            session, turn = (value.decode(errors="replace") for value in fields[:2])
            broken.append(Damaged(session, turn, f"It cannot be read: {exc}"))
    jobs = [
        ForeignJob(job.decode(errors="surrogateescape"), queue.decode(errors="replace"), data)
        for job, queue, data in foreign
    ]
    return Claims(found, jobs, [TurnId(turn.decode(errors="replace")) for turn in alone], broken)


def claimed_turn(fields: list[Any]) -> ClaimedTurn:
    """A turn as the claim script gives it."""
    session, turn, session_fields, turn_fields, journal, history, length = fields
    fence, stop, system, variables, agent, window, summary, restored, refused = session_fields
    request, run, attempt, crashes, errors, step, queue, queued_seq = turn_fields
    return ClaimedTurn(
        SessionId(session.decode()), TurnId(turn.decode()), Fence(fence.decode()), (stop or b"").decode(),
        system, variables, agent, (window or b"").decode(), request,
        int(run), int(attempt), int(crashes), int(errors), int(step),
        queue.decode(), journal, history, length, summary, (restored or b"").decode(), (refused or b"").decode(),
        int(queued_seq or 0),
    )  # fmt: skip


def snapshot(
    cursor: bytes, head: bytes, length: int, history: list[bytes], fields: list[bytes], inbox: list[bytes]
) -> Snapshot:
    """A session as the snapshot script gives it."""
    turns = [TurnId(turn.decode()) for turn in inbox]
    first = TurnId(head.decode()) if head else None
    return Snapshot(int(cursor), first, length, history, pairs(fields), turns)


def reaped(session: bytes, turn: bytes, what: bytes) -> Reaped:
    """An act of the reaper."""
    return Reaped(
        SessionId(session.decode(errors="surrogateescape")),
        TurnId(turn.decode(errors="surrogateescape")),
        what.decode(),
    )


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """A hash as scripts give it, flat."""
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


def turn_record(turn_id: TurnId, raw: dict[bytes, bytes]) -> TurnRecord:
    """A turn as its hash holds it. Raises ``CorruptRecord``."""
    with readable("The record of a turn", turn_id=turn_id):
        return _turn_record(turn_id, raw)


def _turn_record(turn_id: TurnId, raw: dict[bytes, bytes]) -> TurnRecord:
    fields = {name.decode(): value for name, value in raw.items()}

    def number(name: str) -> int:
        return int(fields.get(name) or 0)

    return TurnRecord(
        turn_id,
        SessionId(fields["session"].decode()),
        fields["status"].decode(),
        number("run"),
        number("attempt"),
        number("queued_seq"),
        number("last_seq"),
        fields.get("response", b""),
        fields.get("error_code", b"").decode(),
        fields.get("error", b"").decode(),
        fields,
    )
