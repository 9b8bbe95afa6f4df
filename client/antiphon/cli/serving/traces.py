"""Where the traces of a process go."""

from __future__ import annotations

import importlib.util

from antiphon.errors import MissingPackage

__all__ = ["tracer_of_environment"]


def tracer_of_environment(service: str):
    """Return a tracer that exports over OTLP, as the ``OTEL_*`` variables say.

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
