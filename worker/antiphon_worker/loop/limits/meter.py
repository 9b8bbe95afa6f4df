"""What a turn has used so far, and the limits on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from antiphon.errors import LimitReached, TurnFailed, UnknownPrice, UnknownTool
from antiphon.model import TurnStep
from antiphon.model.usage import NO_LIMITS, Limits, Usage, stop_name
from antiphon.tools.threads import Threads
from antiphon_worker.loop.limits.prices import Prices
from antiphon_worker.loop.tools.calls import is_stop

__all__ = ["Meter", "stop_functions", "used_by"]

log = logging.getLogger("antiphon.limits")

_NO_PRICES = Prices({})
_NO_WAIT = nullcontext()
_REACHED = {
    "tokens": "The turn has used {used:,} tokens of the {most:,} that it may use",
    "cost": "The turn has cost ${used:.4g} of the ${most:.4g} that it may cost",
    "session_tokens": "The turns of this session have used {used:,} tokens of the {most:,} that they may use",
    "session_cost": "The turns of this session have cost ${used:.4g} of the ${most:.4g} that they may cost",
}


def stop_functions(limits: Limits, known: Mapping[str, Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Return the functions of the stop conditions; ``known`` are those that a name may mean. Raises ``UnknownTool``."""
    for stop in limits.stop:
        if isinstance(stop, str) and stop not in known:
            raise UnknownTool(
                f"There is no stop condition {stop!r} here: pass its function in Limits(stop=[…])."
            )
    return [known[stop] if isinstance(stop, str) else stop for stop in limits.stop]


def used_by(session: Usage | None, turn: Usage) -> Usage | None:
    """Return what a session has used with one more turn."""
    return (session or Usage()) + turn if turn.tokens else session


class Meter:
    """Counts what one turn uses. ``before`` is what its session has used, ``spent`` the seconds since its first start.

    ``stop`` are the functions of the stop conditions.
    """

    def __init__(
        self,
        limits: Limits = NO_LIMITS,
        prices: Prices = _NO_PRICES,
        stop: Sequence[Callable[..., Any]] = (),
        *,
        before: Usage | None = None,
        spent: float = 0.0,
    ) -> None:
        self.limits = limits
        self._prices = prices
        self._stop = stop
        self._before = before
        self._ends_at = None if limits.seconds is None else time.monotonic() - spent + limits.seconds
        self._used: list[Usage] = []
        self.tokens = 0  # of the model calls of this attempt
        calls = limits.parallel_calls
        self.room = _NO_WAIT if calls is None else asyncio.Semaphore(calls)  # for one tool call

    def begin(self, model: str, earlier: Iterable[Usage]) -> None:
        """Begin with what earlier attempts used. Raises ``UnknownPrice`` if a cost is limited that nobody can know."""
        self._used[:0] = earlier
        self.check_price(model)
        unpriced = self._before.without_price if self._before else 0
        if self.limits.session_cost is not None and unpriced:
            raise UnknownPrice(
                f"This session has used {unpriced:,} tokens of models without a price, so that its cost is not known: "
                "leave session_cost= out, or use session_tokens=."
            )

    def check_price(self, model: str) -> None:
        """Raise ``UnknownPrice`` if a cost is limited and the model that is to be called has no price."""
        if self.limits is not NO_LIMITS and self.limits.of_cost and self._prices.price(model) is None:
            raise UnknownPrice(_no_price(model))

    def count(self, usage: Usage, answered: str, asked: str) -> Usage:
        """Count a model call; return its usage with its cost. ``answered`` and ``asked`` are names of its model."""
        price = self._prices.price(answered) or self._prices.price(asked)
        if price is not None and usage.cost is None:
            usage = msgspec.structs.replace(usage, cost=price.of(usage))
        self._used.append(usage)
        self.tokens += usage.input_tokens + usage.output_tokens
        return usage

    @property
    def used(self) -> Usage | None:
        """What the turn has used in all its attempts, or None before the loop has begun and where it is nothing."""
        return sum(self._used[1:], self._used[0]) if self._used else None

    @property
    def seconds_left(self) -> float | None:
        """How long the turn may still run, or None where that is not limited."""
        return None if self._ends_at is None else self._ends_at - time.monotonic()

    def reached(self) -> LimitReached | None:
        """Return the limit that leaves no room for another model call. Raises ``UnknownPrice``."""
        limits = self.limits
        if limits is NO_LIMITS:
            return None
        used = self.used or Usage()
        if limits.of_cost and used.without_price:
            raise UnknownPrice(_no_price("that answered"))
        whole = used if self._before is None else self._before + used
        for name, found in (
            ("tokens", used.tokens), ("cost", used.cost or 0.0),
            ("session_tokens", whole.tokens), ("session_cost", whole.cost or 0.0),
        ):  # fmt: skip
            most = getattr(limits, name)
            if most is not None and found >= most:
                return LimitReached(_REACHED[name].format(used=found, most=most) + ".", limit=name)
        return None

    async def stopped(self, steps: Callable[[], list[TurnStep]], threads: Threads) -> str:
        """Return the name of the first stop condition that ends the turn, or ''. Raises ``TurnFailed`` if one fails."""
        for one in self._stop:
            try:
                over = bool(await threads.ask(one, steps()))
            except BaseException as exc:
                if is_stop(exc):
                    raise
                log.debug("stop condition %s", stop_name(one), exc_info=exc)
                raise TurnFailed(
                    f"The stop condition {stop_name(one)!r} raised {type(exc).__name__}.",
                    code="stop_condition",
                ) from exc
            if over:
                return stop_name(one)
        return ""


def _no_price(model: str) -> str:
    return (
        f"The model {model} has no price for this call, so that its cost cannot be limited: give the worker's "
        "App(prices=…) its price, or limit tokens."
    )
