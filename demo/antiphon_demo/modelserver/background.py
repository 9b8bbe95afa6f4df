"""Responses that are written in the background: they continue without a connection, and can be read again.

As in OpenAI's API, ``POST /v1/responses`` with ``background`` and ``stream`` starts one,
``GET /v1/responses/{id}`` with ``stream=true&starting_after=N`` sends the events after number N, and
``POST /v1/responses/{id}/cancel`` ends it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec

from antiphon_demo.modelserver.formats import event

_PATH = re.compile(r"(?:/v1)?/responses/(resp_[0-9a-f]+)(/cancel)?")
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_PLAIN = b'"background":false'


@dataclass(slots=True)
class Response:
    """A response with its events by sequence number. ``sent`` is how many of them any client has received, and
    ``ends`` is when all would have been sent."""

    events: list[bytes]
    pace: float = 0.0
    sent: int = 0
    cancelled: bool = False
    envelope: dict[str, Any] = field(default_factory=dict)
    ends: float = 0.0

    def after(self, number: int) -> Iterator[bytes]:
        """Yield the events after a number. A cancelled response has none beyond those that were sent."""
        for place in range(number + 1, len(self.events)):
            if self.cancelled and place >= self.sent:
                return
            self.sent = max(self.sent, place + 1)
            yield self.events[place]

    def whole(self) -> dict[str, Any]:
        """Return the response as it is without streaming."""
        last = _response(self.events[-1])
        if self.cancelled:
            return {**self.envelope, "status": "cancelled", "usage": last["usage"]}
        over = self.sent == len(self.events) or time.monotonic() >= self.ends
        return last if over else self.envelope


class Responses:
    """The responses of one server."""

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._known: dict[str, Response] = {}

    def begin(self, frames: Iterable[bytes], pace: float, fails: int | None = None) -> Response:
        """Keep a response with this stream of frames, which fails after ``fails`` pieces, if given."""
        text = (
            b"".join(frames).replace(_PLAIN, b'"background":true').replace(b'"store":false', b'"store":true')
        )
        events = [part + b"\n\n" for part in text.split(b"\n\n") if part]
        assert [int(_NUMBER.findall(one)[0]) for one in events] == [*range(len(events))]
        if fails is not None:
            events = _failing(events, fails)
        response = Response(events, pace, envelope=_response(events[0]))
        response.ends = time.monotonic() + (len(events) / pace if pace > 0 else 0.0)
        if self._kept:
            self._known[response.envelope["id"]] = response
        return response

    def find(self, path: str) -> tuple[Response | None, bool] | None:
        """Return the response of a path (None if it is unknown) and whether to cancel it, or None for other paths."""
        found = _PATH.fullmatch(path)
        return None if found is None else (self._known.get(found[1]), bool(found[2]))


def _response(frame: bytes) -> dict[str, Any]:
    return msgspec.json.decode(frame.partition(b"data: ")[2])["response"]


def _failing(events: list[bytes], pieces: int) -> list[bytes]:
    """Return the events of a response that fails after this many pieces of text. It costs as much as a whole one."""
    deltas = [place for place, one in enumerate(events) if b"_text.delta" in one]
    kept = events[: deltas[pieces] if pieces < len(deltas) else -1]
    error = {"code": "server_error", "message": "The model failed."}
    failed = {**_response(events[-1]), "status": "failed", "output": [], "error": error}
    kind = "response.failed"
    return [*kept, event(kind, {"type": kind, "sequence_number": len(kept), "response": failed})]


def starting_after(query: str) -> int | None:
    """Return the number after which a stream is to start, or None if no stream is requested."""
    asked = parse_qs(query)
    if asked.get("stream") != ["true"]:
        return None
    return int(asked.get("starting_after", ["-1"])[0])
