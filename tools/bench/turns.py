"""Turns a second in one and two worker processes, against bare SDK calls in the same round; encryption's cost."""

import os
import time
from base64 import b64encode

from support.processes import Process
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.encryption import use_keys
from bench.floor import HANDS
from bench.gauges import cpu_seconds
from bench.load import all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "turns with one-chunk answers over HTTP, submitted in advance"
KEY = "k1", bytes(32)
ENCRYPTED, WHOLE = "a turn with encryption against one without", "CPU of all three"
TWO = "two worker processes"


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(2500, 400)
    rounds: list[dict[str, float]] = []
    with stand() as built:
        servers = built.new_redis(), built.new_redis()
        for n in range(plan.rounds):
            found = {
                "sdk": built.child("bench.sdk", "calls", "aiohttp", str(number // 2), str(HANDS))["calls"]
            }
            for processes in (1, 2):
                worker = built.worker(processes=processes)
                once = await _through(built.redis, worker, built.model.pid, number, f"{n}-{processes}-")
                found[f"turns{processes}"] = once["turns"]
                if processes == 1:
                    found |= once
                    found["fed"] = await _fed(built, number, f"{n}-fed-")
                built.stop(worker)
            for server, keys in zip(servers, (False, True), strict=True):
                once = await _with_keys(built, server, plan.pick(1500, 300), f"{n}-", keys)
                found |= {f"{name}, keys {keys}": value for name, value in once.items()}
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
    result.add(name, "CPU of the worker, a turn", of("worker"), "µs")
    result.add(name, "CPU of Redis, a turn", of("redis"), "µs")
    result.add(name, "CPU of the model server, a turn", of("model"), "µs")
    result.add(TWO, "against one", [one["turns2"] / one["turns1"] for one in rounds], "×")
    limits = [most_of_two(one, os.cpu_count() or 1) for one in rounds]
    result.add(TWO, "at most, by the CPU of all processes", limits, "×")
    compare_keys(result, rounds)


def most_of_two(one: dict[str, float], cores: int) -> float:
    """Return how many times the turns of one process two could run on these cores, if a turn cost them no more.

    All processes share the cores. A worker process and Redis use one core each at most.
    """
    shared = min(cores / (one["worker"] + one["redis"] + one["model"]), 1 / one["redis"])
    return min(shared, 2 / one["worker"]) / min(shared, 1 / one["worker"])


def compare_keys(result: Result, rounds: list[dict[str, float]]) -> None:
    """Compare the turns of one process with encryption keys and without."""
    parts = {"worker": "CPU of the worker", "redis_all": "CPU of Redis", "caller": "CPU of the caller"}
    for one in rounds:
        for keys in (True, False):
            one[f"all, keys {keys}"] = sum(one[f"{name}, keys {keys}"] for name in parts)
    for name, what in {**parts, "all": WHOLE}.items():
        ratios = [one[f"{name}, keys True"] / one[f"{name}, keys False"] for one in rounds]
        result.add(ENCRYPTED, what, ratios, "×")


async def _with_keys(
    built: Stand, server: RedisServer, number: int, prefix: str, keys: bool
) -> dict[str, float]:
    """Run ``_through`` one worker process on its own server, with or without encryption keys in all processes."""
    use_keys([KEY] if keys else None)
    try:
        text = f"{KEY[0]}:{b64encode(KEY[1]).decode()}" if keys else ""
        worker = built.worker(redis_url=server.url, encryption_keys=text)
        found = await _through(server, worker, built.model.pid, number, prefix)
        built.stop(worker)
        return found
    finally:
        use_keys(None)


async def _through(
    server: RedisServer, worker: Process, model: int, number: int, prefix: str
) -> dict[str, float]:
    """Run turns that all wait when the worker begins. Return turns a second, and µs of CPU a turn."""
    async with AsyncClient(server.url) as client:
        await warm_up(client)
        with frozen(worker):
            began, before = time.process_time(), cpu_seconds(server.pid)
            turns = await submit_turns(client, number, prefix)
            caller, submitting = time.process_time() - began, cpu_seconds(server.pid) - before
            before = _cpu(server, worker, model)
        await all_ended(turns)
        after = _cpu(server, worker, model)
    return {
        "turns": rate(server.url, turns),
        "worker": (after[0] - before[0]) / number * 1e6,
        "redis": (after[1] - before[1]) / number * 1e6,
        "redis_all": (after[1] - before[1] + submitting) / number * 1e6,
        "model": (after[2] - before[2]) / number * 1e6,
        "caller": caller / number * 1e6,
    }


async def _fed(built: Stand, number: int, prefix: str) -> float:
    """Return turns a second, which a client submits as fast as it can while the worker runs them."""
    async with AsyncClient(built.redis.url) as client:
        turns = await submit_turns(client, number, prefix)
        await all_ended(turns)
    return rate(built.redis.url, turns)


def _cpu(server: RedisServer, worker: Process, model: int) -> tuple[float, float, float]:
    return sum(cpu_seconds(pid) for pid in worker.workers()), cpu_seconds(server.pid), cpu_seconds(model)
