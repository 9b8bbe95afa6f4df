"""The promises, checked on the contents of Redis after a step; the model has the expected contents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Any

from antiphon.wire.scripts import KEEP_JOB_SECONDS, KEEP_TURN_SECONDS
from antiphon_worker.local.moves import EDIT_MS, ENDED, LOOK_AGAIN_MS, unseen_ms
from antiphon_worker.local.records import Session, Turn
from simulation.model import QUARANTINE_MS, Model, asks, is_deleted, queue_of, view_of
from simulation.shares import LIMITS
from simulation.state import REGISTRIES, State, require
from simulation.twin import plain

KEEP_EVENTS = 8
TERMINAL = ("turn_finished", "turn_failed", "turn_cancelled")
LEFT_OF_DELETED = {
    b"session", b"status", b"error", b"digest", b"deleted", b"queue", b"run", b"attempt", b"crashes", b"errors",
    b"step", b"queued_seq", b"last_seq", b"tenant",
}  # fmt: skip
REGISTRY = {
    "queued": [], "waiting": ["deferred"], "delayed": ["scheduled"], "retrying": ["scheduled"], "running": [],
    "suspended": ["deferred"], "finished": ["finished"], "failed": ["failed"], "cancelled": ["canceled"],
}  # fmt: skip
KEPT = {"finished": KEEP_JOB_SECONDS, "failed": KEEP_TURN_SECONDS, "canceled": KEEP_JOB_SECONDS}
NONE: dict[str, float] = {}
PROMISES = {
    "fence": "G3 the holder", "holder": "G3 the holder", "stop": "G3 the holder", "batch": "G3 the holder",
    "lease": "G4 the lease", "seq": "G5 seq counts the events", "untold": "G2 what no history tells",
    "steer": "G13 who is told of what waits",
    "aside": "G12 who is passed by is counted", "usage": "what a session has used",
    "place": "G2+ what left nothing has its place", "steers": "G13 whom it steers",
    "steered_into": "G13 whom it steers", "lacking": "who lacks what it needs",
    "app": "G26 on which App a turn has begun",
    "revision": "G26 on which revision a turn runs", "pins": "G26 which revisions a session keeps",
    "ran": "G26 on which revisions a session ran",
    "route": "the choice of a router", "routed": "the choice of a router",
    "answered": "what a message has answered",
    "session_usage": "what a session has used",
    "wait": "G12 each call has one decision", "decision": "G12 each call has one decision",
}  # fmt: skip
"""The promise by field of a record; if any other field differs, G1 is broken."""


def alike(name: str, found: Mapping[bytes, bytes], record: Mapping[str, bytes], kept: str = "") -> None:
    """Compare the fields of a record. A field without a value counts as absent."""
    known = {field.decode(): value for field, value in found.items() if value}
    expected = {field: value for field, value in record.items() if value}
    if known == expected:
        return
    for field in known.keys() | expected.keys():
        is_, should_be = plain(known.get(field)), plain(expected.get(field))
        promise = kept or PROMISES.get(field.partition(":")[0], "G1 a record is what was done to it")
        require(is_ == should_be, promise, name, field, is_, should_be)


class Checks:
    """Checks the promises after every step, and remembers which events of each session it has read."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._latest = 0  # the latest time of all checks
        self.read: dict[str, int] = {}
        self.ends: Counter[tuple[str, int]] = Counter()
        self.asked_to_stop: set[tuple[str, int]] = set()  # runs whose cancel was accepted
        self.seen_as: dict[str, str] = {}  # how the input of a turn was first shown to a model
        self.touched_by_rq: set[str] = set()
        """Turns whose records stay as RQ's tools left them until the next transition."""
        self.cancelled_by_rq: set[str] = set()
        """Turns whose entry of ``job.cancel()`` stays until the reaper looks, if a stock worker took it later."""
        self.kept_for_a_time: set[str] = set()
        """Turns whose records RQ's own code made expire; it may have requeued them without undoing that."""
        self._held: dict[
            str, tuple[Any, ...]
        ] = {}  # by turn or session: the inputs of its last successful check

    def next_seqs(self) -> dict[str, int]:
        return {name: seq + 1 for name, seq in self.read.items()}

    def ask_to_stop(self, turns: Iterable[Turn]) -> None:
        self.asked_to_stop |= {(turn.id, turn.record.number("run")) for turn in turns}

    def forget(self, session: str, ended: list[tuple[str, int]]) -> None:
        """Adapt to the deletion of a session, which removed the events that ended its delayed turns."""
        self.read[session] = self.model.seq_of(session)
        self.ends.update(ended)

    def check(self, state: State, executions: Collection[tuple[str, str]]) -> None:
        """Check everything. ``executions`` are the jobs that RQ's own workers have started; they are left to RQ."""
        require(
            state.turns.keys() == self.model.turns.keys(), "accepted turns alone exist", list(state.turns)
        )
        for name, past in self.model.past.items():
            if name not in self.model.sessions:
                found = state.sessions[name]
                alike(name, found.fields, past, "G2 a life that is over leaves nothing")
                require(not any(found[1:]), "G2 a life that is over leaves nothing", name, found)
        for name, session in self.model.sessions.items():
            self._events(session, state)
            if self._changed(name, session, state.sessions.get(name), self._facts(session, state)):
                self._session(session, state)
            self._head(session, state)
        for name, turn in self.model.turns.items():
            run = turn.record.number("run")
            facts = self.model.rq[name], self.ends[name, run], name in self.touched_by_rq
            if self._changed(name, turn, state.turns[name], facts):
                self._turn(turn, state)
        woken = self.model.rung - state.all("ant:bell").keys()
        require(not woken, "who has what a turn needs is woken", woken)
        self._registries(state)
        self._indexes(state, executions)

    def _changed(self, name: str, known: Turn | Session, found: Any, facts: tuple[Any, ...]) -> bool:
        """Return whether anything differs from the last comparison: in the model, in Redis or in ``facts``."""
        before = self._held.get(name)
        if before and before[0] is found and before[1] == facts and before[2] == known.__dict__:
            return False
        own = {
            key: value.copy() if isinstance(value, list | dict) else value
            for key, value in known.__dict__.items()
        }
        self._held[name] = found, facts, own
        return True

    def _facts(self, session: Session, state: State) -> tuple[Any, ...]:
        head = session.inbox[0].id if session.inbox else ""
        return state.turns.get(head), self.read.get(session.id)

    def _events(self, session: Session, state: State) -> None:
        """G1 and G5: events are dense, in order, exactly what was done, and have one end of every run."""
        name = session.id
        self.read[name] = max(self.read.get(name, 0), session.record.number("first"))
        seen, new = self.read[name], state.new_events.get(name, ())
        for entry_id, fields in new:
            event = json.loads(fields[1])
            self.read[name] = self.read.get(name, 0) + 1
            require(
                entry_id == b"%d-0" % self.read[name], "G5 ids are dense", name, entry_id, self.read[name]
            )
            require(event["seq"] == self.read[name], "G5 seq is the id", name, event)
            require(event["at"] == self.model.now, "events carry the server's time", event)
            run = (event["turn_id"], event["run"])
            require(not self.ends[run], "G1 nothing happens in a run that has ended", name, event)
            self.ends[run] += event["type"] in TERMINAL
            other_end = event["type"] in ("turn_finished", "turn_failed")
            require(not (other_end and run in self.asked_to_stop), "G1 a cancelled turn ends as that", event)
            self._seen_once(event)
        found = [(int(entry_id.partition(b"-")[0]), plain(fields[1])) for entry_id, fields in new]
        expected = [(seq, plain(event)) for seq, event in session.events[session.place_of(seen + 1) :]]
        require(found == expected, "G5 each act is published once, no other is", name, found, expected)

    def _kept(self, session: Session, state: State) -> None:
        """G5: the newest events are kept, and all events of an unfinished run."""
        seq, base = (session.record.number(name) for name in ("seq", "first"))
        oldest, first = state.oldest_seq(session.id), state.first_seq(session.id)
        require(oldest <= (first or seq), "G5 a run that goes on is kept whole", session.id, oldest, first)
        kept = seq - oldest + 1 if oldest else 0
        require(kept >= min(seq - base, KEEP_EVENTS), "G5 so many events are kept", session.id, kept)

    def _seen_once(self, event: dict[str, Any]) -> None:
        """G13: a message is seen in its own turn, or once in another one."""
        if event["type"] == "turn_steered":
            name = event["steered_id"]
            require(
                name not in self.seen_as, "G13 a steered message is seen once", event, self.seen_as.get(name)
            )
            self.seen_as[name] = event["turn_id"]
        elif event["type"] == "turn_started":
            name = event["turn_id"]
            first = self.seen_as.setdefault(name, name)
            require(first == name, "G13 a steered message is seen once", event, first)

    def _session(self, session: Session, state: State) -> None:
        """G2, G3 and G5: the history, the inbox, the holder, and the lifetime of all that."""
        name, found = session.id, state.sessions[session.id]
        alike(name, found.fields, session.record)
        inbox, turns = [turn.id for turn in session.inbox], [turn.id for turn in session.turns]
        require(found.history == session.history, "G2 history", name, found.history, session.history)
        files = state.at("ant:media", name, {})
        require(files == _fields_of(session), "a file is whole and stored once", name, files, session.files)
        require(found.inbox == inbox, "G2 inbox", name, found.inbox, inbox)
        require(found.turns == turns, "turns are listed", name, found.turns, turns)
        seq = session.record.number("seq")
        require(self.read.get(name, 0) == seq, "G5 seq counts the events", name, self.read.get(name), seq)
        self._kept(session, state)
        lasts = bool(session.inbox or session.record.number("aside"))
        for life in state.lives(name):
            require(life == -2 or (life == -1) == lasts, "a session lives while it has turns", name, life)

    def _head(self, session: Session, state: State) -> None:
        """G4: the head of an inbox is reachable, and `active` has the time of the next look."""
        if not session.inbox:
            return
        name, at = session.id, session.look_at
        require(at is not None, "G4 `active` names every session with turns", name)
        head, now = session.inbox[0], self.model.now + self.model.slipped
        if session.record.get("fence"):
            lease = state.lease(name)
            require(head.status == "running" and lease == at, "G4 leased", name, head.status, lease, at)
        elif name in self.model.quarantined:
            require(at <= now + QUARANTINE_MS, "G4 what is set aside is looked at", name, at)
        elif self.model.shares.in_line(head):
            require(at <= now + LOOK_AGAIN_MS, "G14 nobody in line is forgotten", name, at)
        elif head.status == "waiting":
            soon = max(now + EDIT_MS, self.model.unmoved_until)
            require(at <= soon, "G4 an edit holds nothing up", name, at)
        elif head.status == "suspended":
            unseen = unseen_ms(
                head, max(now, self._latest)
            )  # a clock that was put back since then set the next look
            again = max(now + unseen, self.model.unmoved_until)
            require(at <= again, "G12 a suspended turn is looked at", name, at)
        elif head.status == "retrying":
            moved = "offered_at" not in head.record  # to another queue; an edit may precede that
            due = {retry_at := head.record.number("retry_at"), retry_at + EDIT_MS * moved}
            require(at in due, "G4 a retry has its time", name, at, due)
        else:
            require(head.status == "queued", "G4 a head without a holder is queued", name, head.status)
            reachable = head in self.model.queues.get(queue_of(head), ())
            require(reachable or at <= now + LOOK_AGAIN_MS, "G4 reachable", name, at)

    def _turn(self, turn: Turn, state: State) -> None:
        """G1, G6, G12 and RQ's view of the turn."""
        ended, name, found, rq_status = (
            turn.status in ENDED,
            turn.id,
            state.turns[turn.id],
            self.model.rq[turn.id],
        )
        run, gone = turn.record.number("run"), is_deleted(turn)
        require(bool(self.ends[name, run]) == ended, "G1 the end of a run is published", name, run)
        require(state.is_deleted(name) == gone, "G15 a turn is deleted with its session", name)
        require(found.ends == ended, "a turn lives until it has ended", name, found.ends)
        if gone:
            words = found.fields.keys() - LEFT_OF_DELETED
            require(not words, "G15 nothing of a deleted turn is left", name, words)
            return
        alike(name, found.fields, turn.record)
        require(found.journal == turn.journal, "G6 the journal", name, found.journal, turn.journal)
        require(found.rq_status == rq_status, "RQ's record", name, found.rq_status, rq_status)
        if name not in self.touched_by_rq:
            life = state.life_of_job(name)
            given = not ended and name in self.kept_for_a_time
            require(given or (life >= 0) == ended, "RQ's record's life", name, life)

    def _registries(self, state: State) -> None:
        """Check that RQ lists a turn in the registry of its status, and nowhere else."""
        expected = {
            (registry, queue_of(turn), turn.id)
            for turn in self.model.turns.values()
            for registry in REGISTRY[view_of(turn)]
            if turn.id not in self.touched_by_rq and not is_deleted(turn)
        }
        scores = {
            (registry, queue, name): score
            for registry in REGISTRIES
            for queue, listed in state.all(f"rq:{registry}").items()
            for name, score in listed.items()
            if name not in self.touched_by_rq and not state.is_deleted(name)
        }
        found, ends = scores.keys(), {one for one in expected if one[0] in KEPT}
        left = {one for one in found - expected if one[0] == "canceled" and one[2] in self.cancelled_by_rq}
        self._latest = max(self._latest, self.model.now)
        over = {one for one in ends if self._until(one) <= self._latest}
        require(found - left - over == expected - over, "RQ's registries", found ^ expected)
        for one in ends & found:
            if one[2] in self.cancelled_by_rq:  # ``job.cancel()`` registers an entry that expires at once
                continue
            until = round(self._until(one) / 1000)
            require(scores[one] == until, "RQ's records of ended turns are kept", one, scores[one], until)

    def _until(self, entry: tuple[str, str, str]) -> int:
        """Return when an ended turn's entry is removed. RQ's own worker may rewrite it later, with an earlier clock."""
        registry, _, turn = entry
        return self.model.recorded_at[turn] + KEPT[registry] * 1000

    def _indexes(self, state: State, executions: Collection[tuple[str, str]]) -> None:
        """Check the indexes: queues, started jobs, what each worker holds, and when to look at what."""
        sessions, turns = self.model.sessions.values(), self.model.turns.values()
        queues = {
            name: ids for name, ids in state.all("rq:queue").items() if not name.endswith(":intermediate")
        }
        expected = {name: [one.id for one in queue] for name, queue in self.model.queues.items() if queue}
        require(queues == expected, "the queues", queues, expected)
        heads = [(one.inbox[0], fence) for one in sessions if (fence := one.record.text("fence"))]
        running = {(queue_of(turn), f"{turn.id}:{fence}") for turn, fence in heads}
        started = {  # entries that never expire are ours, whatever RQ's tools have done since
            (queue, entry)
            for queue, entries in state.all("rq:wip").items()
            for entry, score in entries.items()
            if score == inf or entry.split(":")[0] not in self.touched_by_rq
        } - {*executions}
        require(started == running, "RQ's started jobs", started, running)
        held = {worker: {"": token} for worker, token in self.model.tokens.items()}
        for session in sessions:
            if holder := session.record.text("holder"):
                as_ = session.record.text("fence") or f"alone-{session.alone}"
                held.setdefault(holder, {})[session.id] = as_
        require(state.all("ant:held") == held, "G3 what workers hold", state.all("ant:held"), held)
        self._shares(state)
        aside = state.at("ant:quarantined", "", NONE).keys()
        require(aside == self.model.quarantined, "what is set aside", aside, self.model.quarantined)
        self._listed(
            "active", {s.id: s.look_at for s in sessions if s.look_at is not None}, "G4 `active`", state
        )
        delayed = {turn.id: turn.due for turn in turns if turn.due is not None}
        self._listed("due", delayed, "delayed turns alone are due", state)
        suspended = {one.id: one.record.number("suspended_at") for one in turns if asks(one)}
        self._listed("suspended", suspended, "G12 turns that wait for decisions alone are listed", state)
        passed_by = {turn.id: turn.aside for turn in turns if turn.aside is not None}
        self._listed("aside", passed_by, "G12 who is passed by is looked at", state)

    def _listed(self, name: str, expected: Mapping[str, float], promise: str, state: State) -> None:
        found = state.at(f"ant:{name}", "", NONE)
        require(found == expected, promise, found, expected)

    def _shares(self, state: State) -> None:
        """G14: each share has one turn in a queue and the others wait, and a line that can move has moved."""
        shares, turns = self.model.shares, self.model.turns
        for kind, expected in shares.expected().items():
            require(state.all(kind) == expected, f"G14 {kind} of shares", state.all(kind), expected)
        for (queue, share), line in shares.lines.items():
            place = shares.places[share].get(queue, "")
            aside = place in turns and turns[place].session.id in self.model.quarantined
            moves = (
                not line or shares.stands(place) or not shares.has_room(share[1:] if share[0] == "@" else "")
            )
            require(moves or aside, "G14 a line that can move has moved", queue, share, place, line)
        for whose, waiting in [*shares.user_lines.items()]:
            places = shares.user_places[whose]
            require(
                not waiting or places != set(), "G14 a line of a user that can move has moved", whose, waiting
            )
            require(len(places) <= 1, "G14 so many turns of a user have places", whose, places)
        for tenant, limits in LIMITS.items():
            known = [turns[name] for name, at in shares.open[tenant].items() if at < 0]
            sure = [
                turn.id
                for turn in known
                if not turn.record.get("cancel") and turn.id not in self.touched_by_rq
            ]
            require(
                len(sure) <= limits.get("in_flight", 10_000), "G14 so many turns are in flight", tenant, sure
            )


def _fields_of(session: Session) -> dict[bytes, bytes]:
    """Return the files of a session as stored in Redis."""
    found: dict[bytes, bytes] = {}
    for name, file in session.files.items():
        found |= {f"{name}:{at}".encode(): chunk for at, chunk in file.chunks.items()}
        size = str(file.size).encode()
        found |= {name.encode(): size + b" " + file.entry} if file.entry else {f"{name}~".encode(): size}
    return found
