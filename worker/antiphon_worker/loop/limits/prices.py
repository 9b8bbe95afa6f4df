"""What models cost: a table with a date that comes with the package, and the App's own prices before it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from antiphon.errors import SettingsError
from antiphon.model.usage import Usage

__all__ = ["Price", "Prices", "prices_in", "prices_of"]

_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_MILLION = 1_000_000


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What a model costs, in US dollars per million tokens.

    ``cached_input`` and ``cache_write`` are those of tokens that a service read from or wrote to its cache, by default
    ``input``. A call with more than ``up_to`` input tokens has no price.

    >>> Price(input=2.0, output=8.0).of(Usage(input_tokens=1_000_000, output_tokens=500_000))
    6.0
    """

    input: float
    output: float
    cached_input: float | None = None
    cache_write: float | None = None
    up_to: int | None = None

    def of(self, usage: Usage) -> float | None:
        """Return what one call cost, or None if its prompt is longer than the price is for.

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
    """A file of prices. Other fields, such as its date and its sources, are for people."""

    models: dict[str, Price] = field(default_factory=dict)


class Prices:
    """The prices of models by name. A model whose name ends with a date has the price of its name without it."""

    def __init__(self, models: Mapping[str, Price]) -> None:
        self._models = dict(models)
        self.price = lru_cache(1000)(self._price)

    def _price(self, model: str) -> Price | None:
        """Return the price of a model, or None if it has none."""
        return self._models.get(model) or self._models.get(_DATED.sub("", model))


@cache
def _shipped() -> dict[str, Price]:
    data = files("antiphon_worker.loop.limits").joinpath("prices.json").read_bytes()
    return msgspec.json.decode(data, type=_File).models


@cache
def prices_in(file: str) -> Prices:
    """Return ``prices_of`` a file, which is read once, or of none."""
    return prices_of(file)


def prices_of(given: object) -> Prices:
    """Return the prices that come with the package, with those given in their place: by name, or a JSON file's.

    A file holds ``{"models": {name: price}}``, as the package's own does. Raises ``SettingsError``.
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
