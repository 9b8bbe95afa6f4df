"""Open readers of sessions, with the client's own code: none sees anything of a later session with the same id.

Each may return with any cursor, and gets every message of the history once and in order, from the log or as messages.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from antiphon.errors import StreamGap
from antiphon.events import MessageEvent, decode_event
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import Message
from antiphon.redis import past
from antiphon.redis.past import History, Past
from antiphon.redis.subscription import Subscription
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import RESYNC
from antiphon.wire.keys import Keys
from antiphon.wire.records import Published, TurnRecord, turn_record
from antiphon_worker.local.records import Session
from simulation.direct import run
from simulation.model import note_ends
from simulation.state import State, require

if TYPE_CHECKING:
    from simulation.world import World

MOST = 4
past.PAGE = 2  # messages at once; so few that the session changes between two pages


class NothingHeard(Exception):
    """All messages were read."""


class Feed:
    """The messages for one reader, as its own listener."""

    reached = True

    def __init__(self) -> None:
        self.messages = deque([RESYNC])

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Feed]:
        yield self

    async def get(self, timeout: float | None = None) -> bytes:
        if not self.messages:
            raise NothingHeard
        return self.messages.popleft()

    def take(self) -> bytes | None:
        return self.messages.popleft() if self.messages else None

    def clear(self) -> None:
        self.messages.clear()

    def close(self, error: Exception) -> None: ...
    def check_open(self) -> None: ...
    def reconnect(self) -> None: ...


class Unwatched(Subscription):
    """A subscription without a limit on silence: a schedule has no event loop, and loses no message unnoticed."""

    def _watch(self) -> None: ...


class Log:
    """The part of a cell that a reader uses."""

    keys, database = Keys(), 0

    def __init__(self, world: World) -> None:
        self.redis, self.seal = world.redis, world.cell.seal

    async def session_fields(self, session: str, *names: str) -> list[bytes | None]:
        return self.redis.call("HMGET", self.keys.session(session), *names)

    async def log(self, session: str, names: tuple[str, ...], first: int, count: int) -> Any:
        fields, entries = self.redis.calls(
            [
                ("HMGET", self.keys.session(session), *names),
                ("XRANGE", self.keys.events(session), f"{first}-0", "+", "COUNT", count),
            ]
        )
        return fields, [(int(entry.partition(b"-")[0]), text[1]) for entry, text in entries]


class Told(History):
    """The history of a session, whose messages may have any form."""

    def __init__(self, world: World, session: str) -> None:
        self.session_id, self.archive, self._world = SessionId(session), None, world

    async def state(self) -> Any:
        keys, redis = Keys(), self._world.redis
        raw, length = redis.calls(
            [("HGETALL", keys.session(self.session_id)), ("LLEN", keys.history(self.session_id))]
        )
        fields = {name.decode(): value for name, value in raw.items()}
        return (fields, length) if "created" in fields else None

    async def messages(self, start: int, stop: int, noted: bytes) -> list[Message] | None:
        keys, redis = Keys(), self._world.redis
        [now], page = redis.calls(
            [
                ("HMGET", keys.session(self.session_id), "ends"),
                ("LRANGE", keys.history(self.session_id), start, stop - 1),
            ]
        )
        return [Message.user(text.decode()) for text in page] if (now or b"") == noted else None

    async def turns(self, newest: int, count: int) -> list[TurnRecord]:
        keys, redis = Keys(), self._world.redis
        ids = redis.call("LRANGE", keys.turns(self.session_id), -newest - count, -newest - 1)
        answers = redis.calls([("HGETALL", keys.turn(turn.decode())) for turn in ids]) if ids else []
        found: list[TurnRecord] = []
        for turn, raw in zip(ids, answers, strict=True):
            fields = dict(raw)
            if turn.decode() not in self._world.model.damaged and b"deleted" not in fields:
                fields[b"request"] = b'{"messages":[]}'
                found.append(turn_record(TurnId(turn.decode()), fields, self._world.cell.seal))
        return found


class Reader:
    """One reader. ``life`` identifies the session it reads among those with its id; None before there was one."""

    def __init__(self, world: World, session: str, after: int | None) -> None:
        self.session, self.feed, self._world = session, Feed(), world
        self.life = world.model.life_of(session) or None
        self.events = Unwatched(Log(world), self.feed, SessionId(session), after, past=self._past)  # type: ignore[arg-type]
        self.parts: list[str] = []  # the parts received of an incomplete message event
        self.place = after  # the seq up to which it has seen everything; None before its first event

    def _past(self, cell: Cell, session: SessionId, tenant: str | None) -> Past:
        return Past(Told(self._world, session))


class Readers:
    """The readers of a schedule, and which life of a session each event belongs to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[Reader] = []
        self._lives: dict[str, dict[int, str]] = defaultdict(dict)
        self._brought: dict[str, list[int]] = {}  # by life: which event brought each message of the history
        world.model.grown = self._grown

    def _grown(self, session: Session, seq: int, before: int, kept: int | None, last: int) -> None:
        note_ends(session, seq, before, kept, last)
        brought = self._brought.setdefault(session.record.text("life"), [])
        del brought[before if kept is None else kept :]
        brought += [last] * (len(session.history) - len(brought))

    def _check(self, one: Reader, event: Published) -> None:
        """G5: what a reader does not get as events it gets as messages: each once, in order, none left out."""
        known = self._world.model.sessions.get(one.session)
        place, one.place = one.place, event.seq
        if place is None or known is None or (event.seq == place + 1 and event.type != "message"):
            return
        first = known.record.number("first")
        brought = self._brought.get(known.record.text("life"), [])
        missing = [at for at, seq in enumerate(brought) if place < seq <= event.seq]
        if place == 0:
            missing = [at for at, seq in enumerate(brought) if seq <= max(event.seq, first)]
        if event.type != "message":
            left_out = [brought[at] for at in missing if first < brought[at] < event.seq]
            require(not left_out, "G5 no message is left out", one.session, place, event, left_out)
            return
        told = decode_event(event.json)
        assert isinstance(told, MessageEvent)
        one.parts += [message.text for message in told.messages]
        if event.seq == place:  # a part of more messages than a page has
            return
        given, one.parts = one.parts, []
        expected = [known.history[at].decode() for at in missing]
        require(
            given == expected, "G5 each message comes once", one.session, place, event.seq, given, expected
        )

    def _return(self, one: Reader) -> None:
        again = Reader(self._world, one.session, one.events.cursor)
        again.life = one.life
        self._open[self._open.index(one)] = again

    def _may_be_told_of_a_gap(self, one: Reader) -> bool:
        """Return whether a gap is allowed: the session is gone or another one, or never had an event at the cursor."""
        known, cursor = self._world.model.sessions.get(one.session), one.events.cursor or 0
        if known is None or one.life != known.record.text("life"):
            return True
        return not known.record.number("first") <= cursor <= known.record.number("seq")

    def hear(self, state: State) -> None:
        """Publish what the last step wrote."""
        for session, entries in state.new_events.items():
            for entry, fields in entries or ():
                self._lives[session][int(entry.split(b"-")[0])] = self._world.model.life_of(session)
                self.say(session, fields[1])

    def say(self, session: str, message: bytes) -> None:
        for one in self._open:
            if one.session == session:
                one.feed.messages.append(message)

    def open(self, session: str, after: int | None) -> None:
        self._world.check_now()  # earlier messages are not received
        self._open = [*self._open, Reader(self._world, session, after)][-MOST:]
        self._world.note(f"a reader of {session} after {after}")
        self.read(len(self._open) - 1, lost=False)

    def read(self, number: int, *, lost: bool, leaves: bool = False) -> None:
        """Let a reader process its messages, after a lost connection if ``lost``.

        A reader that ``leaves`` takes a page, and returns with its cursor.
        """
        if not self._open:
            return None
        self._world.check_now()
        one = self._open[number % len(self._open)]
        if lost:
            one.feed.messages = deque([RESYNC])
        try:
            while True:
                for event in run(one.events.published()):
                    life = self._lives[one.session].get(event.seq)
                    one.life = one.life or life
                    own = life == one.life or not event.seq  # its first state is not an event
                    require(own, "G15 a reader sees one session of its id", one.session, event)
                    self._check(one, event)
                if leaves:
                    return self._return(one)
        except NothingHeard:
            return None
        except StreamGap:
            allowed = self._may_be_told_of_a_gap(one)
            require(allowed, "G5 any cursor resumes", one.session, one.events.cursor)
            self._open.remove(one)
            self._world.note(f"a reader of {one.session} is told of a gap")
