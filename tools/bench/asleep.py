"""Turns that sleep: what each of them takes in Redis, and how late turns wake up while many others sleep."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from support.eventually import wait_until_async

from antiphon.client import AsyncClient
from antiphon.input.request import AgentSpec
from antiphon.model import Wait
from antiphon.redis.turn import AsyncTurn
from antiphon.wire.suspension import suspend
from bench.gauges import percentile, redis_counters
from bench.results import Result
from bench.stand import Stand

AGENT = AgentSpec(provider="scripted", model="bench")
NIGHT_SECONDS = 8 * 3600
DUE_MS, DUE_EACH_MS = 4_000, 2
IDLE_SECONDS = 3.0
BATCH = 2_000
COPY = """
local session, turn, prefix, first, last, since, each_ms, due = unpack(ARGV)
local keys, places = cjson.decode(KEYS[1]), cjson.decode(KEYS[2])
for n = tonumber(first), tonumber(last) do
  local names = {[session] = prefix .. n, [turn] = string.sub(turn, 1, 20) .. prefix .. string.format('%07d', n)}
  local function renamed(text)
    for from, to in pairs(names) do text = string.gsub(text, string.gsub(from, '%-', '%%-'), to) end
    return text
  end
  for _, key in ipairs(keys) do
    local copy = renamed(key)
    if redis.call('TYPE', key).ok == 'list' then
      for _, one in ipairs(redis.call('LRANGE', key, 0, -1)) do redis.call('RPUSH', copy, renamed(one)) end
    else
      redis.call('COPY', key, copy)
    end
  end
  local record = 'ant:turn:' .. names[turn]
  redis.call('HSET', record, 'session', names[session])
  for _, place in ipairs(places) do redis.call('ZADD', place[1], place[3], renamed(place[2])) end
  local till = string.format('%.0f', since + n * each_ms)
  redis.call('ZADD', 'ant:active', till, names[session])
  if due == '1' then
    redis.call('HSET', record, 'wait:1', (string.gsub(redis.call('HGET', record, 'wait:1'), '^%d+', till)))
  end
end
"""
"""Makes copies of a session whose turn sleeps, as the scripts would, but faster.

The reaper looks at each a moment after the previous one, which wakes it if it is ``due``.
"""


async def measure_sleepers(result: Result, built: Stand, number: int, due: int) -> None:
    """Have ``number`` turns sleep through a night in one Redis, and ``due`` more turns sleep for seconds."""
    async with AsyncClient(built.redis.url) as client:
        with Redis.from_url(built.redis.url, decode_responses=True) as redis:
            turn = (await _asleep(client)).id
            began = float(cast("str", redis.hget(f"ant:turn:{turn}", "suspended_at")))
            again = (redis.zscore("ant:active", "asleep") or 0) - began
            before = redis_counters(redis)
            _copy(redis, turn, number, "night", _now_ms(redis), again / number)
            each = f"each of {number:,} turns that sleep"
            result.add(
                each, "in Redis", redis_counters(redis).since(before).memory_bytes / number / 1024, "KiB"
            )
            built.worker()
            before = redis_counters(redis)
            await asyncio.sleep(IDLE_SECONDS)
            used = redis_counters(redis).since(before).cpu_seconds / IDLE_SECONDS * 100
            result.add(f"a worker beside {number:,} turns that sleep", "CPU of Redis", used, "%")
            since = _now_ms(redis) + DUE_MS
            _copy(redis, turn, due, "short", since, DUE_EACH_MS, due=True)
            waited = await _waited(redis, [f"ant:turn:{turn[:20]}short{n:07d}" for n in range(due)])
            lags = [began + ms - (since + n * DUE_EACH_MS) for n, ms in enumerate(waited)]
            for share in (0.5, 0.99):
                name = f"a turn wakes up beside {number:,} that sleep"
                result.add(name, f"after its time, p{share * 100:.0f}", percentile(lags, share), "ms")


async def _asleep(client: AsyncClient) -> AsyncTurn:
    """Submit a turn, and let it sleep through the night as a worker does."""
    turn = await client.submit("asleep", "Good night", agent=AGENT)
    (cell,) = client.connections.cells
    claims = await cell.claim("w", "bench", lease_ms=10_000, limit=1, queues=["antiphon"])
    wait = Wait("", "sleep", seconds=float(NIGHT_SECONDS))
    assert await suspend(cell, claims.turns[0], [wait], bodies=[]) == ""
    return turn


def _now_ms(redis: Redis) -> int:
    seconds, micros = cast("tuple[int, int]", redis.time())
    return seconds * 1000 + micros // 1000


async def _waited(redis: Redis, records: Sequence[str]) -> list[float]:
    """Return how many ms these turns have slept, when all of them are awake."""

    async def all_awake() -> bool:
        return all(redis.hget(record, "waited") for record in (records[-1], *records))

    await wait_until_async(all_awake, 120, "all of them are awake", interval=0.1)
    return [float(cast("str", redis.hget(record, "waited"))) for record in records]


def _copy(
    redis: Redis, turn: str, number: int, prefix: str, since: int, each_ms: float, *, due: bool = False
) -> None:
    """Make ``number`` copies of the sleeping session."""
    keys = [key for key in redis.scan_iter(count=10_000) if key.endswith((":asleep", turn))]
    places: list[Any] = [
        (key, member, score)
        for key in redis.scan_iter(count=10_000, _type="zset")
        for member in ("asleep", turn)
        if (score := redis.zscore(key, member)) is not None
    ]
    script = redis.register_script(COPY)
    for first in range(0, number, BATCH):
        last = min(first + BATCH, number) - 1
        asked = ["asleep", turn, prefix, first, last, since, each_ms, "1" if due else ""]
        script([json.dumps(keys), json.dumps(places)], asked)
