"""Finds damaged keys among those that all sessions share: they stop all sessions until they are repaired."""

from __future__ import annotations

from redis.asyncio import Redis

from antiphon.errors import CorruptRecord, StoreError
from antiphon.text import text_of
from antiphon.wire.errors import asked
from antiphon.wire.keys import REDIS_TYPES, RQ_SHARED, SHARED, Keys


async def damaged_keys(redis: Redis, keys: Keys) -> list[str]:
    """Return a sentence about each damaged key. Raises ``StoreError``."""
    queues, stem = keys.of_rq("rq_queues"), keys.of_rq("rq_queue", "")
    wanted = {f"{keys.prefix}:{template}": kind for template, kind in SHARED.items()} | {queues: "set"}
    found = await _types(redis, wanted)
    if found[queues] == "set":
        for queue in await asked(redis.smembers(queues)):
            name = text_of(queue).removeprefix(stem)
            wanted |= {keys.of_rq(kind, name): type_ for kind, type_ in RQ_SHARED.items()}
        found = await _types(redis, wanted)
    counters = [key for key, kind in wanted.items() if kind == "counter" and found[key] == "string"]
    numbers = dict(zip(counters, await asked(redis.mget(counters)), strict=True)) if counters else {}
    sentences = [
        f"The key {key} must be a {kind} and is a {found[key]}"
        for key, kind in wanted.items()
        if found[key] not in ("none", REDIS_TYPES.get(kind, kind))
    ]
    sentences += [
        f"The key {key} must be a whole number"
        for key, value in numbers.items()
        if not (value or b"").isdigit()
    ]
    return [f"{one}: nothing that needs it works until it is repaired." for one in sentences]


async def named_damage(redis: Redis, keys: Keys) -> CorruptRecord | None:
    """Return the error for damaged keys that all sessions share, or None if none is found."""
    try:
        damage = await damaged_keys(redis, keys)
    except StoreError:
        return None
    return CorruptRecord(" ".join(damage)) if damage else None


async def _types(redis: Redis, keys: dict[str, str]) -> dict[str, str]:
    pipe = redis.pipeline(transaction=False)
    for key in keys:
        pipe.type(key)
    return dict(zip(keys, map(text_of, await asked(pipe.execute())), strict=True))
