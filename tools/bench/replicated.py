"""``python -m bench.replicated``: what replicated durability costs, and what a failover loses without it.

It is not part of ``make bench``; the figures are in ``docs/deployment.md``.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator
from itertools import count

from redis import Redis
from support.eventually import wait_until
from support.proxy import Proxy
from support.servers import RedisServer

from antiphon.client import AsyncClient
from antiphon.errors import StoreError
from bench.load import AGENT, all_ended, rate, submit_turns, warm_up
from bench.stand import stand

URLS = {"without": "", "replicated": "?durability=replicated"}
ROUNDS = 3
CALLERS = 100
SUBMITTED = 10_000
RUN = 2000
FAILOVERS = 10
LAGS_MS = (0, 5, 50)
LOADED_SECONDS = 1.0


def main() -> None:
    asyncio.run(_measure())


async def _measure() -> None:
    for callers in (1, CALLERS):
        found = {name: [await _submitted(url, callers) for _ in range(ROUNDS)] for name, url in URLS.items()}
        _show(f"turns accepted a second, {callers} callers", found)
    _show(
        "turns a second through one worker process", {name: await _through(url) for name, url in URLS.items()}
    )
    for name, url in URLS.items():
        for lag in LAGS_MS:
            lost = [await _lost(url, lag / 1000) for _ in range(FAILOVERS)]
            print(
                f"accepted turns that {FAILOVERS} failovers lost, {name}, a replica that lags by {lag} ms: {lost}"
            )


def _show(what: str, found: dict[str, list[float]]) -> None:
    for name, values in found.items():
        print(f"{what}, {name}: median {statistics.median(values):,.0f} of {[round(one) for one in values]}")


async def _submitted(option: str, callers: int) -> float:
    number = SUBMITTED if callers > 1 else SUBMITTED // 5
    with RedisServer() as primary, _replica_of(primary):
        async with AsyncClient(primary.url + option) as client:
            await submit_turns(client, 200, "warm-up-", hands=callers)
            began = time.monotonic()
            await submit_turns(client, number, "s", hands=callers)
            return number / (time.monotonic() - began)


async def _through(option: str) -> list[float]:
    """Return turns a second, which a client submits as fast as it can while the worker runs them."""
    found: list[float] = []
    with stand() as built, _replica_of(built.redis):
        built.worker(processes=1, redis_url=built.redis.url + option)
        async with AsyncClient(built.redis.url + option) as client:
            await warm_up(client)
            for n in range(ROUNDS):
                turns = await submit_turns(client, RUN, f"{n}-", hands=CALLERS)
                await all_ended(turns)
                found.append(rate(built.redis.url, turns))
    return found


async def _lost(option: str, lag: float) -> int:
    """Return how many accepted turns a replica with this lag in s lacks after ``kill -9`` of its primary."""
    accepted: list[str] = []

    async def submit(client: AsyncClient, caller: int) -> None:
        for number in count():
            with contextlib.suppress(StoreError):
                accepted.append((await client.submit(f"s{caller}-{number}", "hi", agent=AGENT)).id)

    with RedisServer() as primary, Proxy(primary.port) as link, _replica_of(primary, link) as replica:
        if lag:
            link.delay(lag)
        async with AsyncClient(primary.url + option, retries=0) as client:
            callers = [asyncio.create_task(submit(client, number)) for number in range(CALLERS)]
            await asyncio.sleep(LOADED_SECONDS)
            primary.kill()
            link.refuse()
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        with Redis.from_url(replica.url) as redis:
            redis.replicaof("NO", "ONE")
            return sum(not redis.exists(f"ant:turn:{turn}") for turn in accepted)


@contextlib.contextmanager
def _replica_of(primary: RedisServer, link: Proxy | None = None) -> Iterator[RedisServer]:
    with RedisServer(replica_of=link or primary, config={"repl-diskless-sync-delay": "0"}) as replica:
        with Redis.from_url(primary.url) as redis:

            def confirms() -> bool:
                redis.set("probe", "", px=1)
                return redis.wait(1, 100) == 1

            wait_until(confirms, 20, "the replica confirms a write")
        yield replica


if __name__ == "__main__":
    main()
