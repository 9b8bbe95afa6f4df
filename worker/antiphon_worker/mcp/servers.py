"""The servers that an event loop uses, with their connections."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

import httpx2

from antiphon.mcp import MCP, Requester
from antiphon_worker.mcp.connection import Connection, Unreachable
from antiphon_worker.mcp.credentials import Credentials, headers_for
from antiphon_worker.mcp.http import http_transport, network_pool
from antiphon_worker.mcp.stdio import stdio_transport

log = logging.getLogger("antiphon.mcp")

IDLE_SECONDS = 300.0
"""A connection that was not used for this long is closed."""
MOST_IDLE = 64
"""How many idle connections to one server are kept: those that were used last."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""How long a server that could not be reached is not contacted again, at first and at most."""

User: TypeAlias = tuple[str | None, str | None]
EVERYBODY: User = (None, None)


class Server:
    """A server with its connections: one for each tenant and user if ``auth=`` is declared, else one for all."""

    def __init__(self, declared: MCP) -> None:
        self.declared = declared
        self._connections: OrderedDict[User, Connection] = OrderedDict()
        self._pool: asyncio.Task[httpx2.AsyncHTTPTransport] | None = None
        self._failures, self._until, self._failure = 0, 0.0, ""
        self._sweep: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def use(self, requester: Requester) -> AsyncGenerator[Connection]:
        """Yield the connection of this user, which is created if there is none. Raises ``ToolError``."""
        headers = await headers_for(self.declared, requester)
        user = EVERYBODY if self.declared.auth is None else (requester.tenant, requester.user)
        connection = await self._connection(user)
        connection.credentials.replace(headers)
        connection.busy += 1
        try:
            await self._opened(connection)
            yield connection
        finally:
            connection.busy -= 1
            connection.used = time.monotonic()
            self._tidy()

    async def _connection(self, user: User) -> Connection:
        known = self._connections.get(user)
        if known is None or known.closed:
            if time.monotonic() < self._until:
                raise Unreachable(self._failure)
            credentials = Credentials(self.declared)
            if self.declared.command:
                transport = stdio_transport(self.declared)
            else:
                transport = http_transport(self.declared, await self._network(), credentials)
            known = self._connections.get(user)  # another call may have made it in the meantime
            if known is None or known.closed:
                known = self._connections[user] = Connection(self.declared, transport, credentials)
        self._connections.move_to_end(user)
        return known

    async def _network(self) -> httpx2.AsyncHTTPTransport:
        if self._pool is None:
            self._pool = asyncio.ensure_future(asyncio.to_thread(network_pool))
        return await asyncio.shield(self._pool)

    async def _opened(self, connection: Connection) -> None:
        try:
            await connection.opened()
        except Unreachable as exc:
            if not connection.refused and time.monotonic() >= self._until:
                self._pause(exc.message)
            raise
        self._failures = 0

    def _pause(self, failure: str) -> None:
        """Do not contact the server for a while, so that not every turn waits for it."""
        pause = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        self._failures += 1
        self._failure, self._until = failure, time.monotonic() + pause
        log.warning(
            "the MCP server %s cannot be used; the next attempt is in %g s", self.declared.name, pause,
            extra={"action": "mcp_unavailable", "server": self.declared.name},
        )  # fmt: skip
        log.debug("the MCP server %s: %s", self.declared.name, failure)

    def _tidy(self) -> None:
        """Close connections that are no longer used, and repeat this later as long as there are any."""
        now = time.monotonic()
        idle = [user for user, one in self._connections.items() if not one.busy]
        extra = len(idle) - MOST_IDLE
        for number, user in enumerate(idle):
            one = self._connections[user]
            if one.closed or number < extra or now - one.used >= IDLE_SECONDS:
                one.leave()
                del self._connections[user]
        if self._sweep is not None:
            self._sweep.cancel()
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(IDLE_SECONDS, self._tidy) if self._connections else None

    async def aclose(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        connections = list(self._connections.values())
        self._connections.clear()
        await asyncio.gather(*(one.aclose() for one in connections))
        if self._pool is not None:
            await (await self._pool).aclose()
            self._pool = None


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[MCP, Server]] = WeakKeyDictionary()


def server(declared: MCP) -> Server:
    """Return the connections of the running event loop to a server."""
    known = _servers.setdefault(asyncio.get_running_loop(), {})
    if declared not in known:
        known[declared] = Server(declared)
    return known[declared]


async def close_servers() -> None:
    """Close all connections of the running event loop."""
    known = _servers.pop(asyncio.get_running_loop(), {})
    await asyncio.gather(*(one.aclose() for one in known.values()))
