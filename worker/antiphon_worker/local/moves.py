"""The building blocks of a memory cell's transitions: inboxes, queues, and the publication of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from antiphon.errors import BudgetReached
from antiphon.input.values import now_ms
from antiphon_worker.local.records import KeptEvent, Record, Session, Turn

Answer: TypeAlias = list[Any]
T = TypeVar("T", Session, Turn)

LOOK_AGAIN_MS, LONGEST_UNSEEN_MS = 30_000, 3_600_000
EDIT_MS = 1_000
LONGEST_WAIT_MS = 30 * 86_400_000
DEFAULT_TTL_MS = 30 * 86_400_000
FOR_EVER_MS = 100 * 365 * 86_400_000
KEEP_TURN_MS = 7 * 86_400_000
KEEP_EVENT_MS = 86_400_000
SWEEP_MS = 60_000
ALONE_AFTER, START_ALONE_MS = 2, 30_000
KEPT_ENDED, KEPT_TURNS, KEPT_RUNS, KEPT_OPS, MOST_UNTOLD = 1000, 1000, 20, 16, 1300
KEPT_EVENTS = 10_000
ENDED = ("finished", "failed", "cancelled")
NOT_DECIDED = "Nobody decided about a tool call of this turn within its time limit."


def unseen_ms(turn: Turn, now: int) -> int:
    """Return the ms until a suspended turn is checked again: an hour if it only sleeps, or a quarter of its wait."""
    if all(call.kind in ("sleep", "batch") or call.decision for call in turn.calls):
        return LONGEST_UNSEEN_MS
    suspended = now - turn.record.number("suspended_at", now)
    return max(LOOK_AGAIN_MS, min(LONGEST_UNSEEN_MS, suspended // 4))


class Moves:
    """All sessions and turns of one cell. Not thread-safe: ``MemoryCell`` makes one call at a time.

    ``accepted`` is called with a new turn, ``published`` with a session's new events, ``woken`` with a turn that can
    be claimed, has a new due time, or has ended while it waited, and ``stopping`` with a running turn that must stop,
    the reason, and what to keep of it.
    """

    def __init__(self, clock: Callable[[], int] = now_ms, most_events: int = KEPT_EVENTS) -> None:
        self.clock = clock
        self.most_events = most_events  # that are kept of ended turns
        self.sessions: dict[str, Session] = {}
        self.turns: dict[str, Turn] = {}
        self.queues: dict[str, list[Turn]] = {}
        self.accepted: Callable[[Turn], None] = lambda turn: None
        self.published: Callable[[str, list[bytes]], None] = lambda session, events: None
        self.woken: Callable[[Turn], None] = lambda turn: None
        self.grown: Callable[[Session, int, int, int | None, int], None] = (
            lambda session, seq, before, kept, last: None
        )
        self.stopping: Callable[[str, str, str], None] = lambda turn, reason, keep: None
        self.event_position = 0
        self.events: dict[str, dict[str, KeptEvent]] = {}  # sent ones, by names and ids
        self.tokens: dict[str, str] = {}  # of the last claim of each worker
        self.promotions = b""  # which revisions of agents sessions take, as JSON
        self.fences = 0
        self.spent: dict[str, Record] = {}  # ledgers of budgets
        self.budgets: dict[str, dict[str, bytes]] = {}  # stored ones, by scope and name
        self.unfunded: dict[str, str] = {}  # the scopes whose budgets turns wait for
        self._ended: dict[str, Turn] = {}  # in the order of their ends
        self._swept = clock()

    def find(self, session_id: str) -> Session | None:
        """Return an existing session, or None. A session that was unused for its time to live does not exist."""
        session, now = self.sessions.get(session_id), self.clock()
        if session is not None and session.expires is not None and session.expires <= now:
            self.drop_session(session)
            session = None
        if now - self._swept > SWEEP_MS:
            self._sweep(now)
        return session

    def _begun(self, session_id: str) -> Session:
        """Return a session, or a new one that does not exist until something is written to it."""
        return self.find(session_id) or Session(session_id)

    def drop_session(self, session: Session) -> None:
        """Remove a session from memory."""
        del self.sessions[session.id]
        self.spent.pop(f"session::{session.id}", None)
        session.clear()

    def outside(self, session: Session) -> list[Turn]:
        """Return the pending turns of a session outside its inbox: delayed ones, and those that may be overtaken."""
        return [turn for turn in session.turns if turn.due is not None or turn.aside is not None]

    def _held(self, session_id: str, fence: str) -> Session | None:
        """Return the session if this fence is in force, else None."""
        session = self.sessions.get(session_id)
        return session if session and fence and session.record.text("fence") == fence else None

    def _publish(self, session: Session, now: int, *bodies: bytes) -> int:
        seq = session.record.number("seq")
        events: list[bytes] = []
        for body in bodies:
            seq += 1
            events.append(b'{"seq":%d,"at":%d,' % (seq, now) + body[1:])
            session.events.append((seq, events[-1]))
        session.record.put(seq=seq, updated=now)
        if events:
            self.published(session.id, events)
        return seq

    def _enter(self, turn: Turn, now: int, behind: Turn | None = None) -> int:
        """Put a new run of a turn at the end of its session's inbox, or directly after another turn."""
        inbox = turn.session.inbox
        position = len(inbox) if behind is None else inbox.index(behind) + 1
        inbox.insert(position, turn)
        turn.session.expires = None
        event = turn.event("turn_queued", position=position, **turn.input_shown)
        seq = self._publish(turn.session, now, event)
        turn.record.put(queued_seq=seq, queued_at=now, position=position)
        if position == 0:
            self._offer(turn, now, front="front" in turn.record)
        else:
            turn.record.put(status="waiting")
        return position

    def _offer(self, turn: Turn, now: int, *, front: bool = False) -> None:
        """Put a turn into its queue, where workers find it."""
        turn.session.look_at = now + LOOK_AGAIN_MS
        queue = self.queues.setdefault(turn.record.text("queue"), [])
        queue.insert(0 if front else len(queue), turn)
        turn.record.put(status="queued", offered_at=0 if front else now)
        self.woken(turn)

    def _leave_queue(self, turn: Turn) -> None:
        queue = self.queues.get(turn.record.text("queue"), [])
        if turn in queue:
            queue.remove(turn)

    def _ready(self, session: Session, now: int, *, front: bool = False) -> None:
        """Offer the head of the inbox. If the inbox is empty, the session's time to live begins.

        An edit that has waited for the ended turn goes first: the head is held back for a moment.
        """
        if not session.inbox:
            session.look_at = None
            self._release(session, now)
        elif not front and session.record.pop("edit_waits", None):
            session.look_at = now + EDIT_MS
            self.woken(session.inbox[0])
        else:
            self._offer(session.inbox[0], now, front=front)

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
        """End a run. A turn that leaves no messages in the history records its history position."""
        session, record, ran = turn.session, turn.record, turn.status == "running"
        seq = self._publish(session, now, *bodies)
        if not left:
            record.put(place=len(session.history))
        record.put(status=status, ended_at=now, last_seq=seq)
        turn.journal = []
        if status != "failed":  # a failed turn can run again
            turn.carried = None
        if not ran:
            self.woken(turn)
        self.unfunded.pop(turn.id, None)
        self._ended[turn.id] = turn
        if len(self._ended) > KEPT_ENDED:
            self._drop(next(iter(self._ended.values())))
        if turn in session.inbox:
            session.inbox.remove(turn)
        going_on = [turn, *session.inbox[:1]]
        begun = [one.record.number("first_seq", seq) for one in going_on]
        session.trim(min(seq - min(keep_events, self.most_events) + 1, *begun))

    def _list(self, turn: Turn) -> None:
        turns = turn.session.turns
        turns.append(turn)
        if len(turns) > KEPT_TURNS:
            turns.pop(0)

    def _release(self, session: Session, now: int) -> None:
        """Start the session's time to live, unless one of its turns is not due yet or waits for decisions."""
        record = session.record
        ttl = record.number("ttl", DEFAULT_TTL_MS) if record.get("ttl") else DEFAULT_TTL_MS
        if ttl <= 0 or record.number("aside"):
            session.expires = None
        else:
            session.expires = now + ttl + max(0, record.number("due_until") - now)

    def _drop(self, turn: Turn) -> None:
        del self.turns[turn.id], self._ended[turn.id]
        self.spent.pop(f"turn:{turn.id}", None)
        if turn in turn.session.turns:
            turn.session.turns.remove(turn)

    def _sweep(self, now: int) -> None:
        """Drop what has expired: sessions after their time to live, and turns a week after their end."""
        self._swept = now
        for session in list(self.sessions.values()):
            if session.expires is not None and session.expires <= now:
                self.drop_session(session)
        for turn in list(self._ended.values()):
            if turn.record.number("ended_at") + KEEP_TURN_MS <= now:
                self._drop(turn)

    def _stand_up(self, turn: Turn) -> bool:
        """End the wait of a turn. An overtaken turn enters the inbox after the current turn.

        Returns whether the turn is the head.
        """
        session = turn.session
        if turn.aside is not None:
            turn.aside = None
            session.record.put(aside=session.record.number("aside") - 1)
            session.inbox.insert(1, turn)
            if session.inbox[0] is not turn:
                turn.record.put(status="waiting")
        return session.inbox[:1] == [turn]

    def _withdraw(self, turn: Turn, reason: str, now: int, keep_events: int, keep: str = "") -> bool:
        """Cancel a turn that no worker runs. If it has something to keep, a worker claims it and ends it.

        Returns whether it has ended.
        """
        head, session = self._stand_up(turn), turn.session
        self._leave_queue(turn)
        if turn.journal or (keep == "partial" and "first_seq" in turn.record):
            turn.record.put(cancel=reason, keep=keep or "steps")
            if head:
                self._offer(turn, now, front=True)
            return False
        if head:
            session.let_go()
        turn.record.put(error=reason)
        end = turn.event("turn_cancelled", reason=reason)
        self._conclude(turn, "cancelled", now, [end], keep_events)
        if head or not session.inbox:
            self._ready(session, now)
        return True

    def _stop(self, turn: Turn, reason: str, keep: str, now: int, keep_events: int) -> bool:
        """Stop a turn that may be running. Returns whether it has ended."""
        if turn.status != "running":
            return self._withdraw(turn, reason, now, keep_events, keep)
        turn.record.put(cancel=reason, keep=keep)
        turn.session.record.put(stop=reason)
        self.stopping(turn.id, reason, keep)
        return False

    def _retry(self, turn: Turn, now: int, delay_ms: int, reason: str, code: str, service: bytes) -> None:
        """Restart the turn from its last finished step, at once or after a delay. A turn that moves waits in line."""
        if code == BudgetReached.code and turn.id not in self.unfunded:
            delay_ms = 0
        more = {"service": msgspec.Raw(service)} if service else {}
        event = turn.event(
            "turn_retrying",
            "attempt",
            "step",
            reason=reason,
            code=code,
            retry_at=now + max(delay_ms, 0),
            **more,
        )
        if turn.record.get("answering") != turn.record.get("step"):
            self._publish(turn.session, now, event)
        if (delay_ms <= 0 and "offered_at" in turn.record) or self._is_cancelled_in_rq(turn):
            self._ready(turn.session, now, front=True)
            return
        turn.record.put(
            status="retrying",
            retry_at=now + delay_ms,
            retry_reason=reason,
            retry_code=code,
            retry_service=service,
        )
        turn.session.look_at = now + delay_ms
        self.woken(turn)
        if delay_ms <= 0:
            self._ready(turn.session, now)

    def _is_cancelled_in_rq(self, turn: Turn) -> bool:
        """Return whether RQ's tools have cancelled a turn. Without Redis, there are no such tools."""
        return False

    def _resume(self, turn: Turn, now: int) -> None:
        head, record = self._stand_up(turn), turn.record
        record.put(waited=record.number("waited") + now - record.number("suspended_at", now))
        made = msgspec.Raw(b"[" + b",".join(call.decision for call in turn.calls if call.decidable) + b"]")
        step = record.number("step", 1) - 1
        self._publish(turn.session, now, turn.event("turn_resumed", step=step, decisions=made))
        if head:
            self._ready(turn.session, now, front=True)

    def _keep_journal(self, turn: Turn) -> None:
        """Keep the journal as a field: tools may have run, and the history does not show it."""
        if turn.journal:
            made = [
                b'{"decision":' + call.decision + b"}"
                for call in turn.calls
                if call.decision and call.decidable
            ]
            turn.record.put(journal=b"[" + b",".join([*turn.journal, *made]) + b"]")
            turn.session.note_untold(turn, MOST_UNTOLD)
