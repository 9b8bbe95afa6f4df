"""One cell: the Redis primary that holds a share of the sessions, and all its transitions.

Each method runs one script, and returns its answer as a value or raises the matching error. A repeated call, by
redis-py after a lost reply or by the caller, returns the first answer and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, get_args

from redis.asyncio import Redis

from antiphon.encryption.keyring import Keyring
from antiphon.encryption.records import NO_KEY, sealer_of
from antiphon.errors import (
    AgentError,
    CorruptRecord,
    KeyMissing,
    KeyReused,
    SessionNotFound,
    StoreError,
    TurnDeleted,
    TurnNotFound,
    UsageError,
)
from antiphon.input.ids import Fence, SessionId, TurnId, new_again
from antiphon.input.limits import LIMITS
from antiphon.input.values import Asked, Keep, check_keep
from antiphon.text import number, text_of, whole
from antiphon.wire.connection.names import database_of, name_of
from antiphon.wire.connection.open import keys_of
from antiphon.wire.connection.pipeline import WaitingRedis
from antiphon.wire.erased import erased
from antiphon.wire.errors import (
    CancelledFirst,
    JournalConflict,
    JournalShorter,
    accepted,
    asked,
    begun_by_another,
    store_error,
    unexpected,
    unknown_turn,
)
from antiphon.wire.keys import PREFIX
from antiphon.wire.records import (
    ClaimedTurn,
    Claims,
    Emit,
    ForeignJob,
    NewTurn,
    Reaped,
    Snapshot,
    TurnRecord,
    claims,
    open_snapshot,
    readable,
    reaped,
    snapshot,
    turn_record,
)
from antiphon.wire.scripts import given, load_script, run_script
from antiphon.wire.shared_keys import named_damage

SUPERSEDED = "SUPERSEDED"
"""The answer to a write or renewal whose fence is no longer in force."""
STEER = "STEER"
"""The answer to a write of a turn if other turns wait to steer it: see ``Cell.steer``."""

KEEP_EVENTS = 10_000
BELL_MS = 60_000


class Cell:
    """The transitions of one Redis primary. What users and models wrote is encrypted with ``keys``, or with the keys of
    the environment."""

    has_disk = True
    """Whether a caller can wait until its writes are on disk."""

    def __init__(
        self, redis: Redis, *, prefix: str = PREFIX, clock: str = "clock", keys: Keyring | None = None
    ) -> None:
        self.redis = redis
        self.seal = sealer_of(keys)
        self.clock = clock
        self._name_keys(prefix)
        getattr(redis, "on_follow", []).append(lambda: self._name_keys(prefix))

    def _name_keys(self, prefix: str) -> None:
        """Use the key names of the place to which the client leads now."""
        self.keys, self.database = keys_of(self.redis, prefix), database_of(self.redis)

    def beside(self, patience: float) -> Cell:
        """Return the same cell with a connection of its own, on which ``heard`` may wait this many seconds."""
        redis = WaitingRedis(connection_pool=self.redis.connection_pool, patience=patience)
        redis.begin_like(self.redis)
        return Cell(redis, prefix=self.keys.deployment, clock=self.clock, keys=self.seal.ring)

    @property
    def name(self) -> str:
        """The name of this cell, unique in its deployment."""
        return name_of(self.redis)

    async def heard(self, names: Sequence[str], seconds: float) -> None:
        """Wait until one of these wake-up keys is written or the time is over. Raises ``StoreError``."""
        redis: Any = self.redis
        bells = [self.keys.bell(name) for name in names]
        await asked(redis.execute_command("BLPOP", *bells, seconds))

    async def ring(self, name: str) -> None:
        """Write a wake-up key, as the scripts do. Raises ``StoreError``."""
        bell = self.keys.bell(name)
        pipe = self.redis.pipeline()
        pipe.rpush(bell, "1")
        pipe.pexpire(bell, BELL_MS)
        await asked(pipe.execute())

    async def submit(self, turn: NewTurn) -> int:
        """Accept a turn and return its position in the inbox.

        Raises ``KeyReused``, ``SessionBusy``, ``SessionChanged``, ``TenantLimit``, ``UsageError``, ``StoreError``.
        """
        for known in self.seal.digests(turn.session_id, turn.digest):
            answer = await self.run("submit", *self._submitted(turn, known))
            if answer[:1] != [b"KEY_REUSED"]:
                return accepted(turn, answer)
        raise KeyReused(session_id=turn.session_id, turn_id=turn.turn_id)

    async def submit_many(self, turns: Sequence[NewTurn]) -> list[int | AgentError]:
        """Accept these turns in order, in one call. Returns for each turn what ``submit`` returns or raises.

        Raises ``StoreError`` if the outcome of all is unknown; a repeated call accepts no turn twice.
        """
        digests = [self.seal.digests(turn.session_id, turn.digest) for turn in turns]
        each = [self._submitted(turn, known[0]) for turn, known in zip(turns, digests, strict=True)]
        answers = await self.run_for_each(b"SUBMITTED", "submit_many", len(turns), *chain.from_iterable(each))
        found = zip(turns, digests, answers, strict=True)
        return [await self._answer_of(turn, len(known), answer) for turn, known, answer in found]

    async def claim(
        self, worker: str, token: str, *, lease_ms: int, limit: int, queues: Sequence[str], only: str = "",
        alone_limit: int = 0, app: str = "",
    ) -> Claims:  # fmt: skip
        """Take up to ``limit`` turns, at most ``alone_limit`` to run alone, and none that needs what ``app`` lacks."""
        answer = await self.run("claim", worker, token, lease_ms, limit, alone_limit, only, app, *queues)
        match answer:
            case [b"CLAIMED", *found]:
                return claims(*found)
            case [b"SUSPENDED"]:
                return Claims([], [], [], suspended=True)
            case _:
                raise unexpected("claim", answer)

    async def renew(
        self, worker: str, leases: Sequence[tuple[SessionId, Fence]], *, lease_ms: int
    ) -> list[str]:
        """Renew leases. Returns for each lease '' (held), a stop word (held, but stop), or ``SUPERSEDED``."""
        flat = [value for lease in leases for value in lease]
        found = await self.run_for_each(b"RENEWED", "renew", len(leases), worker, lease_ms, *flat)
        return [self.stop_word(session, one) for (session, _), one in zip(leases, found, strict=True)]

    async def emit(self, emits: Sequence[Emit]) -> list[str | Exception]:
        """Log and publish one window of events for each of several sessions.

        Returns for each session '' (done), a stop word (done, but stop), ``SUPERSEDED``, or the error of that session
        alone. Raises ``StoreError`` if the outcome is unknown; repeat the call, which does nothing twice.
        """
        windows = [
            value
            for one in emits
            for value in (
                one.session_id, one.fence, one.batch, len(one.bodies),
                *self.seal.seal_all(one.session_id, "event", one.bodies),
            )
        ]  # fmt: skip
        found = await self.run_for_each(b"EMITTED", "emit", len(emits), *windows)
        return [self._emitted(one, answer) for one, answer in zip(emits, found, strict=True)]

    async def append_step(
        self, turn: ClaimedTurn, *, length: int, step: int, entries: Sequence[bytes], bodies: Sequence[bytes],
        usage: bytes = b"", answering: str = "",
    ) -> str:  # fmt: skip
        """Append to the journal and publish. Returns '', a stop word, ``STEER`` or ``SUPERSEDED``.

        Raises ``JournalShorter`` if Redis has lost the journal's end, and ``CorruptRecord`` if the journal is longer.
        """
        own = turn.session_id, turn.turn_id, turn.fence
        answer = await self.run(
            "append_step", *own, length, step, usage, answering, len(entries),
            *self.seal.seal_all(turn.session_id, "journal", entries),
            *self.seal.seal_all(turn.session_id, "event", bodies),
        )  # fmt: skip
        match answer:
            case [b"OK", stop]:
                return self.stop_word(turn.session_id, stop)
            case [b"STEER", *_]:
                return STEER
            case [b"SUPERSEDED"]:
                return SUPERSEDED
            case [b"CONFLICT", found]:
                kind = JournalShorter if found < length else JournalConflict
                raise kind.at(found, length, turn.session_id, turn.turn_id)
            case _:
                raise unexpected("append_step", answer)

    async def steer(
        self, turn: ClaimedTurn, *, length: int, step: int, keep_events: int = KEEP_EVENTS
    ) -> tuple[str, list[bytes]]:
        """Append the texts that wait to steer the turn to its journal, and end the turns that brought them.

        ``step`` is the model call that receives the new messages. Returns '', a stop word or ``SUPERSEDED``, and the
        new entries of the journal. Raises ``JournalShorter``.
        """
        answer = await self.run("steer", turn.session_id, turn.turn_id, turn.fence, length, step, keep_events)
        match answer:
            case [b"OK", stop, entries]:
                opened = self.seal.open_all(turn.session_id, "journal", entries)
                return self.stop_word(turn.session_id, stop), opened
            case [b"SUPERSEDED"]:
                return SUPERSEDED, []
            case [b"CONFLICT", found]:
                raise JournalShorter.at(found, length, turn.session_id, turn.turn_id)
            case _:
                raise unexpected("steer", answer)

    async def finish(
        self, turn: ClaimedTurn, status: str, *, messages: Sequence[bytes] = (), bodies: Sequence[bytes],
        response: bytes = b"", error_code: str = "", error: str = "", service: bytes = b"", variables: bytes = b"",
        window: str = "", summary: bytes = b"", kept: int | None = None, keep_events: int = KEEP_EVENTS,
        calls: Literal["", "told", "untold"] = "", usage: bytes = b"", memories: str = "",
        events_ttl: int | None = None,
    ) -> bool:  # fmt: skip
        """End the run. Returns False, and writes nothing, if another fence is in force.

        Raises ``CancelledFirst``, and writes nothing, if the turn was cancelled before: it can end only as cancelled.

        The messages follow the first ``kept`` messages of the history, or are added at its end. ``calls`` is ``told``
        if the turn reported all unreported tool calls of earlier turns to the model, and ``untold`` if the turn leaves
        unreported tool calls. ``usage`` is the session's, including this run. ``service`` is what a model service
        returned with the error, as JSON. ``memories`` names the memories that are to index the turn.
        ``events_ttl`` is how long the events of an idle session are kept, in ms; 0 means as long as the session.
        """
        seal, session = self.seal, turn.session_id
        if seal.on:
            response, service = (
                seal.seal(session, "response", response),
                seal.seal(session, "service", service),
            )
            variables = seal.seal(session, "variables", variables)
            messages, bodies = (
                seal.seal_all(session, "message", messages),
                seal.seal_all(session, "event", bodies),
            )
        answer = await self.run(
            "finish", session, turn.turn_id, turn.fence, status, response, error_code,
            seal.seal(session, "reason", error.encode()), service, variables, window,
            seal.seal(session, "summary", summary),
            "" if kept is None else kept, keep_events, calls, usage, memories, given(events_ttl),
            len(messages), *messages, *bodies,
        )  # fmt: skip
        return self._held("finish", session, answer)

    async def give_back(
        self, turn: ClaimedTurn, cause: str, *, delay_ms: int = 0, reason: str = "", code: str = "",
        service: bytes = b"", lacking: str = "", workers: Sequence[str] = (), missing: str = "",
    ) -> bool:  # fmt: skip
        """Requeue a turn for ``drain``, ``limit`` or ``error``. Returns and raises what ``finish`` does.

        ``lacking`` names Apps that lack what the turn needs; ``workers`` have it and are woken. ``missing`` is the
        revision that the turn runs on and no worker has, as agent@revision. If an encryption key is missing, the reason
        is stored in plain text: workers with that key could not read a reason encrypted with another one.
        """
        seal, session = self.seal, turn.session_id
        no_key = seal.on and code == KeyMissing.code
        answer = await self.run(
            "give_back", turn.session_id, turn.turn_id, turn.fence, cause, delay_ms,
            NO_KEY if no_key else seal.seal(session, "reason", reason.encode()), code,
            seal.seal(session, "service", service), lacking, missing, *workers,
        )  # fmt: skip
        return self._held("give_back", turn.session_id, answer)

    async def cancel(
        self, turn_id: TurnId, reason: str, keep: Keep = "steps", *, keep_events: int = KEEP_EVENTS
    ) -> str:
        """Cancel a turn. Returns ``cancelled``, ``requested`` (its worker will end it) or the status it ended with."""
        place = await self.place_of(turn_id) if reason else ""
        sealed = self.seal.seal(place, "reason", reason.encode())
        match await self.run("cancel", turn_id, sealed or "cancelled", keep, keep_events):
            case [b"CANCELLED"]:
                return "cancelled"
            case [b"REQUESTED"]:
                return "requested"
            case [b"ALREADY", status]:
                return text_of(status)
            case [b"TURN_NOT_FOUND"]:
                raise TurnNotFound(turn_id=turn_id)
            case answer:
                raise unexpected("cancel", answer)

    async def reap(
        self, *, holder: str = "", limit: int = 100, crash_limit: int = 10, keep_events: int = KEEP_EVENTS,
        code: str = "worker_died", reason: str = "The worker died.", spare: bool = False,
        queues: Sequence[str] = (),
    ) -> list[Reaped]:  # fmt: skip
        """Recover sessions that are due, or immediately all that a dead ``holder`` held, including jobs of ``queues``.

        ``code`` and ``reason`` describe how the holder ended, in events and errors. ``spare`` gives holders time to
        renew leases.
        """
        more = (keep_events, code, reason, "1" if spare else "", *queues)
        [acts] = await self.run_for(b"REAPED", "reap", holder, limit, crash_limit, *more)
        return [reaped(*act) for act in acts]

    async def requeue(self, turn_id: TurnId) -> None:
        """Begin a new run of a failed turn. Raises ``TurnNotFound``, and ``UsageError`` if that is not possible."""
        match await self.run("requeue", turn_id, new_again()):
            case [b"OK"]:
                return
            case [b"NOT_FAILED", status]:
                raise UsageError(f"Turn {turn_id} is {text_of(status)}: only failed turns can be requeued.")
            case [b"SESSION_CLOSED", session]:
                raise UsageError("The session is closed.", session_id=text_of(session), turn_id=turn_id)
            case [b"OTHER_TENANT", session]:
                raise begun_by_another(text_of(session))
            case [b"TURN_DELETED"]:
                raise TurnDeleted(turn_id=turn_id)
            case [b"TURN_NOT_FOUND"]:
                raise unknown_turn(turn_id)
            case answer:
                raise unexpected("requeue", answer)

    async def fail_job(self, job: ForeignJob, worker: str, message: str) -> None:
        """Fail a job that is not a turn, visibly in RQ's failed registry."""
        job_id = job.job_id.encode(errors="surrogateescape")
        await self.run("fail_job", job_id, job.queue, worker, message)

    async def snapshot(
        self, session_id: SessionId, start: int = 0, stop: int = -1, turns: Asked = ""
    ) -> Snapshot:
        """Read a session atomically, with one page of its history. Raises ``SessionNotFound``."""
        match await self.run("snapshot", session_id, start, stop, turns):
            case [b"OK", *found]:
                with readable("The record of a session", session_id=session_id):
                    whole = snapshot(*found)
                return open_snapshot(self.seal, session_id, whole)
            case [b"SESSION_NOT_FOUND"]:
                raise SessionNotFound(session_id=session_id)
            case answer:
                raise unexpected("snapshot", answer)

    async def turn(self, turn_id: TurnId) -> TurnRecord:
        """Read a turn. Raises ``TurnNotFound`` and ``TurnDeleted``."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.hgetall(self.keys.turn(turn_id))
        pipe.exists(self.keys.erasing)
        raw, erasing = await asked(pipe.execute())
        if not raw:
            raise unknown_turn(turn_id)
        record = turn_record(turn_id, raw, self.seal)
        for gone in await erased(self.redis, self.keys, [record]) if erasing else ():
            if gone:
                raise gone
        return record

    async def place_of(self, turn_id: TurnId) -> str:
        """Return the session of a turn, to encrypt something that belongs to it; '' if nothing is encrypted.

        Raises ``TurnNotFound``.
        """
        if not self.seal.on:
            return ""
        found: bytes | None = await asked(self.redis.hget(self.keys.turn(turn_id), "session"))
        if found is None:
            raise unknown_turn(turn_id)
        return text_of(found)

    async def keep_of(self, turn_id: TurnId) -> Keep:
        """Return what a turn's cancellation keeps in the history."""
        found: bytes | None = await asked(self.redis.hget(self.keys.turn(turn_id), "keep"))
        keep = text_of(found)
        return check_keep(keep) if keep in get_args(Keep) else "steps"

    async def session_fields(self, session_id: SessionId, *names: str) -> list[bytes | None]:
        """Return fields of a session; None for missing ones."""
        return await asked(self.redis.hmget(self.keys.session(session_id), *names))

    async def fields_of_sessions(
        self, session_ids: Sequence[SessionId], *names: str
    ) -> list[list[bytes | None] | Exception]:
        """Return fields of many sessions in one round trip, or the error for one that cannot be read."""
        redis: Any = self.redis
        return await asked(
            redis.read_many([("HMGET", self.keys.session(one), *names) for one in session_ids])
        )

    async def log(
        self, session_id: SessionId, names: tuple[str, ...], first: int, count: int
    ) -> tuple[list[bytes | None], list[tuple[int, bytes]]]:
        """Return fields of a session and its events from the seq ``first`` on, each with its seq, at one moment."""
        pipe = self.redis.pipeline(transaction=True)
        pipe.hmget(self.keys.session(session_id), *names)
        pipe.xrange(self.keys.events(session_id), f"{first}-0", "+", count=count)
        values, raw = await asked(pipe.execute())
        with readable("The log of a session", session_id=session_id):
            return values, [
                (int(entry_id.partition(b"-")[0]), fields.get(b"e", b"")) for entry_id, fields in raw
            ]

    async def place_of_turn(self, session_id: SessionId, turn_id: TurnId) -> int:
        """Return the seq before the turn's first kept event; if it has none, the seq of the session's newest event."""
        pipe = self.redis.pipeline(transaction=True)
        pipe.hmget(self.keys.turn(turn_id), "queued_seq", "first_seq", "last_seq")
        pipe.hget(self.keys.session(session_id), "seq")
        pipe.xrange(self.keys.events(session_id), count=1)
        found, newest, oldest = await asked(pipe.execute())
        queued, started, ended = (number(one) for one in found)
        if queued and oldest and number(oldest[0][0].partition(b"-")[0]) <= queued:
            return queued - 1
        begun = started or ended
        return begun - 1 if begun else number(newest)

    async def end_is_kept(self, session_id: SessionId, turn: TurnRecord) -> bool:
        """Return whether the log of the session contains the last event of an ended turn.

        It does not if it was cut after that event, or if the session was deleted, even if it was begun again.
        """
        place = f"{turn.last_seq}-0"
        found = await asked(self.redis.xrange(self.keys.events(session_id), place, place))
        return bool(found) and turn.turn_id.encode() in found[0][1].get(b"e", b"")

    async def newest_turns(
        self, session_id: SessionId, most: int = 100
    ) -> tuple[list[TurnId], list[tuple[int, TurnId]]]:
        """Return the failed turns among a session's newest ones, last first, and the delayed ones by time."""
        ids = await asked(self.redis.lrange(self.keys.turns(session_id), -most, -1))
        if not ids:
            return [], []
        names = [TurnId(text_of(turn)) for turn in ids]
        pipe = self.redis.pipeline(transaction=False)
        pipe.zmscore(self.keys.due, ids)
        for turn in names:
            pipe.hget(self.keys.turn(turn), "status")
        scores, *statuses = await asked(pipe.execute(raise_on_error=False))
        failed = [turn for turn, status in zip(names, statuses, strict=True) if status == b"failed"]
        due = [(whole(score), turn) for turn, score in zip(names, scores, strict=True) if score is not None]
        return failed[::-1], sorted(due)

    async def busy_sessions(self) -> int:
        """Return how many sessions have a turn in their inbox."""
        return await asked(self.redis.zcard(self.keys.active))

    async def server_ms(self) -> int:
        """Return the server's time in ms. Raises ``StoreError``."""
        seconds, microseconds = await asked(self.redis.time())
        return int(seconds) * 1000 + int(microseconds) // 1000

    def _submitted(self, turn: NewTurn, digest: str) -> tuple[Any, ...]:
        """Return the arguments of ``submit`` for a turn."""
        seal, place = self.seal, turn.session_id
        request, input_bytes = seal.seal_request(place, turn.request, turn.input_bytes)
        agent = seal.seal(place, "agent", turn.agent)
        named = seal.seal(place, "agent", turn.named) if turn.named else agent
        return (
            place, turn.turn_id, digest, request, turn.queue, turn.agent_queue, turn.default_queue,
            given(turn.ttl_ms), turn.inbox_limit, LIMITS.delayed_turns, LIMITS.tenant_turns, LIMITS.sessions,
            turn.if_busy, turn.due_in_ms, turn.tail, agent, named,
            seal.seal(place, "metadata", turn.metadata), turn.tenant, seal.seal(place, "key", turn.key.encode()),
            input_bytes, turn.again, "" if turn.priority == "normal" else turn.priority, given(turn.cursor),
            turn.user, LIMITS.session_users,
        )  # fmt: skip

    async def _answer_of(self, turn: NewTurn, digests: int, answer: Any) -> int | AgentError:
        """Return the answer for one turn of many. If another encryption key may explain a refusal, submit it alone."""
        try:
            if isinstance(answer, Exception):
                raise await self._named(store_error(answer)) from answer
            if self._checked("submit", answer) == [b"KEY_REUSED"] and digests > 1:
                return await self.submit(turn)
            return accepted(turn, answer)
        except AgentError as exc:
            return exc

    def _held(self, name: str, session_id: SessionId, answer: Any) -> bool:
        match answer:
            case [b"OK", *_]:
                return True
            case [b"SUPERSEDED"]:
                return False
            case [b"STOPPED", stop]:
                raise CancelledFirst(self.stop_word(session_id, stop))
            case _:
                raise unexpected(name, answer)

    def _emitted(self, one: Emit, answer: Any) -> str | Exception:
        if answer == b"":
            return ""  # nearly all answers are this one
        if isinstance(answer, Exception):
            return store_error(answer)
        return self.stop_word(one.session_id, b"" if answer is None else answer)

    def stop_word(self, session_id: str, word: Any) -> str:
        """Return a stop word, which may be an encrypted cancel reason: a turn stops even if that cannot be read."""
        if not isinstance(word, bytes):
            raise CorruptRecord("A script returned an unknown answer instead of a stop word.")
        return self.seal.reason(session_id, text_of(word))

    async def run(self, name: str, *arguments: Any) -> Any:
        """Run the script of this name in this cell, and return its answer, an outcome that its header declares.

        Raises ``StoreError``.
        """
        try:
            answer = await asked(run_script(self, name, *arguments))
        except CorruptRecord as exc:
            raise await self._named(exc) from exc
        return self._checked(name, answer)

    def _checked(self, name: str, answer: Any) -> Any:
        """Return an answer of this script. Raises ``CorruptRecord`` if its header does not declare it."""
        if not load_script(name, self.clock, self.keys.tag != "").has_outcome(answer):
            raise unexpected(name, answer)
        return answer

    async def run_for(self, word: bytes, name: str, *arguments: Any) -> list[Any]:
        """Run a script that has one outcome, and return the values after this word. Raises ``StoreError``."""
        match await self.run(name, *arguments):
            case [found, *rest] if found == word:
                return rest
            case answer:
                raise unexpected(name, answer)

    async def run_for_each(self, word: bytes, name: str, count: int, *arguments: Any) -> list[Any]:
        """Run a script that has one outcome: a list of ``count`` answers. Raises ``StoreError``."""
        match await self.run_for(word, name, *arguments):
            case [[*found]] if len(found) == count:
                return found
            case _:
                raise unexpected(name, [word])

    async def run_held(self, word: bytes, name: str, *arguments: Any) -> bool:
        """Run a script that writes under a fence. Returns False if another one is in force. Raises ``StoreError``."""
        match await self.run(name, *arguments):
            case [b"SUPERSEDED"]:
                return False
            case [found, *_] if found == word:
                return True
            case answer:
                raise unexpected(name, answer)

    async def _named(self, error: StoreError) -> StoreError:
        """Return the error of a damaged key that all sessions share, or ``error`` if none is found."""
        damage = isinstance(error, CorruptRecord) and await named_damage(self.redis, self.keys)
        return damage or error
