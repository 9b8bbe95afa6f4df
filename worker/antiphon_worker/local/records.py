"""The sessions and turns of a memory cell, with the same fields as in Redis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from antiphon.model import encode

BEFORE_INPUT = len(b'{"messages":')

DELETED = "The session was deleted."
DECIDABLE = ("approval", "tool")
"""The kinds of pending calls that take decisions. A sleep ends with time, and a wait with an event."""

OF_A_RUN = (
    "cancel", "error", "error_code", "done", "given_back", "first_seq", "last_seq", "started_at", "ended_at",
    "retry_at", "response", "failing", "keep", "place", "journal", "service", "steers", "steered_into",
    "session_usage", "own_usage", "lacking", "waited", "offered_at", "app", "revision", "begun", "missed_at",
    "answering", "feedback", "score", "rated_at", "front",
)  # fmt: skip
"""The fields of a turn that a requeue removes: they belong to one run."""

KEPT_OF_DELETED = ("session", "tenant", "queue", "run", "attempt", "queued_seq", "last_seq", "ended_at")


OF_CALLS = ("wait", "decision", "limit", "event", "after", "got")
"""The fields of each pending call of a turn."""


class Record(dict[str, bytes]):
    """The fields of a session or a turn. Every value is text, as in Redis."""

    def put(self, **values: str | bytes | int) -> None:
        """Set fields."""
        for name, value in values.items():
            if type(value) is bytes:
                self[name] = value
            else:
                self[name] = b"%d" % value if type(value) is int else str(value).encode()

    def drop(self, *names: str) -> None:
        """Remove fields."""
        for name in names:
            self.pop(name, None)

    def begin(self, now: int, by: str) -> bool:
        """Mark a session as begun, and distinguish it from others with its id. Returns whether it is new."""
        if "created" in self:
            return False
        self.put(created=now, life=f"{now}-{by[-8:]}")
        return True

    def text(self, name: str) -> str:
        return self.get(name, b"").decode()

    def number(self, name: str, default: int = 0) -> int:
        return int(self.get(name) or default)


class Call(NamedTuple):
    """A pending call of a suspended turn: its time limit, what happens then, and the decision with its op id."""

    place: int
    until: int
    at_limit: str
    kind: str
    id: str
    op: str
    decision: bytes

    @property
    def decidable(self) -> bool:
        """Whether it takes a decision by a person or by the client."""
        return self.kind in DECIDABLE


@dataclass
class KeptEvent:
    """A sent event: its position among all, when it was sent, and how many turns it has reached."""

    position: int
    at: int
    tenant: str
    json: bytes
    turns: int = 0


@dataclass
class KeptFile:
    """A file of a session: its size, its chunks by position, and its entry once it is complete."""

    size: int
    chunks: dict[int, bytes] = field(default_factory=dict[int, bytes])
    entry: bytes = b""


class Session:
    """A session: its fields, its history, its events, and its turns.

    ``inbox`` has the turns that run one after another, the running one first; ``turns`` has all turns in the order of
    submission. ``look_at`` is when something of the session is due, ``expires`` when it ends unless it is used.
    """

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.record = Record()
        self.history: list[bytes] = []
        self.files: dict[str, KeptFile] = {}
        self.events: list[tuple[int, bytes]] = []
        self.inbox: list[Turn] = []
        self.turns: list[Turn] = []
        self.alone = ""  # the claim whose worker starts the head in an own process
        self.look_at: int | None = None
        self.expires: int | None = None

    def clear(self) -> None:
        """Drop all contents: ended turns still refer to a dropped session."""
        self.history, self.events, self.turns, self.files = [], [], [], {}

    def let_go(self) -> None:
        """Release the lease."""
        self.alone = ""
        self.record.put(fence="", holder="", lease=0, turn="", stop="", batch=0)

    def cut(self, keep: int) -> None:
        """Cut the history to ``keep`` messages, and drop what refers to the rest."""
        del self.history[keep:]
        self.record.drop("window")
        summary = self.record.get("summary", b"0")
        if _leading_number(summary) > keep:
            self.record.drop("summary")
        for turn in self.turns:
            if turn.record.number("place") > keep:
                turn.record.drop("place")

    def trim(self, first: int) -> None:
        """Drop the events before this one."""
        if self.events and first > self.events[0][0]:
            del self.events[: self.place_of(first)]

    def place_of(self, seq: int) -> int:
        """Return the index of an event in the log, whose numbers have no gaps."""
        return min(max(seq - self.events[0][0], 0), len(self.events)) if self.events else 0

    def note_untold(self, turn: Turn, most: int) -> None:
        """Note for the session's next turn that this one has unreported calls."""
        self.record.put(untold=f"{turn.id} {self.record.text('untold')}"[:most])


