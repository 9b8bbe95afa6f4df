"""The connections that turns and sessions in Redis are reached over: a client's, or an agent's on each event loop."""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import msgspec

from antiphon.errors import ClientClosed, UsageError
from antiphon.input.ids import SessionId, TurnId, check_queue, new_turn_id, turn_id_of_key
from antiphon.input.request import AgentSpec, encode_request, queue_of
from antiphon.redis.cells import Cells, ServerOptions, open_cells
from antiphon.session.background import when_loop_ends
from antiphon.session.runtime import SessionRef
from antiphon.session.work import Work
from antiphon.wire.cell import DEFAULT_QUEUE, Cell
from antiphon.wire.connection.pubsub import LiveFeed

__all__ = ["Connections", "ConnectionsByLoop"]


class Connections:
    """The cells of a deployment and their live feeds, for one event loop: that of their first use.

    Making them connects to nothing. In the child of a fork they begin anew.
    """

    def __init__(
        self,
        redis: Any,
        *,
        prefix: str | None = None,
        queue: str = DEFAULT_QUEUE,
        **options: Unpack[ServerOptions],
    ) -> None:
        self._queue = check_queue(queue)
        self._open = lambda: open_cells(redis, prefix=prefix, **options)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._cells = self._open()
        self._feeds = {id(cell): LiveFeed(cell.redis) for cell in self._cells}
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the first use
        self._pid = os.getpid()

    @property
    def cells(self) -> Cells:
        """The cells of the deployment. Raises ``ClientClosed``, and ``UsageError`` on another event loop."""
        if self._closed:
            raise ClientClosed
        if self._pid != os.getpid():
            _left_behind.append((self._cells, self._feeds))
            self._begin()
        self._check_loop()
        return self._cells

    def cell_of_session(self, session: SessionId) -> Cell:
        return self.cells.of_session(session)

    def cell_of_turn(self, turn: TurnId) -> Cell:
        return self.cells.of_turn(turn)

    def feed_of(self, cell: Cell) -> LiveFeed:
        return self._feeds[id(cell)]

    async def submit(self, session: SessionRef, work: Work, agent: str | AgentSpec | None) -> TurnId:
        """Hand in a turn, with the agent in the form in which it travels. Returned means accepted.

        Raises ``KeyReused``, ``SessionBusy``, ``UsageError``, ``InvalidMessage``, ``StoreError``.
        """
        payload = encode_request(work.request(agent))
        new_id = new_turn_id(session.id) if work.key is None else turn_id_of_key(session.id, work.key)
        await self.cell_of_turn(new_id).submit(
            session.id, new_id, payload, digest=hashlib.sha256(payload).hexdigest(),
            queue=work.queue or "", agent_queue=queue_of(agent), default_queue=self._queue,
            ttl_ms=_milliseconds(session.ttl), reject_if_busy=work.if_busy == "reject",
            due_in_ms=_milliseconds(work.delay), agent=b"" if agent is None else msgspec.json.encode(agent),
            tenant=work.tenant or "",
        )  # fmt: skip
        return new_id

    async def aclose(self) -> None:
        """Close them all. Whoever still reads or waits gets ``ClientClosed``."""
        self._closed = True
        if self._pid != os.getpid() or (self._loop is not None and self._loop.is_closed()):
            return  # the connections are its parent's, or ended with their loop
        for feed in self._feeds.values():
            await feed.aclose()
        for cell in self._cells:
            await cell.redis.aclose()

    def _check_loop(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nothing is read or written here
            return
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise UsageError(
                "An AsyncClient belongs to the event loop on which it was first used: open one for each "
                "asyncio.run, or use Client, which works everywhere."
            )


class ConnectionsByLoop:
    """Connections for each event loop that asks, closed when it ends.

    ``redis`` is a URL, a list of URLs or a redis-py client, ``prefix`` the first part of every key.
    """

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = WeakKeyDictionary()

    async def here(self) -> Connections:
        """Those of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._opened.get(loop)
        if found is None:
            found = self._opened[loop] = Connections(self._redis, prefix=self._prefix)
            await when_loop_ends(self.aclose)
        return found

    async def aclose(self) -> None:
        """Close those of the running event loop."""
        found = self._opened.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.aclose()


def _milliseconds(seconds: float | None) -> int:
    """A duration as the scripts take it: 0 where there is none."""
    return math.ceil((seconds or 0) * 1000)


_left_behind: list[object] = []
"""The parent's connections, in the child of a fork: taken apart there, they would leave the parent's event loop."""
