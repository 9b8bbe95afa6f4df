"""One worker process: its services and the order in which they stop."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from antiphon.encryption.records import sealer_of
from antiphon.redis.cells import Cells, open_cells
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon_worker.app import App
from antiphon_worker.archive import Archive, Archiver
from antiphon_worker.batches import Batcher
from antiphon_worker.eraser import Eraser
from antiphon_worker.memory.titles import Titles
from antiphon_worker.observing.observer import observer_of, watch_redis
from antiphon_worker.process.consumer import Consumer
from antiphon_worker.process.control import Control
from antiphon_worker.process.figures import CountingRunner
from antiphon_worker.process.lease import LeaseKeeper
from antiphon_worker.process.publisher import Publisher
from antiphon_worker.process.reaper import Reaper
from antiphon_worker.process.room import Shared
from antiphon_worker.process.service import Service
from antiphon_worker.process.variants import Variants
from antiphon_worker.providers.http.limits import Gate
from antiphon_worker.resilience import RateLimits
from antiphon_worker.rq.foreign_jobs import ForeignJobs
from antiphon_worker.rq.presence import Presence
from antiphon_worker.scheduler import Scheduler
from antiphon_worker.settings import Settings, describe
from antiphon_worker.supervisor.child import Given
from antiphon_worker.supervisor.isolated_turns import IsolatedTurns
from antiphon_worker.webhooks import Deliverer

if TYPE_CHECKING:
    from antiphon.memory.declaration import Memory
    from antiphon_worker.memory.passages import Work

log = logging.getLogger("antiphon.worker")

SAFE_POINT_SECONDS = 3.0


def worker_name() -> str:
    """Return a name for this instance of a worker, which is never used again."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}".replace(":", "_")


