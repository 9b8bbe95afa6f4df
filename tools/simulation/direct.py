"""As much of redis-py's asyncio client as a `Cell` needs, over one blocking connection.

A schedule is thousands of consecutive small calls: without an event loop, each costs a quarter. The server reports
which keys each call has changed (`CLIENT TRACKING`), so that only these have to be read again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import hiredis
from redis.exceptions import NoScriptError, ResponseError

T = TypeVar("T")
Command = tuple[Any, ...]
_MORE = object()


class Look(NamedTuple):
    """Commands that read the last call's changes, and the function that receives the answers."""

    commands: Sequence[Command]
    seen: Callable[[list[Any]], None]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("The coroutine waits for something.")


def _connected(url: str) -> socket.socket:
    address = urlsplit(url)
    if address.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.path)
        return connection
    connection = socket.create_connection((address.hostname, address.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _error(text: str) -> ResponseError:
    return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text)


class DirectRedis:
    """One connection. Errors of the server are raised.

    ``changed`` are the keys that any client has changed. ``due`` is a look that is sent with the next call, before
    it: so it sees the effects of the previous call, and costs no round trip.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._socket = _connected(url)
        self._socket.settimeout(timeout)
        self._reader = hiredis.Reader(replyError=_error, notEnoughData=_MORE)
        self.connection_pool = SimpleNamespace(connection_kwargs={"db": 0})
        self.changed: set[bytes] = set()
        self.due: Look | None = None
        self.calls([("HELLO", 3), ("CLIENT", "TRACKING", "ON", "BCAST")])

    def close(self) -> None:
        self._socket.close()

    def call(self, *arguments: Any) -> Any:
        return self.calls([arguments])[0]

    def calls(self, commands: Sequence[Command]) -> list[Any]:
        """Send several commands at once, preceded by the look that is due."""
        look, self.due = self.due, None
        before = look.commands if look else ()
        self._socket.sendall(b"".join(hiredis.pack_command(command) for command in (*before, *commands)))
        seen = [self._answer() for _ in before]
        answers = [self._answer() for _ in commands]
        self._hear()
        if look:
            look.seen(seen)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _answer(self) -> Any:
        while True:
            answer = self._reader.gets()
            if answer is _MORE:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionError("The server has closed the connection.")
                self._reader.feed(data)
            elif isinstance(answer, hiredis.PushNotification):
                self.changed.update(answer[1] or ())
            else:
                return answer

    def _hear(self) -> None:
        """Read the notifications after an answer: the server writes both at once."""
        while (heard := self._reader.gets()) is not _MORE:
            self.changed.update(heard[1] or ())

    async def execute_command(self, *arguments: Any, promises: bool = False) -> Any:
        return self.call(*arguments)

    # calls that are needed where keys shared by all sessions may be damaged

    def pipeline(self, *, transaction: bool) -> DirectPipeline:
        return DirectPipeline(self)

    async def smembers(self, key: str) -> Any:
        return self.call("SMEMBERS", key)

    async def mget(self, keys: Sequence[str]) -> Any:
        return self.call("MGET", *keys)


class DirectPipeline:
    """Commands that are sent at once."""

    def __init__(self, redis: DirectRedis) -> None:
        self._redis = redis
        self._commands: list[Command] = []

    def type(self, key: str) -> None:
        self._commands.append(("TYPE", key))

    async def execute(self) -> list[Any]:
        return self._redis.calls(self._commands)
