"""The memory of idle sessions in Redis, and which keys take it."""

from redis import Redis

from antiphon.client import AsyncClient
from bench.gauges import redis_counters
from bench.load import AGENT, all_ended, warm_up
from bench.results import Plan, Result
from bench.sessions import BATCH, clone_session, clone_turn
from bench.stand import stand

TITLE = "idle sessions with one turn of 40 tokens each, and their keys"
WHOLE = "an idle session"
PREFIX = "idle-"
SHARES = {
    "`rq:job`, for an hour": ("rq:job:{turn}", "rq:finished:antiphon", "{turn}"),
    "`ant:turn`, for 7 days": ("ant:turn:{turn}", "", ""),
    "`ant:events`, for an hour": ("ant:events:{session}", "", ""),
    "`ant:history`": ("ant:history:{session}", "", ""),
    "`ant:session`": ("ant:session:{session}", "ant:sessions", "{session}"),
    "`ant:turns`": ("ant:turns:{session}", "", ""),
}
"""By kind: the key, and the sorted set with its entry."""


async def measure(plan: Plan, result: Result) -> None:
    number = plan.pick(100_000, 2_000)
    with stand() as built:
        built.worker()
        async with AsyncClient(built.redis.url) as client:
            await warm_up(client, 20)
            turn = await client.submit("idle-session", "hi length:40", agent=AGENT)
            await all_ended([turn])
        with Redis.from_url(built.redis.url) as redis:
            before = redis_counters(redis).memory_bytes
            clone_session(redis, "idle-session", turn.id, number, PREFIX)
            whole = redis_counters(redis).memory_bytes - before
            result.add(WHOLE, "in Redis", whole / number, "B")
            for name, (key, places, member) in SHARES.items():
                stored = redis_counters(redis).memory_bytes
                _delete(redis, turn.id, number, key, places, member)
                freed = stored - redis_counters(redis).memory_bytes
                result.add(f"… {name}", "in Redis", freed / number, "B")
    result.remarks.append(
        f"{number:,} copies of one session. The shares are measured by deleting one kind of key after the other; a "
        f"share includes its entry in a sorted set."
    )


def _delete(redis: Redis, turn: str, number: int, key: str, places: str, member: str) -> None:
    for start in range(0, number, BATCH):
        pipe = redis.pipeline(transaction=False)
        for index in range(start, min(start + BATCH, number)):
            names = {"session": f"{PREFIX}{index}", "turn": clone_turn(turn, index)}
            pipe.delete(key.format(**names))
            if places:
                pipe.zrem(places, member.format(**names))
        pipe.execute()
