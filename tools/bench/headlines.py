"""The figures that a reader asks for first; a few of them stand in the README."""

from __future__ import annotations

from dataclasses import dataclass

from bench.kept import Kept
from bench.results import number


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure in words, where it stands among the kept ones, and what it is to be: at least or at most."""

    words: str
    part: str
    subject: str
    what: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    in_readme: bool = False

    def shown(self, value: float) -> str:
        return f"{number(value)} {self.unit}".strip()

    def aim(self, value: float) -> str:
        """The aim and whether it is reached; nothing where there is none."""
        if self.least is not None:
            aim, reached = f"≥ {self.shown(self.least)}", value >= self.least
        elif self.most is not None:
            aim, reached = f"≤ {self.shown(self.most)}", value <= self.most
        else:
            return ""
        return f"{aim}: {'reached' if reached else '**not reached**'}"


KNEE = "the knee at 50/s"
FIRST = "first delta p50"
AFTER = "goes on after"

RATIO = "against bare SDK calls"

HEADLINES = (
    Headline("turns a second in one worker process", "turns", "through one worker process", "turns", in_readme=True),
    Headline(
        "… against bare SDK calls in the same round",
        "turns", "one worker process", RATIO, "×", least=0.85, in_readme=True,
    ),
    Headline("turns a second in two worker processes", "turns", "through two worker processes", "turns"),
    Headline("submit to first delta, idle, p50", "latency", "idle: turn", FIRST, "ms", in_readme=True),
    Headline(
        "… beyond a bare SDK call",
        "latency", "idle: turn beyond a bare SDK call", FIRST, "ms", most=1.5, in_readme=True,
    ),
    Headline("submit to first delta at half load, p50", "latency", "half load: turn", FIRST, "ms"),
    Headline(
        "live streams at 50 tokens/s in one process, lag within 50 ms p99",
        "streams", KNEE, "live streams", in_readme=True,
    ),
    Headline("… chunks a second", "streams", KNEE, "carried", least=25_000),
    Headline("… lag of 400 of them, p99", "streams", "400 streams at 50/s", "lag p99", "ms", most=50),
    Headline("round trips of `submit`", "commands", "submit", "round trips", most=1),
    Headline("round trips of a run whose turn waited with others", "commands", "run", "round trips", most=2),
    Headline("memory of a turn in flight, in the worker", "memory", "a turn in flight", "in the worker", "KiB"),
    Headline(
        "`kill -9` of a worker process, another one beside it: the turn goes on after",
        "recovery", "Antiphon, kill -9 of one of two processes", AFTER, "s", most=1, in_readme=True,
    ),
    Headline(
        "… of the only one: after", "recovery", "Antiphon, kill -9 of the only process", AFTER, "s", most=1,
    ),
    Headline(
        "a host that is gone, lease 10 s: after",
        "recovery", "Antiphon, a host is gone, lease 10 s", AFTER, "s", most=11, in_readme=True,
    ),
)  # fmt: skip


def headlines(kept: Kept) -> list[tuple[Headline, float]]:
    """Those that were measured, each with its figure."""
    values = [(one, kept.value(one.part, one.subject, one.what)) for one in HEADLINES]
    return [(one, value) for one, value in values if value is not None]
