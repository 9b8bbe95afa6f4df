"""Reads invalid JSON of services: lone surrogates, NaN, and numbers in place of text."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

__all__ = [
    "Mending",
    "as_dict",
    "as_dicts",
    "as_int",
    "as_list",
    "as_text",
    "as_torn_text",
    "cost_of",
    "read_any",
    "valid",
]

TICKS_PER_DOLLAR = 10_000_000_000


def read_any(data: bytes) -> Any:
    """Decode JSON that the strict decoder refuses. Raises ``ValueError`` or ``RecursionError``."""
    return json.loads(data)


def as_text(value: object) -> str | None:
    """Text that can be encoded; numbers and truth values as their text; nothing else."""
    text = as_torn_text(value)
    return None if text is None else valid(text)


def as_torn_text(value: object) -> str | None:
    """Like ``as_text``, but a half of a character may stand at its ends: its other half may come next."""
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
    """An object with nothing in it that cannot be encoded."""
    return _clean(value) if isinstance(value, dict) else None


def as_dicts(value: object) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [_clean(entry) for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def as_list(value: object) -> list[Any] | None:
    """A list with nothing in it that cannot be encoded."""
    return _clean(value) if isinstance(value, list) else None


def cost_of(usage: dict[str, Any]) -> float | None:
    """What a call has cost in US dollars, where the service says so.

    OpenRouter writes a number (``cost``), Perplexity an object (``cost.total_cost``), x.ai ten thousand millionths of a
    dollar (``cost_in_usd_ticks``).
    """
    cost = usage.get("cost")
    known = _number(cost.get("total_cost") if isinstance(cost, dict) else cost)
    ticks = _number(usage.get("cost_in_usd_ticks"))
    return ticks / TICKS_PER_DOLLAR if known is None and ticks is not None else known


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return float(value)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return valid(value)
    if isinstance(value, dict):
        return {valid(name): _clean(entry) for name, entry in value.items()}
    if isinstance(value, list):
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
        """The text that is complete with this piece."""
        text = self.held + text
        self.held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self.held = text[:-1], text[-1]
        return valid(text)

    def rest(self) -> str:
        """What stands for a half that never got its other half."""
        held, self.held = self.held, ""
        return valid(held)


def valid(text: str) -> str:
    """Text that can be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
