"""Observes the turns of a process, and reports its health to the supervisor."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from antiphon.events import Event
from antiphon.input.request import AgentSpec
from antiphon.model.revisions import Revision
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.app import App
from antiphon_worker.settings import Settings

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that a supervisor sets for its processes if it serves metrics: the folder to put them in."""


class TurnWatch(Protocol):
    """Watches one attempt at a turn."""

    def opened(self, agent: AgentSpec, revision: Revision | None) -> None:
        """Note which agent runs the turn from now on. Agents of the App have a ``revision``, inline ones do not."""
        ...

    def event(self, event: Event) -> None:
        """Note an event before it is published; of a delta, only the first piece is passed, without its text."""
        ...

    def end(self, outcome: str, code: str, provider: str) -> None:
        """Note how the attempt ended; ``code`` is that of the error, if there was one."""
        ...


class Observer(Protocol):
    """Watches the turns of a process."""

    def begin(self, turn: ClaimedTurn) -> TurnWatch: ...

    def command(self, name: str, seconds: float) -> None:
        """Note a round trip to Redis."""
        ...

    def tool_changed(self, server: str) -> None:
        """Note that an MCP server has changed the description or schema of a tool."""
        ...


class _Several:
    """Several watchers of one attempt, or of a process, as one."""

    def __init__(self, watchers: Sequence[Any]) -> None:
        self._watchers = watchers

    def begin(self, turn: ClaimedTurn) -> TurnWatch:
        return _Several([one.begin(turn) for one in self._watchers])

    def command(self, name: str, seconds: float) -> None:
        for one in self._watchers:
            one.command(name, seconds)

    def tool_changed(self, server: str) -> None:
        for one in self._watchers:
            one.tool_changed(server)

    def opened(self, agent: AgentSpec, revision: Revision | None) -> None:
        for one in self._watchers:
            one.opened(agent, revision)

    def event(self, event: Event) -> None:
        for one in self._watchers:
            one.event(event)

    def end(self, outcome: str, code: str, provider: str) -> None:
        for one in self._watchers:
            one.end(outcome, code, provider)


def observer_of(settings: Settings, cell: str, app: App) -> Observer | None:
    """Return the observer of a process of this cell, or None if no setting asks for one.

    Raises ``MissingPackage`` and ``SettingsError``.
    """
    watchers: list[Observer] = []
    if os.environ.get(METRICS_FOLDER) and settings.status_port:
        from antiphon_worker.observing.metrics import Metrics

        watchers.append(Metrics(cell))
    if settings.traces or settings.otel_metrics:
        watchers.append(_telemetry(settings, app))
    if len(watchers) < 2:
        return watchers[0] if watchers else None
    return _Several(watchers)


def _telemetry(settings: Settings, app: App) -> Observer:
    """Return the observer that exports spans, and the metrics of model calls."""
    from antiphon.telemetry import meter_of_environment, tracer_of_environment

    tracer = tracer_of_environment("antiphon-worker", export=settings.traces)
    meter = meter_of_environment("antiphon-worker") if settings.otel_metrics else None
    from antiphon_worker.observing.content import Content
    from antiphon_worker.observing.traces import Instruments, Traces

    content = Content.of_setting(settings.trace_content) if settings.traces else None
    return Traces(tracer, app, instruments=Instruments(meter) if meter else None, content=content)


def watch_redis(cell: Cell, observer: Observer | None) -> Cell:
    """Let an observer see the scripts and short commands of a cell; without one, the cell stays as it is."""
    if observer is None:
        return cell
    redis: Any = cell.redis
    execute = redis.execute_command

    async def execute_command(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return await execute(*args, **options)
        finally:
            observer.command(str(args[0]), time.perf_counter() - began)

    redis.execute_command = execute_command
    return cell


class Supervised(Protocol):
    """What a supervisor knows of its processes. Any thread may use it."""

    @property
    def deaths(self) -> Mapping[tuple[str, str], int]: ...

    def unhealthy(self) -> str: ...
    def unready(self) -> str: ...
    def processes(self) -> Mapping[str, int]: ...


@contextmanager
def serving_worker_status(settings: Settings, supervised: Supervised) -> Generator[None]:
    """Serve the status within this context, if there is a ``status_port``. Raises ``SettingsError``.

    With ``antiphon[metrics]``, processes that are started in this context count what their turns do.
    """
    if not settings.status_port:
        yield
        return
    from antiphon.status import WriteCheck, serving_status

    refused = WriteCheck(settings.redis_urls, settings.prefix)
    with tempfile.TemporaryDirectory(prefix="antiphon-metrics-") as folder:
        metrics = _metrics_app(settings, supervised, folder)
        try:
            with serving_status(
                settings.status_host, settings.status_port, supervised.unhealthy,
                lambda: supervised.unready() or refused(), metrics,
            ):  # fmt: skip
                yield
        finally:
            os.environ.pop(METRICS_FOLDER, None)


def _metrics_app(settings: Settings, supervised: Supervised, folder: str) -> Any:
    """Return the app of prometheus_client for all processes, or None without the package."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    os.environ[METRICS_FOLDER] = folder
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.multiprocess import MultiProcessCollector

    from antiphon.metrics import CellMetrics, ProcessMetrics
    from antiphon_worker.observing.metrics import WorkerDeaths

    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)
    registry.register(CellMetrics(settings.redis_urls, settings.prefix))
    registry.register(ProcessMetrics("supervisor", supervised.processes))
    registry.register(WorkerDeaths(supervised.deaths))
    return make_wsgi_app(registry)
