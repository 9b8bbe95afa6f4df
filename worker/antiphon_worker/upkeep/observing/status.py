"""The status of a worker, which its supervisor serves: its health, and the metrics of all its processes."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from antiphon.cli.serving.status import serving_status
from antiphon_worker.settings import Settings
from antiphon_worker.upkeep.observing.observer import METRICS_FOLDER

__all__ = ["serving_worker_status"]


@contextmanager
def serving_worker_status(
    settings: Settings, healthy: Callable[[], str], ready: Callable[[], str]
) -> Generator[None]:
    """Serve the status while this lasts, if there is a ``status_port``. Raises ``SettingsError``.

    ``healthy`` and ``ready`` return why the worker is not, or nothing. They are called from other threads.
    With ``antiphon[metrics]``, processes that are started meanwhile count what their turns do.
    """
    if not settings.status_port:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="antiphon-metrics-") as folder:
        metrics = _metrics_app(settings, folder)
        try:
            with serving_status(settings.status_host, settings.status_port, healthy, ready, metrics):
                yield
        finally:
            os.environ.pop(METRICS_FOLDER, None)


def _metrics_app(settings: Settings, folder: str) -> Any:
    """The app of prometheus_client over all processes, or None without the package."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None
    os.environ[METRICS_FOLDER] = folder
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.multiprocess import MultiProcessCollector

    from antiphon_worker.upkeep.observing.gauges import Gauges

    registry = CollectorRegistry()
    MultiProcessCollector(registry, folder)
    registry.register(Gauges(settings))
    return make_wsgi_app(registry)
