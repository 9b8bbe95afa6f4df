"""Prometheus metrics that both workers and gateways export: the state of each cell, the build, and processes."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.model.budget import BudgetState
from antiphon.model.feedback import Figures
from antiphon.redis.deployment import CellState, cell_states
from antiphon.wire.budgets import NamedBudget
from antiphon.wire.lists.workers import QueueRow

MOST_QUEUES, MOST_WORKERS, MOST_REVISIONS = 100, 1000, 200
"""How many per cell have series of their own. There may be many queues, as turns may name any."""
OTHERS = "(others)"
"""The label of all further queues. No queue can have this name."""

# Metrics and their help texts: of queues by field of `QueueRow`, the others by name.
QUEUE = {
    "queued": ("antiphon_queue_depth", "Turns that a worker may claim now"),
    "oldest_seconds": ("antiphon_queue_oldest_seconds", "How long the oldest of them has waited"),
    "retrying_seconds": (
        "antiphon_queue_retrying_seconds", "For how long the model service of a turn that is retried has failed"
    ),
    "running": ("antiphon_queue_running", "Turns that run"),
    "waiting": ("antiphon_queue_waiting", "Turns that wait behind others, or for a decision"),
    "delayed": ("antiphon_queue_delayed", "Turns that wait for their time or their next attempt"),
    "failed": ("antiphon_queue_failed", "Failed turns of the last week"),
    "workers": ("antiphon_queue_workers", "Worker processes that serve it"),
}  # fmt: skip
CELL: dict[str, tuple[str, Callable[[CellState], float | None]]] = {
    "antiphon_redis_up": ("Whether Redis answers", lambda cell: cell.up),
    "antiphon_redis_writable": ("Whether Redis takes turns: neither full nor read-only", lambda cell: cell.writable),
    "antiphon_redis_memory_bytes": ("Memory that Redis uses", lambda cell: cell.memory and cell.memory[0]),
    "antiphon_redis_memory_max_bytes": ("Its maxmemory; 0 is no limit", lambda cell: cell.memory and cell.memory[1]),
    "antiphon_workers": (
        "Live worker processes", lambda cell: None if cell.workers is None else len(cell.workers)
    ),
    "antiphon_active_sessions": (
        "Sessions with turns that have not ended", lambda cell: cell.counts and cell.counts.sessions
    ),
    "antiphon_suspended_turns": (
        "Turns that wait for decisions", lambda cell: cell.counts and cell.counts.waiting
    ),
    "antiphon_delayed_turns": ("Turns that wait for their time", lambda cell: cell.counts and cell.counts.delayed),
    "antiphon_quarantined": (
        "Records that are set aside because they are damaged", lambda cell: cell.counts and cell.counts.quarantined
    ),
}  # fmt: skip
REVISION: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "antiphon_revision_turns": (
        "Ended turns of an agent's revision in the last weeks",
        lambda one: one.turns,
    ),
    "antiphon_revision_failed": ("Failed ones among them", lambda one: one.failed),
    "antiphon_revision_tool_calls": ("Their tool calls", lambda one: one.tool_calls),
    "antiphon_revision_tool_errors": ("Their tool calls with an error", lambda one: one.tool_errors),
    "antiphon_revision_tokens": ("Their tokens", lambda one: one.tokens),
    "antiphon_revision_cost_dollars": ("What they cost", lambda one: one.cost),
    "antiphon_revision_seconds": ("How long they took in all", lambda one: one.seconds),
    "antiphon_revision_rated": ("Turns with feedback", lambda one: one.rated),
    "antiphon_revision_scores": ("The sum of the scores of their feedback", lambda one: one.scores),
}
BUDGET: dict[str, tuple[str, Callable[[BudgetState], float]]] = {
    "antiphon_budget_limit": ("A budget of a tenant or an agent, in dollars or tokens", lambda one: one.budget.limit),
    "antiphon_budget_used": ("What is used of it", lambda one: one.used),
    "antiphon_budget_held": ("What running model calls have reserved of it", lambda one: one.held),
}  # fmt: skip
PUBLISH_LAG = ("antiphon_publish_lag_seconds", "How late events are published")


class CellMetrics(Collector):
    """Metrics that are equal in every process of a deployment: take the maximum over processes, not the sum.

    A scrape opens its own connections. Values that cannot be read from a cell are missing.
    """

    def __init__(self, urls: Sequence[str], prefix: str) -> None:
        self._urls, self._prefix = urls, prefix

    def describe(self) -> list[Metric]:
        return []  # nothing is read before the first scrape

    def collect(self) -> Iterator[Metric]:
        return families(asyncio.run(cell_states(self._urls, self._prefix)))


def families(cells: Sequence[CellState]) -> Iterator[Metric]:
    """Return the metrics of these cells."""
    for name, (text, read) in CELL.items():
        family = GaugeMetricFamily(name, text, labels=["cell"])
        for cell in cells:
            if (value := read(cell)) is not None:
                family.add_metric([cell.name], float(value))
        yield family
    for name, (text, of) in REVISION.items():
        family = GaugeMetricFamily(name, text, labels=["cell", "agent", "revision"])
        for cell in cells:
            for known, figures in [*cell.revisions.items()][:MOST_REVISIONS]:
                agent, _, revision = known.rpartition("@")
                family.add_metric([cell.name, agent, revision], float(of(figures)))
        yield family
    yield from _budgets(cells)
    kept = {cell.name: _kept(cell.queues) for cell in cells}
    for field, (name, text) in QUEUE.items():
        family = GaugeMetricFamily(name, text, labels=["cell", "queue"])
        for cell, queues in kept.items():
            for queue in queues:
                family.add_metric([cell, queue.name], float(getattr(queue, field) or 0))
        yield family
    lag = GaugeMetricFamily(*PUBLISH_LAG, labels=["cell", "worker"])
    for cell in cells:
        for worker in (cell.workers or [])[:MOST_WORKERS]:
            lag.add_metric([cell.name, worker.name], worker.lag)
    yield lag


def _budgets(cells: Sequence[CellState]) -> Iterator[Metric]:
    for name, (text, amount) in BUDGET.items():
        family = GaugeMetricFamily(name, text, labels=["cell", "scope", "name", "per", "unit"])
        for cell in cells:
            for labels, state in _lowest(cell.budgets).items():
                family.add_metric([cell.name, *labels], float(amount(state)))
        yield family


def _lowest(budgets: Sequence[NamedBudget]) -> dict[tuple[str, ...], BudgetState]:
    """Return the lowest budget of each name, period and unit: budgets that share these have used the same."""
    found: dict[tuple[str, ...], BudgetState] = {}
    for scope, name, state in budgets:
        labels = scope, name, state.budget.per, state.budget.unit
        if labels not in found or state.budget.limit < found[labels].budget.limit:
            found[labels] = state
    return found


def _kept(queues: Sequence[QueueRow]) -> list[QueueRow]:
    """If there are too many queues, reserve half the places for queues without workers: operators must see these.

    The longest of each kind are kept, and the others are merged into one.
    """
    if len(queues) <= MOST_QUEUES:
        return [*queues]
    by_length = sorted(queues, key=lambda queue: (-queue.queued, queue.name))
    served = [queue for queue in by_length if queue.workers]
    alone = [queue for queue in by_length if not queue.workers]
    half, most = MOST_QUEUES // 2, MOST_QUEUES - 1
    kept = [*served[: max(half, most - len(alone))], *alone[: max(most - half, most - len(served))]]
    return [*kept, _together([queue for queue in queues if queue not in kept])]


_SUMS = ("queued", "running", "waiting", "delayed", "failed")


def _together(queues: Sequence[QueueRow]) -> QueueRow:
    """Merge queues into one. It counts as served only if all of them are."""
    return QueueRow(
        OTHERS,
        *(sum(getattr(queue, name) for queue in queues) for name in _SUMS),
        workers=min(queue.workers for queue in queues),
        oldest_seconds=max(queue.oldest_seconds or 0.0 for queue in queues),
        retrying_seconds=max(queue.retrying_seconds or 0.0 for queue in queues),
    )  # fmt: skip


class ProcessMetrics(Collector):
    """The build, and CPU time, memory and open files of processes: this one, and those that ``others`` returns.

    The metrics are those of all Prometheus clients, with the name of the process as the label ``process``.
    """

    def __init__(self, name: str, others: Callable[[], Mapping[str, int]] = dict) -> None:
        self._name, self._others = name, others

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        build = {"version": version("antiphon"), "python": platform.python_version()}
        yield InfoMetricFamily("antiphon_build", "The release of this process", value=build)
        found: dict[str, Metric] = {}
        for name, pid in {self._name: os.getpid(), **self._others()}.items():
            for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():
                whole = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {"process": name}, sample.value)
        yield from found.values()
