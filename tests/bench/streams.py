"""Live streams in one worker process, every delta logged and published: how many, and how late they come."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import dataclass
from typing import Any

from support.eventually import wait_until
from support.processes import Process

from antiphon.client import AsyncClient
from bench.gauges import cpu_seconds, rss_bytes, worker_pids
from bench.load import AGENT
from bench.results import Plan, Result
from bench.stand import ModelProcess, Stand, stand

TITLE = "live streams in one worker process, every delta logged and published"
PACES = (20, 50, 100)
SAMPLE = 40
SETTLE_SECONDS = 1.5
LAG_LIMIT_MS = 50.0
CARRIED_SHARE = 0.98
MOST = 1000


@dataclass(frozen=True, slots=True)
class Stage:
    """What was seen at one number of streams."""

    streams: int
    pace: int
    carried: float
    events: float
    lag_p50: float
    lag_p99: float
    worker_us: float
    redis_us: float
    rss: int

    @property
    def fine(self) -> bool:
        return self.lag_p99 <= LAG_LIMIT_MS and self.carried >= CARRIED_SHARE * self.streams * self.pace


async def measure(plan: Plan) -> Result:
    result = Result("streams", TITLE, axes=("live streams", "lag from model to subscriber, ms (p99)"))
    for pace in plan.pick(PACES, (50,)):
        numbers = plan.pick((100, 200, 400, 600, 800, 1000), (50, 200))
        stages = await _climb(plan, pace, [number for number in numbers if number * pace <= 60_000])
        _rows(result, pace, stages)
    if not plan.quick:
        await _everybody(result, plan)
    result.remarks.append(
        f"Lag is taken from a sample of {SAMPLE} streams followed by another process; CPU is of the whole process."
    )
    return result


def _rows(result: Result, pace: int, stages: list[Stage]) -> None:
    for stage in stages:
        name = f"{stage.streams} streams at {pace}/s"
        result.add(f"{name}: carried", stage.carried, "chunks/s")
        result.add(f"{name}: lag p50", stage.lag_p50, "ms")
        result.add(f"{name}: lag p99", stage.lag_p99, "ms")
        result.add(f"{name}: CPU of the worker, a chunk", stage.worker_us, "µs")
        result.add(f"{name}: CPU of Redis, a chunk", stage.redis_us, "µs")
        result.add(f"{name}: pieces in one event", stage.carried / max(stage.events, 1e-9), "pieces")
    fine = [stage for stage in stages if stage.fine]
    best = max((stage.carried for stage in fine), default=0.0)
    result.add(f"at {pace}/s, most chunks with p99 lag within {LAG_LIMIT_MS:g} ms", best, "chunks/s")
    result.curves[f"{pace} tokens/s"] = [(stage.streams, stage.lag_p99) for stage in stages]


async def _climb(plan: Plan, pace: int, numbers: list[int]) -> list[Stage]:
    """More and more streams, until two numbers in a row were too many."""
    stages: list[Stage] = []
    seconds = plan.pick(3.0, 1.5)
    length = int(pace * (SETTLE_SECONDS + seconds + 4) * len(numbers))
    with stand() as built:
        model = built.new_model("--stamp", "--pace", str(pace), "--length", str(length))
        worker = built.worker(concurrency=MOST + 50, model=model)
        async with AsyncClient(built.redis.url) as client:
            await _first_turn(client)
            listener = _listen(built, SAMPLE)
            for number in numbers:
                before = stages[-1].streams if stages else 0
                await _add(client, before, number)
                await asyncio.sleep(SETTLE_SECONDS)
                stages.append(await _stage(built, model, worker, listener, number, pace, seconds))
                if len(stages) > 1 and not stages[-1].fine and not stages[-2].fine:
                    break
    return stages


async def _everybody(result: Result, plan: Plan) -> None:
    """As many subscribers as streams, in one process."""
    number, pace = 200, 50
    with stand() as built:
        model = built.new_model("--stamp", "--pace", str(pace), "--length", str(pace * 20))
        worker = built.worker(concurrency=MOST, model=model)
        async with AsyncClient(built.redis.url) as client:
            await _first_turn(client)
            listener = _listen(built, number)
            await _add(client, 0, number)
            await asyncio.sleep(SETTLE_SECONDS)
            stage = await _stage(built, model, worker, listener, number, pace, 3.0, number)
    name = f"{number} streams at {pace}/s, all of them followed"
    result.add(f"{name}: carried", stage.carried, "chunks/s")
    result.add(f"{name}: lag p99", stage.lag_p99, "ms")


async def _first_turn(client: AsyncClient) -> None:
    turn = await client.submit("first", "hi length:4 pace:1000", agent=AGENT)
    await turn.result(60)


def _listen(built: Stand, number: int) -> Process:
    listener = built.python("-m", "bench.listener", built.redis.url, f"live-:{number}")
    listener.wait_for_output("listening")
    return listener


async def _add(client: AsyncClient, before: int, number: int) -> None:
    for index in range(before, number):
        await client.submit(f"live-{index}", "hi", agent=AGENT)


async def _stage(
    built: Stand,
    model: ModelProcess,
    worker: Process,
    listener: Process,
    streams: int,
    pace: int,
    seconds: float,
    sample: int = SAMPLE,
) -> Stage:
    (pid,) = worker_pids(worker.pid)
    before = cpu_seconds(pid), cpu_seconds(built.redis.pid)
    listener.send_signal(signal.SIGUSR1)
    await asyncio.sleep(seconds)
    after = cpu_seconds(pid), cpu_seconds(built.redis.pid)
    seen = _report(listener)
    carried = seen["pieces"] / seen["seconds"] * streams / sample
    chunks = max(carried * seconds, 1)
    return Stage(
        streams, pace, carried, seen["events"] / seen["seconds"] * streams / sample,
        seen["lag_p50_ms"], seen["lag_p99_ms"],
        (after[0] - before[0]) / chunks * 1e6, (after[1] - before[1]) / chunks * 1e6, rss_bytes(pid),
    )  # fmt: skip


def _report(listener: Process) -> dict[str, Any]:
    known = listener.output.count("\n")
    listener.send_signal(signal.SIGUSR2)
    wait_until(lambda: listener.output.count("\n") > known, 30, "the listener reports")
    return json.loads(listener.output.splitlines()[-1])
