"""Turns a second through one worker process and two, beside bare SDK calls in the same round."""

from support.processes import Process

from antiphon.client import AsyncClient
from bench.floor import HANDS
from bench.gauges import cpu_seconds
from bench.load import all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "turns with one-chunk answers over HTTP, submitted in advance"


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(2500, 400)
    rounds: list[dict[str, float]] = []
    with stand() as built:
        for n in range(plan.rounds):
            found = {
                "sdk": built.child("bench.sdk", "calls", "aiohttp", str(number // 2), str(HANDS))["calls"]
            }
            for processes in (1, 2):
                worker = built.worker(processes=processes)
                found |= await _through(built, worker, number, f"{n}-{processes}-")
                found[f"turns{processes}"] = found.pop("turns")
                if processes == 1:
                    found |= {"alone": found["worker_us"], "redis_alone": found["redis_us"]}
                    found["fed"] = await _fed(built, number, f"{n}-fed-")
                built.stop(worker)
            rounds.append(found)

    def of(name: str) -> list[float]:
        return [one[name] for one in rounds]

    what = "turns"
    result.add("bare SDK calls on aiohttp", what, of("sdk"), "a second")
    result.add("through one worker process", what, of("turns1"), "a second")
    result.add("through two worker processes", what, of("turns2"), "a second")
    result.add("through one while a client submits them", what, of("fed"), "a second")
    name = "one worker process"
    result.add(name, "against bare SDK calls", [one["turns1"] / one["sdk"] for one in rounds], "×")
    result.add(name, "CPU of the worker, a turn", of("alone"), "µs")
    result.add(name, "CPU of Redis, a turn", of("redis_alone"), "µs")


async def _through(built: Stand, worker: Process, number: int, prefix: str) -> dict[str, float]:
    """Turns that all wait when the worker begins."""
    async with AsyncClient(built.redis.url) as client:
        await warm_up(client)
        with frozen(worker):
            turns = await submit_turns(client, number, prefix)
            before = _cpu(built, worker)
        await all_ended(turns)
        after = _cpu(built, worker)
    return {
        "turns": rate(built.redis.url, turns),
        "worker_us": (after[0] - before[0]) / number * 1e6,
        "redis_us": (after[1] - before[1]) / number * 1e6,
    }


async def _fed(built: Stand, number: int, prefix: str) -> float:
    """Turns that a client submits as fast as it can, while the worker works."""
    async with AsyncClient(built.redis.url) as client:
        turns = await submit_turns(client, number, prefix)
        await all_ended(turns)
    return rate(built.redis.url, turns)


def _cpu(built: Stand, worker: Process) -> tuple[float, float]:
    workers = sum(cpu_seconds(pid) for pid in worker.workers())
    return workers, cpu_seconds(built.redis.pid)
