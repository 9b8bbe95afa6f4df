"""A world to run schedules in: one Redis, its model and its clock. Each method is one script or one tool's act.

A method gives the answer; it has been compared with the model's, and everything in Redis with the promises.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from redis import Redis
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from antiphon.errors import CorruptRecord, KeyReused, SessionBusy, SessionNotFound, UsageError
from antiphon.input.ids import SessionId, TurnId
from antiphon.wire.cell import Cell, ClaimedTurn, Claims, Emit
from antiphon.wire.editing import delete_session
from antiphon.wire.scripts import HASH_LIVES_ON_MS
from simulation.checks import KEEP_EVENTS, Broken, Checks, require
from simulation.direct import DirectRedis, run
from simulation.model import ENDED, RQ_STATUS, Model
from simulation.state import State, answer_to, look_command, read_state

__all__ = ["CRASH_LIMIT", "LEASE_MS", "QUEUES", "World"]

START_MS = 4_000_000_000_000  # far in the future: RQ's own cleaning goes by the real clock
LEASE_MS = 10_000
CRASH_LIMIT = 3
QUEUES = ["antiphon", "other"]
CLOCK = "ant:test_clock"


class World:
    """Empties its Redis. ``log`` is the schedule as a person reads it."""

    def __init__(self, url: str, timeout: float = 20) -> None:
        self.redis = DirectRedis(url, timeout)
        self.rq_redis = Redis.from_url(url)
        self.cell = Cell(self.redis, clock="test_clock")  # pyright: ignore[reportArgumentType]
        self.reset()

    def reset(self) -> None:
        self.model = Model()
        self.checks = Checks(self.model)
        self.state = State()
        self.log: list[str] = []
        self.workers: dict[str, None] = {}
        self.damaged: dict[str, bytes] = {}  # what stood in the field of a turn
        self.marks = itertools.count(1)
        self.ways: set[tuple[str, str]] = set()  # which status became which
        self.redis.calls([("FLUSHDB",), ("SET", CLOCK, START_MS, "EX", 3600)])
        self.model.now = START_MS

    def close(self) -> None:
        self.redis.close()
        self.rq_redis.close()

    # after every step

    def note(self, text: str) -> None:
        self.log.append(f"{self.model.now - START_MS:>8} ms  {text}")

    def _next_look(self, session: str = "", turn: str = "", queue: str = "") -> tuple[Any, ...]:
        """The look that goes along with the next call, whatever that may bring into being."""
        sessions = self.checks.next_seqs()
        turns = {known.id: known.queue for known in self.model.turns.values()}
        if session:
            sessions.setdefault(session, 1)
            turns.setdefault(turn, queue)
        self.redis.seen = None
        self.redis.next_look = look_command(sessions, turns, list(self.workers), QUEUES)
        return self.redis.next_look

    def look(self) -> None:
        """Compare everything in Redis with what must be there."""
        command, found = self.redis.next_look, self.redis.seen
        assert command is not None
        if found is None or isinstance(found, Exception):
            found = answer_to(self.redis, command)
        self.redis.next_look = self.redis.seen = None
        before, self.state = self.state, read_state(command, found)
        self.checks.check(self.state)
        for name, turn in self.state.turns.items():
            old = before.turns[name].status if name in before.turns else "[*]"
            if old != turn.status:
                self.ways.add((old, turn.status))

    def _done(self, what: str, answer: Any, expected: Any) -> Any:
        self.note(f"{what} -> {answer!r}")
        require(answer == expected, f"the answer of {what}", answer, expected)
        self.checks.touched_by_rq -= self.model.viewed
        self.model.viewed.clear()
        self.look()
        return answer

    # time

    def wait(self, ms: int) -> None:
        self.redis.call("INCRBY", CLOCK, ms)
        self.model.now += ms
        self.note(f"{ms} ms pass")

    def jump(self, ms: int) -> None:
        """The server's clock is put forward, or back, just after one of the reapers has looked, as they always do."""
        self.reap()
        self.wait(ms)
        self.model.slipped += max(0, -ms)
        self.note(f"the clock was put {'back' if ms < 0 else 'forward'}")

    # what becomes of a session

    def end_life(self, session: str) -> None:
        """Nobody uses a session that came out of an archive for its `ttl`, while no worker is there to save it."""
        known = self.model.sessions[session]
        if known.inbox or not known.seq or self.model.delayed(known):
            return
        keys = [f"ant:{kind}:{session}" for kind in ("history", "events", "turns")]
        record = f"ant:session:{session}"
        self._next_look()
        self.redis.call("HSET", record, "restored", "1")
        self.redis.calls([("DEL", *keys), ("PEXPIRE", record, HASH_LIVES_ON_MS // 2)])
        known.kept = "1"
        self.model.end_life(known)
        self._done(f"the life of {session} is over", None, None)

    def delete(self, session: str) -> None:
        known = self.model.sessions[session]
        ended = [(turn.id, turn.run) for turn in self.model.delayed(known)]
        self._next_look()
        answer: Any = run(delete_session(self.cell, SessionId(session)))
        expected = self.model.delete(known)
        if not isinstance(expected, str):
            self.checks.forget(session, ended)
        self._done(f"delete {session}", getattr(answer, "turn_id", answer), expected)

    def damage(self, turn: str, field: str, junk: str) -> None:
        """A field of a turn that nobody runs gets a value that is none."""
        known = self.model.turns[turn]
        head = known.session.inbox[:1] == [known] and not known.session.fence
        if known.damaged or not (head or known.status == "delayed"):
            return
        record = f"ant:turn:{turn}"
        self.damaged[turn] = self.redis.call("HGET", record, field)
        self._next_look()
        self.redis.call("HSET", record, field, junk)
        known.damaged = field
        self._done(f"{field} of {turn} becomes {junk!r}", None, None)

    def mend(self, turn: str) -> None:
        known = self.model.turns[turn]
        self._next_look()
        self.redis.call("HSET", f"ant:turn:{turn}", known.damaged, self.damaged.pop(turn))
        known.damaged = ""
        self._done(f"{turn} is mended", None, None)

    def forget_scripts(self) -> None:
        self.redis.call("SCRIPT", "FLUSH")
        self.note("SCRIPT FLUSH")

    # clients

    def submit(
        self, session: str, turn: str, queue: str, due_in_ms: int = 0, *, reject: bool = False
    ) -> None:
        self._next_look(session, turn, queue)
        try:
            answer: Any = run(self._submit(SessionId(session), TurnId(turn), queue, due_in_ms, reject))
        except (KeyReused, SessionBusy) as exc:
            answer = type(exc).__name__
        expected = self.model.submit(session, turn, queue, due_in_ms, reject)
        self._done(f"submit {session} {turn} due in {due_in_ms} ms", answer, expected)

    def _submit(
        self, session: SessionId, turn: TurnId, queue: str, due_in_ms: int, reject: bool
    ) -> Coroutine[Any, Any, int]:
        request, options = turn.encode(), {"due_in_ms": due_in_ms, "reject_if_busy": reject}
        return self.cell.submit(session, turn, request, digest=session, queue=queue, **options)

    def cancel(self, turn: str, reason: str) -> None:
        self._next_look()
        answer = run(self.cell.cancel(TurnId(turn), reason, keep_events=KEEP_EVENTS))
        self._done(f"cancel {turn}", answer, self.model.cancel(self.model.turns[turn], reason))

    def snapshot(self, session: str) -> None:
        known = self.model.sessions[session]
        self._next_look()
        try:
            found = run(self.cell.snapshot(SessionId(session)))
        except SessionNotFound:
            gone = known.over or not (known.seq or self.model.delayed(known))
            self._done(f"snapshot {session}", "SessionNotFound", "SessionNotFound" if gone else known)
            return
        answer = (found.history, found.inbox, found.cursor, found.turn_id)
        inbox = [turn.id for turn in known.inbox]
        begun = self.state.sessions[session].first_seq
        place = (begun - 1, inbox[0]) if begun else (known.seq, None)
        self._done(f"snapshot {session}", answer, (known.history, inbox, *place))

    # workers

    def claim(self, worker: str, token: str, limit: int, only: str = "") -> Claims:
        self.workers[worker] = None
        repeated = self.model.tokens.get(worker) == token
        self._next_look()
        claims = run(self.cell.claim(worker, token, lease_ms=LEASE_MS, limit=limit, queues=QUEUES, only=only))
        expected = self.model.claim(worker, token, LEASE_MS, limit, only, QUEUES)
        answer = [turn.turn_id for turn in claims.turns], [str(turn) for turn in claims.alone]
        if repeated:
            for names in (*answer, *expected):
                names.sort()
        self._done(f"{worker} claims {limit} {only} ({token})", answer, expected)
        for turn in claims.turns:
            known = self.model.turns[turn.turn_id]
            loaded = (turn.journal, turn.history, turn.stop, turn.attempt, turn.fence)
            session = known.session
            expected_load = (known.journal, session.history, session.stop, known.attempt, session.fence)
            require(loaded == expected_load, "G6 a claim loads all that was done", loaded, expected_load)
        return claims

    def renew(self, worker: str, turns: Sequence[ClaimedTurn]) -> list[str]:
        leases = [(turn.session_id, turn.fence) for turn in turns]
        self._next_look()
        answer = run(self.cell.renew(worker, leases, lease_ms=LEASE_MS))
        names = [f"{turn.turn_id}/{turn.fence}" for turn in turns]
        return self._done(f"{worker} renews {names}", answer, self.model.renew(leases, LEASE_MS))

    def emit(self, windows: Sequence[tuple[ClaimedTurn, int, Sequence[int]]]) -> list[str]:
        """Windows of several sessions in one call, each with its batch and the marks of its events."""
        emits = [
            Emit(turn.session_id, turn.fence, batch, [self._body("text_delta", turn, mark) for mark in marks])
            for turn, batch, marks in windows
        ]
        self._next_look()
        answer = run(self.cell.emit(emits))
        expected = [
            self.model.emit(self.model.turns[turn.turn_id], turn.fence, batch, marks)
            for turn, batch, marks in windows
        ]
        shown = [f"{turn.turn_id}/{turn.fence} batch {batch} {list(marks)}" for turn, batch, marks in windows]
        return self._done(f"emit {', '.join(shown)}", answer, expected)

    def append_step(self, turn: ClaimedTurn, length: int, entries: Sequence[bytes], mark: int) -> str:
        bodies = [self._body("step_finished", turn, mark)]
        self._next_look()
        try:
            answer = run(
                self.cell.append_step(turn, length=length, step=length + 1, entries=entries, bodies=bodies)
            )
        except CorruptRecord:
            answer = "CONFLICT"
        known = self.model.turns[turn.turn_id]
        expected = self.model.append_step(known, turn.fence, length, entries, mark)
        what = f"append_step {turn.turn_id}/{turn.fence} at {length} {list(entries)}"
        return self._done(what, answer, expected)

    def finish(self, turn: ClaimedTurn, status: str, messages: Sequence[bytes]) -> bool:
        body = self._body(f"turn_{status}", turn, 0)
        self._next_look()
        answer = run(
            self.cell.finish(turn, status, messages=messages, bodies=[body], keep_events=KEEP_EVENTS)
        )
        expected = self.model.finish(self.model.turns[turn.turn_id], turn.fence, status, messages)
        return self._done(f"finish {turn.turn_id}/{turn.fence} {status}", answer, expected)

    def give_back(self, turn: ClaimedTurn, cause: str, delay_ms: int) -> bool:
        self._next_look()
        answer = run(self.cell.give_back(turn, cause, delay_ms=delay_ms, reason="it broke", code="provider"))
        expected = self.model.give_back(self.model.turns[turn.turn_id], turn.fence, cause, delay_ms)
        return self._done(f"give_back {turn.turn_id}/{turn.fence} {cause} {delay_ms} ms", answer, expected)

    def _body(self, kind: str, turn: ClaimedTurn, mark: int) -> bytes:
        return json.dumps({"type": kind, "turn_id": turn.turn_id, "run": turn.run, "mark": mark}).encode()

    # reapers

    def reap(self, holder: str = "", limit: int = 100) -> None:
        self._next_look()
        reaped = run(
            self.cell.reap(
                holder=holder, limit=limit, crash_limit=CRASH_LIMIT, keep_events=KEEP_EVENTS, queues=QUEUES
            )
        )
        answer = [(str(one.session_id), str(one.turn_id), one.what) for one in reaped]
        if holder:
            expected = self.model.reap_holder(holder, list(self.state.held.get(holder, {})), CRASH_LIMIT)
        else:
            answer = [act for act in answer if not self._corrected(*act)]
            expected = self.model.reap(limit, CRASH_LIMIT)
        self._done(f"reap {holder} limit {limit}", answer, expected)

    def _corrected(self, _: str, name: str, what: str) -> bool:
        """Whether the reaper has put right what RQ said of a turn that had ended: only where RQ's tools were at it."""
        if what != "corrected":
            return False
        turn = self.model.turns[name]
        require(
            turn.status in ENDED and name in self.checks.touched_by_rq, "only RQ's word is corrected", name
        )
        self.model.rq[name] = RQ_STATUS[turn.status]
        return True

    # RQ's tools, and what else happens to RQ's keys

    def rq_act(self, what: str, turn: str, queue: str) -> None:
        """One act of RQ's own code. Afterwards the model believes what it sees of RQ's keys."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self._rq_acts()[what](turn, queue)
            except (NoSuchJobError, InvalidJobOperation, UsageError) as exc:
                self.note(f"RQ: {what} {turn} {queue} -> {exc!r}")
                return
        self.note(f"RQ: {what} {turn} {queue}")
        command = self._next_look()
        before, after = self.state, read_state(command, answer_to(self.redis, command))
        for name, found in after.turns.items():
            old = before.turns.get(name)
            if old is None or (old.rq_status, old.registries) != (found.rq_status, found.registries):
                self.checks.touched_by_rq.add(name)
                self.model.rq[name] = found.rq_status
        for name, entries in after.queues.items():
            self.model.queues[name][:] = entries
        self.look()

    def _rq_acts(self) -> dict[str, Callable[[str, str], Any]]:
        return {
            "empty": lambda _, queue: self._queue(queue).empty(),
            "cancel": lambda turn, _: self._job(turn).cancel(),
            "delete": lambda turn, _: self._job(turn).delete(),
            "requeue": lambda turn, _: self._failed(turn).requeue(turn),
            "our requeue": lambda turn, _: run(self.cell.requeue(TurnId(turn))),
            "push": lambda turn, queue: self.rq_redis.rpush(f"rq:queue:{queue}", turn),
            "remove": lambda turn, queue: self._queue(queue).remove(turn),
            "take and die": lambda _, queue: self.rq_redis.lmove(
                f"rq:queue:{queue}", f"rq:queue:{queue}:intermediate"
            ),
        }

    def _queue(self, name: str) -> Queue:
        return Queue(name, connection=self.rq_redis, serializer=JSONSerializer)

    def _job(self, turn: str) -> Job:
        return Job.fetch(turn, connection=self.rq_redis, serializer=JSONSerializer)

    def _failed(self, turn: str) -> FailedJobRegistry:
        name = self.model.turns[turn].queue
        return FailedJobRegistry(name, connection=self.rq_redis, serializer=JSONSerializer)

    # the end

    def settle(self) -> None:
        """Nothing more breaks: every turn must reach its end, and leave nothing behind."""
        for turn in [*self.damaged]:
            self.mend(turn)
        for round_number in range(30):
            failed = [
                t
                for t in self.model.turns.values()
                if t.status == "failed" and self.model.rq[t.id] == "queued"
            ]
            open_turns = [turn for turn in self.model.turns.values() if turn.status not in ENDED]
            if not open_turns and not any(turn.id in self.model.queues[turn.queue] for turn in failed):
                break
            self.wait(60_000)
            self.reap()
            self._finish_all(f"settler{round_number}")
        else:
            raise Broken(f"G1 turns that never end: {[(turn.id, turn.status) for turn in open_turns]}")
        self.reap()
        self._check_keys()

    def _finish_all(self, worker: str) -> None:
        claims = self.claim(worker, f"{worker}-all", 100)
        turns = [*claims.turns]
        for number, only in enumerate(claims.alone):
            turns += self.claim(worker, f"{worker}-{number}", 1, only=only).turns
        for turn in turns:
            status = "cancelled" if turn.stop else "finished"
            self.finish(turn, status, [*turn.journal, f"{turn.turn_id}/{turn.run}".encode()])

    def _check_keys(self) -> None:
        """G7 of the last resort: no key of ours stays for ever but those that are made to."""
        from antiphon.wire.keys import needs_ttl

        keys = self.redis.call("KEYS", "ant:*")
        lives = self.redis.calls([("PTTL", key) for key in keys])
        names = [key.decode() for key, life in zip(keys, lives, strict=True) if life == -1]
        require(not self.state.quarantined, "nothing stays set aside", self.state.quarantined)
        require(not [n for n in names if needs_ttl(n)], "no key is left without its life", names)
        require(
            not [n for n in names if n.startswith(("ant:inbox:", "ant:journal:"))], "nothing is left", names
        )
        for queue in QUEUES:
            require(not self.redis.call("ZCARD", f"rq:wip:{queue}"), "nothing is left started", queue)
