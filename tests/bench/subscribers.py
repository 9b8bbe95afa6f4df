"""Many who listen: 1 to 1,000 subscribers of one session, and 10,000 sessions over the one connection of a client."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

from support.eventually import wait_until
from support.processes import Process

from antiphon.client import AsyncClient
from bench.gauges import cpu_seconds
from bench.load import AGENT
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "subscribers of one session, and sessions followed over one connection"
PACE = 50


async def measure(plan: Plan) -> Result:
    result = Result("subscribers", TITLE, axes=("subscribers of one session", "lag, ms (p99)"))
    seconds = plan.pick(3.0, 1.0)
    for number in plan.pick((1, 10, 100, 1_000), (50,)):
        with stand() as built:
            seen = await _one_session(built, number, seconds)
        name = f"{number:,} subscribers of one session"
        result.add(f"{name}: events delivered", seen["events"] / seen["seconds"], "events/s")
        lag = result.add(f"{name}: lag p99", seen["lag_p99_ms"], "ms").median
        result.add(f"{name}: CPU of the subscribing process, an event", _us(seen), "µs")
        result.curves.setdefault(f"{PACE} tokens/s", []).append((number, lag))
    number, live = plan.pick(10_000, 1_000), 100
    with stand() as built:
        seen = await _many_sessions(built, number, live, seconds)
    name = f"{number:,} sessions over one connection, {live} of them speak"
    result.add(f"{name}: pieces delivered", seen["pieces"] / seen["seconds"], "pieces/s")
    result.add(f"{name}: events delivered", seen["events"] / seen["seconds"], "events/s")
    result.add(f"{name}: lag p99", seen["lag_p99_ms"], "ms")
    result.add(
        f"{name}: CPU of the subscribing process", seen["cpu_seconds"] / seen["seconds"] * 100, "% of a core"
    )
    result.add(f"{name}: CPU of Redis", seen["redis_cpu"] / seen["seconds"] * 100, "% of a core")
    return result


def _us(seen: dict[str, Any]) -> float:
    return seen["cpu_seconds"] / max(seen["events"], 1) * 1e6


async def _one_session(built: Stand, number: int, seconds: float) -> dict[str, Any]:
    """Subscribers through one client each follow by themselves; the client has one connection for all."""
    listener = _listen(built, ["live-0"] * number)
    return await _speak(built, listener, 1, seconds)


async def _many_sessions(built: Stand, number: int, live: int, seconds: float) -> dict[str, Any]:
    return await _speak(built, _listen(built, [f"live-:{number}"]), live, seconds)


def _listen(built: Stand, sessions: list[str]) -> Process:
    listener = built.python("-m", "bench.listener", built.redis.url, *sessions)
    listener.wait_for_output("listening", 60)
    return listener


async def _speak(built: Stand, listener: Process, live: int, seconds: float) -> dict[str, Any]:
    length = int(PACE * (seconds + 6))
    model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(length))
    built.worker(concurrency=200, model=model)
    async with AsyncClient(built.redis.url) as client:
        await (await client.submit("first", "hi length:4 pace:1000", agent=AGENT)).result(60)
        for index in range(live):
            await client.submit(f"live-{index}", "hi", agent=AGENT)
        await asyncio.sleep(1)
        before = cpu_seconds(built.redis.pid)
        listener.send_signal(signal.SIGUSR1)
        await asyncio.sleep(seconds)
        redis_cpu = cpu_seconds(built.redis.pid) - before
        lines = listener.output.count("\n")
        listener.send_signal(signal.SIGUSR2)
        wait_until(lambda: listener.output.count("\n") > lines, 30, "the listener reports")
    return {**json.loads(listener.output.splitlines()[-1]), "redis_cpu": redis_cpu}
