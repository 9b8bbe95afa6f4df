"""The floor: what the SDK does without any queue, and what the model server could do for a faster client."""

from __future__ import annotations

from bench.gauges import Spread
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "bare SDK calls in one process, without any queue"
HANDS = 32


async def measure(plan: Plan) -> Result:
    result = Result("floor", TITLE)
    number = plan.pick(1500, 400)
    with stand() as built:
        rounds = [_round(built, number, plan) for _ in range(plan.rounds)]
        calls = result.add(
            "AsyncOpenAI on aiohttp, one-chunk calls", [one["aiohttp"] for one in rounds], "calls/s"
        )
        result.add("AsyncOpenAI as it comes, one-chunk calls", [one["default"] for one in rounds], "calls/s")
        served = result.add("the model server, to a bare socket", [one["raw"] for one in rounds], "calls/s")
        sdk = built.child("bench.sdk", "streams", "aiohttp", "400", "50", str(plan.pick(4, 2)))
        result.add("AsyncOpenAI on aiohttp, 400 streams, read as objects", sdk["chunks"], "chunks/s")
        result.add("… its CPU time a chunk", sdk["cpu_us"], "µs")
        chunks = built.child("bench.sdk", "raw", "2000", "20", "2")
        result.add("the model server, to a bare socket", chunks["chunks"], "chunks/s")
    result.remarks.append(_headroom(calls, served))
    return result


def _round(built: Stand, number: int, plan: Plan) -> dict[str, float]:
    return {
        "aiohttp": built.child("bench.sdk", "calls", "aiohttp", str(number), str(HANDS))["calls"],
        "default": built.child("bench.sdk", "calls", "default", str(number // 2), str(HANDS))["calls"],
        "raw": built.child("bench.sdk", "raw", "1", str(HANDS), str(plan.pick(1, 0.5)))["calls"],
    }


def _headroom(calls: Spread, served: Spread) -> str:
    return f"The model server could answer {served.median / calls.median:.1f} times what the SDK asks."
