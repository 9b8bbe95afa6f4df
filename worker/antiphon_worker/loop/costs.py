"""Counts what a turn uses: tokens, prices and limits."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from antiphon.errors import LimitReached, SettingsError, TurnFailed, UnknownPrice, UnknownTool
from antiphon.model import Message, TurnStep
from antiphon.model.usage import NO_LIMITS, Limits, Usage, stop_name
from antiphon.tools.threads import Threads
from antiphon.window import BYTES_PER_TOKEN, estimated_tokens
from antiphon_worker.loop.toolbox import is_stop
from antiphon_worker.providers.base import ModelRequest

_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_MILLION = 1_000_000


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, in US dollars per million tokens.

    ``cached_input`` and ``cache_write`` are the prices of tokens that a service read from or wrote to its cache;
    default: ``input``. A call with more than ``up_to`` input tokens has no price.

    >>> Price(input=2.0, output=8.0).of(Usage(input_tokens=1_000_000, output_tokens=500_000))
    6.0
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    up_to: int | None = None

    def of(self, usage: Usage) -> float | None:
        """Return the cost of one call, or None if its prompt exceeds ``up_to``.

        >>> Price(input=2.0, output=8.0, up_to=1_000).of(Usage(input_tokens=1_001)) is None
        True
        """
        if self.up_to is not None and usage.input_tokens > self.up_to:
            return None
        cached, written = usage.cached_input_tokens, usage.cache_write_tokens
        plain = max(0, usage.input_tokens - cached - written)
        read_at = self.input if self.cached_input is None else self.cached_input
        write_at = self.input if self.cache_write is None else self.cache_write
        dollars = plain * self.input + cached * read_at + written * write_at
        return (dollars + usage.output_tokens * self.output) / _MILLION


class _File(Struct):
    """A file of prices. Other fields, such as its date and its sources, are for readers."""

    models: dict[str, Price] = field(default_factory=dict)


class Prices:
    """The prices of models by name. A model name that ends with a date has the price of the name without the date."""

    def __init__(self, models: Mapping[str, Price]) -> None:
        self._models = dict(models)
        self.price = lru_cache(1000)(self._price)

    def _price(self, model: str) -> Price | None:
        """Return the price of a model, or None if it has none."""
        return self._models.get(model) or self._models.get(_DATED.sub("", model))


@cache
def _shipped() -> dict[str, Price]:
    data = files("antiphon_worker.loop").joinpath("prices.json").read_bytes()
    return msgspec.json.decode(data, type=_File).models


@cache
def prices_in(file: str) -> Prices:
    """Return ``prices_of(file)``; a file is read only once."""
    return prices_of(file)


def prices_of(given: object) -> Prices:
    """Return the prices shipped with the package, overridden by those given: a mapping by name, or a JSON file.

    A file contains ``{"models": {name: price}}``, like the package's own. Raises ``SettingsError``.
    """
    if not given:
        return Prices(_shipped())
    if not isinstance(given, Mapping | str | Path):
        raise SettingsError(f"prices= must be a dictionary of Price by model, or a file, not {given!r}.")
    own: Any
    try:
        if isinstance(given, Mapping):
            own = {"models": msgspec.to_builtins(dict(cast("Mapping[Any, Any]", given)))}
        else:
            own = msgspec.json.decode(Path(given).read_bytes())
        models = msgspec.convert(own, _File).models
    except (OSError, TypeError, UnicodeError, RecursionError, msgspec.MsgspecError) as exc:
        what = "prices=" if isinstance(given, Mapping) else f"The prices in {str(given)!r}"
        raise SettingsError(f"{what} cannot be read: {exc}.") from exc
    for model, price in models.items():
        numbers = [price.input, price.output, price.cached_input or 0.0, price.cache_write or 0.0]
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise SettingsError(f"The price of the model {model!r} must be 0 or more: {price}.")
    return Prices({**_shipped(), **models})


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
    """Return the functions of the stop conditions; names are looked up in ``known``. Raises ``UnknownTool``."""
    for stop in limits.stop:
        if isinstance(stop, str) and stop not in known:
            raise UnknownTool(f"Unknown stop condition {stop!r} here: pass its function in Limits(stop=[…]).")
    return [known[stop] if isinstance(stop, str) else stop for stop in limits.stop]


def stopped_usage(request: ModelRequest, stream: object, outlet: object) -> Usage:
    """Return the usage of a stopped call: as its service has reported so far, and the rest estimated."""
    counted: Usage = getattr(stream, "counted", Usage())
    received: int = getattr(outlet, "received", 0)
    given = counted.input_tokens or estimated_input(request)
    made = max(counted.output_tokens, -(-received // BYTES_PER_TOKEN))
    return msgspec.structs.replace(
        counted, input_tokens=given, output_tokens=made, estimated_tokens=given + made - counted.tokens
    )


def estimated_input(request: ModelRequest) -> int:
    """Return the estimated number of input tokens of a request, from its length."""
    system, tools = request.system or "", msgspec.json.encode(request.tools, enc_hook=str).decode()
    return estimated_tokens([*request.messages, Message.system(system + tools)])


class Meter:
    """Counts what one turn uses. ``before`` is the usage of its session, ``spent`` the seconds since its first start.

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
        """Begin with the usage of earlier attempts. Raises ``UnknownPrice`` if a limited cost is unknown."""
        self._used[:0] = earlier
        self.check_price(model)
        unpriced = self._before.without_price if self._before else 0
        if self.limits.session_cost is not None and unpriced:
            raise UnknownPrice(
                f"This session has used {unpriced:,} tokens of models without a price, so its cost is "
                "unknown: omit session_cost=, or use session_tokens=."
            )

    def check_price(self, model: str) -> None:
        """Raise ``UnknownPrice`` if a cost is limited and the model to be called has no price."""
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

    def priced(self, usage: Usage, model: str) -> Usage:
        """Return the usage of a call with its cost, without counting it."""
        price = self._prices.price(model)
        return msgspec.structs.replace(usage, cost=price.of(usage)) if price and usage.cost is None else usage

    def count_stopped(self, request: ModelRequest, stream: object, outlet: object) -> None:
        """Count a stopped model call: as its service has reported so far, and the rest estimated."""
        self.count(stopped_usage(request, stream, outlet), request.model, request.model)

    @property
    def used(self) -> Usage | None:
        """What the turn has used in all its attempts, or None if no usage is counted yet."""
        return sum(self._used[1:], self._used[0]) if self._used else None

    @property
    def seconds_left(self) -> float | None:
        """How many seconds the turn may still run, or None if this is not limited."""
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
