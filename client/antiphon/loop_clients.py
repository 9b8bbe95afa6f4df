"""Clients where a call may come from any event loop: a connection belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from antiphon.background import when_loop_ends
from antiphon.client import AsyncClient

__all__ = ["LoopClients"]


class LoopClients:
    """One client for each event loop that asks for one, closed when its loop ends."""

    def __init__(self, redis: Any, **options: Any) -> None:
        self._redis = redis
        self._options = options
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()

    async def get(self) -> AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = AsyncClient(self._redis, **self._options)
            await when_loop_ends(self.aclose)
        return client

    async def aclose(self) -> None:
        """Close the client of the running event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
