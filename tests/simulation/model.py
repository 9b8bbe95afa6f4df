"""What must be true: the turns of a cell as a small machine in Python.

Each method is one script: it says what the answer must be and what changes, so that afterwards every list, status,
event and message in Redis can be compared. Whatever else the scripts do is a mistake.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

ENDED = ("finished", "failed", "cancelled")
RQ_STATUS = {
    "queued": "queued", "waiting": "deferred", "delayed": "scheduled", "retrying": "scheduled", "running": "started",
    "finished": "finished", "failed": "failed", "cancelled": "canceled",
}  # fmt: skip
LOOK_AGAIN_MS = 30_000
QUARANTINE_MS = 60_000
BACK_MS = 1_000
IN_RQ = "cancelled in RQ"


@dataclass
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
    done: str = ""
    given_back: str = ""
    damaged: str = ""  # the field that holds junk
    journal: list[bytes] = field(default_factory=list)


@dataclass
class Session:
    id: str
    inbox: list[Turn] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    fence: str = ""
    holder: str = ""
    alone: str = ""  # instead of a fence: the holder is to start the turn in a process of its own
    lease: int = 0
    stop: str = ""
    batch: int = 0
    look_at: int | None = None
    kept: str = ""  # what its hash says of an archive
    over: bool = False  # its life: all but its hash has ended
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
        self.tokens: dict[str, str] = {}
        self.events: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
        self.quarantined: set[str] = set()
        self.clock = 0  # the time when a reaper looked last
        self.slipped = 0  # how far the clock was put back and nothing was moved with it

    # what the scripts are made of

    def publish(self, turn: Turn, kind: str, mark: int = 0) -> None:
        turn.session.seq += 1
        self.events[turn.session.id].append((kind, turn.id, turn.run, mark))

    def become(self, turn: Turn, status: str) -> None:
        turn.status, self.rq[turn.id] = status, RQ_STATUS[status]
        self.viewed.add(turn.id)

    def remove(self, turn: Turn) -> None:
        self.queues[turn.queue][:] = [other for other in self.queues[turn.queue] if other != turn.id]

    def offer(self, turn: Turn, front: bool = False) -> None:
        self.become(turn, "queued")
        turn.session.look_at = self.now + LOOK_AGAIN_MS
        self.queues[turn.queue].insert(0 if front else len(self.queues[turn.queue]), turn.id)

    def ready(self, session: Session, front: bool = False) -> None:
        if not session.inbox:
            session.look_at = None
        elif self.rq[session.inbox[0].id] == "canceled":
            session.inbox[0].status, session.look_at = "queued", self.now
        else:
            self.offer(session.inbox[0], front)

    def enter(self, turn: Turn) -> None:
        turn.position = len(turn.session.inbox)
        turn.session.inbox.append(turn)
        self.publish(turn, "turn_queued")
        self.become(turn, "waiting")
        if turn.position == 0:
            self.offer(turn)

    def let_go(self, session: Session) -> None:
        session.fence = session.holder = session.stop = session.alone = ""
        session.batch = 0

    def conclude(self, turn: Turn, status: str) -> None:
        self.become(turn, status)
        turn.journal = []
        if turn in turn.session.inbox:
            turn.session.inbox.remove(turn)

    def retry(self, turn: Turn, delay_ms: int) -> None:
        self.publish(turn, "turn_retrying")
        if delay_ms == 0:
            self.ready(turn.session, front=True)
        else:
            self.become(turn, "retrying")
            turn.retry_at = turn.session.look_at = self.now + delay_ms

    def withdraw(self, turn: Turn, reason: str) -> bool:
        head = turn.session.inbox[:1] == [turn]
        self.remove(turn)
        if turn.journal:
            turn.cancel = reason
            self.offer(turn, front=True)
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
            session.over, session.kept = False, ""

    def delayed(self, session: Session) -> list[Turn]:
        return [turn for turn in self.turns.values() if turn.session is session and turn.status == "delayed"]

    # the scripts

    def submit(self, session_id: str, turn_id: str, queue: str, due_in_ms: int, reject: bool) -> int | str:
        if known := self.turns.get(turn_id):
            return known.position if known.session.id == session_id else "KeyReused"
        session = self.sessions.setdefault(session_id, Session(session_id))
        if session.inbox and reject:
            return "SessionBusy"
        if not session.inbox:
            self.begin_anew(session)
        turn = self.turns[turn_id] = Turn(turn_id, session, queue)
        if due_in_ms:
            turn.due_at, turn.position = self.now + due_in_ms, len(session.inbox)
            self.become(turn, "delayed")
            return turn.position
        self.enter(turn)
        return turn.position

    def claim(
        self, worker: str, token: str, lease_ms: int, limit: int, only: str, queues: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """The turns that are taken, and those that must run alone."""
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
            self._take(self.turns[only], worker, token, lease_ms, taken, None)
            return taken, alone
        for queue in (self.queues[name] for name in queues):
            while queue and len(taken) + len(alone) < limit:
                if turn := self.turns.get(queue.pop(0)):
                    self._take(turn, worker, token, lease_ms, taken, alone)
        return taken, alone

    def _take(
        self, turn: Turn, worker: str, token: str, lease_ms: int, taken: list[str], alone: list[str] | None
    ) -> None:
        session = turn.session
        if turn.damaged:
            return
        if turn.status == "failed" and self.rq[turn.id] == "queued":
            if not session.inbox:
                self.begin_anew(session)
            turn.run, turn.attempt, turn.crashes, turn.errors = turn.run + 1, 0, 0, 0
            turn.cancel = turn.done = turn.given_back = ""
            self.enter(turn)
            if turn.position == 0:
                self.queues[turn.queue].pop()
        if turn.status in (*ENDED, "waiting") and self.rq[turn.id] == "queued":
            self.become(turn, turn.status)
        startable = turn.status == "queued" or (turn.status == "retrying" and turn.retry_at <= self.now)
        if not startable or session.inbox[0] is not turn or session.fence:
            return
        self.tokens[worker] = token
        if turn.crashes >= 2 and alone is not None:
            alone.append(turn.id)
            session.look_at = self.now + lease_ms
            session.holder, session.alone = worker, f"alone-{token}"
            return
        self.fences += 1
        session.alone = ""
        session.fence, session.holder, session.stop = f"{self.fences}-{token}", worker, turn.cancel
        session.lease = session.look_at = self.now + lease_ms
        turn.attempt += 1
        self.become(turn, "running")
        self.publish(turn, "turn_started")
        taken.append(turn.id)

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

    def append_step(self, turn: Turn, fence: str, length: int, entries: Sequence[bytes], mark: int) -> str:
        if turn.session.fence != fence:
            return "SUPERSEDED"
        if len(turn.journal) not in (length, length + len(entries)):
            return "CONFLICT"
        if len(turn.journal) == length:
            turn.journal = [*turn.journal, *entries]
            self.publish(turn, "step_finished", mark)
        return turn.session.stop

    def finish(self, turn: Turn, fence: str, status: str, messages: Sequence[bytes]) -> bool:
        if turn.done == fence:
            return True
        if turn.session.fence != fence:
            return False
        turn.done = fence
        turn.session.history.extend(messages)
        self.publish(turn, f"turn_{status}")
        self.conclude(turn, status)
        self.let_go(turn.session)
        self.ready(turn.session)
        return True

    def give_back(self, turn: Turn, fence: str, cause: str, delay_ms: int) -> bool:
        if turn.given_back == fence:
            return True
        if turn.session.fence != fence:
            return False
        turn.given_back = fence
        turn.errors += cause == "error"
        turn.attempt -= cause == "drain"
        self.let_go(turn.session)
        self.retry(turn, delay_ms)
        return True

    def cancel(self, turn: Turn, reason: str) -> str:
        if turn.status in ENDED:
            return turn.status
        if turn.status == "running":
            turn.cancel = turn.session.stop = reason
            return "requested"
        return "cancelled" if self.withdraw(turn, reason) else "requested"

    def delete(self, session: Session) -> bool | str:
        """Whether there was anything; the last turn of its inbox where it is in use."""
        if session.inbox:
            return session.inbox[-1].id
        existed = session.seq > 0 or bool(self.delayed(session))
        for turn in self.delayed(session):
            self.withdraw(turn, "The session was deleted.")
        self.quarantined.discard(session.id)
        self.events[session.id].clear()
        session.history, session.kept, session.over, session.base, session.seq = [], "", False, 0, 0
        return existed

    def end_life(self, session: Session) -> None:
        """Nobody has used it for its `ttl`: Redis drops all but its hash."""
        session.history, session.over, session.base = [], True, session.seq

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

    def reap(self, limit: int, crash_limit: int) -> list[tuple[str, str, str]]:
        acts: list[tuple[str, str, str]] = []
        self._follow_clock()
        self._forget_mended()
        looked_at = [s for s in self.sessions.values() if s.look_at is not None and s.look_at <= self.now]
        for session in sorted(looked_at, key=lambda s: (s.look_at or 0, s.id))[:limit]:
            if not session.fence:
                self._look(session, acts)
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
        return acts

    def _follow_clock(self) -> None:
        """What is to come moves with a clock that was put back."""
        back, self.clock = self.clock - self.now, self.now
        if back < BACK_MS:
            return
        self.slipped = max(0, self.slipped - back)
        for session in self.sessions.values():
            if session.look_at is not None:
                session.look_at -= back
                session.lease -= back
                session.inbox[0].retry_at -= back
        for turn in self.turns.values():
            turn.due_at -= back

    def _forget_mended(self) -> None:
        """What nobody will look at again has ended, or has gone on."""
        looked_at = {session.id for session in self.sessions.values() if session.look_at is not None}
        delayed = {turn.id for turn in self.turns.values() if turn.status == "delayed"}
        self.quarantined &= looked_at | delayed

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
            self.publish(turn, "turn_failed")
            self.conclude(turn, "failed")
            self.ready(session)
        acts.append((session.id, turn.id, "recovered" if turn.crashes < crash_limit else "failed"))

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
        elif turn.status == "retrying" and turn.retry_at > self.now:
            session.look_at = turn.retry_at
        elif turn.status == "queued" and self.rq[turn.id] == "queued" and turn.id in self.queues[turn.queue]:
            session.look_at = self.now + LOOK_AGAIN_MS
        else:
            acts.append((session.id, turn.id, "retried" if turn.status == "retrying" else "repaired"))
            self.remove(turn)
            self.offer(turn, front=True)
