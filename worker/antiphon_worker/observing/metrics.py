"""Prometheus metrics: what happens to turns, and what each scrape reads from Redis.

The processes of a worker write into files of one folder, which the supervisor adds up: see ``prometheus_client``'s
multiprocess mode. What a dead process has counted stays counted.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from functools import cache

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.errors import AgentError, ProviderError
from antiphon.events import (
    Event,
    ItemEvent,
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolResultEvent,
)
from antiphon.redis.connections import Connections
from antiphon.redis.deployment import Overview, overview
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.settings import Settings

_FIRST = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta, ItemEvent)
_NAME = re.compile(r"[\w.:/@+-]{1,100}")
MOST_NAMES = 100
"""So many models and providers have series of their own in a process: a service may call its models by new names."""
_names: set[str] = set()
_COMMANDS = {"EVALSHA", "EVAL", "HGET", "HMGET", "BLPOP"}
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

TURNS = Counter("antiphon_turns", "Attempts at turns by how they ended", ["outcome", "code"])
TURN_SECONDS = Histogram(
    "antiphon_turn_seconds", "How long attempts took from their claim", ["outcome"], buckets=_SECONDS
)
FIRST_DELTA = Histogram(
    "antiphon_first_delta_seconds",
    "From the claim of an attempt to the first piece of its answer",
    buckets=_SECONDS,
)
MODEL_CALLS = Counter("antiphon_model_calls", "Model calls that were answered", ["model"])
TOKENS = Counter("antiphon_tokens", "Tokens as model services counted them", ["model", "direction"])
COST = Counter("antiphon_cost_dollars", "What model calls with a known price cost", ["model"])
PROVIDER_ERRORS = Counter(
    "antiphon_provider_errors", "Attempts that an error of a model service ended", ["provider", "code"]
)
TOOL_CALLS = Counter("antiphon_tool_calls", "Tool calls that returned", ["result"])
LEASE_LOSSES = Counter("antiphon_lease_losses", "Attempts whose lease another worker had taken")
REDIS = Histogram("antiphon_redis_seconds", "Round trips to Redis", ["command"], buckets=_SHORT)


class Metrics:
    """The ``Observer`` that counts."""

    def begin(self, turn: ClaimedTurn) -> _Watch:
        return _Watch()

    def command(self, name: str, seconds: float) -> None:
        REDIS.labels(name if name in _COMMANDS else "other").observe(seconds)


class _Watch:
    """Counts one attempt."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._heard = False

    def event(self, event: Event) -> None:
        if isinstance(event, _FIRST):
            if not self._heard:
                self._heard = True
                FIRST_DELTA.observe(time.monotonic() - self._began)
        elif isinstance(event, StepFinished):
            _count_step(event)
        elif isinstance(event, ToolResultEvent):
            TOOL_CALLS.labels("error" if event.is_error else "ok").inc()

    def end(self, outcome: str, code: str, provider: str) -> None:
        known = code if not code or code in _codes() else "other"
        TURNS.labels(outcome, known).inc()
        TURN_SECONDS.labels(outcome).observe(time.monotonic() - self._began)
        if outcome == "superseded":
            LEASE_LOSSES.inc()
        if code in _codes_of_providers():
            PROVIDER_ERRORS.labels(_name(provider), known).inc()


def _count_step(event: StepFinished) -> None:
    model, used = _name(event.model), event.usage
    MODEL_CALLS.labels(model).inc()
    TOKENS.labels(model, "input").inc(used.input_tokens)
    TOKENS.labels(model, "output").inc(used.output_tokens)
    if used.cost:
        COST.labels(model).inc(used.cost)


def _name(text: str) -> str:
    """A name that a label may have: what a service says is not a label until it looks like a name, and a few do."""
    if text not in _names:
        if len(_names) >= MOST_NAMES or not _NAME.fullmatch(text):
            return "other"
        _names.add(text)
    return text


@cache
def _codes() -> frozenset[str]:
    """The codes of errors: an App may raise others, which could hold anything."""
    own = {"drained", "newer_release", "worker_crashed", "worker_died", "loop_stalled", "internal_error"}
    return frozenset(_codes_below(AgentError) | own)


@cache
def _codes_of_providers() -> frozenset[str]:
    return frozenset(_codes_below(ProviderError))


def _codes_below(kind: type[AgentError]) -> set[str]:
    return {str(kind.code)}.union(*(_codes_below(child) for child in kind.__subclasses__()))


READ_SECONDS = 5.0
MOST_QUEUES, MOST_WORKERS = 100, 1000  # with series of their own: whoever submits a turn may name any queue
_QUEUE = {
    "queued": ("antiphon_queue_depth", "Turns that a worker may claim now"),
    "oldest_seconds": ("antiphon_queue_oldest_seconds", "How long the oldest of them has waited"),
    "running": ("antiphon_queue_running", "Turns that run"),
    "waiting": ("antiphon_queue_waiting", "Turns that wait behind others, or for a decision"),
    "delayed": ("antiphon_queue_delayed", "Turns that wait for their time or their next attempt"),
    "failed": ("antiphon_queue_failed", "Failed turns of the last week"),
    "workers": ("antiphon_queue_workers", "Worker processes that serve it"),
}
_COUNTS = {
    "sessions": ("antiphon_active_sessions", "Sessions with turns that have not ended"),
    "waiting": ("antiphon_suspended_turns", "Turns that wait for decisions"),
    "delayed": ("antiphon_delayed_turns", "Turns that wait for their time"),
    "quarantined": ("antiphon_quarantined", "Records that are set aside because they are damaged"),
}


class Gauges(Collector):
    """What every worker of a deployment sees alike: take the maximum over workers, not the sum.

    A scrape opens its own connection. If Redis cannot be read, ``antiphon_redis_up`` is 0 and the rest is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def describe(self) -> list[Metric]:
        return []  # nothing is read before the first scrape

    def collect(self) -> Iterator[Metric]:
        try:
            found = asyncio.run(self._read())
        except (AgentError, TimeoutError, OSError):
            found = None
        yield GaugeMetricFamily("antiphon_redis_up", "Whether Redis answers", value=float(found is not None))
        if found is not None:
            yield from _metrics(found)

    async def _read(self) -> Overview:
        connections = Connections(self._settings.redis_urls, prefix=self._settings.prefix)
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await overview(connections, 1)
        finally:
            await connections.aclose()


def _metrics(found: Overview) -> Iterator[Metric]:
    queues = sorted(found.queues, key=lambda one: (-one.workers, -one.queued, one.name))[:MOST_QUEUES]
    for field, (name, text) in _QUEUE.items():
        family = GaugeMetricFamily(name, text, labels=["queue"])
        for queue in queues:
            family.add_metric([queue.name], float(getattr(queue, field) or 0))
        yield family
    for field, (name, text) in _COUNTS.items():
        yield GaugeMetricFamily(name, text, value=float(getattr(found.counts, field)))
    lag = GaugeMetricFamily(
        "antiphon_publish_lag_seconds", "How late events are published", labels=["worker"]
    )
    for worker in found.workers[:MOST_WORKERS]:
        lag.add_metric([worker.name], worker.lag)
    yield lag
