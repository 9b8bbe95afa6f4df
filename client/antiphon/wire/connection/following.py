"""Follows a cell that was moved: a client of the old place becomes one of the new place, and repeats what was refused.

The old place refuses a new connection before it is sent a command, and the switch has closed all others. So a refused
command was not run there, and what was written there is at the new place as well. A command without an answer is
repeated as after every lost connection.

Keys have other names at the new place. A `Key` in a command that was made for the old place is renamed. A script gets
its names as text, so its caller must repeat the call (``Followed``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.errors import SettingsError
from antiphon.wire.connection.cluster import shown
from antiphon.wire.connection.moved import CellMoved, moved_urls, new_url, place_of
from antiphon.wire.connection.names import name_of
from antiphon.wire.keys import Key, Keys

log = logging.getLogger("antiphon.moves")

SCRIPTS = frozenset({"EVALSHA", "EVAL"})
SCANS = {"SCAN": 1, "HSCAN": 2, "SSCAN": 2, "ZSCAN": 2}
"""Commands that scan a table, and the position of their cursor among the arguments."""
CURSOR_BITS = 64
ARRIVAL_SECONDS = 10.0
"""How long a call waits for a cell that has left its old place, and has not arrived yet."""
LOOK_SECONDS = 0.05
MOST_MOVES = 16


class Names(NamedTuple):
    """How a client names keys after it has followed its cell for the n-th time (``number``)."""

    number: int
    keys: Keys
    database: int

    def of(self, command: Sequence[Any]) -> tuple[Any, ...]:
        """Return a command with the names of this place. A scan that began at another place starts again."""
        renamed = [self.name(one) if isinstance(one, Key) else one for one in command]
        at = SCANS.get(command[0], 0)
        if at:
            number, cursor = divmod(int(command[at]), 1 << CURSOR_BITS)
            renamed[at] = cursor if number == self.number else 0
        return tuple(renamed)

    def answer(self, command: Sequence[Any], answer: Any) -> Any:
        """Return an answer. The cursor of a scan is combined with the number of the place where it is valid."""
        if command[0] in SCANS and answer[0]:
            return (int(answer[0]) + (self.number << CURSOR_BITS), *answer[1:])
        return answer

    def name(self, key: str) -> Key:
        """Return the name that a key or channel has here."""
        return self.keys.again(key, self.database)


class Following(Redis):
    """A redis-py client of one cell that follows it to other places."""

    origin = ""
    """The URL of the first place. Its credentials are used at other places too."""

    reopen: Callable[[str], Any] | None = None
    """Opens another client of this kind; without it, ``CellMoved`` is raised."""

    naming: Callable[[Any], tuple[Keys, int]]
    """Returns how keys are named at the place to which a client leads, and the number of its database."""

    names: Names | None = None
    """How keys are named since the cell was followed; None before."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.on_follow: list[Callable[[], None]] = []
        """Called when keys have other names, before the next command is sent."""
        self._following: asyncio.Task[None] | None = None
        self._there: Any = None  # the client whose connections are used since then
        self._here = ""  # its URL

    def begin_like(self, other: Any) -> None:
        """Begin where another client of the cell leads."""
        if isinstance(other, Following):
            self.origin, self.reopen, self.names, self._here = (
                other.origin,
                other.reopen,
                other.names,
                other._here,
            )

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return FollowingPipeline(self, transaction, shard_hint)

    async def follow(self, moved: CellMoved, names: Names | None) -> None:
        """Lead to the new place from now on, unless another call has followed since these ``names`` were in use.

        Raises ``CellMoved`` if this process may not log in there, and ``ConnectionError``.
        """
        if self.names is not names:
            return
        following = self._following
        if following is None or following.done() or following.get_loop() is not asyncio.get_running_loop():
            following = self._following = asyncio.create_task(self._follow(moved), name="antiphon follow")
            following.add_done_callback(_heard)
        await asyncio.shield(following)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        following, self._following = self._following, None
        if following is not None and following.get_loop() is asyncio.get_running_loop():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if self._there is not None:
            await self._there.aclose()
        await super().aclose(close_connection_pool)

    def use(self, there: Any) -> None:
        """Use the connections of another client."""
        self.connection_pool = there.connection_pool

    async def _follow(self, moved: CellMoved) -> None:
        url, there = await self._arrived(moved)
        left, before = self.connection_pool, self._there
        self.use(there)
        self._there, self._here = there, url
        number = self.names.number + 1 if self.names else 1
        self.names = Names(number, *self.naming(self))
        for rename in self.on_follow:
            rename()
        log.info(
            "the cell has moved: this client has followed it to %s", place_of(url), extra={"action": "moved"}
        )
        await (left.disconnect(inuse_connections=False) if before is None else before.aclose())

    async def _arrived(self, moved: CellMoved) -> tuple[str, Any]:
        """Return a client of the place that has the cell, and its URL. Raises ``CellMoved`` and ``ConnectionError``."""
        deadline, moves = time.monotonic() + ARRIVAL_SECONDS, 0
        while True:
            url, there = await self._opened(moved)
            try:
                await self._reach(there)
            except CellMoved as again:
                await there.aclose()
                moved, moves = again, moves + 1
                if moves == MOST_MOVES:
                    why = (
                        "Its markers lead from place to place without end: delete the one where the cell is."
                    )
                    raise CellMoved(moved.place, why=why) from None
            except (RedisConnectionError, RedisTimeoutError, OSError) as exc:
                await there.aclose()
                if time.monotonic() > deadline:
                    raise RedisConnectionError(f"the cell has moved to {shown(moved.place)}: {exc}") from exc
                await asyncio.sleep(LOOK_SECONDS)
            except BaseException:
                await there.aclose()
                raise
            else:
                return url, there

    async def _opened(self, moved: CellMoved) -> tuple[str, Any]:
        """Return the URL of the new place, and a client of it. Raises ``CellMoved`` if this process cannot use it."""
        if self.reopen is None:
            raise moved
        known = [self.origin, *moved_urls()]
        try:
            url = await asyncio.to_thread(new_url, moved, known, self._here or self.origin, name_of(self))
            return url, self.reopen(url)
        except (ValueError, SettingsError) as exc:
            raise CellMoved(moved.place, why=f"This process cannot use it: {exc}") from exc

    async def _reach(self, there: Any) -> None:
        """Open a connection, which the new place refuses until the cell has arrived."""
        self.naming(there)
        connection = await there.connection_pool.get_connection()
        await there.connection_pool.release(connection)


class FollowingPipeline(Pipeline):
    """Commands that are sent at once, to the place where the cell is."""

    def __init__(self, redis: Following, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(redis.connection_pool, redis.response_callbacks, transaction, shard_hint)
        self._redis = redis

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        stack = list(self.command_stack)
        while True:
            names = self._redis.names
            if names is not None:
                self.connection_pool = self._redis.connection_pool
                self.command_stack = [(names.of(command), options) for command, options in stack]
            try:
                return await super().execute(raise_on_error)
            except CellMoved as moved:
                await self._redis.follow(moved, names)


def _heard(following: asyncio.Task[None]) -> None:
    """Retrieve a failure, because all calls that waited for it may have been cancelled."""
    if not following.cancelled():
        following.exception()
