"""The cost of a turn and a delta in Redis, counted: commands, script calls, round trips and CPU time."""

from redis import Redis
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from bench.counting import CountingProxy
from bench.gauges import Counters, redis_counters
from bench.load import all_ended, frozen, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "Redis commands, script calls, round trips and CPU time"
STREAM = "hi pace:50 length:{length}"


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(400, 100)
    with (
        stand() as built,
        CountingProxy(built.redis.port) as client_way,
        CountingProxy(built.redis.port) as worker_way,
    ):
        worker = built.worker(redis_url=worker_way.url)
        with Redis.from_url(built.redis.url) as redis:
            async with AsyncClient(client_way.url) as client:
                await warm_up(client, 100)
                with frozen(worker):
                    client_way.reset()
                    before = redis_counters(redis)
                    turns = await submit_turns(client, number, "counted-", hands=1)
                    submitted = redis_counters(redis)
                    result.add("submit", "round trips", client_way.requests / number, "a turn")
                    _rows(result, "submit", submitted.since(before), number)
                    worker_way.reset()
                await all_ended_quietly(redis, number + 100)
                done = redis_counters(redis)
                counted = _without(done.since(submitted), "zcard")
                result.add("run", "round trips", worker_way.requests / number, "a turn")
                _rows(result, "run", counted, number)
                await all_ended(turns)
            await _deltas(result, built, plan)
    result.remarks.append(
        "Eight turns are claimed at once where they wait; alone, a turn has a bell and a claim. "
        "One caller submits; several share round trips. Those of a run include an idle worker's meanwhile."
    )


async def all_ended_quietly(redis: Redis, number: int) -> None:
    """Return when this many turns have ended, by polling only RQ's registry of finished jobs."""
    await wait_until_async(
        lambda: redis.zcard("rq:finished:antiphon") >= number, 60, "all turns have ended", interval=0.05
    )


async def _deltas(result: Result, built: Stand, plan: Plan) -> None:
    """Measure the cost of a delta, and deltas per event, with streams at 50 tokens a second."""
    number, length = plan.pick(50, 20), plan.pick(200, 100)
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url) as redis:
            before = redis_counters(redis)
            turns = await submit_turns(client, number, "deltas-", STREAM.format(length=length), {})
            await all_ended(turns)
            counted = redis_counters(redis).since(before)
            emitted = sum(len(redis.xrange(f"ant:events:deltas-{n}")) - 4 for n in range(number))
    deltas = number * length
    name = f"a delta, {number} streams at 50/s"
    result.add(name, "in one event", deltas / emitted, "deltas")
    result.add(name, "script calls", counted.scripts / deltas, "a delta")
    result.add(name, "commands inside", _inside(counted) / deltas, "a delta")
    result.add(name, "CPU of Redis", counted.cpu_seconds / deltas * 1e6, "µs")


def _rows(result: Result, what: str, counted: Counters, number: int) -> None:
    result.add(what, "script calls", counted.scripts / number, "a turn")
    result.add(what, "commands inside", _inside(counted) / number, "a turn")
    result.add(what, "CPU of Redis", counted.cpu_seconds / number * 1e6, "µs")


def _inside(counted: Counters) -> int:
    return sum(counted.commands.values()) - counted.scripts


def _without(counted: Counters, *names: str) -> Counters:
    left = {name: calls for name, calls in counted.commands.items() if name not in names}
    return Counters(left, counted.cpu_seconds, counted.memory_bytes)
