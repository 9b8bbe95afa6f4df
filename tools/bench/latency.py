"""What a caller waits for: submit to first delta and to the end, idle and at half load, beside bare SDK calls."""

import statistics

from support.processes import Process

from antiphon.client import AsyncClient
from bench.gauges import percentile
from bench.load import all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "submit to first delta and to the end, one-chunk answers"
PAUSE_SECONDS = 0.005

Times = dict[str, list[float]]


async def measure(plan: Plan, result: Result) -> None:
    number = str(plan.pick(150, 30))
    with stand() as built:
        worker = built.worker()
        capacity = await _capacity(built, worker, plan.pick(1500, 400))
        idle = [_probe(built, number) for _ in range(plan.rounds)]
        _rows(result, "idle", idle)
        feeder = built.python("-m", "bench.feeder", built.redis.url, str(capacity / 2))
        feeder.wait_for_output("feeding")
        busy = [_probe(built, number) for _ in range(plan.rounds)]
        built.stop(feeder)
        _rows(result, "half load", busy)
        result.add("half load: other turns", "turns", capacity / 2, "a second")
    result.remarks.append(
        f"Half load is {capacity / 2:,.0f} turns/s in one worker process, half of what it can do."
    )


async def _capacity(built: Stand, worker: Process, number: int) -> float:
    async with AsyncClient(built.redis.url) as client:
        await warm_up(client)
        with frozen(worker):
            turns = await submit_turns(client, number, "capacity-")
        await all_ended(turns)
    return rate(built.redis.url, turns)


def _probe(built: Stand, number: str) -> Times:
    return built.child("bench.prober", built.redis.url, number, str(PAUSE_SECONDS))


def _rows(result: Result, when: str, rounds: list[Times]) -> None:
    def over(name: str, share: float) -> list[float]:
        return [percentile(one[name], share) for one in rounds]

    for what, name in (("bare SDK call", "sdk"), ("turn", "turn"), ("turn, by turn.stream()", "handle")):
        for column, end in (("first delta", "first"), ("finish", "end")):
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                result.add(f"{when}: {what}", f"{column} {label}", over(f"{name}_{end}", share), "ms")
    beyond = [statistics.median(one["turn_first"]) - statistics.median(one["sdk_first"]) for one in rounds]
    result.add(f"{when}: turn beyond a bare SDK call", "first delta p50", beyond, "ms")
