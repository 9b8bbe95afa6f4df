"""Logs and trace export of long-running commands.

The text of an exception may contain user input. Its type and its frames (files, lines and source code) do not.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import sys
import time
import traceback
import uuid
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec

from antiphon.errors import MissingPackage


def log_fault(log: logging.Logger, exc: BaseException, sentence: str, *args: Any, **fields: Any) -> None:
    """Log an error with the exception's type and frames, then, at level debug, the whole traceback with its texts."""
    frames = "".join(traceback.format_tb(exc.__traceback__)).rstrip()
    log.error("%s: %s\n%s", sentence % args, type(exc).__name__, frames, extra=fields)
    log.debug(sentence, *args, exc_info=exc, extra=fields)


CONVENTIONS = "https://opentelemetry.io/schemas/1.41.0"
"""The version of OpenTelemetry's conventions that spans follow."""
FIELDS = ("time", "level", "logger", "action", "message")
"""The fields of every line, in this order. Others follow if they are known: session, turn, fence, code, …"""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
TEXT = "%(asctime)s %(levelname)-7s [%(action)s] %(message)s"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    """Formats records as text, each with its ``action`` (``-`` if it has none).

    Lines of a record after the first are indented, and control characters are removed: text that a record quotes cannot
    look like a log line of ours.

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
    """Formats each record as one line of JSON. Values that a log call passes as ``extra`` become fields.

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


class SeldomOutages(logging.Filter):
    """Passes one line about an outage every ``SECONDS`` for each place that logs it.

    When Redis is down, every request, reader and turn fails. The next line that passes counts the lines left out.
    """

    SECONDS = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(getattr(record, "action", "")).startswith("outage"):
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        last, left_out = self._passed.get(place, (-math.inf, 0))
        if now - last < self.SECONDS:
            self._passed[place] = (last, left_out + 1)
            return False
        self._passed[place] = (now, 0)
        if left_out:
            record.msg = f"{record.msg} ({left_out} more of these since {now - last:.0f} s)"
        return True


def set_up_logging(level: str, form: str = "text") -> None:
    """Log to standard error, each line with its ``action``: as text, or as ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(SeldomOutages())
    handler.setFormatter(JSONFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for noisy in ("httpx2", "httpcore2", "httpx", "httpcore", "a2a", "openai", "anthropic", "faiss"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def tracer_of_environment(service: str, *, export: bool = True):
    """Return a tracer that exports over OTLP, configured by the ``OTEL_*`` variables.

    A provider that the process has set is kept. Without ``export``, spans are discarded. Raises ``MissingPackage``.
    """
    _require_sdk()
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not export:
        return trace.NoOpTracer()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        provider = TracerProvider(resource=_resource(service))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    return trace.get_tracer("antiphon", version("antiphon"), schema_url=CONVENTIONS)


def meter_of_environment(service: str):
    """Return a meter that exports over OTLP, as ``tracer_of_environment`` does. Raises ``MissingPackage``."""
    _require_sdk()
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader], resource=_resource(service)))
    return metrics.get_meter("antiphon", version("antiphon"), schema_url=CONVENTIONS)


def flush_telemetry(milliseconds: int = 2000) -> None:
    """Export pending telemetry, for processes that end without running their exit functions."""
    for api, name in (("trace", "get_tracer_provider"), ("metrics", "get_meter_provider")):
        if (module := sys.modules.get(f"opentelemetry.{api}")) is not None:
            flush = getattr(getattr(module, name)(), "force_flush", None)
            if flush is not None:
                flush(milliseconds)


def _require_sdk() -> None:
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise MissingPackage("OpenTelemetry needs a package: pip install 'antiphon[otel]'.")


def _resource(service: str):
    """Return the resource of the process. Its own instance id keeps its metrics apart from those of others."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create(
        {
            "service.name": service,
            "service.version": version("antiphon"),
            "service.instance.id": str(uuid.uuid4()),
        }
    )
