"""Serves ``/health``, ``/ready`` and ``/metrics`` of a worker, from a thread of its supervisor."""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from antiphon.errors import SettingsError
from antiphon_worker.settings import Settings
from antiphon_worker.upkeep.observing.observer import METRICS_FOLDER

__all__ = ["serving_status"]

log = logging.getLogger("antiphon.status")

READ_SECONDS = 10
TEXT = [("Content-Type", "text/plain; charset=utf-8")]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = READ_SECONDS  # for the head of a request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""


@contextmanager
def serving_status(
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
        app = _app({"/health": healthy, "/ready": ready}, metrics)
        try:
            server = make_server(settings.status_host, settings.status_port, app, _Server, _Handler)
        except OSError as exc:
            raise SettingsError(
                f"The status cannot be served on {settings.status_host}:{settings.status_port}: {exc.strerror}."
            ) from exc
        thread = threading.Thread(target=server.serve_forever, name="status", daemon=True)
        thread.start()
        what = (
            "/health, /ready and /metrics"
            if metrics
            else "/health and /ready (pip install 'antiphon[metrics]')"
        )
        log.info(
            "status on port %d: %s", settings.status_port, what, extra={"action": "status_served"}
        )  # fmt: skip
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
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


def _app(checks: dict[str, Callable[[], str]], metrics: Any) -> Any:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics" and metrics is not None:
            return metrics(environ, start)
        check = checks.get(path)
        if check is None:
            start("404 Not Found", [*TEXT])
            return [b"There are /health, /ready and, with antiphon[metrics], /metrics.\n"]
        why = check()
        start("503 Service Unavailable" if why else "200 OK", [*TEXT])
        return [f"{why or 'ok'}\n".encode()]

    return app
