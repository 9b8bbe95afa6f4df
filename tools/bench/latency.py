"""How long a caller waits: submit to first delta and to the end, idle and under load, against bare SDK calls."""

from support.processes import Process

from antiphon.client import AsyncClient
from bench.gauges import percentile
from bench.load import all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "submit to first delta and to the end, one-chunk answers"
PAUSE_SECONDS = 0.005
STEADY = (300, 600)
"""Background turns a second with which every release is measured, however fast it is."""

Times = dict[str, list[float]]


async def measure(plan: Plan, result: Result) -> None:
    number = str(plan.pick(150, 30))
    with stand() as built:
        worker = built.worker()
        capacity = await _capacity(built, worker, plan.pick(1500, 400))
        _rows(result, "idle", _rounds(built, plan.rounds, number))
        for rate in plan.pick(STEADY, STEADY[:1]):
            _beyond(result, f"{rate} turns/s", _under(built, rate, plan.rounds, number))
        _rows(result, "half load", _under(built, capacity / 2, plan.rounds, number))
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


def _rounds(built: Stand, rounds: int, number: str) -> list[Times]:
    prober = ("bench.prober", built.redis.url, number, str(PAUSE_SECONDS))
    return [built.child(*prober) for _ in range(rounds)]


def _under(built: Stand, turns_a_second: float, rounds: int, number: str) -> list[Times]:
    """Probe while another process submits turns at a steady rate."""
    feeder = built.python("-m", "bench.feeder", built.redis.url, str(turns_a_second))
    feeder.wait_for_output("feeding")
    try:
        return _rounds(built, rounds, number)
    finally:
        built.stop(feeder)


def _rows(result: Result, when: str, rounds: list[Times]) -> None:
    for what, name in (("bare SDK call", "sdk"), ("turn", "turn"), ("turn, by turn.stream()", "handle")):
        for column, end in (("first delta", "first"), ("finish", "end")):
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                values = [percentile(one[f"{name}_{end}"], share) for one in rounds]
                result.add(f"{when}: {what}", f"{column} {label}", values, "ms")
    _beyond(result, when, rounds)


def _beyond(result: Result, when: str, rounds: list[Times]) -> None:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        beyond = [
            percentile(one["turn_first"], share) - percentile(one["sdk_first"], share) for one in rounds
        ]
        result.add(f"{when}: turn beyond a bare SDK call", f"first delta {label}", beyond, "ms")
