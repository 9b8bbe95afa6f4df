"""Retries, timeouts, fallbacks and rate limits of model calls.

While no limit is known, calls have no overhead. A worker learns of a limit from its own calls, or from the channel
where another worker announces it. Then each call of that model and key asks the bucket in Redis when it may start.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from antiphon.errors import (
    ProviderError,
    ProviderFirstTokenTimedOut,
    ProviderSilent,
    ProviderStepTimedOut,
    StoreError,
)
from antiphon.events import Event, ModelChanged, TurnRetrying
from antiphon.model import FallbackModel, Retry, ServiceAnswer, Timeouts
from antiphon.wire.cell import Cell
from antiphon.wire.connection.pubsub import LiveFeed
from antiphon.wire.rate_limits import admit, limit
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.http.limits import HeldBack, Pressure

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0
SHORTEST_SHARE = 8
FALLBACK_SECONDS = 10.0
"""How long a model with a fallback is retried, in seconds, unless its agent sets it: a user may be waiting."""


def seconds_until_retry(error: ProviderError, errors: int, failing: float, retry: Retry) -> float | None:
    """Return the seconds until the next try, or None if the policy gives up.

    ``errors`` is the number of earlier errors of the run. ``failing`` is how many seconds the service has failed in
    this step: it starts from 0 when the turn makes progress.
    """
    if not error.retryable or not _listed(error, retry):
        return None
    if retry.times is not None and errors >= retry.times:
        return None
    delay = _delay(error, errors, FIRST_DELAY_SECONDS if retry.delay is None else max(retry.delay, 0.0))
    return delay if failing + delay <= retry.seconds else None


def _listed(error: ProviderError, retry: Retry) -> bool:
    """Return whether the policy names the error's code, or that of a base class."""
    return retry.codes is None or any(
        getattr(kind, "code", None) in retry.codes for kind in type(error).__mro__
    )


def _delay(error: ProviderError, errors: int, first: float) -> float:
    """Return the doubling delay, or the one that the service asked for, but at least a share of the doubling one."""
    doubling = min(first * 2 ** min(errors, 30), LONGEST_DELAY_SECONDS)
    if error.retry_after is None:
        return doubling * random.uniform(0.8, 1.2)
    return min(max(error.retry_after, doubling / SHORTEST_SHARE), LONGEST_DELAY_SECONDS)


LOOKS = 8
"""How many checks a limit of silence is divided into: a timeout may be late by one part."""


class Heard(Protocol):
    """Receives the pieces of an answer. ``heard`` becomes True with each piece."""

    heard: bool

    @property
    def full(self) -> bool: ...


class CallTimeouts:
    """Raises the error of a time limit inside this context. A call has one timer, however many pieces arrive."""

    def __init__(self, timeouts: Timeouts, provider: str, outlet: Heard) -> None:
        self._timeouts = timeouts
        self._provider = provider
        self._outlet = outlet
        self._begun = False  # the answer
        self._error: ProviderError | None = None

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._asked = self._since = self._loop.time()
        self._next: asyncio.TimerHandle | None = None
        self._look()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, error, self._task = self._task, self._error, None
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if error is not None and task is not None and task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise error from None

    def _look(self) -> None:
        """End the call if it is late, or schedule the next check."""
        now = self._loop.time()
        if self._outlet.heard or self._outlet.full:  # if the outlet is full, the service is not late
            self._begun = self._begun or self._outlet.heard
            self._outlet.heard, self._since = False, now
        between = self._timeouts.between_tokens
        silent = between if self._begun else self._timeouts.first_token
        ends = [
            start + limit
            for start, limit in ((self._since, silent), (self._asked, self._timeouts.step))
            if limit is not None
        ]
        if ends and min(ends) <= now:
            self._error = self._late(silent is not None and self._since + silent <= now)
            self._next = None
            if self._task is not None:
                self._task.cancel()
        elif ends or between is not None:
            looks = [] if between is None else [now + between / LOOKS]
            self._next = self._loop.call_at(min(ends + looks), self._look)

    def _late(self, silent: bool) -> ProviderError:
        timeouts, name = self._timeouts, self._provider
        if not silent:
            return ProviderStepTimedOut(
                f"{name} did not end its answer within {timeouts.step:g} s. Limit max_tokens, or raise "
                "Timeouts(step=…) of the agent or the App."
            )
        if self._begun:
            return ProviderSilent(
                f"{name} said nothing for {timeouts.between_tokens:g} s in the middle of its answer. Try again later, "
                "or raise Timeouts(between_tokens=…) of the agent or the App."
            )
        return ProviderFirstTokenTimedOut(
            f"{name} did not begin its answer within {timeouts.first_token:g} s. Try again later, or raise "
            "Timeouts(first_token=…) of the agent or the App."
        )


class ModelChoice:
    """A model that can be called. ``place`` is 0 for the agent's model, and from 1 for its fallbacks."""

    def __init__(self, provider: Provider, model: str, params: dict[str, Any], place: int = 0) -> None:
        self.provider = provider
        self.model = model
        self.params = params
        self.place = place

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.model}"


