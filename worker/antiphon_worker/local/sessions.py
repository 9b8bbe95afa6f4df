"""The transitions of a memory cell that read, edit, fork and delete sessions."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from antiphon_worker.local.moves import ENDED, KEPT_EVENTS, KEPT_OPS, Answer, Moves
from antiphon_worker.local.records import Record, Session, Turn


class SessionTransitions(Moves):
    """The scripts that handle sessions outside their turns."""

    def begin(
        self,
        session_id: str,
        turn_id: str,
        fence: str,
        revision: str,
        pins: bytes,
        ran: bytes,
        *bodies: bytes,
    ) -> Answer:
        """Note the revision that a turn runs on, and those that its session keeps."""
        session, turn = self._held(session_id, fence), self.turns[turn_id]
        if session is None:
            return [b"SUPERSEDED"]
        if turn.record.text("begun") != fence:
            turn.record.put(begun=fence, revision=revision)
            if pins:
                session.record.put(pins=pins)
            if ran == b"{}":
                session.record.drop("ran")
            elif ran:
                session.record.put(ran=ran)
            if bodies:
                self._publish(session, self.clock(), *bodies)
        return [b"OK", session.record.get("stop", b"")]

    def promote(self, before: bytes, after: bytes) -> Answer:
        """Change which revisions of agents sessions take, if they are still as the caller has read them."""
        if self.promotions not in (before, after):
            return [b"CHANGED", self.promotions]
        self.promotions = after
        return [b"PROMOTED"]

    def rate(self, turn_id: str, feedback: bytes, score: str, figures: str, lasts_ms: int) -> Answer:
        """Keep the feedback on a turn. Only Redis has figures of revisions."""
        turn, now = self.turns.get(turn_id), self.clock()
        if turn is None or "deleted" in turn.record:
            return [b"TURN_NOT_FOUND"]
        turn.record.put(feedback=feedback, score=score, rated_at=now)
        return [b"RATED", now]

    def snapshot(self, session_id: str, start: int, stop: int, turns: str) -> Answer:
        """Read a session at one moment: a page of its history, the running turn, and the cursor before its events."""
        session = self.find(session_id)
        if session is None:
            return [b"SESSION_NOT_FOUND"]
        inbox, length = session.inbox, len(session.history)
        begun = next((turn for turn in inbox[:1] if "first_seq" in turn.record), None)
        cursor = begun.record.number("first_seq") - 1 if begun else session.record.number("seq")
        first = max(length + start, 0) if start < 0 else start
        last = min(length + stop if stop < 0 else stop, length - 1)
        found: list[Turn] = []
        if "failed" in turns:
            found += [turn for turn in session.turns if turn.is_on_page(first, last, length)]
        if "pending" in turns:
            found += inbox
            found += self.outside(session)
        return [
            b"OK", str(cursor).encode(), begun.id.encode() if begun else b"", length,
            session.history[first : last + 1], _flat(session.record), [turn.id.encode() for turn in inbox],
            [[turn.id.encode(), _flat(turn.record)] for turn in found],
            [turn.id.encode() for turn in session.turns] if "failed" in turns else [],
        ]  # fmt: skip

    def edit(
        self, session_id: str, op: str, ttl_ms: Any, session_limit: int, when: str, length: Any, keep: Any,
        field_count: int, message_count: int, *rest: Any,
    ) -> Answer:  # fmt: skip
        """Change a session outside its turns: its fields, the end of its history, new messages, events."""
        session, now = self._begun(session_id), self.clock()
        record, head = session.record, session.inbox[0] if session.inbox else None
        ops = record.text("ops")
        if op in ops:
            return [b"OK", record.number("seq")]
        if refusal := self._not_now(session, when, session_limit):
            return refusal
        changes = [(rest[n], _bytes(rest[n + 1]), _bytes(rest[n + 2])) for n in range(0, 3 * field_count, 3)]
        messages = rest[3 * field_count : 3 * field_count + message_count]
        if length != "" and len(session.history) != length:
            return [b"CONFLICT"]
        if any(record.get(name, b"") != old for name, old, _ in changes):
            return [b"CONFLICT"]
        self.sessions[session_id] = session
        record.put(ops=f"{op} {ops}"[: KEPT_OPS * (len(op) + 1)])
        record.begin(now, op)
        if ttl_ms != "":
            record.put(ttl=ttl_ms)
        before = len(session.history)
        if keep != "":
            record.put(shortened=1)
            session.cut(keep)
        for name, _, new in changes:
            record.put(**{name: new}) if new else record.drop(name)
        session.history += messages
        bodies = rest[3 * field_count + message_count :]
        seq = self._publish(session, now, *bodies)
        self.grown(session, seq - len(bodies), before, keep if keep != "" and keep < before else None, seq)
        if when != "any":
            record.drop("edit_waits")
        if head and when == "between" and head.status == "waiting":
            self._ready(session, now)
        elif head is None:
            session.trim(seq - KEPT_EVENTS + 1)
            self._release(session, now)
        return [b"OK", seq]

    def _not_now(self, session: Session, when: str, session_limit: int) -> Answer | None:
        """Return why a session cannot be changed, or which turn to wait for; None if it can."""
        record, head = session.record, session.inbox[0] if session.inbox else None
        if "closed" in record:
            return [b"SESSION_CLOSED"]
        if "created" not in record and len(self.sessions) >= session_limit:
            return [b"FULL", b"sessions"]
        if head and when == "idle":
            return [b"BUSY", session.inbox[-1].id.encode()]
        if head and when == "between" and "first_seq" in head.record:
            record.put(edit_waits=1)
            return [b"BUSY", head.id.encode()]
        return None

    def fork(
        self, session_id: str, fork_id: str, op: str, ttl_ms: Any, session_limit: int, keep: int, at: str,
        digest: str, body: bytes, branch: bytes, *names: str,
    ) -> Answer:  # fmt: skip
        """Copy a session, without its running turn, to a new id."""
        target, session, now = self.find(fork_id), self.find(session_id), self.clock()
        if target is not None:
            return [b"OK"] if target.record.text("op") == op else [b"SESSION_EXISTS"]
        if len(self.sessions) >= session_limit:
            return [b"FULL", b"sessions"]
        history = session.history if session else []
        if keep and (len(history) < keep or _digest(history[keep - 1]) != digest):
            return [b"CONFLICT"]
        target = self.sessions[fork_id] = self._begun(fork_id)
        target.record.begin(now, op)
        target.record.put(op=op, updated=now, fork_of=session_id)
        if at:
            target.record.put(fork_at=at)
        known = session.record if session else Record()
        if ttl_ms != "":
            target.record.put(ttl=ttl_ms)
        target.record.update(
            {name: known[name] for name in [*names, *(["ttl"] if ttl_ms == "" else [])] if name in known}
        )
        target.history = list(history)
        target.files = copy.deepcopy(session.files) if session and "media" in target.record else {}
        if keep < len(history):
            target.cut(keep)
        first = target.record.number("first")
        self.grown(target, first, 0, None, first)
        self._release(target, now)
        if session is not None:
            branches = known.get("branches")
            joined = b"{" + branch + b"}" if branches is None else branches[:-1] + b"," + branch + b"}"
            known.put(branches=joined)
            self._publish(session, now, body)
            if not session.inbox:
                self._release(session, now)
        return [b"OK"]

    def delete(self, session_id: str, tenant: str) -> Answer:
        """Delete a session. Its turns outside the inbox (delayed, or waiting for decisions) are cancelled."""
        session = self.find(session_id)
        if session is None:
            return [b"DELETED", b"", b""]
        if tenant and session.record.text("tenant") != tenant:
            return [b"OTHER_TENANT"]
        if session.inbox:
            return [b"BUSY", session.inbox[-1].id.encode()]
        for turn in self.outside(session):
            turn.due = None
            self._keep_journal(turn)
            turn.journal = []
            self._withdraw(turn, "The session was deleted.", self.clock(), KEPT_EVENTS)
        for turn in self.turns.values():
            if turn.session.id == session_id and turn.status in ENDED:
                turn.erase(self.clock())
                self.spent.pop(f"turn:{turn.id}", None)
        for per in ("day", "month"):
            self.spent.pop(f"session:{per}:{session_id}", None)
        self.drop_session(session)
        session.record.clear()
        return [b"DELETED", b"1", b""]

    def forget(self, turn_id: str) -> Answer:
        """Delete the record of a turn that has ended."""
        turn = self.turns.get(turn_id)
        if turn is None:
            return [b"MISSING"]
        if turn.status not in ENDED:
            return [b"OPEN", turn.status.encode()]
        self._drop(turn)
        return [b"DELETED"]


def _flat(record: Record) -> list[bytes]:
    return [one for name, value in record.items() for one in (name.encode(), value)]


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _digest(message: bytes) -> str:
    return hashlib.sha1(message, usedforsecurity=False).hexdigest()
