"""The same streams on a Redis Cluster of one, three and six nodes, to compare with the computed costs."""

import asyncio

from support.clusters import Cluster

from antiphon.client import AsyncClient
from bench.following import begin, follow, report
from bench.gauges import cpu_seconds, net_bytes
from bench.live import SETTLE_SECONDS
from bench.load import AGENT, warm_up
from bench.results import Plan, Result
from bench.stand import COMPACT, Stand, stand

TITLE = "the same streams on a Redis Cluster of one, three and six nodes"
PACE = 20
CELLS = 6
NODES = (1, 3, 6)


async def measure(plan: Plan, result: Result) -> None:
    streams, seconds = plan.pick(500, 60), plan.pick(4.0, 1.0)
    for nodes in plan.pick(NODES, (3,)):
        config = COMPACT | {"appendonly": "no"}
        with stand() as built, Cluster(primaries=nodes, config=lambda config=config: config) as cluster:
            await _some(result, built, cluster, streams, seconds)
    result.remarks.append(
        f"{streams} streams at {PACE}/s, all followed by one client, in {CELLS} cells. One worker process serves all "
        f"cells. CPU and network are those of all nodes together."
    )


async def _some(result: Result, built: Stand, cluster: Cluster, streams: int, seconds: float) -> None:
    url, urls = cluster.url(CELLS), [node.url for node in cluster.nodes]
    model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(int(PACE * (seconds + 15))))
    worker = built.worker(concurrency=streams + CELLS, expected=1, model=model, redis_url=url)
    async with AsyncClient(url) as client:
        await warm_up(client, 20 * CELLS)
        pids = [*worker.workers()], [node.pid for node in cluster.nodes]
        idle = [_cpu(some) for some in pids]
        await asyncio.sleep(seconds / 2)
        idle = [(_cpu(some) - then) / seconds * 2 for some, then in zip(pids, idle, strict=True)]
        listener = follow(built, f"spread-:{streams}", url=url)
        turns = [await client.submit(f"spread-{index}", "hi", agent=AGENT) for index in range(streams)]
        await asyncio.gather(*[anext(turn.stream()) for turn in turns[-CELLS:]])
        await asyncio.sleep(SETTLE_SECONDS)
        before, read = [_cpu(some) for some in pids], net_bytes(urls)
        begin(listener)
        await asyncio.sleep(seconds)
        workers, redis = [_cpu(some) - then for some, then in zip(pids, before, strict=True)]
        moved = sum(net_bytes(urls)) - sum(read)
        seen = report(listener)
    nodes = len(urls)
    name = f"{nodes} {'node' if nodes == 1 else 'nodes'}"
    result.add(name, "carried", seen.pieces / seen.seconds, "chunks/s")
    result.add(name, "lag p99", seen.lag_p99_ms, "ms")
    result.add(name, "CPU of the workers", workers / seconds, "cores")
    result.add(name, "… when idle", idle[0], "cores")
    result.add(name, "CPU of Redis", redis / seconds, "cores")
    result.add(name, "… of idle nodes", idle[1], "cores")
    result.add(name, "network of Redis", moved / seconds / 1e6, "MB/s")


def _cpu(pids: list[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)
