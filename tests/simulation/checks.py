"""The promises, checked on what stands in Redis after a step; the model says what must stand there."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from simulation.model import ENDED, LOOK_AGAIN_MS, QUARANTINE_MS, Model
from simulation.state import SessionState, State

__all__ = ["KEEP_EVENTS", "Broken", "Checks"]

KEEP_EVENTS = 8
TERMINAL = ("turn_finished", "turn_failed", "turn_cancelled")
REGISTRY = {
    "queued": [], "waiting": ["deferred"], "delayed": ["scheduled"], "retrying": ["scheduled"], "running": [],
    "finished": ["finished"], "failed": ["failed"], "cancelled": ["canceled"],
}  # fmt: skip


class Broken(AssertionError):
    """A promise does not hold."""


def require(held: bool, promise: str, *facts: Any) -> None:
    if not held:
        raise Broken(f"{promise}: {', '.join(map(repr, facts))}")


class Checks:
    """Remembers what it has read of each session's events; what must be new is compared after every step."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.read: dict[str, int] = {}
        self.ends: Counter[tuple[str, int]] = Counter()
        self.touched_by_rq: set[str] = (
            set()
        )  # their records stay as RQ's tools left them until the next transition

    def next_seqs(self) -> dict[str, int]:
        return {name: self.read.get(name, 0) + 1 for name in self.model.sessions}

    def forget(self, session: str, ended: list[tuple[str, int]]) -> None:
        """It was deleted, together with the events that ended its delayed turns."""
        self.read[session] = 0
        self.ends.update(ended)

    def check(self, state: State) -> None:
        require(
            state.turns.keys() == self.model.turns.keys(), "accepted turns alone exist", list(state.turns)
        )
        for name in self.model.sessions:
            found = state.sessions[name]
            self._events(name, found)
            self._session(name, found)
            self._head(name, found, state)
        for name in state.turns:
            self._turn(name, state)
        self._indexes(state)

    def _events(self, name: str, found: SessionState) -> None:
        """G1 and G5: dense, in order, exactly what was done, and one end of every run."""
        expected = self.model.events[name]
        seen: list[tuple[str, str, int, int]] = []
        for entry_id, text in found.new_events:
            event = json.loads(text)
            self.read[name] = self.read.get(name, 0) + 1
            require(entry_id == f"{self.read[name]}-0", "G5 ids are dense", name, entry_id, self.read[name])
            require(event["seq"] == self.read[name], "G5 seq is the id", name, event)
            require(event["at"] == self.model.now, "events carry the server's time", event)
            seen.append((event["type"], event["turn_id"], event["run"], event.get("mark", 0)))
            run = (event["turn_id"], event["run"])
            require(not self.ends[run], "G1 nothing happens in a run that has ended", name, event)
            self.ends[run] += event["type"] in TERMINAL
        require(found.seq == self.read.get(name, 0), "G5 seq counts the events", name, found.seq)
        require(
            found.oldest_seq <= (found.first_seq or found.seq),
            "G5 a run that goes on is kept whole",
            name,
            found,
        )
        kept = found.seq - found.oldest_seq + 1 if found.oldest_seq else 0
        published = found.seq - self.model.sessions[name].base
        require(kept >= min(published, KEEP_EVENTS), "G5 so many events are kept", name, kept)
        require(seen == expected, "G5 each act is published once, no other is", name, seen, expected)
        expected.clear()

    def _session(self, name: str, found: SessionState) -> None:
        """G2 and G3: the history, the inbox and the holder."""
        session = self.model.sessions[name]
        require(found.history == session.history, "G2 history", name, found.history, session.history)
        inbox = [turn.id for turn in session.inbox]
        require(found.inbox == inbox, "G2 inbox", name, found.inbox, inbox)
        holder = (found.fence, found.holder, found.stop, found.batch)
        expected = (session.fence, session.holder, session.stop, session.batch)
        require(holder == expected, "G3 the holder", name, holder, expected)
        require(found.kept == session.kept, "G2 a life that is over leaves nothing", name, found.kept)
        for life in found.lives:
            require(
                life == -2 or (life == -1) == bool(inbox),
                "a session lives while it has turns",
                name,
                found.lives,
            )

    def _head(self, name: str, found: SessionState, state: State) -> None:
        """G4: the head of an inbox is reachable, and `active` says when to look."""
        session = self.model.sessions[name]
        require(found.look_at == session.look_at, "G4 `active`", name, found.look_at, session.look_at)
        if not session.inbox:
            return
        require(found.look_at is not None, "G4 `active` names every session with turns", name)
        head, now = session.inbox[0], self.model.now + self.model.slipped
        if session.fence:
            require(head.status == "running" and found.lease == found.look_at, "G4 leased", name, found)
        elif name in self.model.quarantined:
            require(session.look_at <= now + QUARANTINE_MS, "G4 what is set aside is looked at", name, found)
        elif head.status == "retrying":
            require(head.retry_at == found.look_at, "G4 a retry has its time", name, found)
        else:
            require(head.status == "queued", "G4 a head without a holder is queued", name, head.status)
            reachable = head.id in state.queues[head.queue]
            require(reachable or session.look_at <= now + LOOK_AGAIN_MS, "G4 reachable", name, found)

    def _turn(self, name: str, state: State) -> None:
        """G1, G6 and RQ's view of the turn."""
        turn, found = self.model.turns[name], state.turns[name]
        status = "queued" if turn.status == "delayed" else turn.status
        if turn.damaged in ("attempt", "crashes", "errors"):
            require(getattr(found, turn.damaged) == -1, "nobody mends a field by chance", name, turn.damaged)
            setattr(found, turn.damaged, getattr(turn, turn.damaged))
        facts = (found.status, found.run, found.attempt, found.crashes, found.errors, found.cancel)
        expected = (status, turn.run, turn.attempt, turn.crashes, turn.errors, turn.cancel)
        require(facts == expected, "G1 a turn is what was done to it", name, facts, expected)
        require(found.journal == turn.journal, "G6 the journal", name, found.journal, turn.journal)
        require(
            (found.lives[0] >= 0) == (turn.status in ENDED),
            "a turn lives until it has ended",
            name,
            found.lives,
        )
        require(
            bool(self.ends[name, turn.run]) == (turn.status in ENDED),
            "G1 the end of a run is published",
            name,
        )
        placed = turn.due_at if turn.status == "delayed" else None
        require(found.due_at == placed, "delayed turns alone are due", name, found.due_at, placed)
        require(
            found.rq_status == self.model.rq[name], "RQ's record", name, found.rq_status, self.model.rq[name]
        )
        if name not in self.touched_by_rq:
            require(
                found.registries == REGISTRY[turn.status],
                "RQ's registries",
                name,
                turn.status,
                found.registries,
            )
            require((found.lives[1] >= 0) == (turn.status in ENDED), "RQ's record's life", name, found.lives)

    def _indexes(self, state: State) -> None:
        """What lists many: queues, started jobs, what each worker holds, who is to be looked at."""
        sessions = self.model.sessions.values()
        for name, entries in state.queues.items():
            require(entries == self.model.queues[name], "the queue", name, entries, self.model.queues[name])
            running = {
                f"{s.inbox[0].id}:{s.fence}": "inf" for s in sessions if s.fence and s.inbox[0].queue == name
            }
            started = {  # what has no end is ours, whatever RQ's tools have done since
                entry: score
                for entry, score in state.started[name].items()
                if score == "inf" or entry.split(":")[0] not in self.touched_by_rq
            }
            require(started == running, "RQ's started jobs", name, started, running)
        for worker, found in state.held.items():
            token = found.pop("", "")
            require(token == self.model.tokens.get(worker, ""), "the last claim's token", worker, token)
            held = {s.id: s.fence or s.alone for s in sessions if s.holder == worker}
            require(found == held, "G3 what a worker holds", worker, found, held)
        aside = state.quarantined
        require(aside == self.model.quarantined, "what is set aside", aside, self.model.quarantined)
        live = sum(bool(session.inbox) for session in sessions)
        require(state.active == live, "G4 `active` names nothing else", state.active, live)
        delayed = sum(turn.status == "delayed" for turn in self.model.turns.values())
        require(state.due == delayed, "`due` names nothing else", state.due, delayed)
