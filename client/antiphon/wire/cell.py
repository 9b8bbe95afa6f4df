"""One cell: the Redis primary that holds a share of the sessions, and every transition it knows.

Each method runs one script and gives its answer as a value, or raises what the answer means. A call that is
repeated, by redis-py after a lost reply or by its caller, gives the first answer and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from antiphon.errors import (
    CorruptRecord,
    KeyReused,
    LimitReached,
    SessionBusy,
    SessionNotFound,
    StoreUnavailable,
    TurnNotFound,
    UsageError,
)
from antiphon.input.ids import Fence, SessionId, TurnId, other_tenant
from antiphon.input.limits import LIMITS
from antiphon.wire.connection.open import database_of
from antiphon.wire.connection.pipeline import WaitingRedis
from antiphon.wire.errors import JournalShorter, store_error
from antiphon.wire.keys import PREFIX, Keys
from antiphon.wire.records import (
    ClaimedTurn,
    Claims,
    Emit,
    ForeignJob,
    Reaped,
    Snapshot,
    TurnRecord,
    claims,
    readable,
    reaped,
    snapshot,
    turn_record,
)
from antiphon.wire.scripts import load_script, run_script, script_names

__all__ = [
    "DEFAULT_QUEUE",
    "SUPERSEDED",
    "Cell",
    "ClaimedTurn",
    "Claims",
    "Emit",
    "ForeignJob",
    "Reaped",
    "Snapshot",
    "TurnRecord",
]

SUPERSEDED = "SUPERSEDED"
"""The answer to a write or renewal whose fence is no longer in force."""

KEEP_EVENTS = 10_000
BELL_MS = 60_000
WINDOW = -2
"""As ``tail``: the history from where the session's window began last time, or where its summary ends."""
DEFAULT_TTL_MS = 30 * 24 * 3600 * 1000
DEFAULT_QUEUE = "antiphon"


