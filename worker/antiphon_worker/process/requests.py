"""Keeps what each model call of a turn sends, if the App requests it (``keep_requests=True``).

Turns of other Apps use their providers directly. ``KeepingProvider`` is the innermost wrapper, inside hooks and
budgets, so it sees exactly what is sent. A request that cannot be kept is still sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol, cast

import msgspec

from antiphon.errors import StoreError
from antiphon.ext.turns import TurnFunction
from antiphon.input.secrets import cleaned
from antiphon.input.values import now_ms
from antiphon.model import Usage
from antiphon.model.recording import MOST_BYTES, KeptRequest
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn
from antiphon.wire.requests import keep_request
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import answered
from antiphon_worker.providers.base import Increment, ModelRequest, Outlet, Provider, StepResult

log = logging.getLogger("antiphon.requests")

SECONDS = 1.0
"""How long a model call waits for Redis to keep its request, in seconds."""
_SENT = ("model", "system", "messages", "tools", "output", "params")


class Attempt(Protocol):
    """An attempt at a turn, with the numbers of its kept requests."""

    cell: Cell
    turn: ClaimedTurn
    kept: Iterator[int]


def keeping(provider: Provider, inp: LoopInput, attempt: Attempt) -> Provider:
    """Return a wrapper of the provider that keeps its requests. Those of the fallbacks in ``inp`` are kept too."""

    def wrap(one: Provider) -> Provider:
        return KeepingProvider(one, attempt)

    if isinstance(provider, TurnFunction):
        inp.charge = wrap
        return provider
    if inp.fallback is not None:
        inp.fallback = inp.fallback.through(wrap)
    return wrap(provider)


class KeepingProvider:
    """A provider whose requests are kept."""

    def __init__(self, provider: Provider, attempt: Attempt) -> None:
        self.provider = provider
        self._attempt = attempt

    @property
    def name(self) -> str:
        return self.provider.name

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Return the call, for ``answered``."""
        return cast("AsyncIterator[Increment]", _KeptCall(self.provider, request, self.keep))

    async def aclose(self) -> None:
        await self.provider.aclose()

    async def keep(self, request: ModelRequest, stream: object, step: int) -> None:
        """Keep a request, or give up if Redis does not answer soon."""
        attempt, number = self._attempt, next(self._attempt.kept)
        turn = attempt.turn
        data = body_of(stream, request)
        body = cleaned(msgspec.json.decode(data)) if len(data) <= MOST_BYTES else None
        found = KeptRequest(step, turn.run, turn.attempt, now_ms(), self.name, request.model, len(data), body)
        try:
            async with asyncio.timeout(SECONDS):
                await keep_request(attempt.cell, turn.session_id, turn.turn_id, turn.fence, number, found)
        except (StoreError, TimeoutError) as exc:
            log.warning(
                "a request of turn %s was not kept: %s", turn.turn_id, exc or "Redis is slow",
                extra={"action": "request_not_kept", "turn": turn.turn_id},
            )  # fmt: skip


class _KeptCall:
    """One call of a ``KeepingProvider``."""

    def __init__(self, provider: Provider, request: ModelRequest, keep: Callable[..., Any]) -> None:
        self._provider = provider
        self._request = request
        self._keep = keep
        self._stream: AsyncIterator[Increment] | None = None

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return getattr(self._stream, "counted", Usage())

    async def into(self, outlet: Outlet) -> StepResult:
        """Keep the request, make the call, and put its answer into the outlet."""
        self._stream = stream = self._provider.stream(self._request)
        await self._keep(self._request, stream, getattr(outlet, "step", 0))
        return await answered(stream, outlet)


def body_of(stream: object, request: ModelRequest) -> bytes:
    """Return the JSON that a call sends: the body of its HTTP request, or what another provider receives."""
    body = getattr(stream, "body", None)
    if isinstance(body, bytes):
        return body
    return msgspec.json.encode(
        {name: value for name in _SENT if (value := getattr(request, name))}, enc_hook=str
    )