def unforced(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of later model calls: a model forced to call a tool each time could never answer."""
    choice: Any = params.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto", "none"):
        return params
    return {name: value for name, value in params.items() if name != "tool_choice"}


class Fallback:
    """The fallbacks of an agent. A finished step names the model that answered, and the next step begins with it.

    ``open_provider`` returns a provider by its place in ``models``, from 0. ``gives_up`` returns whether a model that
    raised this error is given up; otherwise the error ends the attempt, and the next attempt tries the same model.
    """

    def __init__(
        self,
        models: Sequence[FallbackModel],
        open_provider: Callable[[int], Awaitable[Provider]],
        gives_up: Callable[[ProviderError], bool],
    ) -> None:
        self._models = models
        self._open = open_provider
        self._gives_up = gives_up

    def through(self, wrap: Callable[[Provider], Provider]) -> Fallback:
        """Return these fallbacks with their providers wrapped by ``wrap``."""
        return self.placed(lambda provider, _: wrap(provider))

    def placed(self, wrap: Callable[[Provider, int], Provider]) -> Fallback:
        """Do the same with a ``wrap`` that also takes their places, from 1."""

        async def opened(place: int) -> Provider:
            return wrap(await self._open(place), place + 1)

        return Fallback(self._models, opened, self._gives_up)

    async def at(self, place: int, first: ModelChoice) -> ModelChoice:
        """Return the model at this place, or the last one if the agent has fewer now."""
        place = min(place, len(self._models))
        if place == 0:
            return first
        model = self._models[place - 1]
        provider = await self._open(place - 1)
        return ModelChoice(provider, model.model, {**first.params, **model.params}, place)

    async def after(
        self, error: ProviderError, failed: ModelChoice, first: ModelChoice
    ) -> ModelChoice | None:
        """Return the model that replaces a failed one, or None."""
        if failed.place >= len(self._models) or not self._gives_up(error):
            return None
        return await self.at(failed.place + 1, first)


def changed(step: int, error: ProviderError, failed: ModelChoice, found: ModelChoice) -> list[Event]:
    """Return the events of a change: the step starts again, and another model answers."""
    code = str(error.code)
    return [
        TurnRetrying(step=step, reason=error.message, code=code, service=ServiceAnswer.of(error)),
        ModelChanged(step=step, source=failed.name, target=found.name, code=code),
    ]


log = logging.getLogger("antiphon.limits")

BRIEF_SECONDS = 1.0
"""How long a turn waits in its process, in seconds. A turn that must wait longer is requeued and frees its place."""
MOST_SCOPES = 1_000
LONGEST_MS = 3_600_000.0
SILENCE_SECONDS = 3600.0
REFUSED_SECONDS = 60.0


class _All:
    """Contains every scope."""

    def __contains__(self, scope: object) -> bool:
        return True


class RateLimits:
    """The ``Gate`` of one worker process, and its known limits."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.known: dict[str, float] = {}  # scopes with a bucket, and its latest end

    async def run(self, feed: LiveFeed) -> None:
        """Listen for limits that other workers meet, until cancelled."""
        while True:
            try:
                await self._listen(feed)
            except StoreError as exc:
                log.warning(
                    "rate limits that other workers meet cannot be heard: %s", exc, extra={"action": "outage"}
                )
            await asyncio.sleep(REFUSED_SECONDS)

    async def enter(self, scope: str) -> None:
        """Return when a call may start. Raises ``HeldBack`` if that takes longer than ``BRIEF_SECONDS``."""
        waited = 0.0
        while (until := self.known.get(scope)) is not None and time.monotonic() < until:
            try:
                ms = await admit(self._cell, scope)
            except StoreError:
                return  # buckets are only advice
            if ms == 0:
                return
            if ms is None:
                break
            if waited + ms / 1000 > BRIEF_SECONDS:
                name = scope.rpartition("/")[0]
                raise HeldBack(
                    f"The service limits the rate of calls of {name}; this call would wait "
                    f"{ms / 1000:.1f} s. Wait, or ask the service for a higher limit.",
                    retry_after=ms / 1000,
                )
            await asyncio.sleep(ms / 1000)
            waited += ms / 1000
        self.known.pop(scope, None)

    async def heard(self, scope: str, pressure: Pressure) -> None:
        """Slow down all workers of the cell."""
        with suppress(StoreError):
            lasts = await limit(self._cell, scope, int(pressure.wait * 1000), pressure.gap * 1000)
            self.know(scope, lasts)
            log.info(
                "rate limit of %s: no call for %.1f s", scope.rpartition("/")[0], pressure.wait,
                extra={"action": "rate_limited"},
            )  # fmt: skip

    async def _listen(self, feed: LiveFeed) -> None:
        async with feed.listen(self._cell.keys.buckets(self._cell.database)) as listener:
            while True:
                try:
                    message = await listener.get(SILENCE_SECONDS)
                except TimeoutError:
                    continue
                with suppress(ValueError):  # any client that may publish here can send anything
                    ms, scope = message.decode().split(" ", 1)
                    self.know(scope, min(float(ms), LONGEST_MS))

    def know(self, scope: str, ms: float) -> None:
        """Note that this scope may have a bucket for so long: calls ask it."""
        if len(self.known) >= MOST_SCOPES:
            self.known.clear()  # they are announced again
        self.known[scope] = time.monotonic() + ms / 1000


class AskedLimits:
    """The ``Gate`` of a process that runs one turn: it does not listen for limits, so each call asks the bucket."""

    known: Container[str] = _All()

    def __init__(self, cell: Cell) -> None:
        self._limits = RateLimits(cell)

    async def enter(self, scope: str) -> None:
        """Return when a call may start, or raise ``HeldBack``."""
        self._limits.know(scope, LONGEST_MS)
        await self._limits.enter(scope)

    async def heard(self, scope: str, pressure: Pressure) -> None:
        """Slow down all workers of the cell."""
        await self._limits.heard(scope, pressure)
