"""A world to run schedules in: one Redis, its model and its clock. Each method is one script or one tool's act.

A method gives the answer; it has been compared with the model's, and everything in Redis with the promises.
"""

from __future__ import annotations

import gc
import itertools
import json
import warnings
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias

from redis import Redis
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from antiphon.errors import (
    CorruptRecord,
    KeyReused,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    TenantLimit,
    TurnDeleted,
    UsageError,
)
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.values import IfBusy, Keep, Priority
from antiphon.model import Decision, DecisionKind, OpenCall, Usage, encode
from antiphon.redis.fields import FORKED_FIELDS
from antiphon.wire.cell import Cell
from antiphon.wire.editing import (
    Change,
    FieldChange,
    Moment,
    Part,
    change_session,
    delete_session,
    erase_turns,
    fork_session,
)
from antiphon.wire.errors import CancelledFirst
from antiphon.wire.lists.notices import follow
from antiphon.wire.records import ClaimedTurn, Claims, Emit
from antiphon.wire.scripts import HASH_LIVES_ON_MS
from antiphon.wire.suspension import decisions_of, suspend
from simulation.beside import Beside
from simulation.checks import KEEP_EVENTS, Broken, Checks, require
from simulation.direct import Command, DirectRedis, Look, run
from simulation.hooks import Hooks
from simulation.model import ENDED, RQ_STATUS, Call, Model, Session
from simulation.readers import Readers
from simulation.shares import LIMITS
from simulation.state import REGISTRIES, State, tokens
from simulation.twin import TwinCell

START_MS = 4_000_000_000_000  # far in the future: RQ's own cleaning goes by the real clock
LEASE_MS = 10_000
CRASH_LIMIT = 3
LONGEST_WAIT_MS = 25 * 3600_000  # of the calls that the schedules suspend
QUEUES = ["antiphon", "other"]
CLOCK = "ant:test_clock"
SESSION_EVENT = b'{"type":"%s","turn_id":"","run":0}'
Calls: TypeAlias = Literal["", "told", "untold"]


def used(turn: ClaimedTurn, steps: int) -> Usage:
    """What its session has used with this run: one token for each entry of the journal."""
    return Usage(tokens(turn.usage) + steps, 0)


