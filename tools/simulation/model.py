"""What must be true: the turns of a cell as a small machine in Python.

Each method is one script: it says what the answer must be and what changes, so that afterwards every list, status,
event and message in Redis can be compared. Whatever else the scripts do is a mistake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulation.shares import Shares

ENDED = ("finished", "failed", "cancelled")
RQ_STATUS = {
    "queued": "queued", "waiting": "deferred", "delayed": "scheduled", "retrying": "scheduled", "running": "started",
    "suspended": "deferred", "finished": "finished", "failed": "failed", "cancelled": "canceled",
}  # fmt: skip
LOOK_AGAIN_MS = 30_000
EDIT_MS = 1_000
QUARANTINE_MS = 60_000
BACK_MS = 1_000
NEAREST_MS = 20_000
START_ALONE_MS = 30_000
IN_RQ = "cancelled in RQ"
MOST_UNTOLD = 1300
OPEN_KINDS = {"approval": "approve", "tool": "result"}
LIMIT = "limit"  # who decides where a time limit does


@dataclass(frozen=True)
class Call:
    """A tool call that a turn waits for, or has waited for in its last suspension."""

    id: str
    kind: str
    at_limit: str
    until: int
    decision: str = ""
    op: str = ""  # of the decision: who made it


@dataclass(eq=False)
class Turn:
    id: str
    session: Session
    queue: str
    status: str = ""
    run: int = 1
    attempt: int = 0
    crashes: int = 0
    errors: int = 0
    position: int = 0
    retry_at: int = 0
    due_at: int = 0
    cancel: str = ""
    keep: str = ""
    begun: bool = False  # this run
    place: int | None = None
    again: str = ""
    done: str = ""
    given_back: str = ""
    damaged: str = ""  # the field that holds junk
    tenant: str = ""
    priority: str = "normal"
    queued_at: int = 0
    offered: bool = False  # to its queue, once at least
    created: int = 0
    steers: str = ""  # the turn that may take its input
    steered_into: str = ""  # the turn that has taken it
    steered: list[bytes] = field(default_factory=list)  # what it has taken, in all its runs
    journal: list[bytes] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    suspended_at: int = 0
    aside: int | None = None  # passed by, and when it is looked at
    lacking: str = ""  # the Apps that lack what it needs
    usage: int = 0  # of its session, with the finished steps of this run
    own_usage: int = 0  # of this run, where it was passed by
    deleted: bool = False  # with its session
    doomed: bool = False  # its session was deleted, and a search is to find it

    def change(self, call: Call, **facts: Any) -> None:
        self.calls = [replace(one, **facts) if one is call else one for one in self.calls]

    @property
    def decisions(self) -> list[tuple[str, str]]:
        return [(call.id, call.decision) for call in self.calls if call.decision]

    @property
    def share(self) -> str:
        if self.tenant:
            return f"@{self.tenant}"
        return "" if self.priority == "normal" else self.priority


@dataclass(eq=False)
class Session:
    id: str
    inbox: list[Turn] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    fence: str = ""
    holder: str = ""
    alone: str = ""  # instead of a fence: the holder is to start the turn in a process of its own
    lease: int = 0
    stop: str = ""
    steer: str = ""  # the turn that others wait to steer
    untold: str = ""
    listed: list[Turn] = field(default_factory=list)  # in the order in which they were submitted
    batch: int = 0
    look_at: int | None = None
    kept: str = ""  # what its hash says of an archive
    made: bool = False  # by a fork
    edit_waits: bool = False
    over: bool = False  # its life: all but its hash has ended
    deleted: bool = False  # that is how it ended, and no event follows its last one
    life: int = 0  # how many sessions had this id before
    usage: int = 0
    base: int = 0  # the seq of this life's first event, less one
    seq: int = 0


class Model:
    """Written by the calls of a schedule, read by its checks."""

    def __init__(self) -> None:
        self.now = 0
        self.fences = 0
        self.sessions: dict[str, Session] = {}
        self.turns: dict[str, Turn] = {}
        self.queues: dict[str, list[str]] = defaultdict(list)
        self.rq: dict[str, str | None] = {}
        self.viewed: set[str] = set()
        self.woken: set[str] = set()  # workers
        self.tokens: dict[str, str] = {}
        self.events: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
        self.notices: list[tuple[str, str, str, int]] = []
        self.quarantined: set[str] = set()
        self.clock = 0  # the time when a reaper looked last
        self.also_moved: Callable[[Callable[[float], float]], None] = lambda moved: None
        self.slipped = 0  # how far the clock was put back and nothing was moved with it
        self.shares = Shares(self)
        self.unmoved_until = 0  # by then comes what was so near that a clock put back did not move it

    # what the scripts are made of

    def publish(self, turn: Turn, kind: str, mark: int = 0) -> None:
        turn.session.seq += 1
        self.events[turn.session.id].append((kind, turn.id, turn.run, mark))

    def become(self, turn: Turn, status: str) -> None:
        turn.status, self.rq[turn.id] = status, RQ_STATUS[status]
        self.viewed.add(turn.id)
        self.shares.count(turn, status)

    def remove(self, turn: Turn) -> None:
        self.queues[turn.queue][:] = [other for other in self.queues[turn.queue] if other != turn.id]

    def offer(self, turn: Turn, front: bool = False) -> None:
        turn.session.look_at = self.now + LOOK_AGAIN_MS
        waits = self.shares.lines_up(turn)
        if waits:
            self.become(turn, "waiting")
        else:
            self.enter_queue(turn, front and waits is None)

    def enter_queue(self, turn: Turn, front: bool = False) -> None:
        turn.session.look_at = self.now + LOOK_AGAIN_MS
        self.become(turn, "queued")
        queue, turn.offered = self.queues[turn.queue], True
        queue.insert(0 if front else 1 if turn.share == "high" else len(queue), turn.id)

    def ready(self, session: Session, front: bool = False) -> None:
        if not session.inbox:
            session.look_at = None
        elif self.rq[session.inbox[0].id] == "canceled":
            session.inbox[0].status, session.look_at = "queued", self.now
        elif session.edit_waits and not front:
            session.edit_waits, session.look_at = False, self.now + EDIT_MS
        else:
            self.offer(session.inbox[0], front)

    def enter(self, turn: Turn, behind: Turn | None = None) -> None:
        inbox, turn.queued_at = turn.session.inbox, self.now
        turn.position = inbox.index(behind) + 1 if behind else len(inbox)
        inbox.insert(turn.position, turn)
        self.publish(turn, "turn_queued")
        self.become(turn, "waiting")
        if turn.position == 0:
            self.offer(turn)

    def let_go(self, session: Session) -> None:
        session.fence = session.holder = session.stop = session.alone = ""
        session.batch = 0

    def conclude(self, turn: Turn, status: str, *, left: bool = False) -> None:
        if not left:
            turn.place = len(turn.session.history)
        self.become(turn, status)
        self.notices.append((f"turn_{status}", turn.session.id, turn.id, turn.session.seq))
        turn.journal = []
        if turn in turn.session.inbox:
            turn.session.inbox.remove(turn)
        self.shares.leave(turn)

    def retry(self, turn: Turn, delay_ms: int) -> None:
        self.publish(turn, "turn_retrying")
        if delay_ms == 0:
            self.ready(turn.session, front=True)
        else:
            self.become(turn, "retrying")
            turn.retry_at = turn.session.look_at = self.now + delay_ms
            self.shares.let_in(turn)

    def tell_next(self, turn: Turn) -> None:
        turn.session.untold = f"{turn.id} {turn.session.untold}"[:MOST_UNTOLD]

    def stopped_by(self, session: Session, busy: str) -> Turn | None:
        """The turn that a new one stops: the first that is not being stopped already."""
        if busy not in ("interrupt", "rollback"):
            return None
        return next((turn for turn in session.inbox if not turn.cancel), None)

    def act_on(self, current: Turn | None, turn: Turn, busy: str) -> None:
        """What a turn does to the others, now that it stands in the inbox behind them."""
        session = turn.session
        if busy == "steer":
            if not session.inbox[0].cancel:
                turn.steers = session.steer = session.inbox[0].id
        elif current and busy == "interrupt":
            reason = f"interrupted by turn {turn.id}"
            if current.status in ("running", "suspended"):
                self.stop(current, reason, "partial")
                return
            current.cancel, current.keep = reason, "partial"
            if current is session.inbox[0]:
                self.remove(current)
                self.offer(current, front=True)
        elif current:
            self.stop(current, f"rolled back for turn {turn.id}", "nothing")

    def stop(self, turn: Turn, reason: str, keep: str) -> str:
        if turn.status == "running":
            turn.cancel = turn.session.stop = reason
            turn.keep = keep
            return "requested"
        return "cancelled" if self.withdraw(turn, reason, keep) else "requested"

    def requeue(self, turn: Turn, behind: Turn | None = None) -> None:
        """A new run, of which nothing has happened yet."""
        if not turn.session.inbox:
            self.begin_anew(turn.session)
        turn.run, turn.attempt, turn.crashes, turn.errors = turn.run + 1, 0, 0, 0
        turn.cancel = turn.keep = turn.done = turn.given_back = ""
        turn.offered = False
        turn.place, turn.begun, turn.calls = None, False, []
        turn.steers = turn.steered_into = turn.lacking = ""
        turn.usage = turn.own_usage = 0
        turn.journal = [*turn.steered]
        if turn not in turn.session.listed:
            turn.session.listed.append(turn)
        if turn.tenant:
            self.shares.open[turn.tenant][turn.id] = self.now
        self.enter(turn, behind)

    def stand_up(self, turn: Turn) -> bool:
        """A suspended turn no longer waits. Whether it is its session's head."""
        inbox = turn.session.inbox
        if turn.aside is not None:
            turn.aside = None
            inbox.insert(1, turn)
            if inbox[0] is not turn:
                turn.status = "waiting"
        return inbox[:1] == [turn]

    def resume(self, turn: Turn) -> None:
        head = self.stand_up(turn)
        self.publish(turn, "turn_resumed")
        if head:
            self.ready(turn.session, front=True)
        else:
            self.become(turn, "waiting")

    def withdraw(self, turn: Turn, reason: str, keep: str = "steps") -> bool:
        head = self.stand_up(turn)
        self.remove(turn)
        if turn.journal or (keep == "partial" and turn.begun):
            turn.cancel, turn.keep = reason, keep
            if head:
                self.offer(turn, front=True)
            else:
                self.become(turn, "waiting")
            return False
        if head:
            self.let_go(turn.session)
        self.publish(turn, "turn_cancelled")
        self.conclude(turn, "cancelled")
        if head or not turn.session.inbox:
            self.ready(turn.session)
        return True

    def begin_anew(self, session: Session) -> None:
        """Of the life that is over, the seq alone stays."""
        if session.over:
            session.seq += 0 if session.deleted else 1
            session.life += 1
            session.base, session.over, session.deleted = session.seq, False, False
            session.kept, session.edit_waits = "", False
            session.untold, session.steer, session.usage, session.listed = "", "", 0, []

    def exists(self, session: Session) -> bool:
        """Whether it has begun and was not deleted."""
        return not session.deleted and (session.made or session.seq > 0 or bool(self.delayed(session)))

    def delayed(self, session: Session) -> list[Turn]:
        return [turn for turn in session.listed if turn.status == "delayed"]

    def aside(self, session: Session) -> list[Turn]:
        return [turn for turn in session.listed if turn.aside is not None]

    def outside(self, session: Session) -> list[Turn]:
        """Its turns that have not ended and are not in its inbox."""
        return [turn for turn in session.listed if turn.status == "delayed" or turn.aside is not None]

    # the scripts

    def submit(
        self,
        session_id: str,
        turn_id: str,
        queue: str,
        due_in_ms: int,
        busy: str,
        again: str = "",
        tenant: str = "",
        priority: str = "normal",
    ) -> int | str:
        if known := self.turns.get(turn_id):
            if known.deleted:
                return "TurnDeleted"
            if known.session.id != session_id:
                return "KeyReused"
            if again and self.run_again(known, again, busy) == "TURN_DELETED":
                return "TurnDeleted"
            return known.position
        session = self.sessions.setdefault(session_id, Session(session_id))
        if session.inbox and busy == "reject":
            return "SessionBusy"
        if not session.inbox:
            self.begin_anew(session)
        if limit := self.shares.refuses(tenant):
            return limit
        turn = self.turns[turn_id] = Turn(
            turn_id, session, queue, tenant=tenant, priority=priority, queued_at=self.now, created=self.now
        )
        self.shares.accept(turn)
        session.listed.append(turn)
        if due_in_ms:
            turn.due_at, turn.position = self.now + due_in_ms, len(session.inbox)
            self.become(turn, "delayed")
            return turn.position
        stopped = self.stopped_by(session, busy)
        self.enter(turn, stopped)
        if turn.position:
            self.act_on(stopped, turn, busy)
        return turn.position

    def run_again(self, turn: Turn, again: str, busy: str = "enqueue") -> str:
        """What a caller is told who wants a failed turn to run again."""
        if turn.deleted:
            return "TURN_DELETED"
        if turn.again == again:
            return "OK"
        if turn.status != "failed":
            return "queued" if turn.status == "delayed" else turn.status
        if turn.doomed:
            return "TURN_DELETED"
        stopped = self.stopped_by(turn.session, busy)
        turn.again = again
        self.requeue(turn, stopped)
        if stopped:
            self.act_on(stopped, turn, busy)
        return "OK"

    def claim(
        self,
        worker: str,
        token: str,
        lease_ms: int,
        limit: int,
        alone_limit: int,
        only: str,
        queues: Sequence[str],
        app: str = "",
        *,
        listed: bool = False,
    ) -> tuple[list[str], list[str]]:
        """The turns that are taken, and those that must run alone. ``listed``: RQ lists ``only`` as failed."""
        if self.tokens.get(worker) == token:
            held = [session for session in self.sessions.values() if session.holder == worker]
            return (
                [session.inbox[0].id for session in held if session.fence.endswith(token)],
                [session.inbox[0].id for session in held if session.alone == f"alone-{token}"],
            )
        taken: list[str] = []
        alone: list[str] = []
        if only:
            queue = self.queues[self.turns[only].queue]
            if only in queue:
                queue.remove(only)
            self._take(self.turns[only], worker, token, lease_ms, taken, None, listed=listed)
            self._move_on(self.turns[only])
            return taken, alone
        for queue in (self.queues[name] for name in queues):
            left: list[str] = []
            while queue and len(taken) + len(alone) < limit:
                if turn := self.turns.get(queue.pop(0)):
                    if app and app in turn.lacking and self._may_start(turn):
                        left.append(turn.id)
                    else:
                        room = len(alone) < alone_limit
                        self._take(turn, worker, token, lease_ms, taken, alone, None if room else left)
                    self._move_on(turn)
            queue[:0] = left
        return taken, alone

    def _move_on(self, turn: Turn) -> None:
        if not turn.damaged:
            self.shares.let_in(turn)

    def is_ready(self, turn: Turn) -> bool:
        """Whether a claim takes the turn at once, and in this process."""
        session = turn.session
        head = session.inbox[:1] == [turn] and not session.fence
        return head and turn.status == "queued" and turn.crashes < 2 and not (turn.lacking or turn.damaged)

    def _take(
        self, turn: Turn, worker: str, token: str, lease_ms: int, taken: list[str], alone: list[str] | None,
        left: list[str] | None = None, listed: bool = True,
    ) -> None:  # fmt: skip
        session = turn.session
        if turn.damaged:
            return
        if turn.status == "failed" and self.wanted_again(turn, listed=listed) and not turn.doomed:
            self.requeue(turn)
            queue = self.queues[turn.queue]
            if turn.position == 0 and turn.id in queue:
                del queue[len(queue) - 1 - queue[::-1].index(turn.id)]
        if turn.status in (*ENDED, "waiting", "suspended") and self.rq[turn.id] in ("queued", "started"):
            self.become(turn, turn.status)
        if not self._may_start(turn):
            return
        if turn.status == "retrying" and turn.share:
            self.offer(turn, front=True)
            return
        if turn.crashes >= 2 and alone is not None and left is not None:
            left.append(turn.id)
            return
        self.tokens[worker] = token
        if turn.crashes >= 2 and alone is not None:
            alone.append(turn.id)
            session.look_at = self.now + max(lease_ms, START_ALONE_MS)
            session.holder, session.alone = worker, f"alone-{token}"
            return
        self.fences += 1
        session.alone = ""
        session.fence, session.holder, session.stop = f"{self.fences}-{token}", worker, turn.cancel
        session.lease = session.look_at = self.now + lease_ms
        turn.attempt, turn.begun = turn.attempt + 1, True
        self.become(turn, "running")
        self.publish(turn, "turn_started")
        taken.append(turn.id)

    def wanted_again(self, turn: Turn, *, listed: bool) -> bool:
        """Whether RQ's tools have requeued a failed turn. If RQ's own worker has taken it, it is marked as started."""
        return self.rq[turn.id] == "queued" or (self.rq[turn.id] == "started" and not listed)

    def _may_start(self, turn: Turn) -> bool:
        session = turn.session
        startable = turn.status == "queued" or (turn.status == "retrying" and turn.retry_at <= self.now)
        return not turn.damaged and startable and session.inbox[:1] == [turn] and not session.fence

    def renew(self, leases: Sequence[tuple[str, str]], lease_ms: int) -> list[str]:
        answers: list[str] = []
        for session, fence in ((self.sessions[session_id], fence) for session_id, fence in leases):
            answers.append("SUPERSEDED")
            if session.fence == fence:
                session.lease = session.look_at = self.now + lease_ms
                turn = session.inbox[0]
                if not session.stop and self.rq[turn.id] == "canceled":
                    turn.cancel = session.stop = IN_RQ
                answers[-1] = session.stop
        return answers

    def emit(self, turn: Turn, fence: str, batch: int, marks: Sequence[int]) -> str:
        if turn.session.fence != fence:
            return "SUPERSEDED"
        if batch > turn.session.batch:
            turn.session.batch = batch
            for mark in marks:
                self.publish(turn, "text_delta", mark)
        return turn.session.stop

    def append_step(
        self, turn: Turn, fence: str, length: int, entries: Sequence[bytes], mark: int, usage: int
    ) -> str:
        if turn.session.fence != fence:
            return "SUPERSEDED"
        if len(turn.journal) not in (length, length + len(entries)):
            return "CONFLICT"
        if len(turn.journal) == length:
            turn.journal, turn.usage = [*turn.journal, *entries], usage
            self.publish(turn, "step_finished", mark)
        return turn.session.stop or ("STEER" if turn.session.steer == turn.id else "")

    def steer(self, turn: Turn, fence: str, length: int) -> tuple[str, list[bytes]]:
        """The stop word, and what stands in the journal behind what the worker knows of it."""
        session = turn.session
        if session.fence != fence:
            return "SUPERSEDED", []
        if len(turn.journal) < length:
            return "CONFLICT", []
        if len(turn.journal) == length and not session.stop:
            for other in [*session.inbox[1:]]:
                if other.steers == turn.id and other.status == "waiting":
                    self._take_input(turn, other)
            session.steer = ""
        return session.stop, turn.journal[length:]

    def _take_input(self, turn: Turn, other: Turn) -> None:
        front = f'{{"type":"steered","version":2,"turn_id":"{other.id}","created":{other.created},"request":'
        entry = f"{front}{other.id}}}".encode()
        turn.journal = [*turn.journal, entry]
        turn.steered.append(entry)
        other.steered_into = turn.id
        self.publish(turn, "turn_steered")
        self.publish(other, "turn_finished")
        self.conclude(other, "finished", left=True)

    def finish(
        self,
        turn: Turn,
        fence: str,
        status: str,
        messages: Sequence[bytes],
        kept: int | None,
        calls: str = "",
        usage: int = 0,
    ) -> bool | str:
        if turn.done == fence:
            return True
        if turn.session.fence != fence:
            return False
        if turn.session.stop and status != "cancelled":
            return "STOPPED"
        turn.done = fence
        if kept is not None:
            self.cut(turn.session, kept)
        turn.session.history.extend(messages)
        turn.session.usage = usage
        if calls == "told":
            turn.session.untold = ""
        if calls == "untold":
            self.tell_next(turn)
        self.publish(turn, f"turn_{status}")
        self.conclude(turn, status, left=status == "finished" or bool(messages))
        self.let_go(turn.session)
        self.ready(turn.session)
        return True

    def give_back(
        self,
        turn: Turn,
        fence: str,
        cause: str,
        delay_ms: int,
        lacking: str = "",
        workers: Sequence[str] = (),
    ) -> bool | str:
        if turn.given_back == fence:
            return True
        if turn.session.fence != fence:
            return False
        if turn.session.stop:
            return "STOPPED"
        turn.given_back = fence
        turn.lacking = lacking or turn.lacking
        self.woken.update(workers)
        turn.errors += cause == "error"
        turn.attempt -= cause != "error"
        self.let_go(turn.session)
        self.retry(turn, delay_ms)
        return True

    def suspend(self, turn: Turn, fence: str, calls: Sequence[Call], own: int | None) -> str | None:
        """'', why it must be cancelled instead, or None where another fence is in force."""
        session = turn.session
        if turn.given_back == fence:
            return ""
        if session.fence != fence:
            return None
        if stop := session.stop or (IN_RQ if self.rq[turn.id] == "canceled" else ""):
            return stop
        turn.given_back, turn.calls, turn.suspended_at = fence, list(calls), self.now
        turn.own_usage = turn.own_usage if own is None else own
        self.publish(turn, "turn_suspended")
        self.notices.append(("turn_suspended", session.id, turn.id, session.seq))
        self.let_go(session)
        self.become(turn, "suspended")
        self.shares.let_in(turn)
        look_at = min(self.now + LOOK_AGAIN_MS, *(call.until for call in calls))
        if own is not None:
            turn.aside, turn.begun, turn.usage = look_at, False, 0
            session.inbox.remove(turn)
            self.ready(session)
        else:
            session.look_at = look_at
        return ""

    def decide(self, turn: Turn, call_id: str, op: str, kind: str) -> tuple[str, ...]:
        call = next((call for call in turn.calls if call.id == call_id), None)
        if call and call.decision:
            return ("DECIDED",) if call.op == op else ("ALREADY", call.decision)
        status = "queued" if turn.status == "delayed" else turn.status
        if status == "suspended" and self.rq[turn.id] == "canceled":
            self.withdraw(turn, IN_RQ)
            status = "cancelled"
        if status != "suspended":
            return ("NOT_SUSPENDED", status)
        if call is None:
            return ("UNKNOWN_CALL",)
        if kind not in ("reject", OPEN_KINDS[call.kind]):
            return ("OTHER_KIND", call.kind)
        turn.change(call, decision=kind, op=op)
        if all(one.decision for one in turn.calls):
            self.resume(turn)
        return ("DECIDED",)

    def cancel(self, turn: Turn, reason: str, keep: str) -> str:
        if turn.status in ENDED:
            return turn.status
        return self.stop(turn, reason, keep)

    def delete(self, session: Session) -> bool | str:
        """Whether there was anything; the last turn of its inbox where it is in use."""
        if session.inbox:
            return session.inbox[-1].id
        existed = self.exists(session)
        for turn in self.outside(session):
            turn.journal = []
            self.withdraw(turn, "The session was deleted.")
        self.quarantined.discard(session.id)
        self.events[session.id].clear()
        session.history, session.kept = [], ""
        session.seq += existed
        session.over = session.deleted = session.over or existed
        session.base = session.seq
        session.made = session.edit_waits = False
        session.untold, session.steer, session.usage, session.listed = "", "", 0, []
        return existed

    def erase(self, turn: Turn) -> None:
        """Nothing stays of a turn but that it was there."""
        turn.status, turn.deleted, turn.doomed, turn.damaged, turn.place = "cancelled", True, False, "", None
        turn.crashes = turn.errors = turn.usage = turn.own_usage = 0
        turn.cancel = turn.keep = turn.done = turn.given_back = turn.again = turn.lacking = ""
        turn.steers = turn.steered_into = ""
        turn.journal, turn.steered, turn.calls, self.rq[turn.id] = [], [], [], None

    def cut(self, session: Session, keep: int) -> None:
        """Turns that left nothing lose their place behind the cut."""
        del session.history[keep:]
        for turn in session.listed:
            turn.place = None if (turn.place or 0) > keep else turn.place

    def rewind(self, session: Session, when: str, keep: int, *, changed: bool) -> bool | str:
        """Whether the history was cut; the turn to wait for where one is in the way."""
        head = session.inbox[0] if session.inbox else None
        if head and when == "idle":
            return session.inbox[-1].id
        if head and head.begun:
            session.edit_waits = True
            return head.id
        if changed:
            return False
        self.cut(session, keep)
        session.seq += 1
        self.events[session.id].append(("history_rewound", "", 0, 0))
        session.edit_waits = False
        if head and head.status == "waiting":
            self.offer(head)
        return True

    def fork(self, session: Session, fork_id: str, keep: int, *, changed: bool) -> bool | str:
        """Whether there is a copy now."""
        fork = self.sessions.setdefault(fork_id, Session(fork_id))
        if fork.made:
            return "SessionExists"
        if changed and keep:
            return False
        self.begin_anew(fork)
        lives = not session.over and self.exists(session)
        fork.made, fork.history, fork.kept = True, session.history[:keep], session.kept if lives else ""
        if lives:
            session.seq += 1
            self.events[session.id].append(("session_forked", "", 0, 0))
        return True

    def end_life(self, session: Session) -> None:
        """Nobody has used it for its `ttl`: Redis drops all but its hash."""
        session.history, session.listed, session.over, session.base = [], [], True, session.seq

    def reap_holder(self, holder: str, held: Sequence[str], crash_limit: int) -> list[tuple[str, str, str]]:
        """``held`` are the sessions that the dead worker held, in the order in which Redis keeps them."""
        acts: list[tuple[str, str, str]] = []
        self._follow_clock()
        self.tokens.pop(holder, None)
        for session in (self.sessions[session_id] for session_id in held):
            if session.fence:
                self._crashed(session, crash_limit, acts)
            else:
                self._look(session, acts)
        return acts

    def reap(self, limit: int, crash_limit: int, *, spare: bool = False) -> list[tuple[str, str, str]]:
        acts: list[tuple[str, str, str]] = []
        self._follow_clock()
        self._forget_mended()
        looked_at = [s for s in self.sessions.values() if s.look_at is not None and s.look_at <= self.now]
        for session in sorted(looked_at, key=lambda s: (s.look_at or 0, s.id))[
            : limit * 10 if spare else limit
        ]:
            if not session.fence:
                self._look(session, acts)
            elif session.lease <= self.now and spare:
                self.quarantined.discard(session.id)
            elif session.lease <= self.now:
                self._crashed(session, crash_limit, acts)
        delayed = [
            turn for turn in self.turns.values() if turn.status == "delayed" and turn.due_at <= self.now
        ]
        for turn in sorted(delayed, key=lambda turn: (turn.due_at, turn.id))[:limit]:
            if turn.damaged:
                turn.due_at = self.now + QUARANTINE_MS
                self._quarantine(turn.id, ("", turn.id, "quarantined"), acts)
                continue
            self.quarantined.discard(turn.id)
            if self.rq[turn.id] == "canceled":
                self.withdraw(turn, IN_RQ)
                acts.append((turn.session.id, turn.id, "cancelled"))
            else:
                self.enter(turn)
                acts.append((turn.session.id, turn.id, "due"))
        passed_by = [turn for turn in self.turns.values() if (turn.aside or self.now + 1) <= self.now]
        for turn in sorted(passed_by, key=lambda turn: (turn.aside or 0, turn.id))[:limit]:
            self._passed_by(turn, acts)
        return acts

    def _passed_by(self, turn: Turn, acts: list[tuple[str, str, str]]) -> None:
        if turn.damaged:
            turn.aside = self.now + QUARANTINE_MS
            self._quarantine(turn.id, ("", turn.id, "quarantined"), acts)
            return
        self.quarantined.discard(turn.id)
        if self.rq[turn.id] == "canceled":
            self.withdraw(turn, IN_RQ)
            acts.append((turn.session.id, turn.id, "cancelled"))
        elif look_at := self._watch(turn, acts):
            turn.aside = look_at

    def _watch(self, turn: Turn, acts: list[tuple[str, str, str]]) -> int | None:
        """When to look at a suspended turn again, if it still waits."""
        for call in turn.calls:
            if call.decision or call.until > self.now:
                continue
            if call.at_limit == "fail":
                self.stand_up(turn)
                self._give_up(turn)
                return acts.append((turn.session.id, turn.id, "not_decided"))
            turn.change(call, decision=call.at_limit, op=LIMIT)
        if all(call.decision for call in turn.calls):
            self.resume(turn)
            return acts.append((turn.session.id, turn.id, "resumed"))
        if self.rq[turn.id] != "deferred":
            self.become(turn, "suspended")
        return min(self.now + LOOK_AGAIN_MS, *(call.until for call in turn.calls if not call.decision))

    def _follow_clock(self) -> None:
        """What is to come moves with a clock that was put back."""
        back, self.clock = self.clock - self.now, self.now
        if back < BACK_MS:
            return
        self.slipped = max(0, self.slipped - back)
        self.unmoved_until = self.now + NEAREST_MS

        def moved(at: Any) -> Any:
            return max(at - back, min(at, self.now + NEAREST_MS))

        self.also_moved(moved)

        for session in self.sessions.values():
            if session.look_at is not None:
                session.look_at, session.lease = moved(session.look_at), moved(session.lease)
                session.inbox[0].retry_at = moved(session.inbox[0].retry_at)
        for turn in self.turns.values():
            turn.due_at = moved(turn.due_at)
            if turn.aside is not None:
                turn.aside = moved(turn.aside)
            if turn.aside is not None or turn.session.inbox[:1] == [turn]:
                for call in turn.calls:
                    turn.change(call, until=moved(call.until))

    def _forget_mended(self) -> None:
        """What nobody will look at again has ended, or has gone on."""
        looked_at = {session.id for session in self.sessions.values() if session.look_at is not None}
        delayed = {turn.id for turn in self.turns.values() if turn.status == "delayed"}
        self.quarantined &= looked_at | delayed | {t.id for t in self.turns.values() if t.aside is not None}

    def _quarantine(self, name: str, act: tuple[str, str, str], acts: list[tuple[str, str, str]]) -> None:
        if name not in self.quarantined:
            self.quarantined.add(name)
            acts.append(act)

    def _crashed(self, session: Session, crash_limit: int, acts: list[tuple[str, str, str]]) -> None:
        turn = session.inbox[0]
        self.quarantined.discard(session.id)
        turn.crashes += 1
        self.let_go(session)
        if turn.crashes < crash_limit:
            self.retry(turn, 0)
        else:
            self._give_up(turn, "cancelled" if turn.cancel else "failed")
        acts.append((session.id, turn.id, "recovered" if turn.crashes < crash_limit else turn.status))

    def _give_up(self, turn: Turn, status: str = "failed") -> None:
        head = turn.session.inbox[:1] == [turn]
        turn.session.usage = turn.usage or turn.session.usage + turn.own_usage
        if turn.journal:
            self.tell_next(turn)
        self.publish(turn, f"turn_{status}")
        self.conclude(turn, status)
        if head:
            self.ready(turn.session)

    def _look(self, session: Session, acts: list[tuple[str, str, str]]) -> None:
        self.let_go(session)
        turn = session.inbox[0]
        if turn.damaged:
            session.look_at = self.now + QUARANTINE_MS
            self._quarantine(session.id, (session.id, "", "quarantined"), acts)
            return
        self.quarantined.discard(session.id)
        if self.rq[turn.id] == "canceled":
            acts.append((session.id, turn.id, "cancelled" if self.withdraw(turn, IN_RQ) else "repaired"))
        elif turn.status == "suspended":
            if look_at := self._watch(turn, acts):
                session.look_at = look_at
        elif turn.status == "retrying" and turn.retry_at > self.now:
            session.look_at = turn.retry_at
        elif turn.status == "waiting" and self.shares.in_line(turn):
            session.look_at = self.now + LOOK_AGAIN_MS
            self.shares.let_in(turn)
        elif turn.status == "queued" and self.rq[turn.id] == "queued" and turn.id in self.queues[turn.queue]:
            session.look_at = self.now + LOOK_AGAIN_MS
            turn.lacking = ""
        else:
            acts.append((session.id, turn.id, "retried" if turn.status == "retrying" else "repaired"))
            self.remove(turn)
            self.offer(turn, front=True)
