"""The answers of a cell, as values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
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
"""The exceptions that reading damaged bytes may raise."""


@contextmanager
def readable(what: str, **where: Any) -> Generator[None]:
    """Convert errors of the reading within it to ``CorruptRecord``. Put nothing else within: it would hide mistakes."""
    try:
        yield
    except DAMAGE as exc:
        raise CorruptRecord(f"{what} cannot be read: {type(exc).__name__}: {exc}.", **where) from exc


class ClaimedTurn(Struct):
    """A turn that this worker holds, with everything that it needs to run it."""

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
    created: int = 0  # when it was submitted, in ms
    failing_ms: int | None = None  # for how long its model service has failed in this step; None: it has not
    spent_ms: int = 0  # since its first start, without the time while it was suspended
    untold: str = ""  # ids of turns whose tools have run, which no history says
    usage: bytes | None = None  # what the session has used until now
    lacking: str = ""  # digests of the Apps that lack what it needs
    decisions: Sequence[bytes] = ()  # what was decided while it was suspended
    steered: bool = False  # other turns may wait to steer it


class ForeignJob(NamedTuple):
    """A job in one of our queues that is not one of our turns; ``data`` is RQ's raw payload.

    An id that is not UTF-8 is spelt with surrogates, as Python spells file names.
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
    """The result of a claim. ``alone`` lists turns that must run in a process of their own.

    ``others`` lists queues that hold turns of another prefix, with that prefix.
    """

    turns: list[ClaimedTurn]
    foreign: list[ForeignJob]
    alone: list[TurnId]
    damaged: Sequence[Damaged] = ()
    suspended: bool = False
    others: Sequence[tuple[str, str]] = ()


class Emit(NamedTuple):
    """A window of events of one session: encoded bodies without ``seq`` and ``at``."""

    session_id: SessionId
    fence: Fence
    batch: int
    bodies: Sequence[bytes]


class Reaped(NamedTuple):
    """What the reaper has done with one session."""

    session_id: SessionId
    turn_id: TurnId
    what: str


class Snapshot(Struct):
    """A session at one moment. ``cursor`` is the seq before the running turn's first event.

    ``turns`` are those that were asked for, but for damaged ones: those that left nothing, and pending ones in the
    order in which they will run. ``order`` are then the ids of all its turns, as they were submitted.
    """

    cursor: int
    turn_id: TurnId | None
    history_length: int
    history: list[bytes]
    fields: dict[str, bytes]
    inbox: list[TurnId]
    turns: list[TurnRecord]
    order: list[TurnId]


class TurnRecord(Struct):
    """A turn as Redis has it."""

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

    @property
    def tenant(self) -> str | None:
        """The tenant of its session when it was accepted."""
        with readable("The tenant of a turn", turn_id=self.turn_id):
            return self.fields.get("tenant", b"").decode() or None


def claims(
    turns: list[list[Any]], foreign: list[list[bytes]], alone: list[bytes], damaged: list[list[bytes]],
    others: list[list[bytes]],
) -> Claims:  # fmt: skip
    """Read the answer of the claim script. A turn that cannot be read is damaged: its lease will expire."""
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
    ids = [TurnId(turn.decode(errors="replace")) for turn in alone]
    theirs = [(queue.decode(errors="replace"), prefix.decode(errors="replace")) for queue, prefix in others]
    return Claims(found, jobs, ids, broken, others=theirs)


def claimed_turn(fields: list[Any]) -> ClaimedTurn:
    """Read a turn from the answer of the claim script."""
    session, turn, session_fields, turn_fields, journal, history, length, decisions = fields
    fence, stop, system, variables, agent, window, summary, restored, refused, untold, usage, steer = (
        session_fields
    )
    (
        request, run, attempt, crashes, errors, step, queue, queued_seq, created, queued_at, lacking, failing, spent,
    ) = turn_fields  # fmt: skip
    return ClaimedTurn(
        SessionId(session.decode()), TurnId(turn.decode()), Fence(fence.decode()), (stop or b"").decode(),
        system, variables, agent, (window or b"").decode(), request,
        int(run), int(attempt), int(crashes), int(errors), int(step),
        queue.decode(), journal, history, length, summary, (restored or b"").decode(), (refused or b"").decode(),
        int(queued_seq or 0), int(created or queued_at or 0), None if failing == b"" else int(failing), int(spent),
        untold.decode() if untold else "", usage, (lacking or b"").decode(), decisions, steer == turn,
    )  # fmt: skip


def snapshot(
    cursor: bytes, head: bytes, length: int, history: list[bytes], fields: list[bytes], inbox: list[bytes],
    turns: list[list[Any]], order: list[bytes],
) -> Snapshot:  # fmt: skip
    """Read a session from the answer of the snapshot script."""
    first = TurnId(head.decode()) if head else None
    records: list[TurnRecord] = []
    for turn, found_fields in turns:
        with suppress(*DAMAGE):  # one that is damaged or gone must not hide the session
            records.append(_turn_record(TurnId(turn.decode()), pairs(found_fields)))
    return Snapshot(int(cursor), first, length, history, pairs(fields), _ids(inbox), records, _ids(order))


def _ids(turns: list[bytes]) -> list[TurnId]:
    return [TurnId(turn.decode()) for turn in turns]


def reaped(session: bytes, turn: bytes, what: bytes) -> Reaped:
    """Read what the reaper has done with one session."""
    return Reaped(
        SessionId(session.decode(errors="surrogateescape")),
        TurnId(turn.decode(errors="surrogateescape")),
        what.decode(),
    )


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """Read a hash, which scripts return as a flat list."""
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


def turn_record(turn_id: TurnId, raw: dict[bytes, bytes]) -> TurnRecord:
    """Read a turn from its hash. Raises ``CorruptRecord``."""
    with readable("The record of a turn", turn_id=turn_id):
        return _turn_record(turn_id, {name.decode(): value for name, value in raw.items()})


def _turn_record(turn_id: TurnId, fields: dict[str, bytes]) -> TurnRecord:
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