class World:
    """Empties its Redis. ``log`` is the schedule as a person reads it."""

    def __init__(self, url: str, timeout: float = 20, *, twin: bool = False) -> None:
        gc.set_threshold(50_000)  # a schedule makes much and drops it at its end
        self.redis = DirectRedis(url, timeout)
        self.rq_redis = Redis.from_url(url)
        self.cell = (
            TwinCell(self.redis, lambda: self.model.now) if twin else Cell(self.redis, clock="test_clock")  # pyright: ignore[reportArgumentType]
        )
        self.reset()

    def reset(self) -> None:
        self.model = Model()
        self.checks = Checks(self.model)
        self.beside, self.hooks, self.readers = Beside(self), Hooks(self), Readers(self)
        self.model.also_moved = self.hooks.move_back
        self.executions: set[tuple[str, str]] = set()  # of RQ's own workers
        self.state = State()
        self.log: list[str] = []
        self.damaged: dict[str, bytes] = {}  # what stood in the field of a turn
        self.marks, self._deletions = itertools.count(1), itertools.count()
        self.redis.due = None
        self._settling = False
        self.redis.calls([("FLUSHDB",), ("SET", CLOCK, START_MS, "EX", 3600)])
        for tenant, limits in LIMITS.items():
            for name, number in limits.items():
                self.redis.call("HSET", "ant:limits", f"{name}:{tenant}", number)
        self.model.now = START_MS
        self.noticed = run(follow(self.cell, 3_600_000))
        self.redis.changed.clear()
        if isinstance(self.cell, TwinCell):
            self.cell.reset()

    def close(self) -> None:
        self.redis.close()
        self.rq_redis.close()

    # after every step

    def note(self, text: str) -> None:
        self.log.append(f"{self.model.now - START_MS:>8} ms  {text}")

    def look(self) -> None:
        """Compare what has changed in Redis with what must be there, together with the next call."""
        if not self._settling:
            self.redis.due = Look(self._reading(), self._seen)

    def _reading(self) -> list[Command]:
        changed, self.redis.changed = self.redis.changed, set()
        return self.state.commands(changed, self.checks.next_seqs())

    def _seen(self, answers: list[Any]) -> None:
        self.state.take(answers)
        self.checks.check(self.state, self.executions)
        self.beside.check(self.state)
        self.hooks.check(self.state)
        self.readers.hear(self.state)

    def check_now(self) -> None:
        """What the last call has left behind, before something else happens than a call."""
        self.redis.call("PING")

    def done(self, what: str, answer: Any, expected: Any) -> Any:
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
        self.beside.clock_jumped()
        self.hooks.clock_jumped(ms)
        self.note(f"the clock was put {'back' if ms < 0 else 'forward'}")

    # what becomes of a session

    def end_life(self, session: str) -> None:
        """Nobody uses a session that came out of an archive for its `ttl`, while no worker is there to save it."""
        known = self.model.sessions[session]
        if known.inbox or not known.seq or known.deleted or self.model.outside(known):
            return
        keys = [f"ant:{kind}:{session}" for kind in ("history", "events", "turns")]
        record = f"ant:session:{session}"
        self.redis.call("HSET", record, "restored", "1")
        self.redis.calls([("DEL", *keys), ("PEXPIRE", record, HASH_LIVES_ON_MS // 2)])
        known.kept = "1"
        self.model.end_life(known)
        self.done(f"the life of {session} is over", None, None)

    def delete(self, session: str) -> None:
        """Every second caller dies before it has searched all keys for turns that the session does not list."""
        known = self.model.sessions[session]
        dies = not isinstance(self.cell, TwinCell) and next(self._deletions) % 2 == 0
        ended = [(turn.id, turn.run) for turn in self.model.outside(known)]
        answer: Any = run(
            self.cell.run("editing/delete", session, "")
            if dies
            else delete_session(self.cell, SessionId(session))
        )
        if dies:
            answer = bool(answer[1]) if answer[0] == b"DELETED" else TurnId(answer[1].decode())
        listed = {turn.id for turn in known.listed}
        expected = self.model.delete(known)
        if not isinstance(expected, str):
            self._doom(known)
            erased = self._see_what_is_erased()
            require(listed <= erased, "G15 what a deleted session lists is erased", listed - erased)
            self.checks.forget(known, ended)
            self.beside.forget(session)
            self.readers.say(session, b"")
        self.done(f"delete {session}", getattr(answer, "turn_id", answer), expected)

    def _doom(self, session: Session) -> None:
        """What the turns of a deleted session have said is to be erased, whether it lists them or not."""
        for turn in self.model.turns.values():
            if turn.session is session and not turn.deleted and turn.created < self.model.now:
                turn.doomed = True

    def _see_what_is_erased(self) -> set[str]:
        """Tell the model of the turns that are erased now: those alone that were to be."""
        found = {
            name for name in self.model.turns if self.redis.call("HEXISTS", f"ant:turn:{name}", "deleted")
        }
        for turn in [self.model.turns[name] for name in found]:
            if turn.deleted:
                continue
            require(turn.status in ENDED, "only turns that have ended are erased", turn.id)
            require(turn.doomed or turn.created == self.model.now, "only turns of deleted sessions", turn.id)
            left = self.redis.call("EXISTS", f"rq:job:{turn.id}", f"rq:results:{turn.id}")
            require(not left, "G15 RQ's records", turn.id)
            self.model.erase(turn)
            self.damaged.pop(turn.id, None)
        return found

    def complete_deletions(self) -> None:
        """A worker searches all keys where the time has come."""
        if isinstance(self.cell, TwinCell) or run(erase_turns(self.cell, if_due=True)) is None:
            return
        self._see_what_is_erased()
        left = [turn.id for turn in self.model.turns.values() if turn.doomed and turn.status in ENDED]
        require(not left, "G15 what was said in a deleted session is erased by a search", left)
        self.note("a worker has searched for turns of deleted sessions")

    def damage(self, turn: str, field: str, junk: str) -> None:
        """A field of a turn that nobody runs gets a value that is none."""
        known = self.model.turns[turn]
        head = known.session.inbox[:1] == [known] and not known.session.fence
        if known.damaged or not (head or known.status == "delayed" or known.aside is not None):
            return
        record = f"ant:turn:{turn}"
        self.damaged[turn] = self.redis.call("HGET", record, field)
        self.redis.call("HSET", record, field, junk)
        known.damaged = field
        self.done(f"{field} of {turn} becomes {junk!r}", None, None)

    def mend(self, turn: str) -> None:
        known = self.model.turns[turn]
        self.redis.call("HSET", f"ant:turn:{turn}", known.damaged, self.damaged.pop(turn))
        known.damaged = ""
        self.done(f"{turn} is mended", None, None)

    def outage(self, key: str) -> None:
        """A key that all sessions share is damaged while somebody needs it: the call names it, and changes nothing."""
        calls: dict[str, Callable[[], Any]] = {
            "ant:active": lambda: self.cell.reap(
                crash_limit=CRASH_LIMIT, keep_events=KEEP_EVENTS, queues=QUEUES
            ),
            "ant:clock": lambda: self.cell.reap(
                crash_limit=CRASH_LIMIT, keep_events=KEEP_EVENTS, queues=QUEUES
            ),
            "ant:fence": lambda: self.cell.claim(
                "w9.1", "outage", lease_ms=LEASE_MS, limit=1, queues=QUEUES[:1]
            ),
        }
        first = self.model.turns.get(next(iter(self.model.queues[QUEUES[0]]), ""))
        if key == "ant:fence" and not (first and self.model.is_ready(first)):
            return  # a claim would take entries out of the queue that lead to no turn
        before = self.redis.call("DUMP", key)
        self.redis.calls([("DEL", key), ("HSET", key, "x", "y")])
        said = ""
        try:
            run(calls[key]())
        except CorruptRecord as exc:
            said = exc.message
        self.redis.call("DEL", key)
        if before is not None:
            self.redis.call("RESTORE", key, 0, before)
        self.done(f"{key} is damaged while a worker needs it", key in said, True)

    def forget_scripts(self) -> None:
        self.redis.call("SCRIPT", "FLUSH")
        self.note("SCRIPT FLUSH")

    # clients

    def submit(
        self,
        session: str,
        turn: str,
        queue: str,
        due_in_ms: int = 0,
        *,
        busy: IfBusy = "enqueue",
        again: str = "",
        tenant: str = "",
        priority: Priority = "normal",
    ) -> int | str:
        options = {"due_in_ms": due_in_ms, "if_busy": busy, "again": again}
        options |= {"tenant": tenant, "priority": priority}
        try:
            answer: Any = run(self._submit(SessionId(session), TurnId(turn), queue, **options))
        except TenantLimit as exc:
            answer = exc.limit
        except (KeyReused, SessionBusy, TurnDeleted) as exc:
            answer = type(exc).__name__
        before = [known for known in self.model.turns.values() if not known.cancel]
        expected = self.model.submit(session, turn, queue, due_in_ms, busy, again, tenant, priority)
        self.checks.asked_to_stop |= {(known.id, known.run) for known in before if known.cancel}
        whose = f"{tenant} {priority}" if tenant or priority != "normal" else ""
        return self.done(
            f"submit {session} {turn} due in {due_in_ms} ms {busy} {again}{whose}", answer, expected
        )

    def _submit(
        self, session: SessionId, turn: TurnId, queue: str, **options: Any
    ) -> Coroutine[Any, Any, int]:
        return self.cell.submit(session, turn, turn.encode(), digest=session, queue=queue, **options)

    def requeue(self, turn: str, again: str) -> None:
        known = self.model.turns[turn]
        answer = run(self.cell.run("requeue", turn, again))[-1].decode()
        self.done(f"requeue {turn} {again}", answer, self.model.run_again(known, again))

    def cancel(self, turn: str, reason: str, keep: Keep = "steps") -> None:
        answer = run(self.cell.cancel(TurnId(turn), reason, keep, keep_events=KEEP_EVENTS))
        expected = self.model.cancel(self.model.turns[turn], reason, keep)
        if answer in ("cancelled", "requested"):
            self.checks.asked_to_stop.add((turn, self.model.turns[turn].run))
        self.done(f"cancel {turn} and keep {keep}", answer, expected)

    def rewind(self, session: str, op: str, when: Moment, keep: int, *, changed: bool = False) -> None:
        """Cut a history. With ``changed`` it is another one than the client has read."""
        known = self.model.sessions[session]
        seq = str(known.seq).encode()
        change = Change([FieldChange("seq", seq, seq)], len(known.history) + changed, keep)
        change.bodies = [SESSION_EVENT % b"history_rewound"]
        answer: Any = run(change_session(self.cell, SessionId(session), op, change, when=when, ttl_ms=60_000))
        expected = self.model.rewind(known, when, keep, changed=changed)
        self.done(f"rewind {session} to {keep} ({when})", getattr(answer, "turn_id", answer), expected)

    def fork(self, session: str, fork: str, op: str, keep: int, *, changed: bool = False) -> None:
        known = self.model.sessions[session]
        part = Part(keep, f"m{keep}", b"another" if changed or not keep else known.history[keep - 1])
        copied = fork_session(
            self.cell, SessionId(session), SessionId(fork), op, part, ttl_ms=60_000,
            body=SESSION_EVENT % b"session_forked", branch=b'"f":""', fields=FORKED_FIELDS,
        )  # fmt: skip
        try:
            answer: Any = run(copied)
        except SessionExists:
            answer = "SessionExists"
        expected = self.model.fork(known, fork, keep, changed=changed)
        self.done(f"fork {session} to {fork} at {keep}", answer, expected)

    def snapshot(self, session: str) -> None:
        known = self.model.sessions[session]
        try:
            found = run(self.cell.snapshot(SessionId(session), turns="pending failed"))
        except SessionNotFound:
            gone = known.over or not self.model.exists(known)
            self.done(f"snapshot {session}", "SessionNotFound", "SessionNotFound" if gone else known)
            return
        answer = (found.history, found.inbox, found.cursor, found.turn_id)
        inbox = [turn.id for turn in known.inbox]
        begun = self.state.first_seq(session)
        place = (begun - 1, inbox[0]) if begun else (known.seq, None)
        self.done(f"snapshot {session}", answer, (known.history, inbox, *place))
        shown = [one.turn_id for one in found.turns]
        left = [turn for turn in known.listed if turn.place is not None]
        asked = [*left, *known.inbox, *self.model.outside(known)]
        readable = [turn.id for turn in asked if not turn.damaged]
        damaged = {turn.id for turn in asked if turn.damaged}
        shown = [name for name in shown if name not in damaged]
        require(shown == readable, "what is accepted can be read", shown, readable)
        require(found.order == [turn.id for turn in known.listed], "turns are listed", found.order)

    # workers

    def claim(
        self, worker: str, token: str, limit: int, alone_limit: int, only: str = "", app: str = ""
    ) -> Claims:
        repeated = self.model.tokens.get(worker) == token
        listed = bool(only) and self._lists_failure(only)
        claims = run(
            self.cell.claim(
                worker,
                token,
                lease_ms=LEASE_MS,
                limit=limit,
                alone_limit=alone_limit,
                queues=QUEUES,
                only=only,
                app=app,
            )
        )
        expected = self.model.claim(
            worker, token, LEASE_MS, limit, alone_limit, only, QUEUES, app, listed=listed
        )
        answer = [turn.turn_id for turn in claims.turns], [str(turn) for turn in claims.alone]
        if repeated:
            for names in (*answer, *expected):
                names.sort()
        self.done(f"{worker} claims {limit}, {alone_limit} alone {only} ({token})", answer, expected)
        for turn in claims.turns:
            known = self.model.turns[turn.turn_id]
            loaded = (
                turn.journal, turn.history, turn.stop, turn.attempt, turn.fence, turn.untold, turn.steered,
                tokens(turn.usage), turn.lacking,
                [(one.call_id, one.kind) for one in decisions_of(turn.decisions, turn.turn_id)],
            )  # fmt: skip
            session = known.session
            expected_load = (
                known.journal, session.history, session.stop, known.attempt, session.fence, session.untold,
                session.steer == known.id, session.usage, known.lacking, known.decisions,
            )  # fmt: skip
            require(loaded == expected_load, "G6 a claim loads all that was done", loaded, expected_load)
        return claims

    def _lists_failure(self, turn: str) -> bool:
        """Whether RQ does. Its tools may have changed that."""
        registry = f"rq:failed:{self.model.turns[turn].queue}"
        return self.redis.call("ZSCORE", registry, turn) is not None

    def renew(self, worker: str, turns: Sequence[ClaimedTurn]) -> list[str]:
        leases = [(turn.session_id, turn.fence) for turn in turns]
        answer = run(self.cell.renew(worker, leases, lease_ms=LEASE_MS))
        names = [f"{turn.turn_id}/{turn.fence}" for turn in turns]
        return self.done(f"{worker} renews {names}", answer, self.model.renew(leases, LEASE_MS))

    def emit(self, windows: Sequence[tuple[ClaimedTurn, int, Sequence[int]]]) -> list[str]:
        """Windows of several sessions in one call, each with its batch and the marks of its events."""
        emits = [
            Emit(turn.session_id, turn.fence, batch, [self._body("text_delta", turn, mark) for mark in marks])
            for turn, batch, marks in windows
        ]
        answer = run(self.cell.emit(emits))
        expected = [
            self.model.emit(self.model.turns[turn.turn_id], turn.fence, batch, marks)
            for turn, batch, marks in windows
        ]
        shown = [f"{turn.turn_id}/{turn.fence} batch {batch} {list(marks)}" for turn, batch, marks in windows]
        return self.done(f"emit {', '.join(shown)}", answer, expected)

    def append_step(self, turn: ClaimedTurn, length: int, entries: Sequence[bytes], mark: int) -> str:
        bodies, usage = [self._body("step_finished", turn, mark)], used(turn, length + len(entries))
        try:
            answer = run(
                self.cell.append_step(
                    turn, length=length, step=length + 1, entries=entries, bodies=bodies, usage=encode(usage)
                )
            )
        except CorruptRecord:
            answer = "CONFLICT"
        known = self.model.turns[turn.turn_id]
        expected = self.model.append_step(known, turn.fence, length, entries, mark, usage.input_tokens)
        what = f"append_step {turn.turn_id}/{turn.fence} at {length} {list(entries)}"
        return self.done(what, answer, expected)

    def steer(self, turn: ClaimedTurn, length: int) -> tuple[str, list[bytes]]:
        try:
            answer = run(self.cell.steer(turn, length=length, step=length + 1, keep_events=KEEP_EVENTS))
        except CorruptRecord:
            answer = "CONFLICT", []
        expected = self.model.steer(self.model.turns[turn.turn_id], turn.fence, length)
        return self.done(f"steer {turn.turn_id}/{turn.fence} at {length}", answer, expected)

    def keep_of(self, turn: ClaimedTurn) -> str:
        """What the worker that ends a cancelled turn reads."""
        return (self.redis.call("HGET", f"ant:turn:{turn.turn_id}", "keep") or b"steps").decode()

    def finish(
        self,
        turn: ClaimedTurn,
        status: str,
        messages: Sequence[bytes],
        kept: int | None = None,
        calls: Calls = "",
    ) -> bool | str:
        body = self._body(f"turn_{status}", turn, 0)
        usage = used(turn, len(self.model.turns[turn.turn_id].journal) + 1)
        ending = self.cell.finish(
            turn, status, messages=messages, bodies=[body], kept=kept, keep_events=KEEP_EVENTS, calls=calls,
            usage=encode(usage),
        )  # fmt: skip
        answer = self._unless_cancelled(ending)
        expected = self.model.finish(
            self.model.turns[turn.turn_id], turn.fence, status, messages, kept, calls, usage.input_tokens
        )
        what = f"finish {turn.turn_id}/{turn.fence} {status} behind {kept} {calls}"
        return self.done(what, answer, expected)

    def _unless_cancelled(self, ending: Coroutine[Any, Any, bool]) -> bool | str:
        try:
            return run(ending)
        except CancelledFirst:
            return "STOPPED"

    def give_back(
        self, turn: ClaimedTurn, cause: str, delay_ms: int, lacking: str = "", workers: Sequence[str] = ()
    ) -> bool | str:
        giving = self.cell.give_back(
            turn,
            cause,
            delay_ms=delay_ms,
            reason="it broke",
            code="provider",
            lacking=lacking,
            workers=workers,
        )
        answer, known = self._unless_cancelled(giving), self.model.turns[turn.turn_id]
        expected = self.model.give_back(known, turn.fence, cause, delay_ms, lacking, workers)
        what = f"give_back {turn.turn_id}/{turn.fence} {cause} {delay_ms} ms lacking {lacking!r}"
        return self.done(what, answer, expected)

    def suspend(self, turn: ClaimedTurn, calls: Sequence[OpenCall], *, aside: bool) -> str | None:
        own = len(self.model.turns[turn.turn_id].journal)
        answer = run(suspend(self.cell, turn, calls, bodies=[], aside=Usage(own, 0) if aside else None))
        opened = [
            Call(call.call_id, call.kind, call.at_limit, self.model.now + int((call.seconds or 0) * 1000))
            for call in calls
        ]
        expected = self.model.suspend(
            self.model.turns[turn.turn_id], turn.fence, opened, own if aside else None
        )
        what = f"suspend {turn.turn_id}/{turn.fence} for {[call.call_id for call in calls]} aside {aside}"
        return self.done(what, answer, expected)

    def decide(self, turn: str, call: str, op: str, kind: DecisionKind) -> None:
        known = self.model.turns[turn]
        json_text = encode(Decision(call, kind))
        word, *rest = run(self.cell.run("decide", turn, call, op, kind, json_text, KEEP_EVENTS))
        answer = (
            word.decode(),
            *(json.loads(one)["kind"] if word == b"ALREADY" else one.decode() for one in rest),
        )
        self.done(f"decide {turn} {call} {op} {kind}", answer, self.model.decide(known, call, op, kind))

    def _body(self, kind: str, turn: ClaimedTurn, mark: int) -> bytes:
        return json.dumps({"type": kind, "turn_id": turn.turn_id, "run": turn.run, "mark": mark}).encode()

    # reapers

    def reap(self, holder: str = "", limit: int = 100, *, spare: bool = False) -> None:
        reaped = run(
            self.cell.reap(
                holder=holder,
                limit=limit,
                crash_limit=CRASH_LIMIT,
                keep_events=KEEP_EVENTS,
                spare=spare,
                queues=QUEUES,
            )
        )
        answer = [(str(one.session_id), str(one.turn_id), one.what) for one in reaped]
        if holder:
            held = [name for name in self.state.at("ant:held", holder, {}) if name]
            expected = self.model.reap_holder(holder, held, CRASH_LIMIT)
        else:
            answer = [act for act in answer if not self._corrected(*act)]
            expected = self.model.reap(limit, CRASH_LIMIT, spare=spare)
        self.done(f"reap {holder} limit {limit}{' spare' * spare}", answer, expected)
        self.complete_deletions()

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
        """One act of RQ's own tools."""
        self.rq_does(f"{what} {turn} {queue}", lambda: self._rq_acts()[what](turn, queue))

    def rq_does(self, what: str, act: Callable[[], Any]) -> None:
        """RQ's own code acts. Afterwards the model believes what it sees of RQ's keys."""
        self.check_now()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                act()
            except (NoSuchJobError, InvalidJobOperation, UsageError) as exc:
                self.note(f"RQ: {what} -> {exc!r}")
                return
        self.note(f"RQ: {what}")
        before, listed = self.state.turns.copy(), self._registered()
        self.redis.call("PING")  # behind which the server has told of all that was changed
        self.state.take(self.redis.calls(self._reading()))
        after = self._registered()
        for name, found in self.state.turns.items():
            if before[name].rq_status != found.rq_status or listed[name] != after[name]:
                self.checks.touched_by_rq.add(name)
                self.model.rq[name] = found.rq_status
        for name in QUEUES:
            self.model.queues[name][:] = self.state.at("rq:queue", name, [])
        self.checks.check(self.state, self.executions)
        self.beside.check(self.state)
        self.hooks.check(self.state)
        self.readers.hear(self.state)

    def _registered(self) -> dict[str, list[bool]]:
        return {
            turn.id: [turn.id in self.state.at(f"rq:{kind}", turn.queue, {}) for kind in REGISTRIES]
            for turn in self.model.turns.values()
        }

    def _rq_acts(self) -> dict[str, Callable[[str, str], Any]]:
        return {
            "empty": lambda _, queue: self._queue(queue).empty(),
            "cancel": lambda turn, _: self._job(turn).cancel(),
            "delete": lambda turn, _: self._job(turn).delete(),
            "requeue": lambda turn, _: self._failed(turn).requeue(turn),
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
        if any(turn.status == "suspended" for turn in self.model.turns.values()):
            self.wait(LONGEST_WAIT_MS)
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
        self.check_now()
        self._check_notices()
        self.hooks.settle_all()
        self.check_now()
        self._check_keys()

    def _check_notices(self) -> None:
        """Who follows all sessions is told of each end of a run, in the order in which they were."""
        count = len(self.model.notices) + 1
        raw = self.redis.call("XRANGE", "ant:notices", f"({self.noticed}", "+", "COUNT", count)
        fields = [dict(zip(entry[::2], entry[1::2], strict=True)) for _, entry in raw]
        found = [
            (one[b"kind"].decode(), one[b"session"].decode(), one[b"turn"].decode(), int(one[b"seq"]))
            for one in fields
        ]
        require(found == self.model.notices, "G1 each end is noticed once", found, self.model.notices)

    def _finish_all(self, worker: str) -> None:
        claims = self.claim(worker, f"{worker}-all", 100, 100)
        turns = [*claims.turns]
        for number, only in enumerate(claims.alone):
            turns += self.claim(worker, f"{worker}-{number}", 1, 0, only=only).turns
        self.check_now()
        self._settling = True  # what these calls leave behind is looked at once, behind the last one
        for turn in turns:
            status = "cancelled" if turn.stop else "finished"
            self.finish(turn, status, [*turn.journal, f"{turn.turn_id}/{turn.run}".encode()])
        self._settling = False
        self.look()

    def _check_keys(self) -> None:
        """G7 of the last resort: no key of ours stays for ever but those that are made to."""
        from antiphon.wire.keys import needs_ttl

        keys = self.redis.call("KEYS", "ant:*")
        lives = self.redis.calls([("PTTL", key) for key in keys])
        names = [key.decode() for key, life in zip(keys, lives, strict=True) if life == -1]
        require(not self.model.quarantined, "nothing stays set aside", self.model.quarantined)
        require(not [n for n in names if needs_ttl(n)], "no key is left without its life", names)
        require(
            not [n for n in names if n.startswith(("ant:inbox:", "ant:journal:", "ant:tenant:"))],
            "nothing is left",
            names,
        )
        for queue in QUEUES:
            require(not self.redis.call("ZCARD", f"rq:wip:{queue}"), "nothing is left started", queue)
