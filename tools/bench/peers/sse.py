"""The events of a stream over HTTP, read as cheaply as Python can: the caller shares the machine with the server."""

import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

FAILED = {b"error", b"RunError"}


def open_http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"http://127.0.0.1:{os.environ['PEER_PORT']}")


async def events(
    http: aiohttp.ClientSession, path: str, wanted: bytes, **request: Any
) -> AsyncIterator[bytes]:
    """Yield the data of the wanted events in the response to a POST."""
    async with http.post(path, **request) as response:
        response.raise_for_status()
        event = b""
        async for line in response.content:
            name, _, value = line.strip().partition(b": ")
            if name == b"event":
                event = value
            elif name == b"data" and event == wanted:
                yield value
            elif name == b"data" and event in FAILED:
                raise RuntimeError(value.decode()[:500])
