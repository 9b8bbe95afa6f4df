"""The answers of a cell and published events, as values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import MsgspecError, Struct

from antiphon.encryption.records import SESSION, Sealer
from antiphon.encryption.values import MARK, RAW_MARK
from antiphon.errors import CorruptRecord, TurnDeleted
from antiphon.events import Event
from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.input.limits import LIMITS
from antiphon.input.values import IfBusy, Priority
from antiphon.text import text_of


class Published(Struct, frozen=True, gc=False):
    """A published event of which only these fields are read, for code that passes it on unchanged.

    ``json`` is the whole event, perhaps of a newer release.
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
        """Return this event as it would be published."""
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
        raise CorruptRecord(f"Cannot decode event: {exc}.") from exc
    return Published(found.seq, found.type, found.turn_id, found.run, data)


DAMAGE = (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, MsgspecError)
"""The exceptions that reading damaged bytes may raise."""


@contextmanager
def readable(what: str, **where: Any) -> Generator[None]:
    """Convert errors of the enclosed reading to ``CorruptRecord``. Enclose nothing else: that would hide mistakes."""
    try:
        yield
    except DAMAGE as exc:
        raise CorruptRecord(f"{what} cannot be read: {type(exc).__name__}: {exc}.", **where) from exc


WINDOW = -2
"""A value of ``tail``: the history from where the session's window last began, or where its summary ends."""
DEFAULT_QUEUE = "antiphon"


class NewTurn(Struct):
    """A turn to be accepted. A ``ttl_ms`` of 0 is for ever, None keeps the session's.

    It goes to the first of these queues that is set: ``queue``, the session's, ``agent_queue``, that of the session's
    agent, ``default_queue``. ``input_bytes`` is the length of the input in the request, if ``turn_queued`` is to carry
    it. ``again`` identifies a call that runs a failed turn with the same request again. With a ``cursor``, the turn is
    accepted only if that is the session's last event. The ``priority`` of a sub-agent is ``front``, which no caller can
    choose. ``named`` is an inline ``agent`` reduced to its name: a turn keeps only that outside its request.
    """

    session_id: SessionId
    turn_id: TurnId
    request: bytes
    digest: str
    queue: str = ""
    agent_queue: str = ""
    default_queue: str = DEFAULT_QUEUE
    ttl_ms: int | None = None
    inbox_limit: int = LIMITS.waiting_turns
    if_busy: IfBusy = "enqueue"
    due_in_ms: int = 0
    tail: int = WINDOW
    agent: bytes = b""
    named: bytes = b""
    metadata: bytes = b""
    tenant: str = ""
    key: str = ""
    input_bytes: int = 0
    again: str = ""
    priority: Priority | Literal["front"] = "normal"
    cursor: int | None = None
    user: str = ""


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
    untold: str = ""  # ids of turns with unreported tool calls
    usage: bytes | None = None  # what the session has used until now
    lacking: str = ""  # digests of the Apps that lack what it needs
    decisions: Sequence[bytes] = ()  # what was decided while it was suspended
    steered: bool = False  # other turns may wait to steer it
    app: str = ""  # the digest of the App on which it has begun
    tenant: str = ""
    received: Sequence[ReceivedEvent] = ()  # by waits of its last suspension
    revision: str = ""  # on which it runs, if that was noted
    missed_ms: int | None = None  # for how long no worker has had its revision
    pins: bytes | None = None  # the revisions that its session keeps
    ran: bytes | None = None  # the revisions of its session's last turns, where promotions decide on them
    promotions: bytes | None = None  # which revisions of agents sessions take


class ReceivedEvent(NamedTuple):
    """An event that a wait has received. ``event`` is its name with its tenant, and ``json`` what was sent."""

    wait_id: str
    position: int
    event: str
    json: bytes

    @classmethod
    def of(cls, wait_id: bytes, got: bytes) -> ReceivedEvent:
        """Read "<position> <length> <event><JSON>", as the scripts write it."""
        position, length, rest = got.split(b" ", 2)
        event = rest[: int(length)]
        return cls(text_of(wait_id), int(position), text_of(event), rest[int(length) :])


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

    ``turns`` are the requested ones, except damaged ones: turns that left nothing, and pending ones in the order in
    which they will run. ``order`` then contains the ids of all its turns, as they were submitted.
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
        return text_of(self.fields.get("tenant")) or None


