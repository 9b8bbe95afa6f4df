"""Steps, sleeps, waits and agents: the checks and the code of ``context.step``, ``sleep`` and similar calls."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from antiphon.errors import StepFailed, UsageError
from antiphon.input.limits import check_depth, check_size
from antiphon.input.values import is_a
from antiphon.tools.results import plain_value

LONGEST_PAUSE_SECONDS = 60.0
LONGEST_SLEEP = timedelta(days=30)
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,64}")


class DurableCall(Protocol):
    """The journal of one tool call or turn function, provided by a runtime."""

    async def step(self, name: str, run: Callable[[], Awaitable[Any]], at_most_once: bool) -> Any: ...

    async def sleep(self, seconds: float) -> None: ...

    async def run_agent(self, tool: Any, text: str, context: Any) -> str: ...

    async def wait_for_event(
        self, event: str, seconds: float, about: dict[str, Any] | None = None
    ) -> Any: ...


def check_step(name: object, retries: object, timeout: object) -> None:
    """Raise ``UsageError`` if an argument of a step is invalid, or if no event loop runs here."""
    if not is_a(name, str) or not _NAME.fullmatch(str(name)):
        raise UsageError(
            f"{str(name)[:80]!r} is not a valid step name: use 1 to 64 letters, digits and any of '_.:/-'."
        )
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise UsageError(f"retries= must be a number from 0, not {retries!r}.")
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0
    ):
        raise UsageError(f"timeout= must be a positive number of seconds or None, not {timeout!r}.")
    check_async("step")


def check_async(what: str) -> None:
    """Raise ``UsageError`` in a tool that is not asynchronous: nothing there could await a step."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"context.{what} must be awaited in an asynchronous tool: define the tool with `async def`."
        ) from None


def seconds_of(duration: object, what: str = "sleep") -> float:
    """Return the seconds of a sleep or a wait. Raises ``UsageError``, also if nothing here can await it."""
    seconds = seconds_of_duration(duration, what)
    check_async(what)
    return seconds


def seconds_of_duration(duration: object, what: str = "sleep") -> float:
    """Return the seconds of a duration of 30 days at most. Raises ``UsageError``."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    most = LONGEST_SLEEP.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= most:
        raise UsageError(
            f"context.{what} takes a timedelta or seconds, from 0 to {LONGEST_SLEEP.days} days, not {duration!r}."
        )
    return float(seconds)


async def attempts(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    retries: int, timeout: float | None,
) -> Any:  # fmt: skip
    """Call the function of a step until it returns, and return its value as plain JSON types.

    The pause before an attempt doubles from 1 s, to 60 s at most. Raises ``StepFailed`` from the last exception.
    """
    pause = 1.0
    for left in range(retries, -1, -1):
        try:
            async with asyncio.timeout(timeout):
                return plain_result(name, await _called(function, args, kwargs))
        except Exception as exc:
            if not left:
                raise StepFailed(f"Step {name!r} failed: {_described(exc, timeout)}.") from exc
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    raise AssertionError("unreachable")


async def _called(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    found = await asyncio.to_thread(function, *args, **kwargs)
    return await found if inspect.isawaitable(found) else found


def _described(exc: Exception, timeout: float | None) -> str:
    if isinstance(exc, TimeoutError) and timeout is not None and not str(exc):
        return f"it did not return within {timeout:g} s"
    return f"{type(exc).__name__}: {str(exc).rstrip('.')}" if str(exc) else type(exc).__name__


def plain_result(name: str, value: Any) -> Any:
    """Return a copy of a step's result as plain JSON types. Raises ``UsageError`` and ``LimitReached``."""
    try:
        encoded = msgspec.json.encode(value, enc_hook=plain_value)
        check_size("step_bytes", len(encoded), f"The result of step {name!r} in bytes")
        found = msgspec.json.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"The result of step {name!r} cannot be written as JSON: {exc}.") from exc
    check_depth(found, f"The result of step {name!r}")
    return found
