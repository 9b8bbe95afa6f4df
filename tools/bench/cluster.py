"""A cell on a Redis Cluster of three nodes against a plain Redis, alternately: turns, chunks, and their costs."""

import asyncio
from dataclasses import dataclass

from redis import Redis
from redis.crc import key_slot
from support.clusters import Cluster
from support.processes import Process
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.wire.connection.cluster import tags
from antiphon.wire.keys import Keys
from bench.following import begin, follow, report
from bench.gauges import cpu_seconds
from bench.live import SETTLE_SECONDS
from bench.load import AGENT, all_ended, all_run, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import COMPACT, Stand, stand

TITLE = "a cell on a Redis Cluster against a plain Redis"
PACE = 50
SAMPLE = 40
PLAIN, CLUSTER = "plain Redis", "a cell on a Redis Cluster"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cell is: its URL, its server, and its keys."""

    url: str
    server: RedisServer
    keys: Keys


async def measure(plan: Plan, result: Result) -> None:
    turns, streams, seconds = plan.pick((1000, 200, 2.0), (100, 40, 1.0))
    config = COMPACT | {"appendonly": "no"}
    found: dict[str, list[dict[str, float]]] = {PLAIN: [], CLUSTER: []}
    with stand() as built, Cluster(primaries=3, config=lambda: config) as cluster:
        tag = tags(1)[0]
        places = {
            PLAIN: Place(built.redis.url, built.redis, Keys()),
            CLUSTER: Place(cluster.url(1), cluster.owner(key_slot(tag.encode())), Keys(tag=tag)),
        }
        for number in range(plan.rounds):
            for name in list(places)[:: 1 if number % 2 else -1]:
                found[name].append(await _round(built, places[name], number, turns, streams, seconds))
    _add(result, found)
    result.remarks.append(
        f"Three primaries without replicas, one of which has the cell; CPU is that of this node. One worker process: "
        f"{turns:,} turns with one-chunk answers, then {streams} streams at {PACE}/s. The rounds of both alternate."
    )


async def _round(
    built: Stand, place: Place, number: int, turns: int, streams: int, seconds: float
) -> dict[str, float]:
    model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(int(PACE * (seconds + 8))))
    worker = built.worker(concurrency=streams + 20, redis_url=place.url, model=model)
    async with AsyncClient(place.url) as client:
        found = await _turns(client, place, worker, turns, f"{number}-")
        found |= await _chunks(built, client, place, worker, streams, seconds, f"{number}-live-")
    for process in (worker, model.process):
        built.stop(process)
    with Redis.from_url(place.server.url) as redis:
        redis.flushall()  # otherwise, the next worker would continue these streams
    return found


async def _turns(
    client: AsyncClient, place: Place, worker: Process, number: int, prefix: str
) -> dict[str, float]:
    await warm_up(client)
    with frozen(worker):
        turns = await submit_turns(client, number, prefix)
        before = _cpu(place, worker)
    await all_ended(turns)
    costs = _costs(before, _cpu(place, worker), number, "a turn")
    return {"turns, a second": rate(place.server.url, turns, place.keys)} | costs


async def _chunks(
    built: Stand,
    client: AsyncClient,
    place: Place,
    worker: Process,
    streams: int,
    seconds: float,
    prefix: str,
) -> dict[str, float]:
    listener = follow(built, f"{prefix}:{SAMPLE}", url=place.url)
    for index in range(streams):
        await client.submit(f"{prefix}{index}", "hi", agent=AGENT)
    await all_run([place.server.url], streams, keys=place.keys)
    await asyncio.sleep(SETTLE_SECONDS)
    before = _cpu(place, worker)
    begin(listener)
    await asyncio.sleep(seconds)
    after = _cpu(place, worker)
    seen = report(listener)
    built.stop(listener)
    carried = seen.pieces / seen.seconds * streams / SAMPLE
    return {"chunks, a second": carried} | _costs(before, after, carried * seconds, "a chunk")


def _cpu(place: Place, worker: Process) -> tuple[float, float]:
    return sum(cpu_seconds(pid) for pid in worker.workers()), cpu_seconds(place.server.pid)


def _costs(
    before: tuple[float, float], after: tuple[float, float], number: float, each: str
) -> dict[str, float]:
    worker, redis = ((now - then) / number * 1e6 for now, then in zip(after, before, strict=True))
    return {f"CPU of the worker, {each}, µs": worker, f"CPU of Redis, {each}, µs": redis}


def _add(result: Result, found: dict[str, list[dict[str, float]]]) -> None:
    for name, rounds in found.items():
        for what in rounds[0]:
            label, _, unit = what.rpartition(", ")
            result.add(name, label, [one[what] for one in rounds], unit)
    for what in found[PLAIN][0]:
        ratios = [cell[what] / plain[what] for plain, cell in zip(found[PLAIN], found[CLUSTER], strict=True)]
        result.add("the cell against plain Redis", what.rpartition(", ")[0], ratios, "×")