def claims(
    turns: list[list[Any]], foreign: list[list[bytes]], alone: list[bytes], damaged: list[list[bytes]],
    others: list[list[bytes]], promotions: bytes | None = None,
) -> Claims:  # fmt: skip
    """Read the answer of the claim script. A turn that cannot be read is damaged: its lease will expire."""
    found: list[ClaimedTurn] = []
    broken = [Damaged(*(text_of(value) for value in one)) for one in damaged]
    for fields in turns:
        try:
            found.append(claimed_turn(fields))
            found[-1].promotions = promotions
        except (ValueError, AttributeError, TypeError) as exc:
            session, turn = (text_of(value) for value in fields[:2])
            broken.append(Damaged(session, turn, f"It cannot be read: {exc}"))
    jobs = [
        ForeignJob(job.decode(errors="surrogateescape"), text_of(queue), data) for job, queue, data in foreign
    ]
    ids = [TurnId(text_of(turn)) for turn in alone]
    theirs = [(text_of(queue), text_of(prefix)) for queue, prefix in others]
    return Claims(found, jobs, ids, broken, others=theirs)


def claimed_turn(fields: list[Any]) -> ClaimedTurn:
    """Read a turn from the answer of the claim script."""
    session, turn, session_fields, turn_fields, journal, history, length, decisions, received = fields
    (
        fence,
        stop,
        system,
        variables,
        agent,
        window,
        summary,
        restored,
        refused,
        untold,
        usage,
        steer,
        pins,
        ran,
    ) = session_fields
    (
        request, run, attempt, crashes, errors, step, queue, queued_seq, created, queued_at, lacking, app, tenant,
        revision, missed, failing, spent,
    ) = turn_fields  # fmt: skip
    session_id, turn_id = SessionId(text_of(session)), TurnId(text_of(turn))
    if (session_id.encode(), turn_id.encode()) != (session, turn):
        raise ValueError("its id or that of its session is not UTF-8")
    return ClaimedTurn(
        session_id, turn_id, Fence(text_of(fence)), text_of(stop),
        system, variables, agent, text_of(window), request,
        int(run), int(attempt), int(crashes), int(errors), int(step),
        text_of(queue), journal, history, length, summary, text_of(restored), text_of(refused),
        int(queued_seq or 0), int(created or queued_at or 0), None if failing == b"" else int(failing), int(spent),
        text_of(untold), usage, text_of(lacking), decisions, steer == turn, text_of(app),
        text_of(tenant) if tenant else "",
        [ReceivedEvent.of(*one) for one in received if one[1]] if received else [],
        text_of(revision) if revision else "", None if missed == b"" else int(missed), pins, ran,
    )  # fmt: skip


def snapshot(
    cursor: bytes, head: bytes, length: int, history: list[bytes], fields: list[bytes], inbox: list[bytes],
    turns: list[list[Any]], order: list[bytes],
) -> Snapshot:  # fmt: skip
    """Read a session from the answer of the snapshot script."""
    first = TurnId(text_of(head)) if head else None
    records: list[TurnRecord] = []
    for turn, found_fields in turns:
        with suppress(*DAMAGE):  # one that is damaged or gone must not hide the session
            records.append(read_turn(TurnId(text_of(turn)), pairs(found_fields)))
    return Snapshot(int(cursor), first, length, history, pairs(fields), _ids(inbox), records, _ids(order))


def _ids(turns: list[bytes]) -> list[TurnId]:
    return [TurnId(text_of(turn)) for turn in turns]


def reaped(session: bytes, turn: bytes, what: bytes) -> Reaped:
    """Read what the reaper has done with one session."""
    return Reaped(SessionId(text_of(session)), TurnId(text_of(turn)), text_of(what))


def pairs(flat: list[bytes]) -> dict[str, bytes]:
    """Read a hash, which scripts return as a flat list."""
    return {text_of(flat[i]): flat[i + 1] for i in range(0, len(flat), 2)}


