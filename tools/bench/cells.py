"""Several cells: the same streams on one, two and three of them, beside what the sums say that they cost."""

import asyncio

from antiphon.client import AsyncClient
from bench.following import begin, follow, report
from bench.gauges import cpu_seconds
from bench.live import SETTLE_SECONDS
from bench.load import AGENT, all_run, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "one, two and three cells on this machine, the same number of streams in all"
PACE = 20
SAMPLE = 60


async def measure(plan: Plan, result: Result) -> None:
    streams, seconds = plan.pick(600, 60), plan.pick(4.0, 1.0)
    for cells in plan.pick((1, 2, 3), (2,)):
        with stand() as built:
            await _some(result, built, cells, streams, seconds)
    result.remarks.append(
        f"{streams} streams at {PACE}/s in all, one worker process for each cell; CPU is of all of them together."
    )


async def _some(result: Result, built: Stand, cells: int, streams: int, seconds: float) -> None:
    servers = [built.redis, *[built.new_redis() for _ in range(cells - 1)]]
    urls = [server.url for server in servers]
    model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(int(PACE * (seconds + 12))))
    worker = built.worker(
        processes=1, expected=cells, concurrency=streams, model=model, redis_url=",".join(urls)
    )
    async with AsyncClient(urls) as client:
        await warm_up(client, 20 * cells)
        listener = follow(built, f"spread-:{SAMPLE}", url=",".join(urls))
        for index in range(streams):
            await client.submit(f"spread-{index}", "hi", agent=AGENT)
        await all_run(urls, streams)
        await asyncio.sleep(SETTLE_SECONDS)
        redis_pids = [server.pid for server in servers]
        before = _cpu(worker.workers()), _cpu(redis_pids)
        begin(listener)
        await asyncio.sleep(seconds)
        workers, redis = [
            [now - then for now, then in zip(after, known, strict=True)]
            for after, known in zip((_cpu(worker.workers()), _cpu(redis_pids)), before, strict=True)
        ]
        seen = report(listener)
    chunks = seen.pieces / seen.seconds * streams / SAMPLE
    name = f"{cells} {'cell' if cells == 1 else 'cells'}"
    result.add(name, "streams", streams, "")
    result.add(name, "carried", chunks, "chunks/s")
    result.add(name, "lag p99", seen.lag_p99_ms, "ms")
    result.add(name, "CPU of the workers", sum(workers) / seconds, "cores")
    result.add(name, "CPU of Redis", sum(redis) / seconds, "cores")
    result.add(name, "of the busiest Redis", max(redis) / seconds, "cores")


def _cpu(pids: list[int]) -> list[float]:
    return [cpu_seconds(pid) for pid in pids]
