"""The connections of a client, or of an agent on each event loop, to the turns and sessions in Redis."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, Unpack
from weakref import WeakKeyDictionary

from msgspec import structs

from antiphon.errors import ClientClosed, StoreUnavailable, UsageError
from antiphon.input.ids import SessionId, TurnId, check_queue, new_again, new_turn_id, turn_id_of_key
from antiphon.input.request import AgentSpec, TurnRequest, encoded_turn, with_trace
from antiphon.redis.archived import ArchiveReader
from antiphon.redis.cells import Cells, ServerOptions, open_cells
from antiphon.redis.files import SessionFiles, is_large
from antiphon.redis.past import PastOf, past_of
from antiphon.session.background import on_background, when_loop_ends
from antiphon.session.runtime import SessionRef
from antiphon.session.work import Work
from antiphon.stores.base import SessionStore
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.keys import PREFIX
from antiphon.wire.records import DEFAULT_QUEUE, NewTurn

T = TypeVar("T")
log = logging.getLogger("antiphon.subscribe")

OUTAGE_RETRY_SECONDS = 1.0
REACH_SECONDS = 10.0


class Patience:
    """Waits for an unavailable Redis, for one reader. ``reader`` names it in the log, ``where`` is its session.

    ``heard`` is when the reader last heard from Redis; the reader sets it.
    """

    __slots__ = ("_began", "_cell", "_feed", "_lost_at", "_reader", "_where", "heard")

    def __init__(self, cell: Cell, feed: LiveFeed, reader: str, where: str | None = None) -> None:
        self._cell = cell
        self._feed = feed
        self._reader = reader
        self._where = where
        self._lost_at = 0.0  # when Redis became unavailable
        self.begin()

    def begin(self) -> None:
        """Note that the reader begins to read now."""
        self._began = self.heard = time.monotonic()

    def left(self, seconds: float) -> float:
        """Return the seconds until the silence is too long, regardless of interrupted waits."""
        return max(0.0, self.heard + seconds - time.monotonic())

    async def __call__(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read; while Redis is unreachable, log it once and try again.

        Raises ``ClientClosed`` if the client was closed, because a closed client opens no connections, and
        ``StoreUnavailable`` if it has never reached Redis.
        """
        while True:
            self._feed.check_open()
            try:
                found = await read()
            except StoreUnavailable as exc:
                self._check_reached(exc)
                if not self._lost_at:
                    self._lost_at = time.monotonic()
                    log.warning("%s: %s Trying again.", self._reader, exc, extra={"action": "outage_began"})
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)
                continue
            if self._lost_at:
                away, self._lost_at = time.monotonic() - self._lost_at, 0.0
                log.info(
                    "%s: Redis is back after %.1f s", self._reader, away, extra={"action": "outage_ended"}
                )
            return found

    def _check_reached(self, exc: StoreUnavailable) -> None:
        reached = self._feed.reached or getattr(self._cell.redis, "reached", True)
        if not reached and time.monotonic() - self._began >= REACH_SECONDS:
            raise StoreUnavailable(
                f"{exc} This client has never reached it, and has tried for {REACH_SECONDS:g} s: check "
                "the URL, and that Redis is running.",
                session_id=self._where,
            ) from exc


MOST_KEY_BYTES = 1000


