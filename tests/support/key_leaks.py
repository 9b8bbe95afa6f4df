"""What a test has left in Redis: keys of ours must go away by themselves, except those made to last."""

import fnmatch
import importlib
from collections.abc import Callable, Iterable

from redis import Redis


def leaked_keys(url: str, allowed: Iterable[str] = ()) -> list[str]:
    """Keys under ``ant:`` without a time to live, other than those that ``antiphon.wire.keys`` lets stay.

    ``allowed`` are patterns that one test allows itself.
    """
    patterns = list(allowed)
    with Redis.from_url(url, decode_responses=True) as redis:
        keys = list(redis.scan_iter("ant:*", count=1000))
        with redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.ttl(key)
            lives = pipeline.execute()
    needs_ttl = _needs_ttl()
    return sorted(
        key
        for key, life in zip(keys, lives, strict=True)
        if life == -1 and needs_ttl(key) and not any(fnmatch.fnmatchcase(key, p) for p in patterns)
    )


def _needs_ttl() -> Callable[[str], bool]:
    return importlib.import_module("antiphon.wire.keys").needs_ttl
