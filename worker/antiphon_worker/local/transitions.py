"""The transitions of a cell as plain Python: what each Lua script does to sessions, turns and events.

Each public method is one script, with its arguments and its answers; docs/states.md draws them. The simulation runs
the same schedules here and in Redis, and compares answers, records and events, so this is also the specification of
the scripts. Features of servers are left out: RQ's records, shares of tenants, damaged data, and separate processes
for turns that crash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from antiphon.model import encode
from antiphon.model.suspension import IN_TIME
from antiphon.model.usage import Usage
from antiphon_worker.local.files import FileTransitions, marked
from antiphon_worker.local.ledgers import LedgerTransitions
from antiphon_worker.local.moves import (
    ALONE_AFTER,
    DEFAULT_TTL_MS,
    ENDED,
    FOR_EVER_MS,
    KEPT_EVENTS,
    KEPT_RUNS,
    LONGEST_WAIT_MS,
    LOOK_AGAIN_MS,
    MOST_UNTOLD,
    NOT_DECIDED,
    START_ALONE_MS,
    Answer,
    T,
    unseen_ms,
)
from antiphon_worker.local.records import OF_A_RUN, Session, Turn
from antiphon_worker.local.sent_events import EventTransitions
from antiphon_worker.local.sessions import SessionTransitions

SUBMIT_ARGUMENTS = 26


class Claim(NamedTuple):
    """A call of ``claim``: the worker, and the turns taken so far."""

    worker: str
    token: str
    lease_ms: int
    now: int
    only: str
    app: str
    most: int
    most_alone: int
    taken: list[Turn]
    alone: list[Turn]
    left: list[Turn]


class Look(NamedTuple):
    """A call of ``reap``, and what it has done so far."""

    now: int
    crash_limit: int
    keep_events: int
    code: str
    reason: str
    acts: list[list[bytes]]

    def act(self, turn: Turn, what: str) -> None:
        self.acts.append([turn.session.id.encode(), turn.id.encode(), what.encode()])


class Transitions(SessionTransitions, FileTransitions, EventTransitions, LedgerTransitions):
    """All transitions of one cell: those of sessions, files, events and budgets, and those of turns."""

    def submit(
        self, session_id: str, turn_id: str, digest: str, request: bytes, queue: str, agent_queue: str,
        default_queue: str, ttl_ms: Any, inbox_limit: int, delayed_limit: int, tenant_limit: int, session_limit: int,
        busy: str, due_in_ms: int, tail: int, agent: bytes, named: bytes, metadata: bytes, tenant: str, key: str,
        input_bytes: int, again: str, priority: str, cursor: Any, user: str, user_limit: int,
    ) -> Answer:  # fmt: skip
        """Accept a turn: it enters its session's inbox, or waits until it is due."""
        now, life = self.clock(), DEFAULT_TTL_MS if ttl_ms == "" else int(ttl_ms)
        if not (0 <= due_in_ms <= FOR_EVER_MS and 0 <= life <= FOR_EVER_MS):
            return [b"OUT_OF_RANGE"]
        known = self.turns.get(turn_id)
        if known is not None:
            session = self.find(session_id) or Session(session_id)
            return self._submitted_before(known, session, digest, tenant, busy, inbox_limit, again)
        session = self._begun(session_id)
        kept, length = session.record, len(session.inbox)
        if refusal := self._refusal(session, tenant, busy, cursor, inbox_limit):
            return refusal
        if due_in_ms > 0 and sum(turn.due is not None for turn in self.turns.values()) >= delayed_limit:
            return [b"FULL", b"delayed_turns"]
        if "created" not in kept and len(self.sessions) >= session_limit:
            return [b"FULL", b"sessions"]
        turn = Turn(turn_id, session)
        if not _note_user(turn, user, user_limit):
            return [b"FULL", b"session_users"]
        kept.begin(now, turn_id)
        home = _kept_by(session, queue, agent, agent_queue, ttl_ms, tenant)
        turn.record.put(
            session=session_id, digest=digest, request=marked(request, kept), queue=queue or home or default_queue,
            status="queued", run=1, attempt=0, crashes=0, errors=0, step=1, tail=tail, queued_at=now, agent=named,
            metadata=metadata, position=length, created=now, key=key, input=input_bytes,
        )  # fmt: skip
        more = {"tenant": kept.text("tenant"), "front" if priority == "front" else "priority": priority}
        turn.record.put(**{name: value for name, value in more.items() if value})
        self.sessions[session_id], self.turns[turn_id] = session, turn
        self._list(turn)
        self.accepted(turn)
        if due_in_ms > 0:
            turn.due = now + due_in_ms
            turn.record.put(due_at=turn.due)
            kept.put(due_until=max(kept.number("due_until"), turn.due))
            if not length:
                self._release(session, now)
            self.woken(turn)
            return [b"ACCEPTED", length]
        stopped = self._stopped_by(session, busy)
        position = self._enter(turn, now, stopped)
        if position:
            self._act_on(stopped, turn, busy, now)
        return [b"ACCEPTED", position]

    def submit_many(self, *arguments: Any) -> Answer:
        """Accept many turns in order, each on its own."""
        starts = range(0, len(arguments), SUBMIT_ARGUMENTS)
        return [b"SUBMITTED", [self.submit(*arguments[at : at + SUBMIT_ARGUMENTS]) for at in starts]]

    def _submitted_before(
        self, turn: Turn, session: Session, digest: str, tenant: str, busy: str, inbox_limit: int, again: str
    ) -> Answer:
        """Handle a repeated submission, or a request to run a failed turn again."""
        whole = session.record
        owner = turn.record.text("tenant") or whole.text("tenant") or ("" if "created" in whole else tenant)
        if tenant and owner != tenant:
            return [b"OTHER_TENANT"]
        if turn.record.text("digest") == "deleted":
            return [b"TURN_DELETED"]
        if turn.record.text("digest") != digest or turn.session.id != session.id:
            return [b"KEY_REUSED"]
        if not again or turn.status != "failed" or turn.record.text("again") == again:
            return [b"ACCEPTED", turn.record.number("position")]
        if no := self._kept_from_running(turn):
            return [no]
        if session.inbox and busy == "reject":
            return [b"SESSION_BUSY", session.inbox[0].id.encode()]
        if len(session.inbox) >= inbox_limit:
            return [b"INBOX_FULL", len(session.inbox)]
        now, stopped = self.clock(), self._stopped_by(session, busy)
        position = self._run_again(turn, now, again, stopped)
        if position is None:
            return [b"SESSION_CLOSED"]
        if stopped is not None:
            self._act_on(stopped, turn, busy, now)
        return [b"ACCEPTED", position]

    def _refusal(
        self, session: Session, tenant: str, busy: str, cursor: Any, inbox_limit: int
    ) -> Answer | None:
        """Return why a session does not take a new turn, or None."""
        kept, length = session.record, len(session.inbox)
        if tenant and (kept.text("tenant") or ("" if "created" in kept else tenant)) != tenant:
            return [b"OTHER_TENANT"]
        if "closed" in kept:
            return [b"SESSION_CLOSED"]
        if length and busy == "reject":
            return [b"SESSION_BUSY", session.inbox[0].id.encode()]
        seq = kept.number("seq") if "created" in kept else 0
        if cursor != "" and seq != int(cursor):
            return [b"SESSION_CHANGED", str(seq).encode()]
        return [b"INBOX_FULL", length] if length >= inbox_limit else None

    def requeue(self, turn_id: str, again: str) -> Answer:
        """Run a failed turn again: a new run at the end of its session's inbox."""
        turn = self.turns.get(turn_id)
        if turn is None:
            return [b"TURN_NOT_FOUND"]
        if "deleted" in turn.record:
            return [b"TURN_DELETED"]
        if turn.record.text("again") == again:
            return [b"OK"]
        if turn.status != "failed":
            return [b"NOT_FAILED", turn.status.encode()]
        if no := self._kept_from_running(turn):
            return [no, *([turn.session.id.encode()] if no == b"OTHER_TENANT" else [])]
        if self._run_again(turn, self.clock(), again) is None:
            return [b"SESSION_CLOSED", turn.session.id.encode()]
        return [b"OK"]

    def _kept_from_running(self, turn: Turn) -> bytes:
        """Return why a turn does not run again (another tenant has since begun a session with its id), or b""."""
        whose, session = turn.record.get("tenant"), self.find(turn.session.id)
        return b"OTHER_TENANT" if whose and session and session.record.get("tenant") != whose else b""

    def _run_again(self, turn: Turn, now: int, again: str, behind: Turn | None = None) -> int | None:
        session = self.find(turn.session.id)
        if session is not None and "closed" in session.record:
            return None
        if session is None:
            session = self.sessions[turn.session.id] = self._begun(turn.session.id)
        turn.session, record = session, turn.record
        del self._ended[turn.id]
        record.put(again=again)
        turn.end_run(KEPT_RUNS)
        turn.forget_calls()
        record.put(run=record.number("run") + 1, attempt=0, crashes=0, errors=0, step=1)
        record.drop(*OF_A_RUN)
        turn.journal = record.get("steered", b"").splitlines()
        begun = session.record.begin(now, turn.id)
        if begun and (tenant := record.get("tenant")):
            session.record.put(tenant=tenant)
        _note_user(turn, record.text("user"))
        if turn not in session.turns:
            self._list(turn)
        return self._enter(turn, now, behind)

    def _stopped_by(self, session: Session, busy: str) -> Turn | None:
        """Return the turn that a new one stops and directly follows: the first not already being stopped."""
        if busy not in ("interrupt", "rollback"):
            return None
        return next((turn for turn in session.inbox if "cancel" not in turn.record), None)

    def _act_on(self, current: Turn | None, turn: Turn, busy: str, now: int) -> None:
        head = turn.session.inbox[0]
        if busy == "steer":
            if head is not turn and "cancel" not in head.record:
                turn.record.put(steers=head.id)
                turn.session.record.put(steer=head.id)
        elif current is not None and busy == "interrupt":
            reason = f"interrupted by turn {turn.id}"
            if current.status in ("running", "suspended"):
                self._stop(current, reason, "partial", now, KEPT_EVENTS)
                return
            current.record.put(cancel=reason, keep="partial")
            if current is head:
                self._leave_queue(current)
                self._offer(current, now, front=True)
        elif current is not None:
            self._stop(current, f"rolled back for turn {turn.id}", "nothing", now, KEPT_EVENTS)

    def claim(
        self,
        worker: str,
        token: str,
        lease_ms: int,
        most: int,
        most_alone: int,
        only: str,
        app: str,
        *queues: str,
    ) -> Answer:
        """Take turns: lease each session, create its fence, start and load the turn."""
        now, taken, alone = self.clock(), list[Turn](), list[Turn]()
        if self.tokens.get(worker) == token:
            held = [one for one in self.sessions.values() if one.record.text("holder") == worker]
            taken = [one.inbox[0] for one in held if one.record.text("fence").endswith(token)]
            alone = [one.inbox[0] for one in held if one.alone == token]
            return _claimed(taken, alone, now, self.promotions)
        claim = Claim(worker, token, lease_ms, now, only, app, most, most_alone, taken, alone, [])
        if only:
            self._leave_queue(self.turns[only])
            self._try(self.turns[only], claim)
        for queue in () if only else queues:
            waiting = self.queues.get(queue, [])
            while waiting and len(taken) + len(alone) < most:
                self._try(waiting.pop(0), claim)
            waiting[:0] = claim.left
            claim.left.clear()
        return _claimed(taken, alone, now, self.promotions)

    def _try(self, turn: Turn, claim: Claim) -> None:
        """Take a turn from its queue if it can start, unless it must be left there for another worker."""
        if not self._startable(turn, claim.now):
            return
        if claim.app and not claim.only and claim.app in turn.record.text("lacking"):
            claim.left.append(turn)
        elif claim.only or turn.record.number("crashes") < ALONE_AFTER:
            claim.taken.append(self._take(turn, claim))
        elif len(claim.alone) < claim.most_alone:
            turn.session.alone = claim.token
            turn.session.look_at = claim.now + max(claim.lease_ms, START_ALONE_MS)
            turn.session.record.put(holder=claim.worker)
            self.tokens[claim.worker] = claim.token
            claim.alone.append(turn)
        else:
            claim.left.append(turn)

    def _startable(self, turn: Turn, now: int) -> bool:
        """Return whether a worker can take the turn: it is due, and the head of a session without a holder."""
        due = turn.status == "queued" or (turn.status == "retrying" and turn.record.number("retry_at") <= now)
        return due and turn.session.inbox[:1] == [turn] and not turn.session.record.get("fence")

    def _take(self, turn: Turn, claim: Claim) -> Turn:
        session, record, worker, now = turn.session, turn.record, claim.worker, claim.now
        if not claim.taken:
            self.fences += claim.most  # a call reserves the numbers of all fences that it may need
        number = self.fences - claim.most + len(claim.taken) + 1
        fence, self.tokens[worker] = f"{number}-{claim.token}", claim.token
        session.look_at, stop = now + claim.lease_ms, record.get("cancel", b"")
        session.record.put(
            fence=fence, holder=worker, lease=session.look_at, turn=turn.id, batch=0, stop=stop
        )
        record.put(attempt=record.number("attempt") + 1)
        event = turn.event("turn_started", "attempt", "step", worker=worker)
        seq = self._publish(session, now, event)
        record.setdefault("first_seq", str(seq).encode())
        record.setdefault("started_at", str(now).encode())
        begins = "" if session.record.get("pins") or self.promotions else claim.app
        record.put(status="running", worker=worker, execution=fence, app=record.text("app") or begins)
        return turn

    def renew(self, worker: str, lease_ms: int, *leases: str) -> Answer:
        """Renew leases, and return which turns must stop."""
        now, answers = self.clock(), []
        for session_id, fence in zip(leases[::2], leases[1::2], strict=True):
            session = self._held(session_id, fence)
            if session is not None:
                session.look_at = now + lease_ms
                session.record.put(lease=session.look_at)
            answers.append(b"SUPERSEDED" if session is None else session.record.get("stop", b""))
        return [b"RENEWED", answers]

    def emit(self, *windows: Any) -> Answer:
        """Log and publish a window of events for each of several sessions."""
        now, answers, at = self.clock(), [], 0
        while at < len(windows):
            session_id, fence, batch, count = windows[at : at + 4]
            session = self._held(session_id, fence)
            if session is not None and batch > session.record.number("batch"):
                self._publish(session, now, *windows[at + 4 : at + 4 + count])
                session.record.put(batch=batch)
            answers.append(b"SUPERSEDED" if session is None else session.record.get("stop", b""))
            at += 4 + count
        return [b"EMITTED", answers]

    def append_step(
        self,
        session_id: str,
        turn_id: str,
        fence: str,
        length: int,
        step: int,
        usage: bytes,
        answering: str,
        count: int,
        *rest: bytes,
    ) -> Answer:
        """Append to a turn's journal and publish the events for it. ``length`` names the call."""
        session = self._held(session_id, fence)
        if session is None:
            return [b"SUPERSEDED"]
        turn, stop = self.turns[turn_id], session.record.get("stop", b"")
        answer = [b"STEER" if not stop and session.record.text("steer") == turn_id else b"OK", stop]
        if len(turn.journal) == length + count:
            return answer
        if len(turn.journal) != length:
            return [b"CONFLICT", len(turn.journal)]
        turn.journal += rest[:count]
        turn.record.put(step=step)
        if usage:
            turn.record.put(session_usage=usage)
        if answering:
            turn.record.put(answering=answering)
        if rest[count:]:
            self._publish(session, self.clock(), *rest[count:])
        return answer

    def steer(
        self, session_id: str, turn_id: str, fence: str, length: int, step: int, keep_events: int
    ) -> Answer:
        """Let a running turn take the input of the turns that were submitted to steer it; those turns end."""
        session = self._held(session_id, fence)
        if session is None:
            return [b"SUPERSEDED"]
        turn, stop = self.turns[turn_id], session.record.get("stop", b"")
        if len(turn.journal) < length:
            return [b"CONFLICT", len(turn.journal)]
        if len(turn.journal) == length and not stop:
            for other in session.inbox[1:]:
                waits = other.status == "waiting" and not self._is_cancelled_in_rq(other)
                if waits and other.record.text("steers") == turn_id:
                    self._take_input(turn, other, step, keep_events)
            session.record.drop("steer")
        return [b"OK", stop, turn.journal[length:]]

    def _take_input(self, turn: Turn, other: Turn, step: int, keep_events: int) -> None:
        now, record = self.clock(), other.record
        entry = b'{"type":"steered","version":2,"turn_id":"%s","created":%s,"request":%s}' % (
            other.id.encode(), record["created"], record["request"],
        )  # fmt: skip
        turn.journal.append(entry)
        turn.record.put(steered=turn.record.get("steered", b"") + entry + b"\n")
        record.put(steered_into=turn.id)
        self._publish(
            turn.session,
            now,
            turn.event("turn_steered", "attempt", step=step, steered_id=other.id, **other.input_shown),
        )
        end = other.event("turn_finished", steered_into=turn.id)
        self._conclude(other, "finished", now, [end], keep_events, left=True)

    def finish(
        self, session_id: str, turn_id: str, fence: str, status: str, response: bytes, error_code: str, error: bytes,
        service: bytes, variables: bytes, window: str, summary: bytes, kept: Any, keep_events: int, calls: str,
        usage: bytes, memories: str, events_ttl: Any, count: int, *rest: bytes,
    ) -> Answer:  # fmt: skip
        """End a run: its messages become history, its terminal event is published, the session's next turn starts."""
        turn = self.turns.get(turn_id)
        if turn is not None and turn.record.text("done") == fence:
            return [b"OK"]
        session = self._held(session_id, fence)
        if session is None or turn is None:
            return [b"SUPERSEDED"]
        if (stop := session.record.get("stop")) and status != "cancelled":
            return [b"STOPPED", stop]
        seq, before, cut_to = session.record.number("seq"), len(session.history), None
        if kept != "" and before > kept:
            session.record.put(shortened=1)
            session.cut(kept)
            cut_to = kept
        session.history += rest[:count]
        self.grown(session, seq, before, cut_to, seq + len(rest) - count)
        if service:
            turn.record.put(service=service)
        kept_fields = {"variables": variables, "window": window, "summary": summary, "usage": usage}
        for name, value in kept_fields.items():
            if value:
                session.record.put(**{name: value})
        if str(events_ttl) != session.record.text("events_ttl"):
            session.record.put(events_ttl=events_ttl)
        if calls == "told":
            session.record.drop("untold")
        if calls == "untold":
            session.note_untold(turn, MOST_UNTOLD)
        now, left = self.clock(), status == "finished" or count > 0
        turn.record.put(done=fence, response=response, error_code=error_code, error=error)
        self._conclude(turn, status, now, list(rest[count:]), keep_events, left=left)
        session.let_go()
        self._ready(session, now)
        return [b"OK"]

    def give_back(
        self, session_id: str, turn_id: str, fence: str, cause: str, delay_ms: int, reason: bytes, code: str,
        service: bytes, lacking: str, missing: str, *workers: str,
    ) -> Answer:  # fmt: skip
        """Requeue an unfinished turn, after a delay if given. Only an error counts as an error and as an attempt."""
        turn = self.turns[turn_id]
        if turn.record.text("given_back") == fence:
            return [b"OK"]
        session = self._held(session_id, fence)
        if session is None:
            return [b"SUPERSEDED"]
        if stop := session.record.get("stop"):
            return [b"STOPPED", stop]
        now, record = self.clock(), turn.record
        record.put(given_back=fence, missed_at=(record.text("missed_at") or now) if missing else "")
        if lacking:
            record.put(lacking=lacking)
            if (begun_by := record.text("app")) and begun_by in lacking:
                record.drop("app")
        session.let_go()
        self._retry(turn, now, delay_ms, reason.decode(), code, service)
        if cause != "drain" and record.text("failing").partition(" ")[0] != record.text("step"):
            record.put(failing=f"{record.text('step')} {now}")
        counted = "errors" if cause == "error" else "attempt"
        record.put(**{counted: record.number(counted) + (1 if cause == "error" else -1)})
        return [b"OK"]

    def suspend(
        self, session_id: str, turn_id: str, fence: str, aside: bytes, count: int, *rest: Any
    ) -> Answer:
        """Suspend a turn until its pending calls are decided. With ``aside``, the session's next turns overtake it."""
        turn = self.turns[turn_id]
        if turn.record.text("given_back") == fence:
            return [b"OK"]
        session = self._held(session_id, fence)
        if session is None:
            return [b"SUPERSEDED"]
        if stop := session.record.get("stop"):
            return [b"STOP", stop]
        now, record = self.clock(), turn.record
        record.put(given_back=fence)
        soonest = turn.wait_for(rest[: 7 * count], now, LONGEST_WAIT_MS)
        found = {name: record.get(name, b"[]") for name in ("calls", "waits")}
        listed = {name: msgspec.Raw(json) for name, json in found.items() if json != b"[]"}
        kind = "turn_suspended" if "calls" in listed else "turn_sleeping"
        event = turn.event(kind, "attempt", step=record.number("step", 1) - 1, **listed)
        self._publish(session, now, *rest[7 * count :], event)
        record.put(status="suspended")
        session.let_go()
        look_at = min(soonest, now + unseen_ms(turn, now))
        if not aside:
            session.look_at = look_at
        else:
            turn.aside = look_at
            session.record.put(aside=session.record.number("aside") + 1)
            record.drop("first_seq", "session_usage")
            record.put(own_usage=aside)
            session.inbox.remove(turn)
            self._ready(session, now)
        if self._receive(turn, now) and turn.decided:
            self._resume(turn, now)
        return [b"OK"]

    def decide(self, turn_id: str, call_id: str, op: str, kind: str, json: bytes, keep_events: int) -> Answer:
        """Decide about a pending call of a suspended turn. When the last one is decided, the turn is queued."""
        turn = self.turns.get(turn_id)
        if turn is None:
            return [b"TURN_NOT_FOUND"]
        now = self.clock()
        call = next((one for one in turn.calls if one.id == call_id), None)
        if call is not None and call.decision:
            return [b"DECIDED"] if call.op == op else [b"ALREADY", call.decision]
        if turn.status != "suspended":
            return [b"NOT_SUSPENDED", turn.status.encode()]
        if call is None:
            return [b"UNKNOWN_CALL"]
        if not call.decidable or kind not in ("reject", "result" if call.kind == "tool" else "approve"):
            return [b"OTHER_KIND", call.kind.encode()]
        turn.decide(call, op, json, now)
        if turn.decided:
            self._resume(turn, now)
        return [b"DECIDED"]

    def cancel(self, turn_id: str, reason: bytes, keep: str, keep_events: int) -> Answer:
        """Cancel a turn: immediately if no worker runs it; otherwise notify its holder."""
        turn = self.turns.get(turn_id)
        if turn is None:
            return [b"TURN_NOT_FOUND"]
        if turn.status in ENDED:
            return [b"ALREADY", turn.status.encode()]
        said = reason.decode()
        turn.due = None
        why = "cancelled" if said in ("", "SUPERSEDED", "STEER") else said
        ended = self._stop(turn, why, keep, self.clock(), keep_events)
        return [b"CANCELLED" if ended else b"REQUESTED"]

    def reap(
        self, holder: str, limit: int, crash_limit: int, keep_events: int, code: str, reason: str, spare: str,
        *queues: str,
    ) -> Answer:  # fmt: skip
        """Start what is due (retries, delayed turns, time limits), and recover the turns of dead holders."""
        look = Look(self.clock(), crash_limit, keep_events, code, reason, [])
        if holder:
            self.tokens.pop(holder, None)
            sessions = self._held_by(holder)
        else:
            most = limit * 10 if spare == "1" else limit
            sessions = _due(self.sessions.values(), "look_at", look.now, most)
        for session in sessions:
            if not session.record.get("fence"):
                if session.record.get("holder"):
                    session.let_go()
                self._look(session.inbox[0], look)
            elif holder or spare != "1":
                self._crashed(session.inbox[0], look)
        if not holder:
            for turn in _due(self.turns.values(), "due", look.now, limit):
                self._enter_due(turn, look)
            for turn in _due(self.turns.values(), "aside", look.now, limit):
                self._look_aside(turn, look)
        return [b"REAPED", look.acts]

    def _held_by(self, holder: str) -> list[Session]:
        return [one for one in self.sessions.values() if one.record.text("holder") == holder]

    def _enter_due(self, turn: Turn, look: Look) -> None:
        turn.due = None
        self._enter(turn, look.now)
        look.act(turn, "due")

    def _look_aside(self, turn: Turn, look: Look) -> None:
        if look_at := self._watch(turn, look):
            turn.aside = look_at

    def _look(self, turn: Turn, look: Look) -> None:
        """Check the head of a session without a holder: it must be claimable, or due later."""
        session, record, now = turn.session, turn.record, look.now
        if turn.status == "suspended":
            if look_at := self._watch(turn, look):
                session.look_at = look_at
        elif turn.status == "retrying" and record.number("retry_at") > now:
            session.look_at = record.number("retry_at")
        elif turn.status == "queued" and turn in self.queues.get(record.text("queue"), ()):
            record.drop("lacking")
            session.look_at = now + LOOK_AGAIN_MS
        else:
            what = "retried" if turn.status == "retrying" else "repaired"
            self._leave_queue(turn)
            self._offer(turn, now, front=True)
            look.act(turn, what)

    def _watch(self, turn: Turn, look: Look) -> int | None:
        """Check a suspended turn: time limits decide, or end the turn. Returns when to check again if it waits."""
        now = look.now
        self._receive(turn, now)
        for call in turn.calls:
            if call.until > now or call.decision:
                continue
            if call.at_limit == "fail":
                self._stand_up(turn)
                self._give_up(turn, "not_decided", NOT_DECIDED, look)
                return look.act(turn, "not_decided")
            json = encode({"call_id": call.id, "kind": call.at_limit, "reason": IN_TIME})
            turn.decide(call, "limit", turn.record.get(f"limit:{call.place}") or json, now)
        if turn.decided:
            self._resume(turn, now)
            return look.act(turn, "resumed")
        return min(now + unseen_ms(turn, now), *(call.until for call in turn.calls if not call.decision))

    def _crashed(self, turn: Turn, look: Look) -> None:
        """Recover a turn whose holder has died: it continues, or it ends if its holders have died too often."""
        crashes = turn.record.number("crashes") + 1
        turn.record.put(crashes=crashes)
        turn.session.let_go()
        if crashes < look.crash_limit:
            self._retry(turn, look.now, 0, look.reason, look.code, b"")
            return look.act(turn, "recovered")
        if cancel := turn.record.get("cancel"):
            turn.record.put(error=cancel)
            self._count_usage(turn)
            self._keep_journal(turn)
            keep = turn.record.text("keep") or "steps"
            end = turn.event("turn_cancelled", reason=cancel.decode(), keep=keep)
            self._conclude(turn, "cancelled", look.now, [end], look.keep_events)
            self._ready(turn.session, look.now)
            return look.act(turn, "cancelled")
        message, failed = f"The turn was given up after {crashes} crashes of its worker.", "worker_crashed"
        if look.code != "worker_died":
            message, failed = f"{message} {look.reason}", look.code
        self._give_up(turn, failed, message, look)
        return look.act(turn, "failed")

    def _give_up(self, turn: Turn, code: str, message: str, look: Look) -> None:
        head = turn.session.inbox[:1] == [turn]
        turn.record.put(error=message, error_code=code)
        self._count_usage(turn)
        self._keep_journal(turn)
        end = turn.event("turn_failed", code=code, message=message)
        self._conclude(turn, "failed", look.now, [end], look.keep_events)
        if head:
            self._ready(turn.session, look.now)

    def _count_usage(self, turn: Turn) -> None:
        """Count only a turn's own usage if others have overtaken it: the rest is unknown until it is resumed."""
        usage, own = turn.record.get("session_usage"), turn.record.get("own_usage")
        if usage is None and own is not None:
            with suppress(msgspec.MsgspecError):
                total = msgspec.json.decode(turn.session.record.get("usage") or b"{}", type=Usage)
                usage = encode(total + msgspec.json.decode(own, type=Usage))
        if usage is not None:
            turn.session.record.put(usage=usage)