class Connections:
    """The cells of a deployment and their live feeds, for the event loop on which they are first used.

    Creating this object does not connect. The child of a fork opens connections of its own.
    """

    def __init__(
        self,
        redis: Any,
        *,
        prefix: str | None = None,
        queue: str = DEFAULT_QUEUE,
        archive: SessionStore | str | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        self._queue = check_queue(queue)
        self.archive = None if archive is None else ArchiveReader(archive)
        self.past_of: PastOf = partial(past_of, self.archive)
        self._open = lambda: open_cells(redis, prefix=prefix, **options)
        self._closed = False
        self.background = False  # whether they belong to the background loop alone, for synchronous calls
        self._begin()

    def _begin(self) -> None:
        self._cells = self._open()
        self._feeds = {id(cell): LiveFeed(cell.redis) for cell in self._cells}
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of the first use
        self._pid = os.getpid()

    @property
    def cells(self) -> Cells:
        """Return the cells of the deployment. Raises ``ClientClosed``, and ``UsageError`` on another event loop."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            _left_behind.append((self._cells, self._feeds))
            self._begin()
        self._check_loop()
        return self._cells

    async def here(self, store: SessionStore | None = None) -> Connections:
        """Return these connections. Raises ``UsageError`` on another event loop. ``store`` is ignored."""
        self._check_loop()
        return self

    def cell_of_session(self, session: SessionId) -> Cell:
        return self.cells.of_session(session)

    def cell_of_turn(self, turn: TurnId) -> Cell:
        return self.cells.of_turn(turn)

    def feed_of(self, cell: Cell) -> LiveFeed:
        return self._feeds[id(cell)]

    def turn_id_of(self, session: SessionRef, work: Work) -> TurnId:
        """Return the id of a new turn, or of the turn with the same key."""
        return new_turn_id(session.id) if work.key is None else self._turn_id_of_key(session.id, work.key)

    async def submit(
        self, session: SessionRef, work: Work, agent: str | AgentSpec | None, turn_id: TurnId | None = None
    ) -> TurnId:
        """Submit a turn with its serialized agent. The turn is accepted when this returns.

        Raises ``KeyReused``, ``SessionBusy``, ``SessionChanged``, ``TenantLimit``, ``UsageError``, ``InvalidMessage``,
        ``StoreError``.
        """
        if any(map(is_large, work.messages)):
            work = await without_contents(self.cell_of_session(session.id), session, work)
        turn = self.new_turn(session, work, agent, turn_id)
        await self.cell_of_turn(turn.turn_id).submit(turn)
        return turn.turn_id

    def new_turn(
        self, session: SessionRef, work: Work, agent: str | AgentSpec | None, turn_id: TurnId | None = None
    ) -> NewTurn:
        """Return a turn as a cell accepts it. Raises ``InvalidMessage``, ``LimitReached`` and ``UsageError``."""
        turn_id = turn_id or self.turn_id_of(session, work)
        return new_turn(session, turn_id, work, work.request(agent), default_queue=self._queue)

    def _turn_id_of_key(self, session: SessionId, key: str) -> TurnId:
        prefix = self.cell_of_session(session).keys.deployment
        return turn_id_of_key(session, key, "" if prefix == PREFIX else prefix)

    async def aclose(self) -> None:
        """Close all connections. Calls that still read or wait raise ``ClientClosed``."""
        self._closed = True
        if self.archive is not None:
            self.archive.close()
        if self._pid != os.getpid() or (self._loop is not None and self._loop.is_closed()):
            return  # the connections belong to the parent process, or ended with their loop
        for feed in self._feeds.values():
            await feed.aclose()
        for cell in self._cells:
            await cell.redis.aclose()

    def _check_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing is read or written here
            return
        if self.background and not on_background():
            raise UsageError(
                "A session of a Client has no _async methods of its own loop: call its other methods, or open it with "
                "AsyncClient.session and await them."
            )
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "An AsyncClient belongs to the event loop on which it was first used: open one for each "
                "asyncio.run, or use Client, which works everywhere."
            )


class ConnectionsByLoop:
    """Connections of each event loop that uses them, closed when the loop ends.

    ``redis`` is a URL, a list of URLs or a redis-py client. ``prefix`` is the first part of every key.
    """

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = WeakKeyDictionary()

    async def here(self, store: SessionStore | None = None) -> Connections:
        """Return the connections of the running event loop. Sessions of a ``store`` are not in Redis."""
        loop = asyncio.get_running_loop()
        found = self._opened.get(loop)
        if found is None:
            found = self._opened[loop] = Connections(self._redis, prefix=self._prefix)
            await when_loop_ends(self.aclose)
        return found

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        found = self._opened.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose()


async def without_contents(cell: Cell, session: SessionRef, work: Work) -> Work:
    """Store large contents of a turn's messages in its session. Raises as ``add_file`` does."""
    if not any(map(is_large, work.messages)):
        return work
    tenant = session.tenant if work.tenant is None else work.tenant
    files = SessionFiles(cell, session.id, tenant=tenant, ttl_ms=session.ttl_ms, user=work.user)
    return structs.replace(work, messages=await files.moved(work.messages))


def new_turn(
    session: SessionRef,
    turn_id: TurnId,
    work: Work,
    request: TurnRequest,
    *,
    default_queue: str = DEFAULT_QUEUE,
) -> NewTurn:
    """Return a turn with this id and the options of ``work``. Raises as ``Connections.new_turn`` does."""
    turn = encoded_turn(request)
    return NewTurn(
        session.id, turn_id, turn.request if request.trace else with_trace(turn.request), digest=turn.digest,
        queue=work.queue or "", agent_queue=turn.agent_queue, default_queue=default_queue,
        ttl_ms=session.ttl_ms, if_busy=work.if_busy, due_in_ms=_milliseconds(work.delay), agent=turn.agent,
        tenant=work.tenant or session.tenant or "", key=_kept_key(work.key), input_bytes=turn.input_bytes,
        again=new_again() if work.retry_failed else "", priority=work.priority, cursor=work.cursor,
        user=work.user or "", named=turn.named,
    )  # fmt: skip


def _kept_key(key: str | None) -> str:
    return key if key is not None and len(key.encode()) <= MOST_KEY_BYTES else ""


def _milliseconds(seconds: float | None) -> int:
    """Convert a duration for the scripts: None becomes 0."""
    return math.ceil((seconds or 0) * 1000)


_left_behind: list[object] = []
"""Connections inherited through a fork. Closing them here would remove them from the parent's event loop."""
