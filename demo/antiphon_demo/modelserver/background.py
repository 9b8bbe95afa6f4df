"""Responses that are written in the background: they go on without a connection, and can be read again.

As at OpenAI, ``POST /v1/responses`` with ``background`` and ``stream`` begins one, ``GET /v1/responses/{id}`` with
``stream=true&starting_after=N`` sends the events after number N, and ``POST /v1/responses/{id}/cancel`` ends it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec

_PATH = re.compile(r"(?:/v1)?/responses/(resp_[0-9a-f]+)(/cancel)?")
_NUMBER = re.compile(rb'"sequence_number":(\d+)')
_PLAIN = b'"background":false'


@dataclass(slots=True)
class Response:
    """A response with its events by their sequence numbers. ``sent`` is how many of them anyone has received."""

    events: list[bytes]
    pace: float = 0.0
    sent: int = 0
    cancelled: bool = False
    envelope: dict[str, Any] = field(default_factory=dict)

    def after(self, number: int) -> Iterator[bytes]:
        """Yield the events after a number. A cancelled response has none beyond those that were sent."""
        for place in range(number + 1, len(self.events)):
            if self.cancelled and place >= self.sent:
                return
            self.sent = max(self.sent, place + 1)
            yield self.events[place]

    def whole(self) -> dict[str, Any]:
        """Return the response as it is without streaming."""
        if self.cancelled:
            return {**self.envelope, "status": "cancelled"}
        return msgspec.json.decode(self.events[-1].partition(b"data: ")[2])["response"]


class Responses:
    """The responses of one server."""

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._known: dict[str, Response] = {}

    def begin(self, frames: Iterable[bytes], pace: float) -> Response:
        """Keep a response whose stream has these frames."""
        text = (
            b"".join(frames).replace(_PLAIN, b'"background":true').replace(b'"store":false', b'"store":true')
        )
        events = [part + b"\n\n" for part in text.split(b"\n\n") if part]
        assert [int(_NUMBER.findall(one)[0]) for one in events] == [*range(len(events))]
        response = Response(events, pace)
        response.envelope = msgspec.json.decode(events[0].partition(b"data: ")[2])["response"]
        if self._kept:
            self._known[response.envelope["id"]] = response
        return response

    def find(self, path: str) -> tuple[Response | None, bool] | None:
        """Return the response of a path, None where it is unknown, and whether it is to be cancelled."""
        found = _PATH.fullmatch(path)
        return None if found is None else (self._known.get(found[1]), bool(found[2]))


def starting_after(query: str) -> int | None:
    """Return the number after which a stream is to start, or None where no stream is asked for."""
    asked = parse_qs(query)
    if asked.get("stream") != ["true"]:
        return None
    return int(asked.get("starting_after", ["-1"])[0])
