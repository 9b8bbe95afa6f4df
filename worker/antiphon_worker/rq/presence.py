"""How a worker appears in RQ's tools: `rq info` lists it with its queues, also when it is idle."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from redis.exceptions import RedisError

from antiphon.wire.cell import Cell
from antiphon.wire.keys import rq_key

__all__ = ["Presence"]

HEARTBEAT_SECONDS = 15.0
LOOK_SECONDS = 1.0
TTL_SECONDS = 60


class Presence:
    """RQ's record of one worker process, renewed while it lives and gone a minute after its death."""

    def __init__(
        self,
        cell: Cell,
        worker: str,
        queues: tuple[str, ...],
        busy: Callable[[], int],
        ended: Callable[[], tuple[int, int, float]],
    ) -> None:
        self._cell = cell
        self._worker = worker
        self._queues = queues
        self._busy = busy
        self._ended = ended  # turns that finished, turns that failed, the seconds of both
        self._address = ""
        self._birth = _now()

    async def run(self) -> None:
        """Be present until cancelled."""
        state, beat_at = "", 0.0
        try:
            while True:
                now = time.monotonic()
                if state != self._state() or now - beat_at >= HEARTBEAT_SECONDS:
                    state, beat_at = self._state(), now
                    await self._beat(state)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._leave()

    def _state(self) -> str:
        return "busy" if self._busy() else "idle"

    async def _beat(self, state: str) -> None:
        key = rq_key("rq_worker", self._worker)
        finished, failed, seconds = self._ended()
        await self._find_address()
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.hset(
            key,
            mapping={
                "birth": self._birth, "last_heartbeat": _now(), "queues": ",".join(self._queues), "pid": os.getpid(),
                "hostname": socket.gethostname(), "ip_address": self._address, "version": "antiphon",
                "python_version": platform.python_version(), "state": state,
                "successful_job_count": finished, "failed_job_count": failed, "total_working_time": seconds,
            },
        )  # fmt: skip
        pipe.expire(key, TTL_SECONDS)
        pipe.sadd(rq_key("rq_workers"), key)
        for queue in self._queues:
            pipe.sadd(rq_key("rq_workers_of", queue), key)
            pipe.sadd(rq_key("rq_queues"), rq_key("rq_queue", queue))
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the consumer says that Redis is away; the next beat makes up for this one

    async def _find_address(self) -> None:
        """As RQ: the address that Redis sees; nothing where the user may not ask."""
        if self._address:
            return
        try:
            self._address = str((await self._cell.redis.client_info()).get("addr", ""))
        except (RedisError, OSError):
            return

    async def _leave(self) -> None:
        key = rq_key("rq_worker", self._worker)
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.srem(rq_key("rq_workers"), key)
        for queue in self._queues:
            pipe.srem(rq_key("rq_workers_of", queue), key)
        pipe.delete(key)
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the record's TTL does it


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
