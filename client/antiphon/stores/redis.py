"""Sessions saved in Redis, with or without workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from antiphon.errors import SettingsError
from antiphon.input.values import is_a
from antiphon.stores.base import StampedStore, decode_saved, encode_saved
from antiphon.text import text_of
from antiphon.wire.errors import store_error

T = TypeVar("T")

PAGE = 1000


class RedisStore(StampedStore):
    """Stores each session in a Redis hash with the key ``<prefix><session id>``.

    ``redis`` is a URL or a synchronous redis-py client. ``ttl`` (seconds or a timedelta) counts from the last save;
    without it, sessions do not expire.

    >>> from antiphon import Agent
    >>> store = RedisStore("redis://localhost:6379/0", ttl=3600)
    >>> store.save("session-1", {"version": 1})
    >>> agent = Agent(provider="scripted", model="any", store=store)
    >>> agent.session("user-123").run("Remember this").text, store.delete("user-123")
    ('You said: Remember this', True)
    """

    def __init__(
        self,
        redis: str | Redis,
        *,
        prefix: str = "antiphon:saved:",
        ttl: float | timedelta | None = None,
    ) -> None:
        self._redis: Any = _opened(redis)
        self.prefix = prefix
        self._ttl_ms = _milliseconds(ttl)

    def save_stamped(self, session_id: str, data: dict[str, Any]) -> str:
        key, text, stamp = self.prefix + session_id, encode_saved(session_id, data), secrets.token_hex(8)

        def write() -> None:
            pipe = self._redis.pipeline(transaction=True)
            pipe.hset(key, mapping={"data": text, "stamp": stamp})
            if self._ttl_ms is None:
                pipe.persist(key)
            else:
                pipe.pexpire(key, self._ttl_ms)
            pipe.execute()

        _explained(write)
        return stamp

    def load(self, session_id: str) -> dict[str, Any] | None:
        data = _explained(lambda: self._redis.hget(self.prefix + session_id, "data"))
        return None if data is None else decode_saved(session_id, data)

    def delete(self, session_id: str) -> bool:
        return _explained(lambda: self._redis.delete(self.prefix + session_id)) > 0

    def list_sessions(self) -> list[str]:
        pattern = "".join(f"[{c}]" if c in "*?[" else "\\\\" if c == "\\" else c for c in self.prefix) + "*"
        keys = _explained(lambda: list(self._redis.scan_iter(match=pattern, count=PAGE)))
        return list({_text(key).removeprefix(self.prefix) for key in keys})

    def stamp(self, session_id: str) -> str | None:
        return _text(_explained(lambda: self._redis.hget(self.prefix + session_id, "stamp")) or "")

    def close(self) -> None:
        """Close the store's connections.

        >>> with RedisStore("redis://localhost:6379/0") as other:  # closed at the end
        ...     other.load("session-1")
        {'version': 1}
        """
        self._redis.close()


def _opened(redis: str | Redis) -> Redis:
    if isinstance(redis, Redis):
        return redis
    if not is_a(redis, str):
        raise SettingsError(f"A RedisStore needs a URL or a synchronous redis-py client, not {redis!r}.")
    try:
        return Redis.from_url(redis)
    except ValueError as exc:
        raise SettingsError(f"The URL of the RedisStore is not valid: {exc}.") from exc


def _milliseconds(ttl: float | timedelta | None) -> int | None:
    if ttl is None:
        return None
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if not seconds > 0:
        raise SettingsError(f"The ttl of a RedisStore must be a positive number of seconds, not {ttl!r}.")
    return max(1, int(seconds * 1000))


def _text(value: bytes | str) -> str:
    return text_of(value) if isinstance(value, bytes) else value


def _explained(act: Callable[[], T]) -> T:
    try:
        return act()
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
