"""Sends the first attempt of a request as an SDK has sent one like it before; all but a success is left to the SDK.

An SDK and httpx2 take two thirds of the CPU time of a request, and most requests succeed at once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeAlias

import httpx2

from antiphon_worker.providers.http.http1 import Exchange

Origin: TypeAlias = tuple[str, str, int]
MOST_KINDS = 64


class Sender(Protocol):
    """Sends requests over the connections of one event loop."""

    async def send(self, like: Like, body: bytes) -> Exchange:
        """Send a request, and return its exchange when the head of the answer has arrived."""
        ...


class Like(NamedTuple):
    """A request without its body: where and how it is sent, and its head up to the length of the body.

    ``timeouts`` are those of httpx2, in seconds: ``connect``, ``pool`` and ``read``.
    """

    sender: Sender
    origin: Origin
    server_name: str
    head: bytes
    timeouts: Mapping[str, float | None]


class Attempt:
    """The first attempt of a request, which either this process makes or the SDK does."""

    def __init__(self) -> None:
        self.like: Like | None = None
        self._exchange: Exchange | None = None
        self._error: httpx2.HTTPError | None = None

    @property
    def made(self) -> bool:
        """Return whether it has an outcome that the SDK has not seen yet."""
        return self._exchange is not None or self._error is not None

    async def make(self, like: Like, body: bytes) -> Exchange | None:
        """Send the request. Returns its exchange if it has succeeded, and else keeps the outcome for the SDK."""
        try:
            exchange = await like.sender.send(like, body)
        except httpx2.HTTPError as exc:
            self._error = exc
            return None
        if 200 <= exchange.status < 300 and not exchange.encoded:
            return exchange
        self._exchange = exchange
        return None

    def outcome(self) -> Exchange:
        """Hand the outcome over to the SDK. Raises the error with which the attempt has failed."""
        exchange, error = self._exchange, self._error
        self._exchange = self._error = None
        if exchange is None:
            assert error is not None
            raise error
        return exchange

    @asynccontextmanager
    async def left_to_the_sdk(self) -> AsyncGenerator[None]:
        """Let the transport use the outcome for the next request of this task, or note how it sends that."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
            if self._exchange is not None:  # the SDK has sent nothing
                await self._exchange.aclose()


def current() -> Attempt | None:
    """Return the attempt that the request of this task belongs to: None from the second attempt on."""
    attempt = _current.get()
    if attempt is not None:
        _current.set(None)
    return attempt


_current: ContextVar[Attempt | None] = ContextVar("attempt", default=None)


class Kinds:
    """How requests of each kind were sent."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Like] = {}

    def get(self, kind: tuple[object, ...]) -> Like | None:
        return self._known.get(kind)

    def learn(self, kind: tuple[object, ...], like: Like) -> None:
        """Note how a request of this kind was sent. The number of kinds is bounded, because callers choose headers."""
        if len(self._known) >= MOST_KINDS:
            self._known.clear()
        self._known[kind] = like

    def forget(self) -> None:
        """Forget all kinds, because their connections are closed."""
        self._known.clear()