class Turn:
    """A turn: its fields and its journal. ``due`` is when a delayed turn enters the inbox.

    ``aside`` is when to check a suspended turn that others may overtake, and ``carried`` is what its caller passed
    that cannot be stored.
    """

    def __init__(self, turn_id: str, session: Session) -> None:
        self.id = turn_id
        self.session = session
        self.record = Record()
        self.journal: list[bytes] = []
        self.due: int | None = None
        self.aside: int | None = None
        self.carried: Any = None

    @property
    def status(self) -> str:
        return self.record.text("status")

    def erase(self, now: int) -> None:
        """Erase the content of a turn of a deleted session. Only the fields of its existence are kept."""
        kept = {name: self.record[name] for name in KEPT_OF_DELETED if name in self.record}
        self.record.clear()
        self.record.update(kept)
        self.record.put(status="cancelled", error=DELETED, digest="deleted", deleted=now)
        self.carried = None

    def event(self, kind: str, *own: str, **more: Any) -> bytes:
        """Return the body of an event of this turn, with these numbers of its record and further values."""
        numbers = {name: self.record.number(name) for name in own}
        where = {"type": kind, "session_id": self.session.id, "turn_id": self.id}
        return encode({**where, "run": self.record.number("run"), **numbers, **more})

    @property
    def input_shown(self) -> dict[str, Any]:
        """The input as events show it: whole, or a note that it is omitted."""
        length = self.record.number("input")
        if not length:
            return {"input_omitted": True}
        return {"input": msgspec.Raw(self.record["request"][BEFORE_INPUT : BEFORE_INPUT + length])}

    def is_on_page(self, first: int, last: int, length: int) -> bool:
        """Return whether the turn left no messages, and has its history position on this page."""
        if "place" not in self.record:
            return False
        place = self.record.number("place")
        return first <= place and (place <= last or (place == length and last == length - 1))

    def loaded(self, now: int) -> list[Any]:
        """Return everything that a worker needs to run the turn."""
        session, record = self.session, self.record
        known, history = session.record, session.history
        names = (
            "fence", "stop", "system", "variables", "agent", "window", "summary", "restored", "refused", "untold",
            "usage", "steer", "pins", "ran",
        )  # fmt: skip
        missed = max(0, now - record.number("missed_at")) if record.get("missed_at") else b""
        step, _, since = record.text("failing").partition(" ")
        spent = now - record.number("started_at", now) - record.number("waited")
        failing = max(0, now - int(since)) if step == record.text("step") else b""
        fields = [
            record.get(name)
            for name in (
                "request", "run", "attempt", "crashes", "errors", "step", "queue", "queued_seq", "created", "queued_at",
                "lacking", "app", "tenant", "revision",
            )
        ]  # fmt: skip
        tail, window = record.number("tail", -1), known.get("window") or known.get("summary") or b"0"
        first = {-2: _leading_number(window), -1: 0, 0: len(history)}.get(tail, len(history) - tail)
        return [
            session.id.encode(), self.id.encode(), [known.get(name) for name in names],
            [*fields, missed, failing, max(0, spent)], list(self.journal), history[max(first, 0) :], len(history),
            [call.decision for call in self.calls if call.decision],
            [
                [call.id.encode(), record.get(f"got:{call.place}")]
                for call in self.calls
                if call.kind == "event" and call.decision
            ],
        ]  # fmt: skip

    # What it waits for

    @property
    def calls(self) -> list[Call]:
        """The calls of its last suspension."""
        found: list[Call] = []
        while wait := self.record.get(f"wait:{len(found) + 1}"):
            place = len(found) + 1
            until, at_limit, kind, call_id = wait.decode().split(" ", 3)
            op, _, decision = self.record.get(f"decision:{place}", b"").partition(b" ")
            found.append(Call(place, int(until), at_limit, kind, call_id, op.decode(), decision))
        return found

    @property
    def decided(self) -> bool:
        """Whether all its calls are decided."""
        return all(call.decision for call in self.calls)

    def wait_for(self, calls: Sequence[Any], now: int, longest: int) -> int:
        """Wait for these calls, and list them as JSON. Returns the earliest of their time limits."""
        self.forget_calls()
        bodies: dict[bool, list[bytes]] = {True: [], False: []}  # of decidable calls, and of other waits
        soonest = now + longest
        for place, (call_id, kind, at_limit, ms, json, decision, awaited) in enumerate(_sevens(calls), 1):
            until = now + min(longest if ms == "" else int(ms), longest)
            self.record.put(**{f"wait:{place}": f"{until} {at_limit} {kind} {call_id}"})
            if decision:
                self.record.put(**{f"limit:{place}": decision})
            if awaited:
                after, _, event = awaited.partition(" ")
                self.record.put(**{f"event:{place}": event_of(event, self.record.text("tenant"))})
                self.record.put(**{f"after:{place}": after})
            bodies[kind in DECIDABLE].append(json[:-1] + b',"until":%d}' % until)
            soonest = min(soonest, until)
        self.record.put(calls=b"[" + b",".join(bodies[True]) + b"]", suspended_at=now)
        if bodies[False]:
            self.record.put(waits=b"[" + b",".join(bodies[False]) + b"]")
        return soonest

    def decide(self, call: Call, op: str, json: bytes, now: int) -> None:
        self.record.put(**{f"decision:{call.place}": op.encode() + b" " + json[:-1] + b',"at":%d}' % now})

    def waits_for(self, event: str) -> bool:
        """Return whether a call waits for an event of this name."""
        return any(self.record.text(f"event:{one.place}") == event and not one.decision for one in self.calls)

    def receive(self, call: Call, event: str, sent: KeptEvent, now: int) -> None:
        """Give a call its event, which decides it."""
        got = f"{sent.position} {len(event.encode())} {event}".encode() + sent.json
        self.record.put(**{f"got:{call.place}": got})
        approved = self.record.get(f"limit:{call.place}") or encode({"call_id": call.id, "kind": "approve"})
        self.decide(call, "event", approved, now)

    def forget_calls(self) -> None:
        for call in self.calls:
            self.record.drop(*(f"{field}:{call.place}" for field in OF_CALLS))
        self.record.drop("calls", "waits", "suspended_at", "missed_at")

    def end_run(self, most: int) -> None:
        """Keep the answer, the error and the steps of the last run: one line of JSON for each ended run."""
        record, raw = self.record, msgspec.Raw

        def json(name: str) -> msgspec.Raw:
            return raw(record.get(name) or b"null")

        line = {
            "run": record.number("run"), "status": "failed", "attempt": record.number("attempt"),
            "started": json("started_at"), "ended": json("ended_at"), "code": record.text("error_code"),
            "error": record.text("error"), "response": json("response"), "journal": json("journal"),
            "service": json("service"),
        }  # fmt: skip
        lines = [*record.get("runs", b"").splitlines()[-most + 1 :], encode(line)]
        record.put(runs=b"\n".join(lines))


def event_of(name: str, tenant: str) -> str:
    """Return the name of an event with its tenant, so that it reaches only turns of that tenant."""
    return f"{name} {tenant}" if tenant else name


def _sevens(flat: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    return (tuple(flat[n : n + 7]) for n in range(0, len(flat), 7))


def _leading_number(text: bytes) -> int:
    """Return the number at the beginning of a window ("<start>:<tokens>") or a summary, or 0."""
    digits = text[: len(text) - len(text.lstrip(b"0123456789"))]
    return int(digits or 0)