def _kept_by(session: Session, queue: str, agent: bytes, agent_queue: str, ttl_ms: Any, tenant: str) -> str:
    """Store the settings that a session's first turns bring, and return the queue that it had before."""
    kept = session.record
    home = kept.text("queue") or agent_queue or kept.text("agent_queue")
    if agent and "agent" not in kept:
        kept.put(agent=agent, **({"agent_queue": agent_queue} if agent_queue else {}))
    if queue and not home:
        kept.put(queue=queue)
    if ttl_ms != "":
        kept.put(ttl=ttl_ms)
    if tenant and "tenant" not in kept:
        kept.put(tenant=tenant)
    return home


def _note_user(turn: Turn, user: str, limit: float = math.inf) -> bool:
    """Note the user of the turn. Returns False if its session already has the maximum number of users."""
    kept = turn.session.record
    users = kept.text("users").split("\n") if "users" in kept else []
    if user and user not in users and len(users) >= limit:
        return False
    if user:
        turn.record.put(user=user)
        kept.put(users="\n".join(dict.fromkeys([*users, user])))
    return True


def _due(found: Iterable[T], name: str, now: int, limit: int) -> list[T]:
    """Return those whose time has come, the earliest first."""
    timed = [(at, one.id, one) for one in found if (at := getattr(one, name)) is not None and at <= now]
    return [one for *_, one in sorted(timed, key=itemgetter(0, 1))[:limit]]


def _claimed(taken: Sequence[Turn], alone: Sequence[Turn], now: int, promotions: bytes) -> Answer:
    turns, ids = [turn.loaded(now) for turn in taken], [turn.id.encode() for turn in alone]
    return [b"CLAIMED", turns, [], ids, [], [], *filter(None, [promotions])]
