"""Reads at each scrape what Redis knows of the deployment: queues, workers, and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.errors import AgentError
from antiphon.redis.connections import Connections
from antiphon.redis.many.operating import Overview, overview
from antiphon_worker.settings import Settings

__all__ = ["Gauges"]

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
