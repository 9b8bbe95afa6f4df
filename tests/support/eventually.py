"""Waiting for a condition: the only clock that a test may look at."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

MOST_SECONDS = 0.05
T = TypeVar("T")

PATIENCE = 6  # limits are those of an idle machine; under other load, everything takes longer


def patience(seconds: float) -> float:
    """Return the limit for what takes at most ``seconds`` on an idle machine: for limits that only end a hang."""
    return seconds * PATIENCE


def wait_until(
    predicate: Callable[[], T], timeout: float = 10.0, description: str = "", interval: float = 0.005
) -> T:
    """Return the first true answer of ``predicate``; an assertion fails if there is none within ``timeout`` seconds.

    The real limit is ``PATIENCE`` times as long, for a busy machine: it only ends a hang.
    """
    deadline = time.monotonic() + patience(timeout)
    while not (answer := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, description, answer))
        time.sleep(interval)
        interval = _longer(interval)
    return answer


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = 10.0,
    description: str = "",
    interval: float = 0.005,
) -> T:
    """Do the same without blocking the loop; ``predicate`` may be a coroutine function."""
    deadline = time.monotonic() + patience(timeout)
    while True:
        answer = predicate()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(predicate, timeout, description, answer))
        await asyncio.sleep(interval)
        interval = _longer(interval)


def happens_within(predicate: Callable[[], object], seconds: float, interval: float = 0.02) -> bool:
    """Return whether the condition becomes true within exactly this time, for a wait that may end without it."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def _longer(interval: float) -> float:
    """Return a longer interval: on a busy machine, polling takes time from what is waited for."""
    return max(interval, min(interval * 1.1, MOST_SECONDS))


def _complaint(predicate: Callable[[], object], timeout: float, description: str, last: object) -> str:
    what = description or getattr(predicate, "__qualname__", repr(predicate))
    return f"Not within {patience(timeout):g} s: {what}. The last answer was {last!r}."
