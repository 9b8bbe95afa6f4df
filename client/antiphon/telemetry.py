"""Logs, health endpoint and trace export of commands that run until they are stopped.

The text of an exception may hold what a user wrote. Its type and its frames (files, lines and source code) do not.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec

from antiphon.errors import MissingPackage, SettingsError


def log_fault(log: logging.Logger, exc: BaseException, sentence: str, *args: Any, **fields: Any) -> None:
    """Log an error with the exception's type and frames, then, at debug, the whole traceback with its texts."""
    frames = "".join(traceback.format_tb(exc.__traceback__)).rstrip()
    log.error("%s: %s\n%s", sentence % args, type(exc).__name__, frames, extra=fields)
    log.debug(sentence, *args, exc_info=exc, extra=fields)


FIELDS = ("time", "level", "logger", "action", "message")
"""What every line has, in this order. Others follow where they are known: session, turn, fence, code, …"""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
TEXT = "%(asctime)s %(levelname)-7s [%(action)s] %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """Lines of text, each with its ``action`` (``-`` where nothing has changed its state).

    What follows the first line of a record is indented, and control characters are left out: whatever a record quotes,
    a line that begins with a time is one of ours.

    >>> import logging
    >>> record = logging.makeLogRecord({"msg": "it said: %s", "args": ("no\\n2026-01-01 INFO [stopped] bye",)})
    >>> TextFormatter().format(record).splitlines()[1]
    '    2026-01-01 INFO [stopped] bye'
    """

    def __init__(self) -> None:
        super().__init__(TEXT, defaults={"action": "-"})

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub("", super().format(record)).replace("\n", "\n    ")


class JSONFormatter(logging.Formatter):
    """One JSON object for each line. What a log call adds with ``extra`` becomes fields of their own.

    >>> import logging
    >>> record = logging.makeLogRecord({"msg": "turn %s ended", "args": ("t",), "created": 0.0, "turn": "t"})
    >>> JSONFormatter().format(record).partition(',"level"')[0]
    '{"time":"1970-01-01T00:00:00.000Z"'
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "action": getattr(record, "action", None),
            "message": record.getMessage(),
            "process": record.process,
        }
        line |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logging(level: str, form: str = "text") -> None:
    """Log to standard error, each line with its ``action``: as text, or as ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("httpx2", "httpcore2", "openai", "anthropic", "faiss"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


log = logging.getLogger("antiphon.status")

READ_SECONDS = 10
PLAIN_TEXT = [("Content-Type", "text/plain; charset=utf-8")]


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
    """Serve the status while this lasts. Raises ``SettingsError`` if the port cannot be had.

    ``healthy`` and ``ready`` return why the process is not, or nothing; they are called from other threads.
    ``metrics`` is a WSGI application, or None if the package for metrics is missing.
    """
    app = _app({"/health": healthy, "/ready": ready}, metrics)
    try:
        server = make_server(host, port, app, _Server, _Handler)
    except OSError as exc:
        raise SettingsError(f"The status cannot be served on {host}:{port}: {exc.strerror}.") from exc
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


def tracer_of_environment(service: str):
    """Return a tracer that exports over OTLP, configured by the ``OTEL_*`` variables.

    A provider that the process has set before is kept. Raises ``MissingPackage``.
    """
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise MissingPackage("Traces need a package: pip install 'antiphon[otel]'.")
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return trace.get_tracer("antiphon")
