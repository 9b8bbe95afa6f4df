"""The gateway: submit to first delta against the direct client, streams of one process, and their memory."""

import asyncio
import re
import time
from urllib.parse import urlsplit

import msgspec
from support.processes import Process

from antiphon.client import AsyncClient
from bench.following import START_SECONDS, Report, begin, follow, report
from bench.gauges import cpu_seconds, percentile, rss_bytes
from bench.load import AGENT
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "the gateway: streams of one process, and submit to first delta"
STREAMS = ((500, 20), (1000, 10))
IDLE = 1000


async def measure(plan: Plan, result: Result) -> None:
    seconds = plan.pick(3.0, 1.0)
    for number, pace in plan.pick(STREAMS, ((50, 20),)):
        name = f"{number:,} streams at {pace}/s"
        with stand() as built:
            direct, _ = await _spoken(built, follow(built, f"live-:{number}"), number, pace, seconds, 0)
        with stand() as built:
            gateway, url = serve(built)
            listener = built.python("-m", "bench.web_listener", url, f"live-:{number}", name="web_listener")
            listener.wait_for_output("listening", START_SECONDS)
            through, cpu = await _spoken(built, listener, number, pace, seconds, gateway.pid)
        _add(result, f"{name}, direct", direct)
        _add(result, f"{name}, through the gateway", through)
        result.add(
            f"{name}, through the gateway",
            "CPU of the gateway, an event",
            cpu / max(through.events, 1) * 1e6,
            "µs",
        )
        result.add(name, "lag p50 beyond direct", through.lag_p50_ms - direct.lag_p50_ms, "ms")
        result.add(name, "lag p99 beyond direct", through.lag_p99_ms - direct.lag_p99_ms, "ms")
    _memory(result, plan.pick(IDLE, 100))
    await _first_deltas(result, plan)
    result.remarks.append(
        "One process publishes as many workers would, one gateway process streams, one process reads all streams; "
        "Redis and they share the machine. Direct is a client that follows as many sessions in one process."
    )


def serve(built: Stand) -> tuple[Process, str]:
    """Start a gateway with limits too high to matter here, and return it with its URL."""
    gateway = built.python(
        "-m", "antiphon.cli", "serve", "--port", "0", "--redis-url", built.redis.url, "--rate", "1000000",
        "--streams", "100000", name="serve",
    )  # fmt: skip
    return gateway, re.findall(r"\[serving\] (http://\S+)", gateway.wait_for_output("[serving]"))[0]


async def _spoken(
    built: Stand, listener: Process, number: int, pace: int, seconds: float, gateway: int
) -> tuple[Report, float]:
    """Return what a listener sees of active sessions, and the CPU time of the gateway during that."""
    speaker = built.python(
        "-m", "bench.speaker", built.redis.url, str(number), str(pace), str(seconds + 3), name="speaker"
    )
    speaker.wait_for_output("speaking", START_SECONDS)
    await asyncio.sleep(1)
    before = cpu_seconds(gateway) if gateway else 0.0
    begin(listener)
    await asyncio.sleep(seconds)
    seen = report(listener)
    return seen, (cpu_seconds(gateway) if gateway else 0.0) - before


def _add(result: Result, name: str, seen: Report) -> None:
    result.add(name, "delivered", seen.events / seen.seconds, "events/s")
    result.add(name, "lag p50", seen.lag_p50_ms, "ms")
    result.add(name, "lag p99", seen.lag_p99_ms, "ms")
    if seen.missed:
        result.fail(name, f"{seen.missed} events were missed")


def _memory(result: Result, number: int) -> None:
    with stand() as built:
        gateway, url = serve(built)
        first = built.python("-m", "bench.web_listener", url, "warm-:20", name="web_listener")
        first.wait_for_output("listening", START_SECONDS)
        before = rss_bytes(gateway.pid)
        listener = built.python("-m", "bench.web_listener", url, f"live-:{number}", name="web_listener")
        listener.wait_for_output("listening", START_SECONDS)
        result.add(
            "an idle stream",
            "memory of the gateway",
            (rss_bytes(gateway.pid) - before) / number / 1024,
            "KiB",
        )


async def _first_deltas(result: Result, plan: Plan) -> None:
    number = plan.pick(100, 20)
    with stand() as built:
        built.worker()
        _, url = serve(built)
        async with AsyncClient(built.redis.url) as client:
            await (await client.submit("first", "hi", agent=AGENT)).result(60)
            await _through(url, "first")
            for _ in range(plan.rounds):
                times: dict[str, list[float]] = {"direct": [], "through the gateway": []}
                for at in range(number):
                    times["direct"].append(await _directly(client, f"d-{at}"))
                    times["through the gateway"].append(await _through(url, f"g-{at}"))
            for name, found in times.items():
                for label, share in (("p50", 0.5), ("p99", 0.99)):
                    result.add(f"submit to first delta, {name}", label, percentile(found, share) * 1000, "ms")


async def _directly(client: AsyncClient, session: str) -> float:
    began = time.perf_counter()
    turn = await client.submit(session, "hi", agent=AGENT)
    events = turn.stream()
    async for event in events:
        if event.type == "text_delta":
            break
    await events.aclose()
    return time.perf_counter() - began


async def _through(url: str, session: str) -> float:
    """Time submit to first delta by two requests on two new connections, like a program without a pool."""
    began = time.perf_counter()
    body = msgspec.json.encode({"input": "hi", "agent": AGENT})
    head = f"POST /sessions/{session}/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = await _asked(url, head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body, rb"}")
    events = re.findall(rb'"events":"([^"]+)"', answer)[0]
    await _asked(url, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % events, rb'"text_delta"')
    return time.perf_counter() - began


async def _asked(url: str, request: bytes, until: bytes) -> bytes:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(request)
    answer = b""
    while until not in answer.partition(b"\r\n\r\n")[2]:
        part = await reader.read(65536)
        assert part, answer
        answer += part
    writer.close()
    return answer