def turn_record(turn_id: TurnId, raw: dict[bytes, bytes], seal: Sealer) -> TurnRecord:
    """Read a turn from its hash. Raises ``CorruptRecord`` and ``TurnDeleted``."""
    with readable("The record of a turn", turn_id=turn_id):
        fields = {text_of(name): value for name, value in raw.items()}
        return read_turn(turn_id, fields if "deleted" in fields else seal.open_turn(turn_id, fields))


def place_of_event(event: str) -> str:
    """Return the place that the data of an event is encrypted for: the event's name and tenant."""
    return f"event {event}"


CLAIMED = {
    "system": "system", "variables": "variables", "session_agent": "agent", "summary": "summary",
    "request": "request",
}  # fmt: skip
CLAIMED_LISTS = {"journal": "journal", "history": "message", "decisions": "decision"}


def open_claimed(seal: Sealer, turn: ClaimedTurn) -> ClaimedTurn:
    """Decrypt a claimed turn, and return it. A turn that cannot be decrypted is requeued as it was.

    Raises ``KeyMissing`` and ``SealBroken``; then nothing of the turn has changed.
    """
    if not seal.on and not _is_sealed(turn):
        return turn
    session = turn.session_id
    opened: dict[str, Any] = {
        name: seal.open(session, form, getattr(turn, name))
        for name, form in CLAIMED.items()
        if getattr(turn, name)
    }
    opened |= {
        name: seal.open_all(session, form, getattr(turn, name)) for name, form in CLAIMED_LISTS.items()
    }
    opened["received"] = [
        one._replace(json=seal.open(place_of_event(one.event), "sent", one.json)) for one in turn.received
    ]
    for name, value in opened.items():
        setattr(turn, name, value)
    turn.stop = seal.reason(session, turn.stop)
    return turn


def _is_sealed(turn: ClaimedTurn) -> bool:
    """Return whether any of a turn is encrypted. It costs a worker without keys a search for the mark, and no call."""
    for data in (turn.request, turn.system, turn.variables, turn.session_agent, turn.summary):
        if data and (MARK in data or RAW_MARK in data):
            return True
    for part in (turn.history, turn.journal, turn.decisions):
        for data in part:
            if MARK in data:
                return True
    return bool(turn.received) and any(MARK in one.json for one in turn.received)


def is_in_the_clear(seal: Sealer, turn: ClaimedTurn) -> bool:
    """Return whether a turn, not decrypted yet, was submitted without a key, and is accepted without one."""
    return seal.on and not seal.strict and MARK not in turn.request


def open_stopped(seal: Sealer, turn: ClaimedTurn) -> str:
    """Decrypt a turn that is to be cancelled, and return the reason. It is cancelled even if it cannot be decrypted."""
    stop = seal.reason(turn.session_id, turn.stop)
    with suppress(CorruptRecord):
        open_claimed(seal, turn)
    return stop


def open_snapshot(seal: Sealer, session_id: SessionId, found: Snapshot) -> Snapshot:
    """Decrypt a snapshot. A turn that cannot be decrypted is left out, like a damaged one.

    Raises ``KeyMissing`` and ``SealBroken``.
    """
    found.fields = seal.open_fields(session_id, SESSION, found.fields)
    found.history = seal.open_all(session_id, "message", found.history)
    turns, found.turns = found.turns, []
    for one in turns:
        with suppress(CorruptRecord):
            found.turns.append(read_turn(one.turn_id, seal.open_turn(one.turn_id, one.fields)))
    return found


def read_turn(turn_id: TurnId, fields: dict[str, bytes]) -> TurnRecord:
    """Read a turn from its fields, which are not encrypted. Raises ``TurnDeleted``."""
    if "deleted" in fields:
        gone = TurnDeleted(session_id=text_of(fields["session"]), turn_id=turn_id)
        gone.tenant = text_of(fields.get("tenant")) or None
        raise gone

    def number(name: str) -> int:
        return int(fields.get(name) or 0)

    return TurnRecord(
        turn_id,
        SessionId(text_of(fields["session"])),
        text_of(fields["status"]),
        number("run"),
        number("attempt"),
        number("queued_seq"),
        number("last_seq"),
        fields.get("response", b""),
        text_of(fields.get("error_code")),
        text_of(fields.get("error")),
        fields,
    )
