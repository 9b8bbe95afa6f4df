"""What must be true: the transitions of a memory cell, and what only servers have.

These are RQ's view of the turns, shares of tenants, damaged turns, a clock that is put back, and what Redis keeps of
an expired session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from antiphon.wire.records import ClaimedTurn
from antiphon_worker.local.moves import ALONE_AFTER, ENDED, LOOK_AGAIN_MS, Answer
from antiphon_worker.local.records import Record, Session, Turn
from antiphon_worker.local.transitions import Claim, Look, Transitions
from simulation.shares import Shares, share_of

RQ_STATUS = {
    "queued": "queued", "waiting": "deferred", "delayed": "scheduled", "retrying": "scheduled", "running": "started",
    "suspended": "deferred", "finished": "finished", "failed": "failed", "cancelled": "canceled",
}  # fmt: skip
QUARANTINE_MS = 60_000
BACK_MS = 1_000
NEAREST_MS = 20_000
KEEP_NOTE_MS = 3_600_000
IN_RQ = "cancelled in RQ"


class Asked(NamedTuple):
    """A step that waits for a batch: its turn and run, and the wait."""

    turn: str
    run: int
    wait: str


def asks(turn: Turn) -> bool:
    """Return whether a turn waits for decisions, as opposed to only sleeping or waiting for events."""
    return turn.status == "suspended" and any(call.decidable for call in turn.calls)


class Watched(Record):
    """A turn's record that reports each new status."""

    def __init__(self, values: Record, seen: Callable[[], None]) -> None:
        super().__init__(values)
        self._seen = seen

    def put(self, **values: str | bytes | int) -> None:
        super().put(**values)
        if "status" in values:
            self._seen()


def queue_of(turn: Turn) -> str:
    return turn.record.text("queue")


def view_of(turn: Turn) -> str:
    """Return the status of a turn as RQ and people see it."""
    return "delayed" if turn.due is not None else turn.status


def is_deleted(turn: Turn) -> bool:
    return "deleted" in turn.record


MOST_OF_ENDS = 64


def note_ends(session: Session, seq: int, before: int, kept: int | None, last: int) -> None:
    """Note that a history was cut from ``before`` to ``kept`` messages (unless None), and grew with event ``last``."""
    ends, length = session.record.get("ends"), len(session.history)
    new = f"{seq}~{before} " if ends is None and before else ""
    if kept is not None:
        new += f"{seq + 1}:{kept} "
    if length > (before if kept is None else kept):
        new += f"{last}:{length} "
    if not new:
        return
    noted = (ends or b"").decode()
    if noted and len(noted) + len(new) > MOST_OF_ENDS:
        session.record.put(**{f"ends:{noted.partition(':')[0].partition('~')[0]}": noted})
        noted = ""
    session.record.put(ends=noted + new)


