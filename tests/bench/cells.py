"""Several cells: one client, one supervisor, streams on all of them at once."""

from __future__ import annotations

import asyncio
from collections import Counter

from redis import Redis

from antiphon.client import AsyncClient
from bench.gauges import cpu_seconds, worker_pids
from bench.load import AGENT, warm_up
from bench.results import Plan, Result
from bench.stand import stand

TITLE = "one, two and three cells on this machine, the same number of streams in all"
PACE = 20


async def measure(plan: Plan) -> Result:
    result = Result("cells", TITLE)
    streams, seconds = plan.pick(240, 60), plan.pick(3.0, 1.5)
    for cells in plan.pick((1, 2, 3), (2,)):
        with stand() as built:
            urls = [built.redis.url, *[built.new_redis().url for _ in range(cells - 1)]]
            model = built.new_model("--pace", str(PACE), "--length", str(int(PACE * (seconds + 8))))
            worker = built.worker(
                processes=1, expected=cells, concurrency=300, model=model, redis_url=",".join(urls)
            )
            async with AsyncClient(urls) as client:
                await warm_up(client, 20 * cells)
                for index in range(streams):
                    await client.submit(f"spread-{index}", "hi", agent=AGENT)
                await asyncio.sleep(1.5)
                before = _events(urls), _cpu(worker.pid)
                await asyncio.sleep(seconds)
                after = _events(urls), _cpu(worker.pid)
        published = [now - then for now, then in zip(after[0].values(), before[0].values(), strict=True)]
        name = f"{cells} {'cell' if cells == 1 else 'cells'}"
        result.add(f"{name}: events published", sum(published) / seconds, "events/s")
        result.add(f"{name}: the busiest cell's share", max(published) / max(sum(published), 1), "of all")
        result.add(
            f"{name}: CPU of the workers, an event",
            (after[1] - before[1]) / max(sum(published), 1) * 1e6,
            "µs",
        )
    return result


def _events(urls: list[str]) -> Counter[str]:
    """Events logged so far, by cell."""
    found: Counter[str] = Counter()
    for url in urls:
        with Redis.from_url(url) as redis:
            found[url] = redis.info("commandstats").get("cmdstat_xadd", {}).get("calls", 0)
    return found


def _cpu(supervisor: int) -> float:
    return sum(cpu_seconds(pid) for pid in worker_pids(supervisor))
