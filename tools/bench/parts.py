"""The parts of the benchmark, with what each is expected to take on two cores."""

from __future__ import annotations

from dataclasses import dataclass

FULL_SECONDS = 840.0
QUICK_SECONDS = 90.0
"""What all parts together may take."""
QUICK_AT_ONCE = 2
"""A quick run only shows that everything runs, so that its parts may disturb each other."""


@dataclass(frozen=True, slots=True)
class Part:
    """``seconds`` and ``quick`` are what it is expected to take; twice that and a half minute is its limit."""

    name: str
    seconds: float
    quick: float

    def expected(self, quick: bool) -> float:
        return self.quick if quick else self.seconds

    def limit(self, quick: bool, rounds: int = 3) -> float:
        return 30 + 2 * self.expected(quick) * max(1, rounds / 3)


PARTS = (
    Part("floor", 38, 12),
    Part("turns", 46, 8),
    Part("latency", 56, 8),
    Part("streams", 158, 12),
    Part("slow", 28, 10),
    Part("cancels", 24, 8),
    Part("memory", 17, 7),
    Part("waiting", 8, 3),
    Part("commands", 8, 5),
    Part("length", 13, 3),
    Part("histories", 8, 3),
    Part("sessions", 38, 4),
    Part("subscribers", 40, 8),
    Part("gateway", 37, 12),
    Part("tenants", 26, 8),
    Part("batches", 20, 6),
    Part("limits", 17, 8),
    Part("recall", 12, 3),
    Part("recovery", 80, 14),
    Part("peers", 130, 30),
    Part("cells", 25, 7),
)


def named(names: list[str]) -> list[Part]:
    """The parts of these names in their order, all where there are none."""
    return [part for part in PARTS if not names or part.name in names]


def expected_seconds(parts: list[Part], quick: bool) -> float:
    together = sum(part.expected(quick) for part in parts)
    at_once = min(QUICK_AT_ONCE, len(parts)) if quick else 1
    return together / at_once
