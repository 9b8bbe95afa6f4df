"""The floor: what the SDK does without any queue, and what the model server could do for a faster client."""

from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "bare SDK calls in one process, without any queue"
SDK = "AsyncOpenAI on aiohttp"
SERVER = "the model server, to a bare socket"
HANDS = 32


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(1500, 400)
    with stand() as built:
        rounds = [_round(built, number, plan) for _ in range(plan.rounds)]
        what = "one-chunk calls"
        calls = result.add(SDK, what, [one["aiohttp"] for one in rounds], "calls/s")
        result.add("AsyncOpenAI as it comes", what, [one["default"] for one in rounds], "calls/s")
        served = result.add(SERVER, what, [one["raw"] for one in rounds], "calls/s")
        sdk = built.child("bench.sdk", "streams", "aiohttp", "400", "50", str(plan.pick(4, 2)))
        name = "AsyncOpenAI on aiohttp, 400 streams at 50/s, read as objects"
        result.add(name, "carried", sdk["chunks"], "chunks/s")
        result.add(name, "CPU a chunk", sdk["cpu_us"], "µs")
        chunks = built.child("bench.sdk", "raw", "2000", "20", "2")
        result.add(f"{SERVER}, 20 streams as fast as it goes", "carried", chunks["chunks"], "chunks/s")
    result.remarks.append(_headroom(calls, served))


def _round(built: Stand, number: int, plan: Plan) -> dict[str, float]:
    return {
        "aiohttp": built.child("bench.sdk", "calls", "aiohttp", str(number), str(HANDS))["calls"],
        "default": built.child("bench.sdk", "calls", "default", str(number // 2), str(HANDS))["calls"],
        "raw": built.child("bench.sdk", "raw", "1", str(HANDS), str(plan.pick(1, 0.5)))["calls"],
    }


def _headroom(calls: float, served: float) -> str:
    return f"The model server could answer {served / calls:.1f} times what the SDK asks."
