"""Sessions by the hundred thousand: a finished one is copied key by key, as its server would store it."""

from __future__ import annotations

from redis import Redis

BATCH = 500


def clone_session(redis: Redis, session: str, turn: str, number: int, prefix: str) -> None:
    """Make ``number`` sessions like this one, which has one finished turn: its keys and its places in all lists."""
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
            names = (f"{prefix}{index}".encode(), f"{turn[:10]}{index:022d}".encode())
            for key, dump, ttl in dumps:
                pipe.restore(_renamed(key, session, turn, names), ttl, dump, replace=True)
            for key, member, score in places:
                pipe.zadd(key, {_renamed(member, session, turn, names): score})
        pipe.execute()


def _renamed(name: bytes, session: str, turn: str, names: tuple[bytes, bytes]) -> bytes:
    return name.replace(session.encode(), names[0]).replace(turn.encode(), names[1])
