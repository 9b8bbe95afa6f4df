"""Submits turns for the benchmark, and measures how fast they ended by the server's clock."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis
from support.eventually import wait_until_async
from support.processes import Process

from antiphon.client import AsyncClient
from antiphon.input.request import AgentSpec
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.keys import Keys

AGENT = AgentSpec(provider="openai-chat", model="bench")
ONE_CHUNK: dict[str, Any] = {"max_tokens": 1}
"""The answer is a single piece of text, between the format's first and last chunk."""
HANDS = 8
KEYS = Keys()


async def submit_turns(
    client: AsyncClient,
    number: int,
    prefix: str,
    text: str = "hi",
    params: dict[str, Any] = ONE_CHUNK,
    hands: int = HANDS,
    tenant: str | None = None,
) -> list[AsyncTurn]:
    """Submit this many turns, each in its own session, ``hands`` at a time."""
    turns: list[AsyncTurn] = []

    async def hand_in(first: int) -> None:
        for index in range(first, number, hands):
            turn = await client.submit(f"{prefix}{index}", text, agent=AGENT, params=params, tenant=tenant)
            turns.append(turn)

    await asyncio.gather(*[hand_in(first) for first in range(hands)])
    return turns


async def all_ended(turns: Sequence[AsyncTurn], timeout: float = 120) -> None:
    """Return when all have ended. They were submitted in about this order, so the last ones are polled first."""
    for turn in [*turns[-2 * HANDS :], *turns]:

        async def ended(turn: AsyncTurn = turn) -> bool:
            return (await turn.status()) in ("finished", "failed", "cancelled")

        await wait_until_async(ended, timeout, f"turn {turn.id} has ended", interval=0.05)


def running(urls: Sequence[str], keys: Keys = KEYS) -> int:
    """Return how many turns run on all these servers, by RQ's registry of running jobs."""
    found = 0
    for url in urls:
        with Redis.from_url(url) as redis:
            found += redis.zcard(f"{keys.rq}:wip:antiphon")
    return found


async def all_run(urls: Sequence[str], number: int, timeout: float = 30, keys: Keys = KEYS) -> None:
    """Return when this many turns run on all these servers."""
    await wait_until_async(
        lambda: running(urls, keys) >= number, timeout, f"{number} turns run", interval=0.05
    )


async def warm_up(client: AsyncClient, number: int = 200) -> None:
    """Let every process import, connect and load its scripts."""
    await all_ended(await submit_turns(client, number, "warm-up-"))


@contextmanager
def frozen(worker: Process) -> Iterator[None]:
    """Freeze the worker, so that turns can be submitted in advance."""
    worker.freeze()
    try:
        yield
    finally:
        worker.thaw()


def rate(redis_url: str, turns: Sequence[AsyncTurn], keys: Keys = KEYS) -> float:
    """Return turns a second by their recorded ends, without the first and the last tenth."""
    with Redis.from_url(redis_url) as redis:
        pipe = redis.pipeline(transaction=False)
        for turn in turns:
            pipe.hmget(keys.turn(turn.id), "ended_at", "status")
        answers = pipe.execute()
    bad = [status for _, status in answers if status != b"finished"]
    if bad:
        raise RuntimeError(f"{len(bad)} turns ended as {set(bad)}: the figures would mean nothing")
    return steady_rate([int(ended) / 1000 for ended, _ in answers])


def steady_rate(ends: Sequence[float]) -> float:
    """Return ends a second in the middle eight tenths, from times in seconds."""
    ordered = sorted(ends)
    first, last = len(ordered) // 10, len(ordered) * 9 // 10
    return (last - first) / max(ordered[last] - ordered[first], 1e-3)
