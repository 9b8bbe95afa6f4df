"""Open readers of sessions, which are the client's own: none sees anything of a later session with the same id."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from antiphon.errors import StreamGap
from antiphon.input.ids import SessionId
from antiphon.redis.subscription import Subscription
from antiphon.wire.connection.pubsub import RESYNC
from antiphon.wire.keys import Keys
from simulation.direct import run
from simulation.state import State, require

if TYPE_CHECKING:
    from simulation.world import World

MOST = 4


class NothingHeard(Exception):
    """All messages were read."""


class Feed:
    """What a reader hears, as its own listener."""

    reached = True

    def __init__(self) -> None:
        self.messages = deque([RESYNC])

    @asynccontextmanager
    async def listen(self, channel: str) -> AsyncGenerator[Feed]:
        yield self

    async def get(self, timeout: float) -> bytes:
        if not self.messages:
            raise NothingHeard
        return self.messages.popleft()

    def take(self) -> bytes | None:
        return self.messages.popleft() if self.messages else None

    def close(self, error: Exception) -> None: ...
    def check_open(self) -> None: ...
    def reconnect(self) -> None: ...


class Log:
    """A cell as a reader uses it."""

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


class Reader:
    """One reader. ``life`` is the session of its id that it reads, None before there was one."""

    def __init__(self, world: World, session: str, after: int | None) -> None:
        self.session, self.feed = session, Feed()
        self.life = world.model.life_of(session) or None
        self.events = Subscription(Log(world), self.feed, SessionId(session), after)  # type: ignore[arg-type]


class Readers:
    """The readers of a schedule, and which event is of which session of its id."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[Reader] = []
        self._lives: dict[str, dict[int, str]] = defaultdict(dict)

    def hear(self, state: State) -> None:
        """Publish what the last step has written."""
        for session, entries in state.new_events.items():
            for entry, fields in entries or ():
                self._lives[session][int(entry.split(b"-")[0])] = self._world.model.life_of(session)
                self.say(session, fields[1])

    def say(self, session: str, message: bytes) -> None:
        for one in self._open:
            if one.session == session:
                one.feed.messages.append(message)

    def open(self, session: str, after: int | None) -> None:
        self._world.check_now()  # what was published before is not heard
        self._open = [*self._open, Reader(self._world, session, after)][-MOST:]
        self._world.note(f"a reader of {session} after {after}")
        self.read(len(self._open) - 1, lost=False)

    def read(self, number: int, *, lost: bool) -> None:
        """Let a reader take what it has heard; ``lost`` is that its connection was."""
        if not self._open:
            return
        self._world.check_now()
        one = self._open[number % len(self._open)]
        if lost:
            one.feed.messages = deque([RESYNC])
        try:
            while True:
                for event in run(one.events.published()):
                    life = self._lives[one.session].get(event.seq)
                    one.life = life if one.life is None else one.life
                    require(life == one.life, "G15 a reader sees one session of its id", one.session, event)
        except NothingHeard:
            return
        except StreamGap:
            self._open.remove(one)
            self._world.note(f"a reader of {one.session} is told of a gap")
