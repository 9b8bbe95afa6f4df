"""As much of redis-py's asyncio client as a `Cell` needs, over one blocking connection.

A schedule is thousands of small calls one after the other: without an event loop each costs a quarter.
"""

from __future__ import annotations

import socket
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import hiredis
from redis.exceptions import NoScriptError, ResponseError

__all__ = ["DirectRedis", "run"]

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("The coroutine waits for something.")


def _error(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)


class DirectRedis:
    """One connection. Errors of the server are raised, or given as answers where several calls go together."""

    def __init__(self, url: str, timeout: float) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader(replyError=_error)
        self.connection_pool = SimpleNamespace(connection_kwargs={"db": 0})
        self.next_look: tuple[Any, ...] | None = None  # sent together with the next command of a Cell
        self.seen: Any = None  # the answer to it

    def close(self) -> None:
        self._socket.close()

    def call(self, *arguments: Any) -> Any:
        return self.calls([arguments])[0]

    def calls(self, commands: list[tuple[Any, ...]], *, raising: bool = True) -> list[Any]:
        """Send several commands at once."""
        self._socket.sendall(b"".join(hiredis.pack_command(command) for command in commands))
        answers = [self._answer() for _ in commands]
        for answer in answers:
            if raising and isinstance(answer, Exception):
                raise answer
        return answers

    def _answer(self) -> Any:
        while (answer := self._reader.gets()) is False:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("The server has closed the connection.")
            self._reader.feed(data)
        return answer

    async def execute_command(self, *arguments: Any) -> Any:
        """A call, and the look at what it did, in one round trip."""
        if self.next_look is None:
            return self.call(*arguments)
        answer, self.seen = self.calls([arguments, self.next_look], raising=False)
        if isinstance(answer, Exception):
            raise answer
        return answer