class Worker:
    """Runs turns of one cell until it is drained."""

    def __init__(
        self,
        settings: Settings,
        app: App,
        *,
        url: str | None = None,
        name: str | None = None,
        spare: Callable[[], Awaitable[Given | None]] | None = None,
        shared: Shared | None = None,
    ) -> None:
        self.settings = settings
        self.name = name or worker_name()
        self._app = app
        self._url = url or settings.redis_urls[0]
        self._spare = spare  # requests a process for isolated turns
        self._shared = shared  # with the workers of other cells in this process
        self._draining = asyncio.Event()
        self._aborting = asyncio.Event()

    def drain(self) -> None:
        """Take no new turns, finish turns until the deadline, requeue the rest. A second call aborts."""
        (self._aborting if self._draining.is_set() else self._draining).set()

    def abort(self) -> None:
        """Requeue all turns now."""
        self._draining.set()
        self._aborting.set()

    async def run(self) -> None:
        """Work until drained.

        1. stop taking turns  2. let turns finish until the deadline  3. stop the rest at a safe point, then at once
        4. requeue them  5. stop renewing and publishing  6. close the connections
        """
        cell, settings = self._open_cell(), self.settings
        watch_redis(cell, observer := observer_of(settings, cell.name, self._app))
        feed, publisher, gate = LiveFeed(cell.redis), Publisher(cell), RateLimits(cell)
        keeper = LeaseKeeper(self._open_cell, self.name, self.settings.lease, self.settings.stall_timeout)
        shared = self._shared or Shared(settings, self._open_cells(cell))
        cells, own = shared.cells, self._shared is None
        runner = CountingRunner(cell, publisher, self._app, settings, gate, cells, observer, shared.budgets)
        alone = IsolatedTurns(self.settings, self._url, self.name, self._open_cell, self._spare)
        consumer = Consumer(
            cell, keeper, self.settings, self.name,
            run_turn=runner.run, run_foreign=ForeignJobs(cell, self.name, self._open_cells).handle, run_alone=alone.run,
            room_alone=lambda: alone.room, late=lambda: publisher.late, app=runner.placement.parts.digest(),
            room=shared.room,
        )  # fmt: skip
        control = Control(cell, feed, self.name, consumer, self.drain, Variants(cell, self.name, self._app))
        presence = Presence(
            cell, self.name, self.settings.queues, runner.placement.parts, lambda: consumer.busy, consumer.running,
            lambda: runner.ended, lambda: (runner.tokens, publisher.lag), runner.writer(self.name), len(cells),
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:

                def start(service: Callable[[], Awaitable[None]], what: str) -> asyncio.Task[None]:
                    return group.create_task(Service(service, what).run(), name=f"{self.name} {what}")

                lasting = [
                    start(keeper.run, "lease keeper"), start(publisher.run, "publisher"),
                    start(control.run_own, "control"), start(control.run_rq, "control of RQ"),
                    start(presence.run, "presence"), start(lambda: gate.run(feed), "rate limits"),
                    start(Scheduler(cell).run, "scheduler"), start(lambda: Deliverer(cell).run(), "deliverer"),
                    start(Eraser(cell).run, "eraser"), *[start(one, "indexer") for one in self._indexers(cells, gate)],
                ]  # fmt: skip
                taking = [start(lambda: self._take(presence, consumer, shared), "consumer")]
                taking += [start(one, what) for one, what in self._upkeep(cell, runner)]
                await self._draining.wait()
                await _cancel(taking)
                await self._drain(consumer, alone)
                await _cancel(lasting)
        finally:
            await feed.aclose()
            for one in {cell, *(cells if own else ())}:
                await one.redis.aclose()
        log.info("worker %s has stopped", self.name, extra={"action": "stopped"})

    def _upkeep(self, cell: Cell, runner: CountingRunner) -> list[tuple[Callable[[], Awaitable[None]], str]]:
        """Return the services that stop when no more turns are taken."""
        services: list[tuple[Callable[[], Awaitable[None]], str]] = [
            (Reaper(cell, self.settings).run, "reaper")
        ]
        batcher = Batcher(cell, self._app.provider_names, self._app.provider, self.settings)
        services.append((batcher.run, "batches"))
        if self._shared is None:
            services.append((runner.budgets.run, "budgets"))
        if (archive := runner.archive) is not None:
            services.append((lambda: Archiver(self._open_cell(), archive).run(), "archiver"))
        return services

    async def _take(self, presence: Presence, consumer: Consumer, shared: Shared) -> None:
        """Take turns as soon as Redis knows the worker and which revisions they begin on."""
        await presence.advertised.wait()
        if shared.announces():
            self._announce()
        await consumer.run()

    def _announce(self) -> None:
        agents = f"agents {', '.join(self._app.agents)}" if self._app.agents else "no agents of an App"
        log.info(
            "worker %s takes turns: %s, %s, %s", self.name, describe(self.settings), agents, sealer_of(),
            extra={"action": "started"},
        )  # fmt: skip
        for agent, lacking in self._app.lacking.items():
            for sentence in lacking:
                log.warning(
                    "agent %s is not ready: %s",
                    agent,
                    sentence,
                    extra={"action": "agent_not_ready", "agent": agent},
                )

    async def _drain(self, consumer: Consumer, alone: IsolatedTurns) -> None:
        log.info("worker %s drains %d turns", self.name, consumer.busy, extra={"action": "draining"})
        alone.close()
        idle = asyncio.ensure_future(consumer.idle())
        aborting = asyncio.ensure_future(self._aborting.wait())
        try:
            await asyncio.wait(
                [idle, aborting], timeout=self.settings.drain, return_when=asyncio.FIRST_COMPLETED
            )
            alone.stop()
            if not idle.done() and not aborting.done():
                consumer.stop_turns(at_once=False)
                await asyncio.wait(
                    [idle, aborting], timeout=SAFE_POINT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
            consumer.stop_turns(at_once=True)
            given_back, _ = await asyncio.wait([idle], timeout=max(self.settings.lease, SAFE_POINT_SECONDS))
            if not given_back:
                await consumer.abandon()
                await idle
            await alone.ended()
        finally:
            aborting.cancel()

    def _indexers(self, cells: Cells, gate: Gate) -> list[Callable[[], Awaitable[None]]]:
        memories = self._app.memories
        works: list[Work] = []
        others: list[Callable[[], Awaitable[None]]] = []
        archive = self._app.archive(self.settings.archive)
        if self._app.search and archive is not None:
            others.append(partial(self._index_for_search, archive))
        if self._app.titles is not None:
            prices = self._app.prices(self.settings.prices)
            works.append(Titles(self._app.titles, cells, self._app.provider, prices, gate))
        if memories.with_facts:
            from antiphon_worker.memory.facts import Distiller

            works += [
                Distiller(memory, memory.facts, cells, self._app.provider, gate)
                for memory in memories.with_facts
                if memory.facts is not None
            ]
        return [partial(self._index, work) for work in [*memories, *works]] + others

    async def _index_for_search(self, archive: Archive) -> None:
        from antiphon_worker.memory.search import SearchIndex

        await archive.prepare_index()
        await self._index(SearchIndex(archive))

    async def _index(self, work: Memory | Work) -> None:
        from antiphon_worker.memory.indexer import Indexer

        await Indexer(self._open_cell(), work).run()

    def _open_cell(self) -> Cell:
        return Cell(open_redis(self._url), prefix=self.settings.prefix)

    def _open_cells(self, own: Cell | None = None) -> Cells:
        if own is not None and len(self.settings.cell_urls) == 1:
            return Cells([own])
        return open_cells(self.settings.cell_urls, prefix=self.settings.prefix)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
