"""One turn of a tenant after a flood of another: with shares, without tenants, and on stock RQ."""

import json
import time
from typing import Any

from redis import Redis
from support.eventually import wait_until

from antiphon.client import AsyncClient
from bench.load import AGENT, ONE_CHUNK, frozen, submit_turns, warm_up
from bench.peers.work import ONE_CHUNK as TEXT
from bench.peers.work import history_key
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "one turn that comes when many turns of another tenant wait"
PEER = "bench.peers.rq"
SIMPLE = {"RQ_KIND": "simple"}
SHARE_OF_RQ = 0.25
"""The share of the flood that stock RQ gets, since it is slower."""


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(1000, 100)
    found: dict[str, list[tuple[float, float]]] = {}
    for n in range(plan.rounds):
        with stand() as built:
            for name, tenants in (("two tenants", ["many", "few"]), ("no tenants", [None, None])):
                one = await _behind(built, number, f"{n}-{name}-", *tenants)
                found.setdefault(name, []).append(one)
        with stand() as built:
            one = _behind_on_rq(built, round(number * SHARE_OF_RQ))
            found.setdefault(f"stock RQ, {SHARE_OF_RQ:.0%} of them", []).append(one)
    for name, rounds in found.items():
        result.add(name, "turns taken before it", [before for before, _ in rounds], "")
        result.add(name, "its start after", [seconds for _, seconds in rounds], "s")
    result.remarks.append(f"{number} turns wait for one worker process with room for 10.")


async def _behind(
    built: Stand, number: int, prefix: str, many: str | None, few: str | None
) -> tuple[float, float]:
    """Return how many turns a worker takes before the last one, and after how many seconds it begins the last one."""
    worker = built.worker(concurrency=10)
    with Redis.from_url(built.redis.url) as redis:
        async with AsyncClient(built.redis.url) as client:
            await warm_up(client, 50)
            with frozen(worker):
                await submit_turns(client, number, prefix, tenant=many)
                taken = _fences(redis)
                one = await client.submit(f"{prefix}one", "hi", agent=AGENT, params=ONE_CHUNK, tenant=few)
            began = time.time()
            await one.result(120)
        fence, started = redis.hmget(f"ant:turn:{one.id}", "execution", "started_at")
    built.stop(worker)
    return _number(fence) - taken - 1, max(int(started) / 1000 - began, 0.0)


def _behind_on_rq(built: Stand, number: int) -> tuple[float, float]:
    """Measure the same on stock RQ, from the end of the first turn on, since its worker needs a while to start."""
    built.child(PEER, "submit", str(number), "many-", TEXT, env=SIMPLE)
    built.child(PEER, "submit", "1", "one-", TEXT, env=SIMPLE)
    built.python("-m", PEER, "worker", env=SIMPLE, name="rq")
    with Redis.from_url(built.redis.url) as redis:
        wait_until(
            lambda: redis.exists(history_key("one-0")) > 0, 120, "the one turn has ended", interval=0.01
        )
        before = sum(redis.exists(history_key(f"many-{n}")) for n in range(number))
        ends = [_ended(redis, name) for name in ("many-0", "one-0")]
    return before, ends[1] - ends[0]


def _ended(redis: Any, session: str) -> float:
    return json.loads(redis.lindex(history_key(session), -1))["ended"]


def _fences(redis: Any) -> int:
    return int(redis.get("ant:fence") or 0)


def _number(fence: bytes) -> int:
    return int(fence.split(b"-")[0])
