"""Reads invalid JSON of services: lone surrogates, NaN, and numbers in place of text."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, TypeGuard

TICKS_PER_DOLLAR = 10_000_000_000


def read_any(data: bytes) -> Any:
    """Decode JSON that the strict decoder refuses. Raises ``ValueError`` or ``RecursionError``."""
    return json.loads(data)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a decoded value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a decoded value is a JSON list."""
    return isinstance(value, list)


def as_text(value: object) -> str | None:
    """Return text that can be encoded, numbers and booleans as text, and None for anything else."""
    text = as_torn_text(value)
    return None if text is None else valid(text)


def as_torn_text(value: object) -> str | None:
    """Do the same as ``as_text``, but keep half characters at both ends, whose other half may be in the next piece."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    return None


def as_int(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = float(value)
    if isinstance(value, float):
        return int(value) if abs(value) < 2**53 else None
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def as_dict(value: object) -> dict[str, Any] | None:
    """Return an object whose values can all be encoded, or None."""
    return _clean(value) if is_object(value) else None


def as_dicts(value: object) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return [_clean(entry) for entry in value if is_object(entry)] if is_list(value) else []


def as_list(value: object) -> list[Any] | None:
    """Return a list whose values can all be encoded, or None."""
    return _clean(value) if is_list(value) else None


def cost_of(usage: dict[str, Any]) -> float | None:
    """Return the cost of a call in US dollars if the service reports it.

    OpenRouter sends a number (``cost``), Perplexity an object (``cost.total_cost``), and x.ai units of 1e-10 dollars
    (``cost_in_usd_ticks``).
    """
    cost = usage.get("cost")
    known = _number(cost.get("total_cost") if is_object(cost) else cost)
    ticks = _number(usage.get("cost_in_usd_ticks"))
    return ticks / TICKS_PER_DOLLAR if known is None and ticks is not None else known


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return float(value)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if is_object(value):
        return {valid(name): _clean(entry) for name, entry in value.items()}
    if is_list(value):
        return [_clean(entry) for entry in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value) if abs(value) < 10**40 else None
    return value


class Mending:
    """Joins pieces of text that were cut between two surrogates. A surrogate without a partner becomes U+FFFD."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def piece(self, text: str) -> str:
        """Return the text that is complete with this piece."""
        text = self.held + text
        self.held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self.held = text[:-1], text[-1]
        return valid(text)

    def rest(self) -> str:
        """Return the replacement of a half character whose other half never came."""
        held, self.held = self.held, ""
        return valid(held)


def valid(text: str) -> str:
    """Return text that can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
