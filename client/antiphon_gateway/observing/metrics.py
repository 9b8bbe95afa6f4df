"""Counts what a gateway answers and sends, for Prometheus."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.input.limits import table

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LIMITS = {name for name, _, _ in table()} | {
    "body_bytes", "rate", "streams", "in_flight", "waiting", "per_minute", "user_turns",
    "user_in_flight", "user_per_minute", "stored_bytes",
}  # fmt: skip
_AT = re.compile(rb'data: {"seq":\d+,"at":(\d+)')
GAUGES = {
    "antiphon_gateway_streams": "Streams and WebSockets that are open",
    "antiphon_gateway_loop_lag_seconds": "How late the event loop was when it was looked at last",
}


class GatewayMetrics(Collector):
    """The metrics of one gateway process.

    >>> metrics = GatewayMetrics()
    >>> metrics.answered("GET", "/sessions", 200, 0.01)
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Callable[[], float]] = {}
        self._requests = Counter(
            "antiphon_gateway_requests", "Requests by how they were answered", ["method", "route", "status"],
            registry=self.registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "antiphon_gateway_request_seconds", "From a request to the beginning of its answer", ["route"],
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self._refused = Counter(
            "antiphon_gateway_refused", "Requests that a limit refused", ["limit"], registry=self.registry
        )
        self._sent = Counter(
            "antiphon_gateway_messages_sent", "Server-sent events, with comments", registry=self.registry
        )
        self._event_lag = Histogram(
            "antiphon_gateway_event_lag_seconds", "From an event in Redis to its reader's connection",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.registry.register(self)

    def read(self, streams: Callable[[], float], lag: Callable[[], float]) -> None:
        """Let each scrape read how many streams are open, and how late the event loop is."""
        self._gauges = dict(zip(GAUGES, (streams, lag), strict=True))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. ``route`` is the pattern of its path: labels contain nothing that users chose."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self, limit: str) -> None:
        """Count a request that exceeded a limit."""
        self._refused.labels(limit if limit in _LIMITS else "other").inc()

    def sent(self, chunk: bytes, began: float) -> None:
        """Count the messages of one chunk, sent to a stream that began at this time of ``time.time``."""
        self._sent.inc(chunk.count(b"\n\n"))
        last = _AT.match(chunk, chunk.rfind(b"\ndata: ") + 1)
        if last is not None and (at := int(last[1]) / 1000) >= began:  # older events are not late
            self._event_lag.observe(max(time.time() - at, 0.0))

    def collect(self) -> Iterator[Metric]:
        for name, read in self._gauges.items():
            yield GaugeMetricFamily(name, GAUGES[name], value=float(read()))

    def app(self) -> Any:
        """Return the WSGI application that exposes the metrics."""
        return make_wsgi_app(self.registry)
