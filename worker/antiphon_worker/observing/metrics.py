"""Prometheus metrics of the turns of a worker.

The processes of a worker write into files of one folder, which the supervisor adds up: see ``prometheus_client``'s
multiprocess mode. The counts of a dead process are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.events import (
    BudgetReachedEvent,
    Event,
    ItemEvent,
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolResultEvent,
)
from antiphon.input.request import AgentSpec
from antiphon.model.revisions import Revision
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.observing.labels import codes, codes_of_providers, is_name

_FIRST = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ItemEvent)
MOST_NAMES = 100
"""How many models and providers have their own series in a process: a service may return any number of names."""
_names: set[str] = set()
_COMMANDS = {"EVALSHA", "EVAL", "HGET", "HMGET", "BLPOP"}
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

# Metrics of a turn have the labels of its agent and its cell. An inline agent has the label "inline".
TURNS = Counter("antiphon_turns", "Attempts at turns by how they ended", ["outcome", "code", "agent", "cell"])
TURN_SECONDS = Histogram(
    "antiphon_turn_seconds", "How long attempts took from their claim", ["outcome", "agent", "cell"],
    buckets=_SECONDS,
)  # fmt: skip
FIRST_DELTA = Histogram(
    "antiphon_first_delta_seconds", "From the claim of an attempt to the first piece of its answer",
    ["agent", "cell"], buckets=_SECONDS,
)  # fmt: skip
ACCEPTED_TO_FIRST_DELTA = Histogram(
    "antiphon_accepted_to_first_delta_seconds",
    "From the submission of a turn to the first piece of its answer, by the clocks of Redis and the worker",
    ["agent", "cell"],
    buckets=_SECONDS,
)
MODEL_CALLS = Counter("antiphon_model_calls", "Model calls that were answered", ["model", "agent", "cell"])
TOKENS = Counter(
    "antiphon_tokens", "Tokens as model services counted them", ["model", "direction", "agent", "cell"]
)
COST = Counter(
    "antiphon_cost_dollars", "What model calls with a known price cost", ["model", "agent", "cell"]
)
PROVIDER_ERRORS = Counter(
    "antiphon_provider_errors", "Attempts that an error of a model service ended",
    ["provider", "code", "agent", "cell"],
)  # fmt: skip
TOOL_CALLS = Counter("antiphon_tool_calls", "Tool calls that returned", ["result", "agent", "cell"])
LEASE_LOSSES = Counter(
    "antiphon_lease_losses", "Attempts whose lease another worker had taken", ["agent", "cell"]
)
BUDGETS_REACHED = Counter(
    "antiphon_budgets_reached", "Attempts that a budget rejected, suspended or sent to a fallback",
    ["scope", "action", "agent", "cell"],
)  # fmt: skip
TOOLS_CHANGED = Counter(
    "antiphon_mcp_tools_changed",
    "Changes to the descriptions and schemas of an MCP server's tools",
    ["server", "cell"],
)
REDIS = Histogram("antiphon_redis_seconds", "Round trips to Redis", ["command", "cell"], buckets=_SHORT)
DEATHS = ("antiphon_worker_deaths", "Processes of workers that died, or were killed because they stood still")


@cache
def _series(metric: Any, *labels: str) -> Any:
    """Return the series of a metric with these labels. There are few, because labels have few values."""
    return metric.labels(*labels)


class Metrics:
    """The ``Observer`` that counts the turns of one cell."""

    def __init__(self, cell: str) -> None:
        self._cell = cell

    def begin(self, turn: ClaimedTurn) -> _Watch:
        return _Watch(turn, self._cell)

    def command(self, name: str, seconds: float) -> None:
        _series(REDIS, name if name in _COMMANDS else "other", self._cell).observe(seconds)

    def tool_changed(self, server: str) -> None:
        _series(TOOLS_CHANGED, server, self._cell).inc()


class _Watch:
    """Counts one attempt."""

    def __init__(self, turn: ClaimedTurn, cell: str) -> None:
        self._turn = turn
        self._cell = cell
        self._agent = ""
        self._began = time.monotonic()
        self._heard = False

    def opened(self, agent: AgentSpec, revision: Revision | None) -> None:
        self._agent = _name(agent.name or "") if revision is not None else "inline"

    def event(self, event: Event) -> None:
        if isinstance(event, _FIRST):
            if not self._heard:
                self._heard = True
                self._first_delta()
        elif isinstance(event, StepFinished):
            self._step(event)
        elif isinstance(event, ToolResultEvent):
            self._of(TOOL_CALLS, "error" if event.is_error else "ok").inc()
        elif isinstance(event, BudgetReachedEvent):
            self._of(BUDGETS_REACHED, event.scope, event.action).inc()

    def end(self, outcome: str, code: str, provider: str) -> None:
        known = code if not code or code in codes() else "other"
        self._of(TURNS, outcome, known).inc()
        self._of(TURN_SECONDS, outcome).observe(time.monotonic() - self._began)
        if outcome == "superseded":
            self._of(LEASE_LOSSES).inc()
        if code in codes_of_providers():
            self._of(PROVIDER_ERRORS, _name(provider), known).inc()

    def _of(self, metric: Any, *labels: str) -> Any:
        """Return the series of a metric for this turn."""
        return _series(metric, *labels, self._agent, self._cell)

    def _first_delta(self) -> None:
        self._of(FIRST_DELTA).observe(time.monotonic() - self._began)
        turn = self._turn
        if turn.created and turn.run == 1 and not turn.journal:  # nothing of it was answered before
            waited = max(time.time() - turn.created / 1000, 0.0)
            self._of(ACCEPTED_TO_FIRST_DELTA).observe(waited)

    def _step(self, event: StepFinished) -> None:
        model, used = _name(event.model), event.usage
        self._of(MODEL_CALLS, model).inc()
        self._of(TOKENS, model, "input").inc(used.input_tokens)
        self._of(TOKENS, model, "cached_input").inc(used.cached_input_tokens)
        self._of(TOKENS, model, "output").inc(used.output_tokens)
        if used.cost:
            self._of(COST, model).inc(used.cost)


def _name(text: str) -> str:
    """Return the text as a label, or ``other`` if it does not look like a name or is one too many."""
    if text not in _names:
        if len(_names) >= MOST_NAMES or not is_name(text):
            return "other"
        _names.add(text)
    return text


class WorkerDeaths(Collector):
    """How many processes of this worker have died, which only their supervisor knows."""

    def __init__(self, deaths: Mapping[tuple[str, str], int]) -> None:
        self._deaths = deaths

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*DEATHS, labels=["cell", "code"])
        for labels, number in [*self._deaths.items()]:
            family.add_metric(labels, number)
        yield family
