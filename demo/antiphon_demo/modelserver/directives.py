"""The behaviour of the model server: its options, and directives in the last user message or in headers.

Anywhere in the text of the last user message:

- ``length:200``, ``pace:20``, ``first:1.5``: pieces of the answer, pieces per second, seconds to the first piece;
- ``call:weather {"city": "Paris"}``: a call of that tool, if it is offered. Several calls are parallel; those after the
  word ``then`` come one step later;
- ``fault:429``, ``fault:429=3`` (with ``retry-after: 3``), ``fault:500``, ``fault:529``: that status;
- ``fault:drop``: the connection breaks before any answer; ``fault:cut=5``: after five pieces;
- ``fault:hang``: no answer; ``fault:hang=5``: silence after five pieces;
- ``fault:error=5``: the format's own error event after five pieces;
- ``fault:failed=5``: the same; a background response fails then, and its tokens are counted;
- ``fault:500*2``: two failures, then this conversation is served.

The headers ``x-length``, ``x-pace``, ``x-first`` and ``x-fault`` mean the same and take precedence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

DEFAULT_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The defaults of every answer.

    ``pace`` is the number of pieces per second in each stream; 0 is as fast as possible. ``stamp`` adds the sending
    time to each piece of text, as ``@`` and ``time.monotonic_ns()`` in 19 digits, which every process of this machine
    can compare. ``fault_rate`` is the share of requests with one of ``faults``, chosen by ``seed``. ``record`` is how
    many requests to keep in ``ModelServer.requests``. Of all requests, ``limit`` in ``limit_seconds`` are answered and
    the others get a 429; 0 means no limit. ``limit_told`` is true if the headers report the limit. Background
    responses cannot be read again without ``background_kept``, and only as a whole without ``background_streams``.
    """

    pace: float = 0.0
    first_piece_seconds: float = 0.0
    length: int = DEFAULT_LENGTH
    stamp: bool = False
    fault_rate: float = 0.0
    faults: tuple[str, ...] = ("429", "500", "529", "cut=3", "drop")
    seed: int = 0
    record: int = 0
    limit: int = 0
    limit_seconds: float = 1.0
    limit_told: bool = True
    background_kept: bool = True
    background_streams: bool = True


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` is a status, ``drop``, ``cut``, ``hang``, ``error`` or ``failed``.

    ``times`` is how often it occurs, None for always.
    """

    kind: str
    value: int | None = None
    times: int | None = None

    @property
    def status(self) -> int | None:
        return int(self.kind) if self.kind.isdigit() else None

    @property
    def pieces(self) -> int | None:
        """After how many pieces of a stream the fault occurs, or None if it occurs before the answer."""
        if self.kind in ("cut", "error", "failed"):
            return self.value or 0
        return self.value if self.kind == "hang" else None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the answer; ``arguments`` is the text as the model writes it, valid or not."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Directives:
    """The behaviour of one answer."""

    length: int
    pace: float
    first_piece_seconds: float
    fault: Fault | None


_SETTING = re.compile(r"(?<!\S)(length|pace|first|fault):(\S+)")
_FAULT = re.compile(r"(\d{3}|drop|cut|hang|error|failed)(?:=(\d+))?(?:\*(\d+))?")
_decoder = json.JSONDecoder()
_CALL = re.compile(r"(?<!\S)call:([A-Za-z0-9_.-]+)[ \t]*")


def read_length(text: str) -> int | None:
    """Return the length that this text asks for."""
    return _count(_asked(text).get("length"))


def read_directives(
    text: str, headers: Mapping[str, str], behaviour: Behaviour, chance: Random
) -> Directives:
    """Return the server's defaults, overridden by what this request asks for."""
    asked = _asked(text)
    asked.update(
        {
            name: headers[f"x-{name}"]
            for name in ("length", "pace", "first", "fault")
            if f"x-{name}" in headers
        }
    )
    fault = read_fault(asked["fault"]) if "fault" in asked else None
    if fault is None and behaviour.fault_rate and chance.random() < behaviour.fault_rate:
        fault = read_fault(chance.choice(behaviour.faults))
    return Directives(
        _count(asked.get("length")) or behaviour.length,
        _number(asked.get("pace"), behaviour.pace),
        _number(asked.get("first"), behaviour.first_piece_seconds),
        fault,
    )


def read_fault(text: str) -> Fault | None:
    """Read a fault such as ``429=3*2``, or return None."""
    match = _FAULT.match(text)
    if match is None:
        return None
    kind, value, times = match.groups()
    return Fault(kind, int(value) if value else None, int(times) if times else None)


def read_calls(text: str) -> list[list[Call]]:
    """Return the tool calls that a text asks for, step by step."""
    steps: list[list[Call]] = []
    end = 0
    for match in _CALL.finditer(text):
        if match.start() < end:
            continue
        if not steps or re.search(r"\bthen\b", text[end : match.start()]):
            steps.append([])
        arguments, end = _arguments(text, match.end())
        steps[-1].append(Call(match[1], arguments))
    return steps


def _arguments(text: str, start: int) -> tuple[str, int]:
    """Return the JSON object at ``start`` and its end. A broken one extends to the end of its line."""
    if not text.startswith("{", start):
        return "{}", start
    try:
        _, end = _decoder.raw_decode(text, start)
    except ValueError:
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
    return text[start:end], end


def _asked(text: str) -> dict[str, str]:
    return {name: value.rstrip(".,;!?") for name, value in _SETTING.findall(text)}


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _number(text: str | None, default: float) -> float:
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        return default
