"""The attempts at a local turn: it is tried again as its agent's ``Retry`` says, and waits in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from antiphon.errors import ProviderError
from antiphon.events import Event, TurnRetrying, TurnStarted
from antiphon.input.values import now_ms
from antiphon.model import Retry, ServiceAnswer
from antiphon.session.turn_info import TurnInfo
from antiphon_worker.resilience import seconds_until_retry

T = TypeVar("T")


class Attempts:
    """Counts the errors of a turn, and decides when it is retried.

    ``put`` publishes events, and ``step`` is the step that the next attempt begins with.
    """

    def __init__(
        self, turn: TurnInfo, retry: Retry | None, put: Callable[[Event], None], step: Callable[[], int]
    ) -> None:
        self._turn = turn
        self._retry = retry or Retry(seconds=0)
        self._put = put
        self._step = step
        self._errors = 0
        self._failing: tuple[int, float] = (0, 0.0)  # the step, and since when its service fails
        self._again: tuple[ProviderError, float | None] | None = (
            None  # the last error, and the pause after it
        )

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run attempts until one returns. Raises the last error."""
        while True:
            try:
                return await attempt()
            except ProviderError as exc:
                delay = self._pause(exc)
                if delay is None:
                    raise
                await self._wait(exc, self._step(), delay)

    def gives_up(self, error: ProviderError) -> bool:
        """Return whether the model that raised this error is not tried again."""
        return self._pause(error) is None

    def _pause(self, error: ProviderError) -> float | None:
        """Return the seconds until the next try. The same error gets the same answer."""
        if self._again is None or self._again[0] is not error:
            failing = time.monotonic() - self._failing[1] if self._failing[0] == self._step() else 0.0
            self._again = error, seconds_until_retry(error, self._errors, failing, self._retry)
        return self._again[1]

    async def _wait(self, error: ProviderError, step: int, delay: float) -> None:
        if self._failing[0] != step:
            self._failing = (step, time.monotonic())
        turn, code = self._turn, str(error.code)
        self._errors, self._again = self._errors + 1, None
        self._put(
            TurnRetrying(
                step=step, reason=error.message, code=code, retry_at=now_ms() + int(delay * 1000),
                service=ServiceAnswer.of(error),
            )
        )  # fmt: skip
        turn.status, turn.code, turn.error, turn.service = (
            "retrying",
            code,
            error.message,
            ServiceAnswer.of(error),
        )
        try:
            await asyncio.sleep(delay)
        finally:
            turn.status, turn.code, turn.error, turn.service = "running", None, None, None
        turn.attempt += 1
        self._put(TurnStarted(step=step, worker="local"))
