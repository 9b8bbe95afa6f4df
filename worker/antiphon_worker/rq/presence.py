"""Shows a worker in RQ's tools, and advertises the parts of its App, so that turns find a suitable worker."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
from msgspec import Struct, field
from redis.exceptions import RedisError

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.handoffs import tool_of
from antiphon.input.request import AgentSpec
from antiphon.model.revisions import Revision
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import figures_id
from antiphon.wire.lists.workers import FIELD
from antiphon.wire.revisions import wake_missing

if TYPE_CHECKING:
    from antiphon_worker.app import App

HEARTBEAT_SECONDS = 15.0
LOOK_SECONDS = 1.0
TTL_SECONDS = 60
TELL_SECONDS, APP_TTL_SECONDS = 3600, 31 * 86400  # longer than any turn may be suspended
MOST_SHOWN = 20  # shown turns of one worker, so that a worker with thousands of turns costs no more


class Presence:
    """RQ's record of one worker process, which is renewed while it lives and expires a minute after its death."""

    def __init__(
        self,
        cell: Cell,
        worker: str,
        queues: tuple[str, ...],
        app: AppParts,
        busy: Callable[[], int],
        running: Callable[[], list[tuple[str, str]]],
        ended: Callable[[], tuple[int, int, float]],
        load: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
        write_figures: Callable[[], Awaitable[None]] | None = None,
        cells: int = 1,
    ) -> None:
        self._cell = cell
        self._worker = worker
        self._queues = queues
        self._busy = busy
        self._running = running  # turns and their fences, which are RQ's ids of executions
        self._shown: dict[tuple[str, str], float] = {}  # those in RQ's records, with their start
        self._ended = ended  # finished turns, failed turns, and the seconds of both
        self._load = load  # tokens of ended attempts, and by how many seconds events are late
        self._write_figures = write_figures  # of ended turns
        self._cells = cells  # of the deployment
        self._app = app
        self._told_at: float | None = None  # since when Redis has the revisions of the App
        self.advertised = asyncio.Event()
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
        key = self._cell.keys.of_rq("rq_worker", self._worker)
        finished, failed, seconds = self._ended()
        tokens, lag = self._load()
        await self._find_address()
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.hset(
            key,
            mapping={
                "birth": self._birth, "last_heartbeat": _now(), "queues": ",".join(self._queues), "pid": os.getpid(),
                "hostname": socket.gethostname(), "ip_address": self._address, "version": "antiphon",
                "python_version": platform.python_version(), "state": state, FIELD: self._app.encoded(),
                "current_job": running[0][0] if running else "",  # for versions of RQ without an index of executions
                "successful_job_count": finished, "failed_job_count": failed, "total_working_time": seconds,
                "ant_tokens": tokens, "ant_lag": f"{lag:.4f}",
            },
        )  # fmt: skip
        pipe.expire(key, TTL_SECONDS)
        pipe.sadd(self._cell.keys.of_rq("rq_workers"), key)
        for queue in self._queues:
            pipe.sadd(self._cell.keys.of_rq("rq_workers_of", queue), key)
            pipe.sadd(self._cell.keys.of_rq("rq_queues"), self._cell.keys.of_rq("rq_queue", queue))
        self._show(pipe, running)
        now = time.monotonic()
        if tells := self._told_at is None or now - self._told_at >= TELL_SECONDS:
            key, known = self._cell.keys.app(self._app.digest()), msgspec.json.encode(self._app.revisions)
            pipe.set(key, known, ex=APP_TTL_SECONDS)
            if not self._cell.keys.tag:  # on a cluster, the URL has the number
                pipe.set(self._cell.keys.listed, self._cells, ex=APP_TTL_SECONDS)
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the consumer logs that Redis is unreachable; the next beat makes up for this one
        if tells:
            self._told_at = now
            self.advertised.set()
            await self._wake()
        await self._count()

    async def _wake(self) -> None:
        """Wake the turns that wait for the revisions of the App."""
        with suppress(StoreError):  # they ask again on their own
            for agent, revision in self._app.revisions.items():
                await wake_missing(self._cell, figures_id(agent, revision.id))

    async def _count(self) -> None:
        if self._write_figures is not None:
            with suppress(StoreError):  # as above
                await self._write_figures()

    def _show(self, pipe: Any, running: list[tuple[str, str]]) -> None:
        """Write RQ's index of what this worker executes, and a record of each."""
        index, now = self._cell.keys.of_rq("rq_worker_executions", self._worker), time.time()
        gone, self._shown = self._shown, {one: self._shown.get(one, now) for one in running}
        pipe.delete(
            index, *(self._cell.keys.of_rq("rq_execution", *one) for one in gone if one not in self._shown)
        )
        for (turn, fence), since in self._shown.items():
            record = self._cell.keys.of_rq("rq_execution", turn, fence)
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
        """Look up the address that Redis sees, as RQ does. It stays empty if the Redis user may not ask for it."""
        if self._address:
            return
        try:
            self._address = str((await self._cell.redis.client_info()).get("addr", ""))
        except (RedisError, OSError):
            return

    async def _leave(self) -> None:
        key = self._cell.keys.of_rq("rq_worker", self._worker)
        pipe = self._cell.redis.pipeline(transaction=True)
        pipe.srem(self._cell.keys.of_rq("rq_workers"), key)
        for queue in self._queues:
            pipe.srem(self._cell.keys.of_rq("rq_workers_of", queue), key)
        pipe.delete(key)
        self._show(pipe, [])
        try:
            await pipe.execute()
        except (RedisError, OSError):
            return  # the record's TTL removes it
        await self._count()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


