"""Ends a model call that is silent for too long or takes too long."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol

from antiphon.errors import (
    ProviderError,
    ProviderFirstTokenTimedOut,
    ProviderSilent,
    ProviderStepTimedOut,
)
from antiphon.model import Timeouts

__all__ = ["CallTimeouts", "Heard"]

LOOKS = 8
"""How often a silence is looked at before it is too long: by so much of it the end may come late."""


class Heard(Protocol):
    """Where the pieces of an answer arrive. ``heard`` becomes true with each piece."""

    heard: bool

    @property
    def full(self) -> bool: ...


class CallTimeouts:
    """Raises the error of a time limit within it. A call has one timer, however many pieces arrive."""

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
        """End the call if it is late, or look again in time."""
        now = self._loop.time()
        if self._outlet.heard or self._outlet.full:  # with a full outlet, it is not the service that is late
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
