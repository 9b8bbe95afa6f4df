"""A world to run schedules in: one Redis, its model and its clock. Each method is one script or one tool's act.

A method returns the answer, after comparing it with the model's, and everything in Redis with the promises.
"""

from __future__ import annotations

import gc
import itertools
import json
import warnings
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias
from zlib import crc32

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
    SessionChanged,
    SessionExists,
    SessionNotFound,
    TenantLimit,
    TurnDeleted,
    UsageError,
)
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.values import IfBusy, Keep, Priority
from antiphon.model import Decision, DecisionKind, OpenCall, Usage, Wait, encode
from antiphon.model.revisions import Promotion, Promotions
from antiphon.redis.fields import FORKED_FIELDS
from antiphon.routing import Route
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
from antiphon.wire.promotions import read_promotions
from antiphon.wire.records import ClaimedTurn, Claims, Emit, NewTurn
from antiphon.wire.revisions import begin, write_route
from antiphon.wire.scripts import HASH_LIVES_ON_MS
from antiphon.wire.suspension import place_of, suspend
from antiphon_worker.local.records import Turn
from simulation.answers import Answers
from simulation.batches import Batches
from simulation.beside import Beside
from simulation.checks import KEEP_EVENTS, Checks
from simulation.direct import Command, DirectRedis, Look, run
from simulation.families import Families
from simulation.hooks import Hooks
from simulation.model import ENDED, RQ_STATUS, Model, is_deleted, queue_of
from simulation.money import Money
from simulation.pushes import Pushes
from simulation.readers import Readers
from simulation.shares import LIMITS
from simulation.state import REGISTRIES, Broken, State, require
from simulation.twin import TwinCell
from simulation.variants import Variants

START_MS = 4_000_000_000_000  # far in the future: RQ's own cleaning uses the real clock
LEASE_MS = 10_000
CRASH_LIMIT = 3
LONGEST_WAIT_MS = 25 * 3600_000  # of the calls for which schedules suspend turns
QUEUES = ["antiphon", "other"]
EVENTS_TTLS = (None, 0, 600_000)  # of the Apps of the workers
CLOCK = "ant:test_clock"
SESSION_EVENT = b'{"type":"%s","turn_id":"","run":0}'
Calls: TypeAlias = Literal["", "told", "untold"]


def used(turn: ClaimedTurn, steps: int) -> Usage:
    """Return the usage of a session including this run: one token for each entry of the journal."""
    return Usage(json.loads(turn.usage or b"{}").get("input_tokens", 0) + steps, 0)


