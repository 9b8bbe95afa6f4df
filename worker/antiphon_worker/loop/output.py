"""Reads structured answers of a turn by their schema, and publishes partial values as they arrive."""

from __future__ import annotations

from typing import Any

from antiphon.errors import InvalidOutput, LimitReached
from antiphon.events import OutputDelta
from antiphon.input.json_schema import misfits
from antiphon.input.limits import check_depth
from antiphon.input.request import OutputSpec
from antiphon.input.schema import WRAPPED, read_json
from antiphon_worker.loop.step_events import Sink, StepEvents
from antiphon_worker.providers.base import Increment, TextPiece

# A partial value is published when this many characters have come since the last one, and this share of the text:
# so the events of an answer take a small multiple of its length.
LEAST_CHARACTERS = 32
SHARE = 1 / 16
_OF_NUMBERS = "0123456789+-.eE"


class ExpectedOutput:
    """The output that a turn requires."""

    def __init__(self, spec: OutputSpec) -> None:
        self._spec = spec
        self._schema = spec.schema if spec.whole is None else spec.whole

    def read(self, text: str) -> Any:
        """Return the value of an answer. Raises ``InvalidOutput`` with the mismatches."""
        value = read_json(text)
        if self._spec.wrapped and not _is_wrapped(value):
            value = {WRAPPED: value}
        try:
            check_depth(value, "The answer")
        except LimitReached as exc:
            raise InvalidOutput(exc.message, raw=text) from exc
        reasons = misfits(value, self._schema)
        if reasons:
            raise InvalidOutput(
                f"The answer does not match {self._spec.name}: {'; '.join(reasons)}.", raw=text
            )
        return value[WRAPPED] if self._spec.wrapped else value

    def read_part(self, text: str) -> Any:
        """Return the value of an incomplete answer. Raises ``ValueError`` if there is none yet.

        The last string may be incomplete; a number at the end is left out, because more digits may come.
        """
        from pydantic_core import from_json

        begun = text.lstrip()
        if begun.startswith("```"):
            begun = begun.partition("\n")[2]
        value = from_json(
            begun.rstrip(_OF_NUMBERS),
            allow_inf_nan=False,
            allow_partial="trailing-strings",
            cache_strings="none",
        )
        check_depth(value, "The answer")
        if self._spec.wrapped and isinstance(value, dict):
            if WRAPPED not in value:
                raise ValueError("the value is empty")
            return value[WRAPPED]
        return value


class OutputEvents(StepEvents):
    """``StepEvents`` of a turn with a schema: publishes partial values in addition to the text."""

    def __init__(self, step: int, provider: str, sink: Sink, expected: ExpectedOutput) -> None:
        super().__init__(step, provider, sink)
        self._expected = expected
        self._pieces: list[str] = []
        self._length = self._published_at = 0  # of the text, now and when it was last published
        self._last: Any = None

    def append(self, increment: Increment) -> None:
        super().append(increment)
        if type(increment) is TextPiece:
            self._pieces.append(increment.text)
            self._length += len(increment.text)
            if self._length - self._published_at >= max(LEAST_CHARACTERS, self._length * SHARE):
                self._publish()

    def withdraw(self, reason: str) -> None:
        """Withdraw the answer from readers. Partial values start again."""
        super().withdraw(reason)
        self._pieces, self._length, self._published_at, self._last = [], 0, 0, None

    def _publish(self) -> None:
        self._published_at = self._length
        self._pieces = ["".join(self._pieces)]
        try:
            value = self._expected.read_part(self._pieces[0])
        except (ValueError, LimitReached):
            return
        if value is not None and value != self._last:
            self._last = value
            self._sink.put(OutputDelta(step=self.step, output=value))


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {WRAPPED}