class Model(Transitions):
    """The expected state, changed by the calls of a schedule and read by its checks."""

    def __init__(self) -> None:
        self.now = 0
        super().__init__(lambda: self.now)
        self.accepted, self.grown = self._accept, note_ends
        self.rq: dict[str, str | None] = {}
        self.viewed: set[str] = set()
        self.recorded_at: dict[str, int] = {}  # when RQ's record of a turn was written
        self.rung: set[str] = set()  # workers
        self.notices: list[tuple[str, str, str, int]] = []
        self.damaged: set[str] = set()  # turns
        self.doomed: set[str] = set()  # turns of deleted sessions that a search must find
        self.quarantined: set[str] = set()
        self.past: dict[str, Record] = {}  # what Redis keeps of expired sessions
        self.looked_at = 0  # when a reaper last looked
        self.also_moved: Callable[[Callable[[float], float]], None] = lambda moved: None
        self.slipped = 0  # how far the clock was put back without moving anything with it
        self.unmoved_until = 0  # by then, whatever was too near to move with the clock is due
        self.order_of: Callable[[str], Sequence[str]] = (
            lambda holder: ()
        )  # the order in which Redis lists what the holder has
        self.listed = False  # whether RQ lists the claimed turn as failed; its tools may have changed that
        self.shares = Shares(self)
        self.asked: dict[str, Asked] = {}  # steps that wait for batches
        self.noted: dict[str, int] = {}  # turns that wait for a budget, and since when

    # sessions

    def seq_of(self, session_id: str) -> int:
        known = self.sessions.get(session_id)
        return (known.record if known else self.past.get(session_id, Record())).number("seq")

    def life_of(self, session_id: str) -> str:
        known = self.sessions.get(session_id)
        return known.record.text("life") if known else ""

    def _begun(self, session_id: str) -> Session:
        """Begin a session. Of an expired one, only the seq remains."""
        session = super()._begun(session_id)
        if session_id not in self.sessions and (past := self.past.get(session_id)) is not None:
            self.spent.pop(f"session::{session_id}", None)
            if "created" in past:
                self._leave_gap(session_id, past.number("seq"))
                self.past[session_id].put(earlier=1)
            session.record.update(self.past[session_id])
        return session

    def _leave_gap(self, session_id: str, seq: int) -> None:
        self.past[session_id] = Record()
        self.past[session_id].put(seq=seq + 1, first=seq + 1)

    def _release(self, session: Session, now: int) -> None:
        """Do nothing: Redis expires sessions by the real clock, and a schedule ends before that."""

    def end_life(self, session: Session) -> None:
        """Expire a session that was unused for its `ttl`: Redis drops all but its hash."""
        ledger = self.spent.get(name := f"session::{session.id}")
        self.past[session.id] = session.record
        self.drop_session(session)
        if ledger is not None:  # it lives as long as the hash
            self.spent[name] = ledger

    def delete(self, session_id: str, tenant: str) -> Answer:
        session, past = self.sessions.get(session_id), self.past.get(session_id, Record())
        if session is not None and session.inbox:
            return super().delete(session_id, tenant)
        if session is not None:
            for turn in self.outside(session):
                turn.due = None
                turn.journal = []
                self._withdraw(turn, "The session was deleted.", self.now, 10_000)
            past = session.record
            self.drop_session(session)
        for per in ("", "day", "month"):
            self.spent.pop(f"session:{per}:{session_id}", None)
        self.quarantined.discard(session_id)
        existed = "created" in past
        if existed:
            self._leave_gap(session_id, past.number("seq"))
        return [b"DELETED", b"1" if existed else b"", b""]

    def erase(self, turn: Turn) -> None:
        """Erase a turn, except for the fact that it existed."""
        turn.erase(self.now)
        self.spent.pop(f"turn:{turn.id}", None)
        self.rq[turn.id] = None
        self.damaged.discard(turn.id)
        self.doomed.discard(turn.id)

    # RQ's view

    def _accept(self, turn: Turn) -> None:
        if tenant := turn.record.text("tenant"):
            self.shares.accept(tenant, turn)
        turn.record = Watched(turn.record, lambda: self._seen(turn))

    def _seen(self, turn: Turn) -> None:
        self.view(turn)
        if asks(turn):
            self._notice(turn)
        if turn.status in ("suspended", "retrying"):
            self.shares.land(turn)

    def view(self, turn: Turn) -> None:
        self.rq[turn.id] = RQ_STATUS[view_of(turn)]
        self.viewed.add(turn.id)
        self.recorded_at[turn.id] = self.now
        self.shares.count(turn, view_of(turn))

    def _notice(self, turn: Turn) -> None:
        seq = turn.session.record.number("seq")
        self.notices.append((f"turn_{turn.status}", turn.session.id, turn.id, seq))

    # inboxes and queues

    def submit(self, *arguments: Any) -> Answer:
        new, self._user = arguments[1] not in self.turns, str(arguments[-2])
        answer = super().submit(*arguments)
        if new and (turn := self.turns.get(arguments[1])) is not None and turn.due is not None:
            self.view(turn)
        return answer

    def _refusal(
        self, session: Session, tenant: str, busy: str, cursor: Any, inbox_limit: int
    ) -> Answer | None:
        refusal = super()._refusal(session, tenant, busy, cursor, inbox_limit)
        return refusal or self.shares.refusal(session.record.text("tenant") or tenant, self._user)

    def _kept_from_running(self, turn: Turn) -> bytes:
        return b"TURN_DELETED" if turn.id in self.doomed else super()._kept_from_running(turn)

    def _run_again(self, turn: Turn, now: int, again: str, behind: Turn | None = None) -> int | None:
        if tenant := turn.record.text("tenant"):
            self.shares.open[tenant][turn.id] = now
        turn.record.drop("route", "routed")
        return super()._run_again(turn, now, again, behind)

    def _offer(self, turn: Turn, now: int, *, front: bool = False) -> None:
        turn.session.look_at = now + LOOK_AGAIN_MS
        waits = self.shares.lines_up(turn)
        if waits:
            turn.record.put(status="waiting")
        else:
            self.enter_queue(turn, front=front and waits is None)

    def enter_queue(self, turn: Turn, *, front: bool = False) -> None:
        queue, at = self.queues.setdefault(queue_of(turn), []), 0 if front else self.now
        place = 0 if front else len(queue)
        if not front and share_of(turn) == "high":
            place, at = 1, queue[0].record.number("offered_at") if queue else 0
        queue.insert(place, turn)
        turn.record.put(status="queued", offered_at=at)

    def _leave_queue(self, turn: Turn) -> None:
        queue = self.queues.setdefault(queue_of(turn), [])
        queue[:] = [other for other in queue if other is not turn]

    def _ready(self, session: Session, now: int, *, front: bool = False) -> None:
        if session.inbox and self.rq[session.inbox[0].id] == "canceled":
            session.inbox[0].record["status"] = b"queued"
            session.look_at = now
        else:
            super()._ready(session, now, front=front)

    def _conclude(
        self,
        turn: Turn,
        status: str,
        now: int,
        bodies: Sequence[bytes],
        keep_events: int,
        *,
        left: bool = False,
    ) -> None:
        super()._conclude(turn, status, now, bodies, keep_events, left=left)
        self._notice(turn)
        self.shares.leave(turn)

    def _withdraw(self, turn: Turn, reason: str, now: int, keep_events: int, keep: str = "") -> bool:
        ended = super()._withdraw(turn, reason, now, keep_events, keep)
        if not ended:
            self.view(turn)
        return ended

    def _resume(self, turn: Turn, now: int) -> None:
        super()._resume(turn, now)
        self.view(turn)

    # workers

    def is_ready(self, turn: Turn) -> bool:
        """Return whether a claim takes the turn at once, and in this process."""
        if turn.id in self.damaged or turn.status != "queued" or not self._startable(turn, self.now):
            return False
        return turn.record.number("crashes") < ALONE_AFTER and not turn.record.get("lacking")

    def _try(self, turn: Turn, claim: Claim) -> None:
        if turn.id in self.damaged:
            return
        if turn.status == "failed" and self._wanted_again(turn) and not self._kept_from_running(turn):
            position = self._run_again(turn, claim.now, turn.record.text("again"))
            queue = self.queues[queue_of(turn)]
            if position == 0 and turn in queue:
                del queue[len(queue) - 1 - queue[::-1].index(turn)]
        if turn.status in (*ENDED, "waiting", "suspended") and self.rq[turn.id] in ("queued", "started"):
            self.view(turn)
        lacks = claim.app and not claim.only and claim.app in turn.record.text("lacking")
        retries = turn.status == "retrying" and share_of(turn) and not lacks
        if retries and self._startable(turn, claim.now):
            self._offer(turn, claim.now, front=True)
        elif claim.only and self._is_cancelled_in_rq(turn) and self._startable(turn, claim.now):
            turn.session.look_at = claim.now
        else:
            super()._try(turn, claim)
        if not lacks or turn not in claim.left:
            self.shares.let_in(turn)

    def _wanted_again(self, turn: Turn) -> bool:
        """Return whether RQ's tools have requeued a failed turn. RQ's own worker marks a turn it took as started."""
        said = self.rq[turn.id]
        return said == "queued" or (said == "started" and not self.listed)

    def holds(self, turn: ClaimedTurn) -> bool:
        """Return whether the fence of a claimed turn is in force."""
        return self._held(turn.session_id, turn.fence) is not None

    def renew(self, worker: str, lease_ms: int, *leases: str) -> Answer:
        for session_id, fence in zip(leases[::2], leases[1::2], strict=True):
            session = self._held(session_id, fence)
            if session:
                self._stop_cancelled(session, session.inbox[0])
        return super().renew(worker, lease_ms, *leases)

    def _stop_cancelled(self, session: Session, turn: Turn) -> None:
        """Have the holder stop a turn that RQ's tools have cancelled."""
        if not session.record.get("stop") and self.rq[turn.id] == "canceled":
            turn.record.put(cancel=IN_RQ)
            session.record.put(stop=IN_RQ)

    def route(
        self, session_id: str, turn_id: str, fence: str, queue: str, route: bytes, entry: bytes, *bodies: bytes
    ) -> Answer:  # fmt: skip
        """Record the choice of a router. A moved turn has not been in its new queue yet."""
        session = self._held(session_id, fence)
        if session is None:
            return [b"SUPERSEDED"]
        turn = self.turns[turn_id]
        if turn.record.text("routed") != fence:
            turn.journal.append(entry)
            turn.record.put(routed=fence, route=route)
            session.record.put(route=route)
            if queue not in ("", queue_of(turn)):
                self._stop_cancelled(session, turn)
                self.shares.vacate(turn)
                turn.record.put(queue=queue)
                turn.record.drop("offered_at")
                self.view(turn)
            self._publish(session, self.now, *bodies)
        return [b"OK", session.record.get("stop", b"")]

    def give_back(self, *arguments: Any) -> Answer:
        answer = super().give_back(*arguments)
        self.rung |= {*arguments[10:]} if answer == [b"OK"] else set()
        return answer

    def suspend(self, session_id: str, turn_id: str, fence: str, *rest: Any) -> Answer:
        session = self._held(session_id, fence)
        if session is not None and not session.record.get("stop") and self.rq[turn_id] == "canceled":
            return [b"STOP", IN_RQ.encode()]
        return super().suspend(session_id, turn_id, fence, *rest)

    def decide(self, turn_id: str, call_id: str, op: str, kind: str, json: bytes, keep_events: int) -> Answer:
        turn = self.turns[turn_id]
        decided = any(call.id == call_id and call.decision for call in turn.calls)
        if turn.status == "suspended" and self.rq[turn_id] == "canceled" and not decided:
            self._withdraw(turn, IN_RQ, self.now, keep_events)
            return [b"NOT_SUSPENDED", b"cancelled"]
        return super().decide(turn_id, call_id, op, kind, json, keep_events)

    def keep_answered(self, turn_id: str, message: str, names: bytes, done: str) -> Answer:
        """Keep what a message answered first, and whether it has answered all of that."""
        turn = self.turns[turn_id]
        if is_deleted(turn):
            return [b"TURN_NOT_FOUND"]
        answered, _, first = turn.record.get(f"answered:{message}", b"").partition(b" ")
        names, done = first or names, "1" if answered == b"1" else done
        turn.record[f"answered:{message}"] = done.encode() + b" " + names
        return [b"KEPT", names, done]

    def needs(self, step: str) -> bool:
        """Return whether the turn of a step in a batch is still unfinished, in the same run."""
        asked = self.asked.get(step)
        turn = self.turns.get(asked.turn) if asked else None
        return turn is not None and turn.status not in ENDED and turn.record.number("run") == asked.run

    def deliver(self, step: str, json: bytes) -> Answer:
        """Deliver the answer of a batch to the turn that waits for it."""
        asked = self.asked.get(step)
        turn = self.turns[asked.turn] if asked and self.needs(step) else None
        if turn is not None and turn.status != "suspended":
            return [b"LATER"]
        self.asked.pop(step, None)
        calls = turn.calls if turn is not None and asked is not None else []
        call = next((one for one in calls if asked and one.id == asked.wait and one.kind == "batch"), None)
        if turn is None or call is None or call.decision or self.rq[turn.id] == "canceled":
            return [b"GONE"]
        turn.decide(call, "batch", json, self.now)
        if turn.decided:
            self._resume(turn, self.now)
        return [b"DELIVERED"]

    def _waiting_for(self, event: str) -> list[Turn]:
        """Return the turns that wait for an event. The reaper withdraws turns cancelled by RQ's tools."""
        return [turn for turn in super()._waiting_for(event) if self.rq[turn.id] != "canceled"]

    # budgets

    def note(self, session_id: str, turn_id: str, fence: str, scope: str) -> Answer:
        answer = super().note(session_id, turn_id, fence, scope)
        if answer == [b"NOTED"]:
            for turn in [one for one, at in self.noted.items() if at <= self.now - KEEP_NOTE_MS]:
                self._forget_note(turn)
            self.noted[turn_id] = self.now
            self.unfunded[turn_id] = scope
            self.turns[turn_id].record.put(unfunded=scope)
        return answer

    def wake(self, scope: str, since: str, count: int) -> Answer:
        """Wake waiting turns. Redis looks at ``count`` notes at once, in the order of their times."""
        first, exclusive = float(since.lstrip("(")), since[:1] == "("
        later = [
            (at, turn) for turn, at in self.noted.items() if at > first or (at == first and not exclusive)
        ]
        page = sorted(later)[:count]
        kept = self.unfunded
        self.unfunded = {turn: self.turns[turn].record.text("unfunded") for _, turn in page}
        super().wake(scope, since, count)
        for turn in [one for _, one in page if not self.unfunded.get(one)]:  # erased turns have no scope
            self.noted.pop(turn)
        self.unfunded = {turn: whose for turn, whose in kept.items() if turn in self.noted}
        if len(page) < count:
            return [b"WOKEN", b""]
        last = page[-1][0]
        return [b"WOKEN", f"({last}" if last == first and not exclusive else f"{last}"]

    def _forget_note(self, turn: str) -> None:
        del self.noted[turn]
        self.unfunded.pop(turn, None)

    # reapers

    def reap(
        self, holder: str, limit: int, crash_limit: int, keep_events: int, code: str, reason: str, spare: str,
        *queues: str,
    ) -> Answer:  # fmt: skip
        self._follow_clock()
        if not holder:
            self._forget_mended()
            for turn in self.turns.values():
                self._see_cancelled(turn, queues)
        if spare == "1":
            self.quarantined -= {one.id for one in self.sessions.values() if self._is_spared(one)}
        return super().reap(holder, limit, crash_limit, keep_events, code, reason, spare, *queues)

    def _see_cancelled(self, turn: Turn, queues: tuple[str, ...]) -> None:
        """Look at a suspended turn that RQ's tools have cancelled, however far off its next look is."""
        if turn.status != "suspended" or self.rq[turn.id] != "canceled" or queue_of(turn) not in queues:
            return
        if turn.aside is not None and turn.id not in self.quarantined:
            turn.aside = min(turn.aside, self.now)
        elif turn.aside is None and turn.session.id not in self.quarantined:
            turn.session.look_at = min(turn.session.look_at or 0, self.now)

    def _is_spared(self, session: Session) -> bool:
        return bool(session.record.get("fence")) and (session.look_at or 0) <= self.now

    def _held_by(self, holder: str) -> list[Session]:
        return [self.sessions[name] for name in self.order_of(holder)]

    def _crashed(self, turn: Turn, look: Look) -> None:
        self.quarantined.discard(turn.session.id)
        last = turn.record.number("crashes") + 1 >= look.crash_limit
        if last and self._is_cancelled_in_rq(turn) and "cancel" not in turn.record:
            turn.record.put(cancel=IN_RQ)
        super()._crashed(turn, look)

    def _is_cancelled_in_rq(self, turn: Turn) -> bool:
        return self.rq[turn.id] == "canceled"

    def _look(self, turn: Turn, look: Look) -> None:
        session = turn.session
        if turn.id in self.damaged:
            session.look_at = look.now + QUARANTINE_MS
            self._quarantine(session.id, [session.id.encode(), b"", b"quarantined"], look)
            return
        self.quarantined.discard(session.id)
        if self.rq[turn.id] == "canceled":
            ended = self._withdraw(turn, IN_RQ, look.now, look.keep_events)
            look.act(turn, "cancelled" if ended else "repaired")
        elif turn.status == "waiting" and self.shares.in_line(turn):
            session.look_at = look.now + LOOK_AGAIN_MS
            self.shares.let_in(turn)
        elif turn.status == "queued" and self.rq[turn.id] != "queued":
            self._leave_queue(turn)
            self._offer(turn, look.now, front=True)
            look.act(turn, "repaired")
        else:
            super()._look(turn, look)

    def _watch(self, turn: Turn, look: Look) -> int | None:
        look_at = super()._watch(turn, look)
        if look_at and self.rq[turn.id] != "deferred":
            self.view(turn)
        return look_at

    def _enter_due(self, turn: Turn, look: Look) -> None:
        if turn.id in self.damaged:
            turn.due = look.now + QUARANTINE_MS
            self._quarantine(turn.id, [b"", turn.id.encode(), b"quarantined"], look)
        elif not self._is_cancelled(turn, look):
            super()._enter_due(turn, look)

    def _look_aside(self, turn: Turn, look: Look) -> None:
        if turn.id in self.damaged:
            turn.aside = look.now + QUARANTINE_MS
            self._quarantine(turn.id, [b"", turn.id.encode(), b"quarantined"], look)
        elif not self._is_cancelled(turn, look):
            super()._look_aside(turn, look)

    def _is_cancelled(self, turn: Turn, look: Look) -> bool:
        """Withdraw a turn outside its inbox if RQ's tools have cancelled it, and return whether they have."""
        self.quarantined.discard(turn.id)
        if self.rq[turn.id] != "canceled":
            return False
        turn.due = None
        self._withdraw(turn, IN_RQ, look.now, look.keep_events)
        look.act(turn, "cancelled")
        return True

    def _quarantine(self, name: str, act: list[bytes], look: Look) -> None:
        if name not in self.quarantined:
            self.quarantined.add(name)
            look.acts.append(act)

    def _forget_mended(self) -> None:
        """Forget quarantined turns without a next look: they have ended or continued."""
        looked_at = {one.id for one in self.sessions.values() if one.look_at is not None}
        outside = {one.id for one in self.turns.values() if one.due is not None or one.aside is not None}
        self.quarantined &= looked_at | outside

    def _follow_clock(self) -> None:
        """Move future times with a clock that was put back."""
        back, self.looked_at = self.looked_at - self.now, self.now
        if back < BACK_MS:
            return
        self.slipped = max(0, self.slipped - back)
        self.unmoved_until = self.now + NEAREST_MS

        def moved(at: Any) -> Any:
            return max(at - back, min(at, self.now + NEAREST_MS))

        self.also_moved(moved)
        for session in self.sessions.values():
            if session.look_at is not None:
                session.look_at = moved(session.look_at)
                if lease := session.record.number("lease"):
                    session.record.put(lease=moved(lease))
                if retry_at := session.inbox[0].record.number("retry_at"):
                    session.inbox[0].record.put(retry_at=moved(retry_at))
        for turn in self.turns.values():
            turn.due = None if turn.due is None else moved(turn.due)
            if turn.aside is not None or turn.session.inbox[:1] == [turn]:
                turn.aside = None if turn.aside is None else moved(turn.aside)
                for call in turn.calls:
                    wait = f"{moved(call.until)} {call.at_limit} {call.kind} {call.id}"
                    turn.record.put(**{f"wait:{call.place}": wait})