class World:
    """Empties its Redis. ``log`` is the schedule in readable form."""

    def __init__(self, url: str, timeout: float = 20) -> None:
        gc.set_threshold(50_000)  # a schedule creates many objects and drops them at its end
        self.redis = DirectRedis(url, timeout)
        self.rq_redis = Redis.from_url(url)
        self.cell = TwinCell(self.redis, lambda: self.model)
        self.reset()

    def reset(self) -> None:
        self.model = Model()
        self.checks = Checks(self.model)
        self.beside, self.hooks, self.readers = Beside(self), Hooks(self), Readers(self)
        self.money, self.families, self.batches = Money(self), Families(self), Batches(self)
        self.variants, self.answers, self.pushes = Variants(self), Answers(self), Pushes(self)
        self.model.also_moved = self._move_back
        self.model.order_of = lambda holder: [name for name in self.state.at("ant:held", holder, {}) if name]
        self.executions: set[tuple[str, str]] = set()  # of RQ's own workers
        self.state = State()
        self.log: list[str] = []
        self.damaged: dict[str, tuple[str, bytes]] = {}  # the damaged field of a turn, and its earlier value
        self._deleted_at: dict[str, int] = {}  # the latest time at which a session was deleted
        self._ran_on: dict[tuple[str, int], str] = {}  # the revision of each run's steps
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

    def close(self) -> None:
        self.redis.close()
        self.rq_redis.close()

    # after every step

    def note(self, text: str) -> None:
        self.log.append(f"{self.model.now - START_MS:>8} ms  {text}")

    def look(self) -> None:
        """Have the changes in Redis compared with the expected contents, together with the next call."""
        if not self._settling:
            self.redis.due = Look(self._reading(), self._seen)

    def _reading(self) -> list[Command]:
        changed, self.redis.changed = self.redis.changed, set()
        return self.state.commands(changed, self.checks.next_seqs())

    def _seen(self, answers: list[Any]) -> None:
        self.state.take(answers)
        self._check_all()

    def _check_all(self) -> None:
        self.checks.check(self.state, self.executions)
        self.beside.check(self.state)
        self.hooks.check(self.state)
        self.money.check(self.state)
        self.families.check()
        self.variants.check(self.state)
        self.pushes.check(self.state)
        self.readers.hear(self.state)

    def check_now(self) -> None:
        """Check the effects of the last call now, before something other than a call happens."""
        self.redis.call("PING")

    def done(self, what: str, answer: Any, expected: Any) -> Any:
        require(answer == expected, f"the answer of {what}", answer, expected)
        return self.did(what, answer)

    def did(self, what: str, answer: Any = None) -> Any:
        """Log a step that was compared with the model's, and look at its effects."""
        self.note(f"{what} -> {answer!r}")
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
        """Put the server's clock forward or back, just after a reaper has looked, as reapers always do."""
        self.reap()
        self.wait(ms)
        self.model.slipped += max(0, -ms)
        self.beside.clock_jumped()
        self.hooks.clock_jumped(ms)
        self.note(f"the clock was put {'back' if ms < 0 else 'forward'}")

    def _move_back(self, moved: Callable[[float], float]) -> None:
        """Move the times of webhooks and pushes after a reaper has noticed that the clock was put back."""
        self.hooks.move_back(moved)
        self.pushes.move_back(moved)

    # expiry, deletion and damage

    def end_life(self, session: str) -> None:
        """Expire a restored session that was unused for its `ttl`, while no worker could save it."""
        known = self.model.sessions.get(session)
        if known is None or known.inbox or not known.record.number("seq") or self.model.outside(known):
            return
        keys = [f"ant:{kind}:{session}" for kind in ("history", "media", "events", "turns")]
        record = f"ant:session:{session}"
        self.redis.call("HSET", record, "restored", "1")
        self.redis.calls([("DEL", *keys), ("PEXPIRE", record, HASH_LIVES_ON_MS // 2)])
        known.record.put(restored=1)
        self.model.end_life(known)
        self.did(f"the life of {session} is over")

    def delete(self, session: str) -> None:
        """Delete a session. Every second caller dies before it searches all keys for unlisted turns."""
        known = self.model.sessions.get(session)
        listed = {turn.id for turn in known.turns} if known else set[str]()
        ended = [(turn.id, turn.record.number("run")) for turn in self.model.outside(known)] if known else []
        if next(self._deletions) % 2 == 0:
            word, answer, *_ = run(self.cell.run("editing/delete", session, ""))
        else:
            found = run(delete_session(self.cell, SessionId(session)))
            word, answer = (b"DELETED", found) if isinstance(found, bool) else (b"BUSY", found.turn_id)
        if word == b"DELETED":
            self._deleted_at[session] = max(self.model.now, self._deleted_at.get(session, 0))
            self._doom(session)
            erased = self._see_what_is_erased(listed)
            require(listed <= erased, "G15 what a deleted session lists is erased", listed - erased)
            self.checks.forget(session, ended)
            self.beside.forget(session)
            self.readers.say(session, b"")
        self.did(f"delete {session}", answer)

    def _doom(self, session: str) -> None:
        """Mark the turns of a deleted session for erasure, whether it lists them or not."""
        for turn in self.model.turns.values():
            earlier = turn.record.number("created") < self.model.now
            if turn.session.id == session and not is_deleted(turn) and earlier:
                self.model.doomed.add(turn.id)

    def _see_what_is_erased(self, listed: Collection[str] = ()) -> set[str]:
        """Erase in the model the turns now erased in Redis; only listed turns and those a search must find may be."""
        turns = self.model.turns.values()
        found = [turn for turn in turns if self.redis.call("HEXISTS", f"ant:turn:{turn.id}", "deleted")]
        for turn in found:
            if is_deleted(turn):
                continue
            until = self._deleted_at.get(turn.session.id, 0)  # by a clock that may have been put back since
            earlier = turn.record.number("created") <= until and turn not in turn.session.turns
            require(turn.status in ENDED, "only turns that have ended are erased", turn.id)
            require(turn.id in listed or earlier, "only turns of deleted sessions", turn.id)
            left = self.redis.call("EXISTS", f"rq:job:{turn.id}", f"rq:results:{turn.id}")
            require(not left, "G15 RQ's records", turn.id)
            self.model.erase(turn)
            if self.damaged.pop(turn.id, ("", b""))[0] == "attempt":
                turn.record.put(attempt=0)
        return {turn.id for turn in found}

    def complete_deletions(self) -> None:
        """Have a worker search all keys for turns of deleted sessions, if this is due."""
        if run(erase_turns(self.cell, if_due=True)) is None:
            return
        self._see_what_is_erased()
        left = [name for name in self.model.doomed if self.model.turns[name].status in ENDED]
        require(not left, "G15 what was said in a deleted session is erased by a search", left)
        self.note("a worker has searched for turns of deleted sessions")

    def damage(self, turn: str, field: str, junk: str) -> None:
        """Give a field of a turn without a holder an invalid value."""
        known = self.model.turns[turn]
        head = known.session.inbox[:1] == [known] and not known.session.record.get("fence")
        if turn in self.damaged or not (head or known.due is not None or known.aside is not None):
            return
        self.damaged[turn] = field, known.record[field]
        self.model.damaged.add(turn)
        self._write(turn, field, junk.encode())
        self.did(f"{field} of {turn} becomes {junk!r}")

    def mend(self, turn: str) -> None:
        self._write(turn, *self.damaged.pop(turn))
        self.model.damaged.discard(turn)
        self.did(f"{turn} is mended")

    def _write(self, turn: str, field: str, value: bytes) -> None:
        self.redis.call("HSET", f"ant:turn:{turn}", field, value)
        self.model.turns[turn].record[field] = value

    def outage(self, key: str) -> None:
        """Damage a shared key during a call that needs it: the call must fail, name the key, and change nothing."""
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
        first = next(iter(self.model.queues.get(QUEUES[0], ())), None)
        ready = first and queue_of(first) == QUEUES[0] and self.model.is_ready(first)
        if key == "ant:fence" and not ready:
            return  # a claim would remove queue entries without a turn to claim
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
        user: str = "",
        cursor: int | None = None,
    ) -> int | str:
        before = [known for known in self.model.turns.values() if not known.record.get("cancel")]
        options = {"due_in_ms": due_in_ms, "if_busy": busy, "again": again}
        options |= {"tenant": tenant, "priority": priority, "user": user, "cursor": cursor}
        try:
            answer: Any = run(self._submit(SessionId(session), TurnId(turn), queue, **options))
        except TenantLimit as exc:
            answer = exc.limit
        except (KeyReused, SessionBusy, SessionChanged, TurnDeleted) as exc:
            answer = type(exc).__name__
        self.checks.ask_to_stop(known for known in before if known.record.get("cancel"))
        whose = f"{tenant} {user} {priority}" if tenant or user or priority != "normal" else ""
        read = "" if cursor is None else f" behind {cursor}"
        return self.did(f"submit {session} {turn} due in {due_in_ms} ms {busy} {again}{whose}{read}", answer)

    def _submit(
        self, session: SessionId, turn: TurnId, queue: str, **options: Any
    ) -> Coroutine[Any, Any, int]:
        return self.cell.submit(NewTurn(session, turn, turn.encode(), session, queue, **options))

    def submit_many(self, turns: Sequence[tuple[str, str, str]]) -> None:
        """Submit turns, by their session, id and queue, in one call."""
        new = [
            NewTurn(SessionId(session), TurnId(turn), turn.encode(), session, queue)
            for session, turn, queue in turns
        ]
        answers = [
            one if isinstance(one, int) else type(one).__name__ for one in run(self.cell.submit_many(new))
        ]
        self.did(f"submit_many {turns}", answers)

    def requeue(self, turn: str, again: str) -> None:
        self.did(f"requeue {turn} {again}", run(self.cell.run("requeue", turn, again))[-1])

    def cancel(self, turn: str, reason: str, keep: Keep = "steps") -> None:
        answer = run(self.cell.cancel(TurnId(turn), reason, keep, keep_events=KEEP_EVENTS))
        if answer in ("cancelled", "requested"):
            self.checks.ask_to_stop([self.model.turns[turn]])
        self.did(f"cancel {turn} and keep {keep}", answer)

    def rewind(self, session: str, op: str, when: Moment, keep: int, *, changed: bool = False) -> None:
        """Cut a history. With ``changed``, it differs from what the client has read."""
        known = self.model.sessions[session]
        seq = known.record["seq"]
        change = Change([FieldChange("seq", seq, seq)], len(known.history) + changed, keep)
        change.bodies = [SESSION_EVENT % b"history_rewound"]
        answer: Any = run(change_session(self.cell, SessionId(session), op, change, when=when, ttl_ms=60_000))
        self.did(f"rewind {session} to {keep} ({when})", getattr(answer, "turn_id", answer))

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
        self.did(f"fork {session} to {fork} at {keep}", answer)

    def add_chunk(self, session: str, file: str, at: int, count: int) -> str:
        """Add a chunk of a file. Another client may have sent its previous chunks, perhaps for an earlier session."""
        chunk, more = f"{file}{at}".encode(), ("", "", 10_000, 2, 9, "")
        answer = run(
            self.cell.run("files/add_chunk", session, "op", file, at, count, 3, b'"e"', chunk, *more)
        )
        return self.did(f"chunk {at} of {file} for {session}", answer[0].decode())

    def look_at_files(self, session: str, file: str, at: int) -> None:
        run(self.cell.run("files/read_chunk", session, at, file, "another"))
        run(self.cell.run("files/list_files", session))
        self.did(f"chunk {at} of {file} of {session} is read")

    def drop_file(self, session: str, file: str) -> None:
        self.did(f"drop {file} of {session}", run(self.cell.run("files/drop_files", session, file)))

    def snapshot(self, session: str) -> None:
        with suppress(SessionNotFound):
            run(self.cell.snapshot(SessionId(session), turns="pending failed"))
        self.did(f"snapshot {session}")

    # workers

    def claim(
        self, worker: str, token: str, limit: int, alone_limit: int, only: str = "", app: str = ""
    ) -> Claims:
        self.model.listed = bool(only) and self._lists_failure(only)
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
        answer = [turn.turn_id for turn in claims.turns], [str(turn) for turn in claims.alone]
        return self.did(f"{worker} claims {limit}, {alone_limit} alone {only} ({token})", answer) and claims

    def _lists_failure(self, turn: str) -> bool:
        """Return whether RQ lists a turn as failed. Its tools may have changed that."""
        registry = f"rq:failed:{queue_of(self.model.turns[turn])}"
        return self.redis.call("ZSCORE", registry, turn) is not None

    def renew(self, worker: str, turns: Sequence[ClaimedTurn]) -> list[str]:
        leases = [(turn.session_id, turn.fence) for turn in turns]
        answer = run(self.cell.renew(worker, leases, lease_ms=LEASE_MS))
        names = [f"{turn.turn_id}/{turn.fence}" for turn in turns]
        return self.did(f"{worker} renews {names}", answer)

    def emit(self, windows: Sequence[tuple[ClaimedTurn, int, Sequence[int]]]) -> list[str]:
        """Emit windows of several sessions in one call, each with its batch and the marks of its events."""
        emits = [
            Emit(turn.session_id, turn.fence, batch, [self._body("text_delta", turn, mark) for mark in marks])
            for turn, batch, marks in windows
        ]
        answer = run(self.cell.emit(emits))
        shown = [f"{turn.turn_id}/{turn.fence} batch {batch} {list(marks)}" for turn, batch, marks in windows]
        return self.did(f"emit {', '.join(shown)}", answer)

    def append_step(self, turn: ClaimedTurn, length: int, entries: Sequence[bytes], mark: int) -> str:
        bodies, usage = [self._body("step_finished", turn, mark)], used(turn, length + len(entries))
        answering = ("", "", str(length + 1), "0")[
            mark % 4
        ]  # some answers continue in the background, others no longer do
        try:
            answer = run(
                self.cell.append_step(
                    turn, length=length, step=length + 1, entries=entries, bodies=bodies, usage=encode(usage),
                    answering=answering,
                )
            )  # fmt: skip
        except CorruptRecord:
            answer = "CONFLICT"
        return self.did(f"append_step {turn.turn_id}/{turn.fence} at {length} {list(entries)}", answer)

    def route(self, turn: ClaimedTurn, queue: str, entry: bytes, mark: int) -> bool:
        """Write a router's choice, which may move the turn to another queue. A run is routed once."""
        bodies, route = (
            [self._body("agent_changed", turn, mark)],
            Route(queue=queue or None, reason=f"{mark}"),
        )
        answer = run(write_route(self.cell, turn, route, entry=entry, bodies=bodies))
        times = self.model.turns[turn.turn_id].journal.count(entry)
        require(times <= 1, "a run is routed once", turn.turn_id, turn.run, times)
        return self.did(f"route {turn.turn_id}/{turn.fence} to {queue!r}", answer)

    def promote(self, before: bytes, after: dict[str, Promotion]) -> bool:
        """Promote revisions as an operator, who may have read outdated promotions."""
        text = encode(Promotions(read_promotions(before).version + 1, after)) if after else b""
        answer = run(self.cell.run("promote", before, text))
        return self.did(f"promote {after}", answer[0] == b"PROMOTED")

    def rate(self, turn: str, score: float) -> None:
        answer = run(self.cell.run("rate", turn, f'{{"score":{score}}}', score, "agent@app-a", 60_000))
        self.did(f"rate {turn} {score}", answer[0])

    def begin(
        self, turn: ClaimedTurn, revision: str, pins: Mapping[str, str] | None, ran: Mapping[str, str] | None, *,
        moves: bool,
    ) -> bool:  # fmt: skip
        body = self._body("agent_changed", turn, 0)
        answer = run(begin(self.cell, turn, revision, pins=pins, ran=ran, bodies=[body] if moves else []))
        if answer:
            self._ran_on[turn.turn_id, turn.run] = revision
        return self.did(f"begin {turn.turn_id}/{turn.fence} on {revision}, pins {pins}, ran {ran}", answer)

    def runs(self, turn: ClaimedTurn, revision: str) -> None:
        """Check that a step runs on the revision of all earlier ones, if its worker still holds the turn."""
        if self.model.holds(turn):
            first = self._ran_on.setdefault((turn.turn_id, turn.run), revision)
            require(revision == first, "G26 a turn runs on one revision", turn.turn_id, first, revision)

    def steer(self, turn: ClaimedTurn, length: int) -> tuple[str, list[bytes]]:
        try:
            answer = run(self.cell.steer(turn, length=length, step=length + 1, keep_events=KEEP_EVENTS))
        except CorruptRecord:
            answer = "CONFLICT", []
        return self.did(f"steer {turn.turn_id}/{turn.fence} at {length}", answer)

    def keep_of(self, turn: ClaimedTurn) -> str:
        """Return what to keep of a cancelled turn, as the worker that ends it reads it."""
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
            usage=encode(usage), events_ttl=EVENTS_TTLS[crc32(turn.turn_id.encode()) % len(EVENTS_TTLS)],
        )  # fmt: skip
        what = f"finish {turn.turn_id}/{turn.fence} {status} behind {kept} {calls}"
        return self.did(what, self._unless_cancelled(ending))

    def _unless_cancelled(self, ending: Coroutine[Any, Any, bool]) -> bool | str:
        try:
            return run(ending)
        except CancelledFirst:
            return "STOPPED"

    def give_back(
        self, turn: ClaimedTurn, cause: str, delay_ms: int, lacking: str = "", workers: Sequence[str] = (),
        missing: str = "", code: str = "provider",
    ) -> bool | str:  # fmt: skip
        giving = self.cell.give_back(
            turn,
            cause,
            delay_ms=delay_ms,
            reason="it broke",
            code=code,
            lacking=lacking,
            workers=workers,
            missing=missing,
        )
        what = f"give_back {turn.turn_id}/{turn.fence} {cause} {code} {delay_ms} ms lacking {lacking!r}"
        answer = self.did(what, self._unless_cancelled(giving))
        if answer is True and lacking and not self.model.turns[turn.turn_id].record.text("app"):
            self._ran_on.pop((turn.turn_id, turn.run), None)  # the App it may have begun on cannot run it
        return answer

    def suspend(self, turn: ClaimedTurn, calls: Sequence[OpenCall | Wait], *, aside: bool) -> str | None:
        own = len(self.model.turns[turn.turn_id].journal)
        answer = run(suspend(self.cell, turn, calls, bodies=[], aside=Usage(own, 0) if aside else None))
        what = (
            f"suspend {turn.turn_id}/{turn.fence} for {[place_of(call)[0] for call in calls]} aside {aside}"
        )
        return self.did(what, answer)

    def send(self, name: str, event: str, tenant: str = "", most: int = 3) -> None:
        sent = encode({"data": f"{name}/{event}"})
        answer = run(self.cell.run("events/send", name, tenant, event, sent, most, 1_000))
        self.did(f"send {event} of {name} to {tenant!r}", answer)

    def forward(self, turn: str, run_of: int, child: str, after: int, upto: int, *, over: bool) -> None:
        """Forward events of a child, which has one for each seq, to the stream of the waiting turn."""
        bodies = [
            json.dumps({"type": "child_event", "turn_id": turn, "run": run_of, "child_id": child, "own": n})
            for n in range(after + 1, upto + 1)
        ]
        asks = [child, f"{run_of}/{child}/{turn}/{'over' if over else ''} []"]
        answer = run(
            self.cell.run(
                "children/forward", turn, run_of, child, after, upto, "1" if over else "", 1, *asks,
                *(body.encode() for body in bodies),
            )
        )  # fmt: skip
        self.did(f"forward {child} to {turn}/{run_of} from {after} to {upto} over {over}", answer)

    def decide(self, turn: str, call: str, op: str, kind: DecisionKind) -> None:
        answer = run(self.cell.run("decide", turn, call, op, kind, encode(Decision(call, kind)), KEEP_EVENTS))
        self.did(f"decide {turn} {call} {op} {kind}", answer)

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
        for one in reaped:
            if one.what == "corrected":
                self._correct(self.model.turns[one.turn_id])
        answer = [(str(one.session_id), str(one.turn_id), one.what) for one in reaped]
        self.did(f"reap {holder} limit {limit}{' spare' * spare}", answer)
        self.complete_deletions()

    def _correct(self, turn: Turn) -> None:
        """Follow the reaper, which corrected RQ's status of an ended turn; only RQ's tools may have caused that."""
        touched = self.checks.touched_by_rq | self.checks.cancelled_by_rq
        require(turn.status in ENDED and turn.id in touched, "only RQ's word is corrected", turn.id)
        self.checks.cancelled_by_rq.discard(turn.id)
        self.model.rq[turn.id] = RQ_STATUS[turn.status]
        self.model.recorded_at[turn.id] = self.model.now

    # RQ's tools, and other changes of RQ's keys

    def rq_act(self, what: str, turn: str, queue: str) -> None:
        """Run one act of RQ's own tools."""
        if what == "cancel":
            self.checks.cancelled_by_rq.add(turn)
        self.rq_does(f"{what} {turn} {queue}", lambda: self._rq_acts()[what](turn, queue))

    def rq_does(self, what: str, act: Callable[[], Any]) -> None:
        """Run RQ's own code. Afterwards the model adopts the contents of RQ's keys."""
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
        self.redis.call("PING")  # by its answer, the server has reported all changes
        self.state.take(self.redis.calls(self._reading()))
        after = self._registered()
        for name, found in self.state.turns.items():
            if before[name].rq_status != found.rq_status or listed[name] != after[name]:
                self.checks.touched_by_rq.add(name)
                self.model.rq[name] = found.rq_status
            if self.state.life_of_job(name) >= 0 and self.model.turns[name].status not in ENDED:
                self.checks.kept_for_a_time.add(name)
        for name in QUEUES:
            self.model.queues[name] = [self.model.turns[turn] for turn in self.state.at("rq:queue", name, [])]
        self._check_all()

    def _registered(self) -> dict[str, list[bool]]:
        return {
            turn.id: [turn.id in self.state.at(f"rq:{kind}", queue_of(turn), {}) for kind in REGISTRIES]
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
        name = queue_of(self.model.turns[turn])
        return FailedJobRegistry(name, connection=self.rq_redis, serializer=JSONSerializer)

    # the end

    def settle(self) -> None:
        """Stop all faults: every turn must end, and leave nothing behind."""
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
            if not open_turns and not any(turn in self.model.queues[queue_of(turn)] for turn in failed):
                break
            self.wait(60_000)
            self.reap()
            self._finish_all(f"settler{round_number}")
        else:
            raise Broken(f"G1 turns that never end: {[(turn.id, turn.status) for turn in open_turns]}")
        self.reap()
        self.checks.cancelled_by_rq.clear()
        self.check_now()
        self._check_notices()
        self.hooks.settle_all()
        self.pushes.settle_all()
        self.check_now()
        self._check_keys()

    def _check_notices(self) -> None:
        """Check that followers of all sessions get each end of a run and each suspension for decisions, in order."""
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
        self._settling = True  # the effects of these calls are checked once, after the last one
        for turn in turns:
            self.families.look(turn)
            self.families.stop(turn.journal)
            stopped = turn.stop or self.model.turns[turn.turn_id].record.get("cancel")
            status = "cancelled" if stopped else "finished"
            self.finish(turn, status, [*turn.journal, f"{turn.turn_id}/{turn.run}".encode()])
        self._settling = False
        self.look()

    def _check_keys(self) -> None:
        """G7 as a last check: none of our keys stays forever unless it is meant to."""
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
