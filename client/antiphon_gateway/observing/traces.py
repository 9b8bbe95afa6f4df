"""Creates a span for each request, in the trace that its ``traceparent`` names.

A turn submitted within the span belongs to the same trace: the client passes on the current span.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import Scope


class GatewayTraces:
    """Creates request spans with ``tracer``. They contain only names, ids and numbers."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def span(self, scope: Scope) -> Generator[Span]:
        """Start the span of a request, which is the current one while the context is open."""
        headers = Headers(scope=scope)
        parent = propagate.extract({"traceparent": headers.get("traceparent", "")})
        attributes = {"http.request.method": _method(scope), "url.scheme": str(scope.get("scheme", "http"))}
        with self._tracer.start_as_current_span(
            _method(scope), parent, SpanKind.SERVER, attributes,
            record_exception=False, set_status_on_exception=False,  # its text may contain what a user wrote
        ) as span:  # fmt: skip
            try:
                yield span
            except Exception as exc:
                _fail(span, type(exc).__name__)
                raise

    def answered(self, span: Span, method: str, route: str, status: int) -> None:
        """Record how the request was answered."""
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= 500:
            _fail(span, str(status))


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def _method(scope: Scope) -> str:
    return str(scope.get("method", "GET"))
