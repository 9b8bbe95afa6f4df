"""Shows a worker in RQ's tools: `rq info` lists it with its queues, even when it is idle."""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import RedisError

from antiphon.wire.cell import Cell
from antiphon.wire.keys import rq_key
from antiphon.wire.lists.workers import FIELD

HEARTBEAT_SECONDS = 15.0
LOOK_SECONDS = 1.0
TTL_SECONDS = 60
MOST_SHOWN = 20  # shown turns of one worker, so that a worker with thousands of turns costs no more


class Presence:
    """RQ's record of one worker process, which is renewed while it lives and expires a minute after its death."""

    def __init__(
        self,
        cell: Cell,
        worker: str,
        queues: tuple[str, ...],
        parts: bytes,
        busy: Callable[[], int],
        running: Callable[[], list[tuple[str, str]]],
        ended: Callable[[], tuple[int, int, float]],
        load: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
    ) -> None:
        self._cell = cell
        self._worker = worker
        self._queues = queues
        self._busy = busy
        self._running = running  # turns and their fences, which are RQ's ids of executions
        self._shown: dict[tuple[str, str], float] = {}  # those in RQ's records, and since when
        self._ended = ended  # finished turns, failed turns, and the seconds of both
        self._load = load  # tokens of attempts that have ended, and how many seconds late events are
        self._parts = parts  # what the worker's App has
        self._address = ""
        self._birth = _now()

    async def run(self) -> None:
        """Renew the record until cancelled."""
        shown, beat_at, before = None, 0.0, set[tuple[str, str]]()
        try:
            while True:
                now, under_way = time.monotonic(), self._running()
                running = [one for one in under_way if one in before][
                    :MOST_SHOWN
                ]  # short turns are not shown and cost nothing
                before = set(under_way)
                facts = (self._state(), self._ended()[:2], running)
                if facts != shown or now - beat_at >= HEARTBEAT_SECONDS:
                    shown, beat_at = facts, now
                    await self._beat(facts[0], running)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._leave()

    def _state(self) -> str:
        return "busy" if self._busy() else "idle"

    async def _beat(self, state: str, running: list[tuple[str, str]]) -> None:
        key = rq_key("rq_worker", self._worker)
        finished, failed, seconds = self._ended()
        tokens, lag = self._load()
        await self._find_address()
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.hset(
            key,
            mapping={
                "birth": self._birth, "last_heartbeat": _now(), "queues": ",".join(self._queues), "pid": os.getpid(),
                "hostname": socket.gethostname(), "ip_address": self._address, "version": "antiphon",
                "python_version": platform.python_version(), "state": state, FIELD: self._parts,
                "current_job": running[0][0] if running else "",  # for versions of RQ without an index of executions
                "successful_job_count": finished, "failed_job_count": failed, "total_working_time": seconds,
                "ant_tokens": tokens, "ant_lag": f"{lag:.4f}",
            },
        )  # fmt: skip
        pipe.expire(key, TTL_SECONDS)
        pipe.sadd(rq_key("rq_workers"), key)
        for queue in self._queues:
            pipe.sadd(rq_key("rq_workers_of", queue), key)
            pipe.sadd(rq_key("rq_queues"), rq_key("rq_queue", queue))
        self._show(pipe, running)
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the consumer logs that Redis is unreachable; the next beat makes up for this one

    def _show(self, pipe: Any, running: list[tuple[str, str]]) -> None:
        """Write RQ's index of what this worker executes, and a record of each."""
        index, now = rq_key("rq_worker_executions", self._worker), time.time()
        gone, self._shown = self._shown, {one: self._shown.get(one, now) for one in running}
        pipe.delete(index, *(rq_key("rq_execution", *one) for one in gone if one not in self._shown))
        for (turn, fence), since in self._shown.items():
            record = rq_key("rq_execution", turn, fence)
            pipe.hset(
                record,
                mapping={
                    "id": fence, "job_id": turn, "created_at": since, "last_heartbeat": now,
                    "worker_name": self._worker,
                },
            )  # fmt: skip
            pipe.expire(record, TTL_SECONDS)
            pipe.sadd(index, f"{turn}:{fence}")
        pipe.expire(index, TTL_SECONDS)

    async def _find_address(self) -> None:
        """Return the address that Redis sees, as RQ does, or nothing if the user may not ask for it."""
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
        self._show(pipe, [])
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the record's TTL removes it


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
