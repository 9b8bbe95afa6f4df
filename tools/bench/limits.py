"""A rate limit shared by several worker processes: how often the service refuses, and how near they come to it."""

import json
import time
import urllib.request

from antiphon.client import AsyncClient
from antiphon.model import Response
from bench.load import submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import ModelProcess, stand

TITLE = "turns for a model service that answers so many calls a second, in three worker processes"
A_SECOND = 20
FIRST = 20
"""Turns that let the workers start; their calls count as well."""


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(100, 40)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(plan.pick(min(plan.rounds, 2), 1)):
        for name, more in (("it states its limit in headers", []), ("it only refuses", ["--limit-untold"])):
            found.setdefault(name, []).append(await _through(number, *more))
    for name, rounds in found.items():
        result.add(name, "refusals a turn", [refused for refused, _, _ in rounds], "")
        result.add(name, "turns", [rate for _, rate, _ in rounds], "a second")
        result.add(name, "of the limit", [share for _, _, share in rounds], "×")
    result.remarks.append(
        f"{number} turns are handed in at once. The service answers {A_SECOND} calls a second, and others with 429."
    )


async def _through(number: int, *more: str) -> tuple[float, float, float]:
    with stand() as built:
        model = built.new_model("--limit", str(A_SECOND), *more)
        built.worker(processes=3, concurrency=number, model=model, retry_delay="0.2")
        async with AsyncClient(built.redis.url) as client:
            await warm_up(client, FIRST)
            before = _refused(model)
            began = time.monotonic()
            turns = await submit_turns(client, number, "s-")
            outcomes = [one async for one in client.results(turns)]
            took = time.monotonic() - began
            refused = _refused(model) - before
    if not all(isinstance(one, Response) for one in outcomes):
        raise RuntimeError("turns were not answered")
    return refused / number, number / took, number / took / A_SECOND


def _refused(model: ModelProcess) -> int:
    with urllib.request.urlopen(f"{model.base_url}/stats", timeout=5) as answer:
        return json.load(answer)["limited"]
