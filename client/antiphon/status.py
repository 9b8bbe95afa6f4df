"""The status port of a long-running command: /health, /ready and /metrics, from a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from antiphon.errors import SettingsError
from antiphon.redis.deployment import no_turns_because
from antiphon.telemetry import log_fault

log = logging.getLogger("antiphon.status")

READ_SECONDS = 10
PLAIN_TEXT = [("Content-Type", "text/plain; charset=utf-8")]


CHECKED_SECONDS = 1.0


class WriteCheck:
    """Returns why no cell takes turns, or ''; it asks Redis at most once a second. Any thread may call it."""

    def __init__(self, urls: Sequence[str], prefix: str) -> None:
        self._urls, self._prefix = urls, prefix
        self._lock = threading.Lock()
        self._why, self._until = "", 0.0

    def __call__(self) -> str:
        with self._lock:
            if time.monotonic() >= self._until:
                self._why = asyncio.run(no_turns_because(self._urls, self._prefix))
                self._until = time.monotonic() + CHECKED_SECONDS
            return self._why


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = READ_SECONDS  # for the head of a request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log no requests."""


@contextmanager
def serving_status(
    host: str, port: int, healthy: Callable[[], str], ready: Callable[[], str], metrics: Any
) -> Generator[None]:
    """Serve the status within a ``with`` block. Raises ``SettingsError`` if the port is not available.

    ``healthy`` and ``ready`` return why the process is not, or ''; they are called from other threads.
    ``metrics`` is a WSGI application, or None if the package for metrics is missing.
    """
    app = _app({"/health": healthy, "/ready": ready}, metrics)
    try:
        server = make_server(host, port, app, _Server, _Handler)
    except OSError as exc:
        raise SettingsError(
            f"The status cannot be served on {host}:{port} ({exc.strerror}): choose another port with --status-port."
        ) from exc
    thread = threading.Thread(target=server.serve_forever, name="status", daemon=True)
    thread.start()
    what = (
        "/health, /ready and /metrics" if metrics else "/health and /ready (pip install 'antiphon[metrics]')"
    )
    log.info("status on port %d: %s", port, what, extra={"action": "status_served"})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _app(checks: dict[str, Callable[[], str]], metrics: Any) -> Any:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        try:
            return answer(path, environ, start)
        except Exception as exc:  # noqa: BLE001 - answered, and logged without its text
            log_fault(log, exc, "%s failed", path, action="status_failed")
            start("500 Internal Server Error", [*PLAIN_TEXT])
            return [b"It failed: see the log.\n"]

    def answer(path: str, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if path == "/metrics" and metrics is not None:
            return metrics(environ, start)
        check = checks.get(path)
        if check is None:
            start("404 Not Found", [*PLAIN_TEXT])
            return [b"There are /health, /ready and, with antiphon[metrics], /metrics.\n"]
        why = check()
        start("503 Service Unavailable" if why else "200 OK", [*PLAIN_TEXT])
        return [f"{why or 'ok'}\n".encode()]

    return app
