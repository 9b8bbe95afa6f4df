"""A growing number of live streams on their own stand."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from support.processes import Process

from antiphon.client import AsyncClient
from bench.following import begin, follow, report
from bench.gauges import cpu_seconds
from bench.load import AGENT, all_run, running
from bench.results import Result
from bench.stand import Stand, stand

MOST = 1000
"""A process can have 1,024 connections to a model service."""
SETTLE_SECONDS = 1.5
RUNNING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The measurements at one number of streams. ``carried`` and ``events`` are per second, CPU is in µs a chunk."""

    streams: int
    pace: int
    carried: float
    events: float
    lag_p50: float
    lag_p99: float
    worker_us: float
    redis_us: float

    @property
    def share(self) -> float:
        """The share of the model's chunks that is carried."""
        return self.carried / (self.streams * self.pace)


class LiveStreams:
    """Streams of one pace in one worker process, the first ``followed`` of them followed by another process."""

    def __init__(self, built: Stand, client: AsyncClient, worker: Process, pace: int, followed: int) -> None:
        self.built = built
        self.pace = pace
        self.number = self._asked = 0
        (self.worker_pid,) = worker.workers()
        self._client = client
        self._followed = followed
        self.listener = follow(built, f"live-:{followed}")

    async def grow(self, number: int) -> None:
        """Submit up to this many. An overloaded worker does not take them all: ``number`` is how many run."""
        for index in range(self._asked, number):
            await self._client.submit(f"live-{index}", "hi", agent=AGENT)
        self._asked = max(self._asked, number)
        urls = [self.built.redis.url]
        with suppress(AssertionError):
            await all_run(urls, number, RUNNING_SECONDS)
        self.number = min(running(urls), number)
        await asyncio.sleep(SETTLE_SECONDS)

    async def stage(self, seconds: float) -> Stage:
        """Measure them for a while at this number."""
        redis_pid, streams = self.built.redis.pid, self.number
        before = cpu_seconds(self.worker_pid), cpu_seconds(redis_pid)
        begin(self.listener)
        await asyncio.sleep(seconds)
        after = cpu_seconds(self.worker_pid), cpu_seconds(redis_pid)
        seen = report(self.listener)
        times = streams / min(streams, self._followed)
        carried = seen.pieces / seen.seconds * times
        chunks = max(carried * seconds, 1)
        return Stage(
            streams, self.pace, carried, seen.events / seen.seconds * times, seen.lag_p50_ms, seen.lag_p99_ms,
            (after[0] - before[0]) / chunks * 1e6, (after[1] - before[1]) / chunks * 1e6,
        )  # fmt: skip


@asynccontextmanager
async def live_streams(pace: int, seconds: float, followed: int) -> AsyncGenerator[LiveStreams]:
    """Yield a stand for streams that last this long."""
    with stand() as built:
        length = str(int(pace * seconds))
        model = built.new_model("--stamp", "--pace", str(pace), "--length", length)
        worker = built.worker(concurrency=MOST + 20, model=model)
        async with AsyncClient(built.redis.url) as client:
            turn = await client.submit("first", "hi length:4 pace:1000", agent=AGENT)
            await turn.result(60)
            yield LiveStreams(built, client, worker, pace, followed)


def add_stage(result: Result, name: str, stage: Stage) -> None:
    """Add the row of a stage to the table."""
    result.add(name, "carried", stage.carried, "chunks/s")
    result.add(name, "of what is offered", stage.share * 100, "%")
    result.add(name, "lag p50", stage.lag_p50, "ms")
    result.add(name, "lag p99", stage.lag_p99, "ms")
    result.add(name, "CPU of the worker, a chunk", stage.worker_us, "µs")
    result.add(name, "CPU of Redis, a chunk", stage.redis_us, "µs")
    result.add(name, "pieces in one event", stage.carried / max(stage.events, 1e-9), "")
