"""The usage of turns (tokens and cost), and limits on it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import UsageError


class Usage(Struct, omit_defaults=True):
    """Tokens as the provider counted them, and their cost in US dollars.

    ``input_tokens`` includes cached and cache-written tokens. ``cost`` is None if no model that was called has a
    price; otherwise ``unpriced_tokens`` counts the tokens that it leaves out. ``estimated_tokens`` counts the tokens
    of stopped calls, which no service has counted: they are estimated from the length of the texts.

    >>> Usage(input_tokens=900, output_tokens=100, cost=0.25).tokens
    1000
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    unpriced_tokens: int = 0
    estimated_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    @property
    def cached(self) -> float:
        """The share of the input that the service read from its cache, from 0 to 1.

        >>> Usage(input_tokens=900, cached_input_tokens=600).cached
        0.6666666666666666
        """
        return self.cached_input_tokens / self.input_tokens if self.input_tokens else 0.0

    @property
    def without_price(self) -> int:
        """The tokens of models without a price."""
        return self.tokens if self.cost is None else self.unpriced_tokens

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            sum(costs) if costs else None,
            self.without_price + other.without_price if costs else 0,
            self.estimated_tokens + other.estimated_tokens,
        )


class Limits(Struct, frozen=True, omit_defaults=True):
    """The most that the turns of an agent may use: ``Agent(…, limits=Limits(steps=10, cost=0.5))``. None means no
    limit.

    ``steps`` (model calls), ``tokens`` (input and output), ``cost`` (US dollars) and ``seconds`` (from the turn's
    first start) are for one turn. ``session_tokens`` and ``session_cost`` are for all turns of a session together.
    ``parallel_calls`` is how many tool calls of a turn run at once. ``stop`` is a list of stop conditions: functions
    that take the ``TurnStep`` s so far and return True to end the turn. In a worker's App they have names, as tools
    do.

    Tokens and cost are checked before each model call, so the last call may exceed them.

    >>> from antiphon import Agent
    >>> agent = Agent(provider="scripted", model="any", limits=Limits(tokens=10_000, seconds=60))
    >>> agent.limits.tokens
    10000
    """

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    session_tokens: int | None = None
    session_cost: float | None = None
    parallel_calls: int | None = None
    stop: list[Any] = field(default_factory=list)

    @property
    def of_cost(self) -> bool:
        """Whether the cost of a turn or its session is limited."""
        return self.cost is not None or self.session_cost is not None

    def named(self) -> Limits:
        """Return the limits with the names of the stop conditions in place of the functions.

        >>> def enough(steps): return len(steps) > 3
        >>> Limits(stop=[enough]).named().stop
        ['enough']
        """
        return (
            msgspec.structs.replace(self, stop=[stop_name(one) for one in self.stop]) if self.stop else self
        )


NO_LIMITS = Limits()
_NUMBERS = [name for name in Limits.__struct_fields__ if name != "stop"]
_WHOLE = ("steps", "tokens", "session_tokens", "parallel_calls")


def stop_name(stop: str | Callable[..., Any]) -> str:
    """Return the name of a stop condition: the name of its function."""
    return stop if isinstance(stop, str) else getattr(stop, "__name__", type(stop).__name__)


def stricter(one: Limits | None, other: Limits | None) -> Limits:
    """Return limits that satisfy both: the smaller of each number, and all stop conditions.

    >>> stricter(Limits(tokens=500, cost=1.0), Limits(tokens=100)).tokens
    100
    """
    if one is None or other is None:
        return one or other or NO_LIMITS
    numbers: dict[str, Any] = {}
    for name in _NUMBERS:
        given = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        numbers[name] = min(given, default=None)
    return Limits(**numbers, stop=[*one.stop, *(stop for stop in other.stop if stop not in one.stop)])


def checked_limits(limits: object) -> Limits | None:
    """Return the limits, or None if none are given. Raises ``UsageError``, which names the invalid one."""
    if limits is None:
        return None
    if not isinstance(limits, Limits):
        raise UsageError(f"limits= must be Limits, such as Limits(steps=10), not {limits!r}.")
    for name in _NUMBERS:
        value = getattr(limits, name)
        kinds = (int,) if name in _WHOLE else (int, float)
        if value is not None and (type(value) not in kinds or not isfinite(value) or value <= 0):
            kind = "a whole number of at least 1" if name in _WHOLE else "a number above 0"
            raise UsageError(f"Limits({name}=…) must be {kind}, not {value!r}.")
    if type(limits.stop) is not list or not all(callable(one) or isinstance(one, str) for one in limits.stop):
        raise UsageError(f"Limits(stop=…) must be a list of functions or their names, not {limits.stop!r}.")
    return limits
