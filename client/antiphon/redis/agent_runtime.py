"""The runtime of agents on workers: calls come from any event loop, and a connection belongs to the one it began on."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from antiphon.client import AsyncClient
from antiphon.redis.runtime import RedisRuntime
from antiphon.session.background import when_loop_ends

__all__ = ["AgentRuntime"]


class AgentRuntime(RedisRuntime):
    """Has a client for each event loop that asks, closed when its loop ends.

    ``redis`` is a URL, a list of URLs or a redis-py client, ``prefix`` the first part of every key.
    """

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    async def client(self) -> AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncClient(self._redis, prefix=self._prefix)
            await when_loop_ends(self.aclose)
        return client

    async def aclose(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
