"""The cost of a turn next to 10 to 100,000 idle sessions."""

from redis import Redis

from antiphon.client import AsyncClient
from bench.gauges import redis_counters
from bench.load import AGENT, all_ended, frozen, rate, submit_turns, warm_up
from bench.results import Plan, Result
from bench.stand import stand

TITLE = "turns beside idle sessions"
NUMBERS = (10, 1_000, 100_000)


async def measure(plan: Plan, result: Result) -> None:
    turns_each = plan.pick(1000, 200)
    with stand() as built:
        worker = built.worker()
        async with AsyncClient(built.redis.url) as client:
            with Redis.from_url(built.redis.url) as redis:
                await warm_up(client, 100)
                turn = await client.submit("idle-session", "hi length:40", agent=AGENT)
                await all_ended([turn])
                for number in plan.pick(NUMBERS, (10, 2_000)):
                    clone_session(redis, "idle-session", turn.id, number, "idle-")
                    before = redis_counters(redis)
                    with frozen(worker):
                        turns = await submit_turns(client, turns_each, f"beside-{number}-")
                    await all_ended(turns)
                    counted = redis_counters(redis).since(before)
                    name = f"beside {number:,} idle sessions"
                    result.add(name, "turns", rate(built.redis.url, turns), "a second")
                    result.add(name, "CPU of Redis, a turn", counted.cpu_seconds / turns_each * 1e6, "µs")


BATCH = 500


def clone_session(redis: Redis, session: str, turn: str, number: int, prefix: str) -> None:
    """Make ``number`` copies of this session with one finished turn: of its keys and its entries in sorted sets."""
    keys = [key for key in redis.scan_iter(count=10_000) if session.encode() in key or turn.encode() in key]
    dumps = [(key, redis.dump(key), max(redis.pttl(key), 0)) for key in keys]
    places = [
        (key, member, redis.zscore(key, member))
        for key in redis.scan_iter(count=10_000, _type="zset")
        for member in (session.encode(), turn.encode())
        if redis.zscore(key, member) is not None
    ]
    for start in range(0, number, BATCH):
        pipe = redis.pipeline(transaction=False)
        for index in range(start, min(start + BATCH, number)):
            names = (f"{prefix}{index}".encode(), clone_turn(turn, index).encode())
            for key, dump, ttl in dumps:
                pipe.restore(_renamed(key, session, turn, names), ttl, dump, replace=True)
            for key, member, score in places:
                pipe.zadd(key, {_renamed(member, session, turn, names): score})
        pipe.execute()


def clone_turn(turn: str, index: int) -> str:
    """Return the turn id of a copy."""
    return f"{turn[:10]}{index:022d}"


def _renamed(name: bytes, session: str, turn: str, names: tuple[bytes, bytes]) -> bytes:
    return name.replace(session.encode(), names[0]).replace(turn.encode(), names[1])