ANY = "*"
NO_REVISION = Revision("")
MOST_NAMES, MOST_WOKEN = 500, 8


class AppParts(Struct, omit_defaults=True):
    """The names that turns may ask an App for; ``tools`` and ``providers`` are for inline agents.

    ``calls`` are the other tools of the agents: calls that have waited for a decision need them. ``models`` are those
    that inline agents may name; None for any. ``more`` is True if names were left out. ``revisions`` are those of the
    agents, by name. ``only`` names the agent of turns that name none, if there are more.
    """

    prefix: str
    agents: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    models: list[str] | None = None
    more: bool = False
    revisions: dict[str, Revision] = field(default_factory=dict)
    only: str = ""

    @classmethod
    def of(
        cls,
        prefix: str,
        agents: Collection[str],
        tools: Collection[str],
        providers: Collection[str],
        stops: Collection[str],
        calls: Collection[str] = (),
        models: Collection[str] | None = None,
        revisions: Mapping[str, Revision] | None = None,
    ) -> AppParts:
        """Return the parts with at most ``MOST_NAMES`` of each kind."""
        kinds = [sorted(names) for names in (agents, tools, providers, stops, calls)]
        named = None if models is None else sorted(models)[:MOST_NAMES]
        more = any(len(names) > MOST_NAMES for names in (*kinds, models or ()))
        known = dict(sorted((revisions or {}).items())[:MOST_NAMES])
        return cls(prefix, *(names[:MOST_NAMES] for names in kinds), models=named, more=more, revisions=known)

    @classmethod
    def of_app(cls, prefix: str, app: App) -> AppParts:
        """Return the parts of an App."""
        found = cls.of(prefix, **app.parts(), revisions=app.revisions)
        found.only = app.only
        return found

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def digest(self) -> str:
        """Return a short hash of these parts."""
        return hashlib.sha256(self.encoded()).hexdigest()[:10]

    def has(
        self, asked: str | AgentSpec | None, to_run: Collection[str] = (), revision: tuple[str, str] | None = None
    ) -> bool:  # fmt: skip
        """Return whether an App with these parts can run turns that ask for this agent and call these tools.

        With ``revision``, it must also have this revision of an agent.
        """
        if revision is not None and self.revisions.get(revision[0], NO_REVISION).id != revision[1]:
            return False
        if self.more:
            return True
        sent: list[str] = []
        if isinstance(asked, AgentSpec):
            sent = [
                *(tool.name for tool in asked.caller_tools),
                *(tool_of(one.name) for one in asked.handoffs),
            ]
        if not set(to_run) <= {*self.tools, *self.calls, *sent}:
            return False
        if asked is None:
            return bool(self.only) or len(self.agents) == 1
        if isinstance(asked, str) or asked.name in self.agents:
            return (asked if isinstance(asked, str) else asked.name) in self.agents
        stops = asked.limits.stop if asked.limits else []
        providers = {asked.provider, *(one.provider for one in asked.fallback)}
        return (
            (ANY in self.providers or providers <= set(self.providers))
            and set(asked.tools) <= set(self.tools)
            and set(stops) <= set(self.stops)
        )


class Found(NamedTuple):
    """Some workers that have what a turn needs, and the digests of the Apps that lack it."""

    workers: list[str]
    lacking: list[str]


def how_to_start(queue: str) -> str:
    """Return advice for a turn that no worker can run."""
    return (
        f"No worker of the queue {queue} has it: start one with `antiphon worker --app module:app --queues {queue}`, "
        "and submit the turn again."
    )


async def workers_with(
    cell: Cell,
    queue: str,
    asked: str | AgentSpec | None,
    lacking: Collection[str],
    to_run: Collection[str] = (),
    revision: tuple[str, str] | None = None,
) -> Found:
    """Find workers of a queue whose App has this agent, or what it needs, and these tools. Raises ``StoreUnavailable``.

    With ``revision`` (an agent's name and its revision), their Apps must have it. Apps known to be ``lacking`` do not
    count, whatever their records contain.
    """
    stem = cell.keys.of_rq("rq_worker", "")
    try:
        members: set[bytes] = await cast("Any", cell.redis).smembers(cell.keys.of_rq("rq_workers_of", queue))
        keys = sorted(text_of(member) for member in members)
        pipe = cell.redis.pipeline(transaction=False)
        for key in keys:
            pipe.hget(key, FIELD)
        records = await pipe.execute() if keys else []
    except (RedisError, OSError) as exc:
        raise StoreUnavailable(f"The workers cannot be read: {exc}.") from exc
    found = Found([], list(lacking))
    for key, record in zip(keys, records, strict=True):
        with suppress(msgspec.MsgspecError, UnicodeError):
            parts = msgspec.json.decode(record or b"", type=AppParts)
            digest = parts.digest()
            if not cell.keys.of_deployment(parts.prefix) or digest in lacking:
                continue
            if parts.has(asked, to_run, revision):
                found.workers.append(key.removeprefix(stem))
            elif digest not in found.lacking:
                found.lacking.append(digest)
    return Found(found.workers[:MOST_WOKEN], found.lacking)