class Cell:
    """The transitions of one Redis primary."""

    def __init__(self, redis: Redis, *, prefix: str = PREFIX, clock: str = "clock") -> None:
        self.redis = redis
        self.keys = Keys(prefix)
        self.database = database_of(redis)
        self._clock = clock

    def beside(self, patience: float) -> Cell:
        """The same cell over a connection of its own, on which ``heard`` may wait this many seconds."""
        redis = WaitingRedis(connection_pool=self.redis.connection_pool, patience=patience)
        return Cell(redis, prefix=self.keys.prefix, clock=self._clock)

    async def heard(self, names: Sequence[str], seconds: float) -> None:
        """Return when one of these bells rings, or after the time. Raises ``StoreError``."""
        try:
            bells = [self.keys.bell(name) for name in names]
            await self.redis.execute_command("BLPOP", *bells, seconds)
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc

    async def ring(self, name: str) -> None:
        """Ring a bell, as the scripts do. Raises ``StoreError``."""
        bell = self.keys.bell(name)
        try:
            pipe = self.redis.pipeline()
            pipe.rpush(bell, "1")
            pipe.pexpire(bell, BELL_MS)
            await pipe.execute()
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc

    async def submit(
        self,
        session_id: SessionId,
        turn_id: TurnId,
        request: bytes,
        *,
        digest: str,
        queue: str = "",
        agent_queue: str = "",
        default_queue: str = DEFAULT_QUEUE,
        ttl_ms: int = DEFAULT_TTL_MS,
        inbox_limit: int = LIMITS.waiting_turns,
        reject_if_busy: bool = False,
        due_in_ms: int = 0,
        tail: int = WINDOW,
        agent: bytes = b"",
        metadata: bytes = b"",
        tenant: str = "",
    ) -> int:
        """Accept a turn and give its position in the inbox.

        It goes to the first of these queues that there is: ``queue``, the session's, ``agent_queue``, that of the
        session's agent, ``default_queue``. Raises ``KeyReused``, ``SessionBusy``, ``UsageError``, ``StoreError``.
        """
        answer = await self._run(
            "submit", session_id, turn_id, digest, request, queue, agent_queue, default_queue, ttl_ms, inbox_limit,
            "reject" if reject_if_busy else "enqueue", due_in_ms, tail, agent, metadata, tenant,
        )  # fmt: skip
        match answer:
            case [b"ACCEPTED", position]:
                return int(position or 0)
            case [b"KEY_REUSED"]:
                raise KeyReused(session_id=session_id, turn_id=turn_id)
            case [b"SESSION_BUSY"]:
                raise SessionBusy("The session runs a turn.", session_id=session_id)
            case [b"INBOX_FULL", length]:
                raise SessionBusy(f"The session's inbox is full ({length} turns).", session_id=session_id)
            case [b"SESSION_CLOSED"]:
                raise UsageError("The session is closed.", session_id=session_id)
            case [b"OTHER_TENANT"]:
                raise other_tenant(session_id, tenant)
            case [b"TOO_MANY_DELAYED"]:
                raise LimitReached(
                    f"This Redis has {LIMITS.delayed_turns} delayed turns already (limit delayed_turns).",
                    limit="delayed_turns", session_id=session_id,
                )  # fmt: skip
            case [b"OUT_OF_RANGE"]:
                raise UsageError("delay= and ttl= are at most 100 years.", session_id=session_id)
            case _:
                raise _unexpected("submit", answer)

    async def claim(
        self, worker: str, token: str, *, lease_ms: int, limit: int, queues: Sequence[str], only: str = ""
    ) -> Claims:
        """Take up to ``limit`` turns. Repeated with the same ``token`` it gives the same turns."""
        answer = await self._run("claim", worker, token, lease_ms, limit, only, *queues)
        match answer:
            case [b"CLAIMED", turns, foreign, alone, damaged]:
                return claims(turns, foreign, alone, damaged)
            case [b"SUSPENDED"]:
                return Claims([], [], [], suspended=True)
            case _:
                raise _unexpected("claim", answer)

    async def renew(
        self, worker: str, leases: Sequence[tuple[SessionId, Fence]], *, lease_ms: int
    ) -> list[str]:
        """Renew leases. Per lease: '' (held), a stop word (held, but stop), or ``SUPERSEDED``."""
        flat = [value for lease in leases for value in lease]
        match await self._run("renew", worker, lease_ms, *flat):
            case [b"RENEWED", answers]:
                return [answer.decode() for answer in answers]
            case answer:
                raise _unexpected("renew", answer)

    async def emit(self, emits: Sequence[Emit]) -> list[str | Exception]:
        """Log and publish one window of several sessions.

        Per session: '' (done), a stop word (done, but stop), ``SUPERSEDED``, or the error of that one alone. Raises
        ``StoreError`` where it is not known what was done: the same call again does nothing twice.
        """
        windows = [
            value
            for one in emits
            for value in (one.session_id, one.fence, one.batch, len(one.bodies), *one.bodies)
        ]
        match await self._run("emit", *windows):
            case [b"EMITTED", found]:
                return [_emitted(answer) for answer in found]
            case answer:
                raise _unexpected("emit", answer)

    async def append_step(
        self, turn: ClaimedTurn, *, length: int, step: int, entries: Sequence[bytes], bodies: Sequence[bytes]
    ) -> str:
        """Append to the journal and publish. Gives '', a stop word or ``SUPERSEDED``.

        Raises ``JournalShorter`` where Redis has lost the journal's end, ``CorruptRecord`` where it is longer.
        """
        answer = await self._run(
            "append_step",
            turn.session_id,
            turn.turn_id,
            turn.fence,
            length,
            step,
            len(entries),
            *entries,
            *bodies,
        )
        match answer:
            case [b"OK", stop]:
                return stop.decode()
            case [b"SUPERSEDED"]:
                return SUPERSEDED
            case [b"CONFLICT", found]:
                kind = JournalShorter if found < length else CorruptRecord
                raise kind(
                    f"The journal has {found} entries instead of {length}.",
                    session_id=turn.session_id, turn_id=turn.turn_id,
                )  # fmt: skip
            case _:
                raise _unexpected("append_step", answer)

    async def wait_for_disk(self, patience_ms: int = 2000) -> bool:
        """Return when all that was written before now is on the server's disk.

        False where the server cannot say so: it has no append-only file, or is a Redis before 7.2. Raises
        ``StoreUnavailable`` where its disk has not come after within ``patience_ms``.
        """
        try:
            pipe = self.redis.pipeline(transaction=False)
            pipe.incrby(
                self.keys.fence, 0
            )  # WAITAOF waits for the writes of its own connection: this is the last
            pipe.execute_command("WAITAOF", 1, 0, patience_ms)
            written, synced = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc
        if isinstance(written, Exception):
            raise store_error(written)
        if isinstance(synced, Exception):
            return False
        if synced[0] < 1:
            raise StoreUnavailable(f"Redis has not written to its disk within {patience_ms / 1000:g} s.")
        return True

    async def finish(
        self,
        turn: ClaimedTurn,
        status: str,
        *,
        messages: Sequence[bytes] = (),
        bodies: Sequence[bytes],
        response: bytes = b"",
        error_code: str = "",
        error: str = "",
        variables: bytes = b"",
        window: str = "",
        summary: bytes = b"",
        keep_events: int = KEEP_EVENTS,
    ) -> bool:
        """End the run. False where another fence is in force: nothing was written."""
        answer = await self._run(
            "finish", turn.session_id, turn.turn_id, turn.fence, status, response, error_code, error, variables,
            window, summary, keep_events, len(messages), *messages, *bodies,
        )  # fmt: skip
        return _held("finish", answer)

    async def give_back(
        self, turn: ClaimedTurn, cause: str, *, delay_ms: int = 0, reason: str = "", code: str = ""
    ) -> bool:
        """Return an unfinished turn: ``cause`` is ``drain`` or ``error``. False where another fence is in force."""
        answer = await self._run(
            "give_back", turn.session_id, turn.turn_id, turn.fence, cause, delay_ms, reason, code
        )
        return _held("give_back", answer)

    async def cancel(self, turn_id: TurnId, reason: str, *, keep_events: int = KEEP_EVENTS) -> str:
        """Cancel a turn. Gives ``cancelled``, ``requested`` (its worker will end it) or the status it ended with."""
        match await self._run("cancel", turn_id, reason or "cancelled", keep_events):
            case [b"CANCELLED"]:
                return "cancelled"
            case [b"REQUESTED"]:
                return "requested"
            case [b"ALREADY", status]:
                return status.decode()
            case [b"TURN_NOT_FOUND"]:
                raise TurnNotFound(turn_id=turn_id)
            case answer:
                raise _unexpected("cancel", answer)

    async def reap(
        self, *, holder: str = "", limit: int = 100, crash_limit: int = 10, keep_events: int = KEEP_EVENTS,
        code: str = "worker_died", reason: str = "The worker died.", queues: Sequence[str] = (),
    ) -> list[Reaped]:  # fmt: skip
        """Recover what is due for a look, or at once all that a dead ``holder`` held, jobs of ``queues`` among it.

        ``code`` and ``reason`` say how it ended: events carry them, and the error of a turn that is given up for it.
        """
        match await self._run("reap", holder, limit, crash_limit, keep_events, code, reason, *queues):
            case [b"REAPED", acts]:
                return [reaped(*act) for act in acts]
            case answer:
                raise _unexpected("reap", answer)

    async def requeue(self, turn_id: TurnId) -> None:
        """Offer a failed turn to the workers again. Raises ``UsageError`` where it has not failed, ``TurnNotFound``."""
        match await self._run("requeue", turn_id):
            case [b"OK"]:
                return
            case [b"NOT_FAILED", status]:
                raise UsageError(f"Turn {turn_id} is {status.decode()}: only failed turns can be requeued.")
            case [b"TURN_NOT_FOUND"]:
                raise TurnNotFound(f"There is no turn {turn_id!r}, or it has expired.", turn_id=turn_id)
            case answer:
                raise _unexpected("requeue", answer)

    async def fail_job(self, job: ForeignJob, worker: str, message: str) -> None:
        """Fail a job that is no turn, visibly in RQ's failed registry."""
        job_id = job.job_id.encode(errors="surrogateescape")
        await self._run("fail_job", job_id, job.queue, worker, message)

    async def snapshot(self, session_id: SessionId, start: int = 0, stop: int = -1) -> Snapshot:
        """Read a session at one moment, with one page of its history. Raises ``SessionNotFound``."""
        match await self._run("snapshot", session_id, start, stop):
            case [b"OK", *found]:
                with readable("The record of a session", session_id=session_id):
                    return snapshot(*found)
            case [b"SESSION_NOT_FOUND"]:
                raise SessionNotFound(session_id=session_id)
            case answer:
                raise _unexpected("snapshot", answer)

    async def turn(self, turn_id: TurnId) -> TurnRecord:
        """Read a turn. Raises ``TurnNotFound``."""
        try:
            raw: dict[bytes, bytes] = await self.redis.hgetall(self.keys.turn(turn_id))  # pyright: ignore[reportGeneralTypeIssues, reportAssignmentType]
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc
        if not raw:
            raise TurnNotFound(f"There is no turn {turn_id!r}, or it has expired.", turn_id=turn_id)
        return turn_record(turn_id, raw)

    async def busy_sessions(self) -> int:
        """How many sessions have a turn in their inbox."""
        try:
            return await self.redis.zcard(self.keys.active)
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc

    async def server_ms(self) -> int:
        """The server's time, in ms. Raises ``StoreError``."""
        try:
            seconds, microseconds = await self.redis.time()
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def load_scripts(self) -> None:
        """Send every script, so that the first turn does not pay for it."""
        try:
            for name in script_names():
                await self.redis.execute_command("SCRIPT LOAD", load_script(name, self._clock).source)
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc

    async def _run(self, name: str, *arguments: Any) -> Any:
        try:
            return await run_script(
                self.redis, load_script(name, self._clock), self.keys.prefix, self.database, *arguments
            )
        except (RedisError, OSError) as exc:
            raise store_error(exc) from exc


def _emitted(answer: bytes | Exception | None) -> str | Exception:
    return store_error(answer) if isinstance(answer, Exception) else (answer or b"").decode()


def _held(name: str, answer: Any) -> bool:
    match answer:
        case [b"OK", *_]:
            return True
        case [b"SUPERSEDED"]:
            return False
        case _:
            raise _unexpected(name, answer)


def _unexpected(script: str, answer: Any) -> CorruptRecord:
    """The answer may hold what users wrote: the error names its first word alone."""
    word = answer[0] if isinstance(answer, list) and answer else answer
    said = repr(word[:40]) if isinstance(word, bytes) else type(word).__name__
    return CorruptRecord(f"The script {script!r} gave an unknown answer: {said}.")
