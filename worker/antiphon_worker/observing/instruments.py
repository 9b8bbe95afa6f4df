"""The client metrics of OpenTelemetry's conventions for generative AI, in version 1.41."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.metrics import Meter

_SECONDS = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_FIRST = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
_TOKENS = [4**power for power in range(14)]
_LABELS = (
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
)  # fmt: skip


class Instruments:
    """Measures model calls: their duration, the time to their first piece, and their tokens."""

    def __init__(self, meter: Meter) -> None:
        self._duration = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "GenAI operation duration.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )  # fmt: skip
        self._first = meter.create_histogram(
            "gen_ai.client.operation.time_to_first_chunk", "s", "Time to receive the first chunk.",
            explicit_bucket_boundaries_advisory=_FIRST,
        )  # fmt: skip
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )  # fmt: skip

    def call(self, span: Mapping[str, Any], seconds: float, error: str) -> None:
        """Measure a model call by the attributes of its span."""
        labels = {name: span[name] for name in _LABELS if name in span}
        self._duration.record(seconds, labels | ({"error.type": error} if error else {}))
        if "gen_ai.response.time_to_first_chunk" in span:
            self._first.record(span["gen_ai.response.time_to_first_chunk"], labels)
        for kind in ("input", "output"):
            if f"gen_ai.usage.{kind}_tokens" in span:
                self._tokens.record(span[f"gen_ai.usage.{kind}_tokens"], labels | {"gen_ai.token.type": kind})
