"""Looks for texts of users, tools and models in everything that a Redis contains or was ever sent."""

import base64
import binascii
import contextlib
import fnmatch
import importlib
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from support.eventually import patience, wait_until

CORE = "Qz7Marker"
MARKER = f"{CORE} ö"
"""Part of all that users, tools and models write in a test of encryption; ``CORE`` where only ASCII is allowed."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}")

_TAG = re.compile(r":\{\w+\}:")  # of a cell on a cluster


def forms() -> list[bytes]:
    """Return the forms of the marker: as it is (no escape changes it), in hex, in base64 at any offset."""
    raw = CORE.encode()
    shifted = [base64.b64encode(b"\0" * offset + raw)[4 if offset else 0 : -4] for offset in range(3)]
    return [raw, raw.hex().encode(), *shifted]


def unpacked(data: bytes, depth: int = 3) -> Iterator[bytes]:
    """Yield the data, and what is packed in it as base64 or by zlib, also nested."""
    yield data
    if not depth:
        return
    with contextlib.suppress(zlib.error):
        yield from unpacked(zlib.decompress(data), depth - 1)
    for found in _BASE64.findall(data):
        try:
            inner = base64.b64decode(
                found.rstrip(b"=") + b"==", altchars=b"-_" if set(b"-_") & set(found) else None
            )
        except binascii.Error:
            continue
        yield from unpacked(inner, depth - 1)


def holds(data: bytes) -> bool:
    """Return whether this data contains the marker in any form."""
    return any(form in one for one in unpacked(data) for form in forms())


def dumped(redis: Redis) -> dict[bytes, bytes]:
    """Return every key with its content, including its own name."""
    read: dict[bytes, Any] = {
        b"hash": redis.hgetall,
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
        b"stream": redis.xrange,
        b"string": redis.get,
    }
    found: dict[bytes, bytes] = {}
    for key in redis.scan_iter(count=1000):
        kind: Any = redis.type(key)
        if kind != b"none":
            found[key] = b"\n".join([key, *_flat(read[kind](key))])
    return found


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _flat(pair)
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _flat(one)


class Recorder:
    """Records every command of a server with its arguments, including commands in scripts and published messages."""

    def __init__(self, url: str) -> None:
        self._url = url
        place = urlsplit(url)
        self._socket = socket.create_connection((place.hostname or "", place.port or 0))
        self._socket.sendall(b"MONITOR\r\n")
        self._heard = bytearray()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        wait_until(lambda: b"+OK" in self._heard, description="the server says what it does")

    def _listen(self) -> None:
        while data := self._socket.recv(1 << 20):
            self._heard += data

    def heard(self) -> list[bytes]:
        """Return the commands recorded so far."""
        return bytes(self._heard).split(b"\r\n")

    def stop(self) -> list[bytes]:
        """End the recording, and return its commands."""
        with Redis.from_url(self._url) as redis:
            redis.echo("the end of the recording")
        wait_until(lambda: b"the end of the recording" in self._heard, description="all was heard")
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(patience(10))
        self._socket.close()
        return self.heard()


def leaked_keys(url: str, allowed: Iterable[str] = ()) -> list[str]:
    """Return keys under ``ant:`` without a time to live, except keys that ``antiphon.wire.keys`` lets stay.

    ``allowed`` are patterns of further keys that a test may leave.
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
        if life == -1
        and needs_ttl(_TAG.sub(":", key, count=1))
        and not any(fnmatch.fnmatchcase(key, p) for p in patterns)
    )


def _needs_ttl() -> Callable[[str], bool]:
    return importlib.import_module("antiphon.wire.keys").needs_ttl
