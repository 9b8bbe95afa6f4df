"""The network traffic of Redis, in bytes, for a turn and for a chunk with one reader."""

import asyncio

from redis import Redis
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from bench.following import begin, follow, report
from bench.gauges import net_bytes
from bench.live import SETTLE_SECONDS
from bench.load import AGENT, all_ended, all_run, frozen, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "bytes on the network of Redis"
PACE = 20
TURN, CHUNK = "a turn", "a chunk with one reader"


async def measure(plan: Plan, result: Result) -> None:
    turns, streams, seconds = plan.pick((500, 100, 4.0), (100, 20, 1.0))
    with stand() as built:
        model = built.new_model("--stamp", "--pace", str(PACE), "--length", str(int(PACE * (seconds + 15))))
        worker = built.worker(concurrency=streams, model=model)
        async with AsyncClient(built.redis.url) as client:
            await warm_up(client, 50)
            with frozen(worker):
                before = net_bytes([built.redis.url])
                each = await submit_turns(client, turns, "turn-")
            with Redis.from_url(built.redis.url) as redis:  # sends few requests, unlike ``all_ended``
                await wait_until_async(
                    lambda: redis.zcard("rq:finished:antiphon") >= turns + 50,
                    120,
                    "all have ended",
                    interval=0.2,
                )
            _add(result, TURN, before, net_bytes([built.redis.url]), turns)
            await all_ended(each)
            chunks, before, after = await _chunks(built, client, streams, seconds)
            _add(result, CHUNK, before, after, chunks)
    result.remarks.append(
        f"Turns with one-chunk answers and without readers; then {streams} streams at {PACE}/s, each followed by a "
        f"client. The bytes are those that Redis counts, with its protocol and without TCP and TLS."
    )


async def _chunks(
    built: Stand, client: AsyncClient, streams: int, seconds: float
) -> tuple[float, tuple[int, int], tuple[int, int]]:
    listener = follow(built, f"live-:{streams}")
    for index in range(streams):
        await client.submit(f"live-{index}", "hi", agent=AGENT)
    await all_run([built.redis.url], streams)
    await asyncio.sleep(SETTLE_SECONDS)
    begin(listener)
    before = net_bytes([built.redis.url])
    await asyncio.sleep(seconds)
    after = net_bytes([built.redis.url])
    seen = report(listener)
    return seen.pieces / seen.seconds * seconds, before, after


def _add(result: Result, name: str, before: tuple[int, int], after: tuple[int, int], number: float) -> None:
    for what, then, now in zip(("into Redis", "out of Redis"), before, after, strict=True):
        result.add(name, what, (now - then) / number, "B")
