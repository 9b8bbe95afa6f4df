"""Push notifications: which turn has which, what must be sent, and what their endpoints have received.

Each method is one script. Its answer and its effects are compared with the expected ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from antiphon.wire.pushes import AT_ONCE, KEEP_MS
from simulation.direct import run
from simulation.model import ENDED, asks, is_deleted
from simulation.state import State, require

if TYPE_CHECKING:
    from antiphon_worker.local.records import Turn
    from simulation.world import World

LEASE_MS, MOST, DIES = 30_000, 2, 0.15
PUSHES = ("p1", "p2", "p3")  # one more than a turn may have
PAUSES_MS = (1_000, 60_000)


class Taken(NamedTuple):
    """A notification that a worker is about to send."""

    delivery: str
    session: str
    content: str

    @property
    def push(self) -> str:
        return self.delivery.split(" ")[0]

    @property
    def event(self) -> tuple[str, ...]:
        """The time, the kind and the turn of the completion event."""
        return (*self.delivery.split(" ")[2:],)

    def __str__(self) -> str:
        """Omit the time, which may be of the server's own clock, so that a log is always the same."""
        return " ".join((self.push, *self.event[1:]))


@dataclass
class Pushes:
    """All push notifications of a world, compared after every step."""

    world: World
    due: dict[str, float] = field(default_factory=dict)  # when each delivery must be sent
    dispatched: int | None = None  # the number of completion events handed to their turns
    held: list[Taken] = field(default_factory=list)  # by workers; some have lost the lease
    heard: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # by the endpoint of each push
    over: set[str] = field(default_factory=set)  # deliveries that were acknowledged or given up
    given_up: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    _ids: list[str] = field(default_factory=list)  # the entries of the log of completion events

    def act(self, random: Random) -> None:
        """Set or delete notifications, or let a worker send some."""
        turns = [*self.world.model.turns.values()]
        what = random.choices(["set", "delete", "take", "send"], [5, 1, 4, 8])[0]
        if turns and what == "set":
            awake = [turn for turn in turns if turn.status not in ENDED]
            turn = random.choice(awake if awake and random.random() < 0.7 else turns)
            self._set(turn, random.choice(PUSHES), random.choice("xy"))
        elif turns and what == "delete":
            having = [turn for turn in turns if "pushes" in turn.record]
            self._delete(random.choice(having or turns), random.choice(PUSHES))
        elif what == "take" or not self.held:
            self._take()
        else:
            self._send(self.held.pop(random.randrange(len(self.held))), random)

    # clients

    def _set(self, turn: Turn, push: str, content: str) -> None:
        asked = f"{content} of {turn.id}"
        expected = self._expected(turn, push)
        answer = run(self.world.cell.run("pushes/set", turn.id, push, asked.encode(), MOST, KEEP_MS))
        if answer == [b"OK"]:
            self._put(turn, push, asked)
        self.world.done(f"have {push} told of {turn.id}", answer[0].decode(), expected)

    def _expected(self, turn: Turn, push: str) -> str:
        if is_deleted(turn):
            return "TURN_NOT_FOUND"
        names = self._names(turn)
        return "OK" if push in names or len(names) < MOST else "FULL"

    def _put(self, turn: Turn, push: str, content: str) -> None:
        """Set a notification. The turn's present state is sent once; earlier completion events are not."""
        newest, names, now = self._newest(), self._names(turn), self.world.model.now
        if self.dispatched is None:
            self.dispatched = len(self._ids) - 1
        if push in names:
            since = turn.record.text(f"push:{push}").partition(" ")[0]
            turn.record.put(**{f"push:{push}": f"{since} {content}"})
            return
        turn.record.put(**{f"push:{push}": f"{newest} {content}", "pushes": " ".join([*names, push, ""])})
        ends = {"suspended": "suspended_at"} if asks(turn) else dict.fromkeys(ENDED, "ended_at")
        if at := ends.get(turn.status):
            self._add(push, now, turn.record.text(at), f"turn_{turn.status}", turn.id)

    def _delete(self, turn: Turn, push: str) -> None:
        answer = run(self.world.cell.run("pushes/delete", turn.id, push))
        names = self._names(turn)
        if push in names:
            turn.record.drop(f"push:{push}")
            turn.record.put(pushes="".join(f"{one} " for one in names if one != push))
        self.world.done(f"have {push} told no more of {turn.id}", answer, [b"OK"])

    # workers

    def _take(self) -> list[Taken]:
        answer = run(self.world.cell.run("pushes/take", LEASE_MS, KEEP_MS, AT_ONCE))
        word, more, now, *raw = answer
        taken = [Taken(*(part.decode() for part in one)) for one in raw]
        expected = self._hand_out()
        require(int(now) == self.world.model.now, "a worker learns the time of the server", now)
        for one in taken:
            require(one.delivery not in self.over, "what was acknowledged is sent no more", one)
        require(
            (word, more, taken) == (b"OK", *expected), "the answer of take notifications", answer, expected
        )
        self.held += (found := sorted(taken, key=str))
        self.world.did("take notifications", [*map(str, found)])
        return found

    def _hand_out(self) -> tuple[bytes, list[Taken]]:
        self._dispatch()
        now, turns = self.world.model.now, self.world.model.turns
        ready = sorted((at, one.encode()) for one, at in self.due.items() if at <= now)[:AT_ONCE]
        taken: list[Taken] = []
        for delivery in (one.decode() for _, one in ready):
            push, turn = delivery.split(" ")[0], turns[delivery.split(" ")[-1]]
            if push not in self._names(turn):
                del self.due[delivery]
                continue
            self.due[delivery] = now + LEASE_MS
            taken.append(Taken(delivery, turn.session.id, turn.record.text(f"push:{push}").partition(" ")[2]))
        return b"1" if len(ready) == AT_ONCE else b"", taken

    def _dispatch(self) -> None:
        """Hand each completion event to the notifications that its turn had before it."""
        if self.dispatched is None:
            return
        self._newest()
        model = self.world.model
        for number in range(self.dispatched, len(model.notices)):
            kind, _, name, _ = model.notices[number]
            for push in self._names(turn := model.turns[name]):
                if number >= self._since(turn, push):
                    self._add(push, model.now, self._ids[number + 1].partition("-")[0], kind, name)
        self.dispatched = len(model.notices)

    def _send(self, one: Taken, random: Random) -> None:
        """Send to the endpoint. The worker may die before or after that, or be slow to record it."""
        if random.random() < DIES:
            self.world.note(f"a worker dies that holds {one}")
            return
        self._hear(one)
        if random.random() < DIES:
            self.world.note(f"{one} is heard of, and the worker dies")
            return
        what = random.choices(["delivered", "later", "given up"], [6, 3, 1])[0]
        self._settle(one, what, random.choice(PAUSES_MS))
        if random.random() < DIES:
            self._settle(one, what, random.choice(PAUSES_MS))

    def _hear(self, one: Taken) -> None:
        require(one.content.endswith(f" of {one.event[-1]}"), "each endpoint hears of its own turn", one)
        self.heard.add((one.push, one.event))

    def _settle(self, one: Taken, what: str, ms: int) -> None:
        answer = run(self.world.cell.run("pushes/settle", one.delivery, ms if what == "later" else ""))
        if what != "later":
            if self.due.pop(one.delivery, None) is not None:
                self.over.add(one.delivery)
            self.given_up |= {(one.push, one.event)} if what == "given up" else set()
        elif one.delivery in self.due:
            self.due[one.delivery] = self.world.model.now + ms
        self.world.done(f"{one} is {what}", answer, [b"OK"])

    # what is known

    def _add(self, push: str, now: int, at: str, kind: str, turn: str) -> None:
        delivery = f"{push} {now} {at} {kind} {turn}"
        self.due[delivery] = now
        self.over.discard(delivery)

    def _names(self, turn: Turn) -> list[str]:
        return turn.record.text("pushes").split()

    def _since(self, turn: Turn, push: str) -> int:
        """Return the number of completion events at the time when a turn was given a push."""
        return self._ids.index(turn.record.text(f"push:{push}").partition(" ")[0])

    def _newest(self) -> str:
        """Return the newest entry of the log. The first entry was written when following began."""
        if len(self._ids) < len(self.world.model.notices) + 1:
            raw = self.world.redis.call("XRANGE", "ant:notices", self.world.noticed, "+")
            self._ids = [entry_id.decode() for entry_id, _ in raw]
        return self._ids[len(self.world.model.notices)]

    def move_back(self, moved: Callable[[float], float]) -> None:
        """Move times back after a reaper has noticed that the clock was put back."""
        self.due = {delivery: moved(at) for delivery, at in self.due.items()}

    # after every step, and at the end

    def check(self, state: State) -> None:
        found: dict[str, float] = state.at("ant:pushes", "", {})
        require(found == self.due, "notifications are what was noticed", found, self.due)
        cursor: bytes = state.at("ant:push_cursor", "", b"")
        known = b"" if self.dispatched is None else self._ids[self.dispatched].encode()
        require(cursor == known, "what was handed to its turns", cursor, known)

    def settle_all(self) -> None:
        """Check that endpoints receive all they were promised, and that nothing is left to send."""
        self.held.clear()
        self.world.wait(LEASE_MS + max(PAUSES_MS))
        while taken := self._take():
            for one in taken:
                self._hear(one)
                self._settle(one, "delivered", 0)
        require(not self.due, "every notification is sent in the end", self.due)
        model = self.world.model
        for number, (kind, _, name, _) in enumerate(model.notices):
            for push in self._names(turn := model.turns[name]):
                told = push, (self._ids[number + 1].partition("-")[0], kind, name)
                if number >= self._since(turn, push):
                    require(told in self.heard | self.given_up, "who asked is told", told, self.heard)
