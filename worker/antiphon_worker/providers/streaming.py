"""From a request to increments: sends, splits the body into events, decodes them, and ends with the result.

What the three wire formats have in common. A format brings a ``Decoder``, which knows nothing of the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing, contextmanager
from typing import Protocol

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon_worker.providers.base import Increment, StepResult
from antiphon_worker.providers.connection import (
    Answer,
    Call,
    Connection,
    Options,
    TransportErrors,
    map_transport_error,
)
from antiphon_worker.providers.sse import EventSplitter

__all__ = ["Decoder", "stream_answer"]

log = logging.getLogger("antiphon.providers")

# How long the end of a body that has already said all is waited for, so that its connection can be used again.
END_OF_BODY_SECONDS = 0.2
_EVENT_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf")


class Decoder(Protocol):
    """Understands one wire format. Used for one answer."""

    finished: bool
    """True once the format's own terminator has come."""

    def event(self, name: bytes, data: bytes, out: list[Increment]) -> None:
        """Take one event. Raises ``ProviderError`` for an error among the events, ``ValueError`` for nonsense."""
        ...

    def whole(self, body: bytes, out: list[Increment]) -> None:
        """Take an answer that came in one piece, as JSON."""
        ...

    def result(self, out: list[Increment]) -> StepResult:
        """The whole answer. Raises ``ProviderStreamBroken`` where its end is missing."""
        ...


async def stream_answer(
    connection: Connection, provider: str, call: Call, decoder: Decoder
) -> AsyncGenerator[Increment, None]:
    """Send a request and yield what comes back; the last one is the ``StepResult``."""
    answer = await connection.open(provider, call)
    request_id = answer.headers.get(connection.request_id_header) or answer.headers.get("x-request-id")
    log.debug("%s answers, request id %s", provider, request_id)
    body = _Body(decoder, connection.options, json=_is_json(answer))
    try:
        with _failures(connection, provider, request_id):
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    for increment in body.take(chunk):
                        yield increment
                    if decoder.finished:
                        await _read_to_end(chunks)
                        break
            for increment in body.end():
                yield increment
            ending: list[Increment] = []
            result = decoder.result(ending)
            result.request_id = request_id
            for increment in ending:
                yield increment
            yield result
    finally:
        await answer.aclose()


class _Body:
    """What has come of an answer, one chunk after the other: events, or one JSON value."""

    __slots__ = ("_decoder", "_json", "_left", "_limit", "_splitter", "_start", "_whole")

    def __init__(self, decoder: Decoder, options: Options, *, json: bool) -> None:
        self._decoder = decoder
        self._limit = self._left = options.max_answer_bytes
        self._splitter = EventSplitter(options.max_event_bytes)
        self._json = json  # what the headers say
        self._start: bytes | None = b""  # white space that has come, until the body shows what it is
        self._whole: bytearray | None = None

    def take(self, chunk: bytes) -> list[Increment]:
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError(f"it is longer than {self._limit} bytes")
        out: list[Increment] = []
        if self._start is not None:
            chunk = self._begin(chunk)
        if self._whole is not None:
            self._whole += chunk
            return out
        decode = self._decoder.event
        for name, data in self._splitter.feed(chunk):
            decode(name, data, out)
        return out

    def _begin(self, chunk: bytes) -> bytes:
        """Look at the first character: servers send JSON as a stream of events, and events as JSON."""
        chunk = (self._start or b"") + chunk
        said = chunk.lstrip()
        if not said:
            self._start = chunk
            return b""
        self._start = None
        if said[:1] == b"{" or (self._json and not said.startswith(_EVENT_BEGINNINGS)):
            self._whole = bytearray()
        return chunk

    def end(self) -> list[Increment]:
        out: list[Increment] = []
        if self._whole is not None or (self._json and self._start is not None):
            self._decoder.whole(bytes(self._whole or b""), out)
            return out
        for name, data in self._splitter.flush():
            # An event that lost its blank line counts where it is whole; what is torn is as good as not sent.
            try:
                self._decoder.event(name, data, out)
            except ValueError:
                log.debug("The body ends in the middle of an event.")
        return out


@contextmanager
def _failures(connection: Connection, provider: str, request_id: str | None) -> Generator[None]:
    """Turn whatever goes wrong with an answer into a ``ProviderError`` that names the request."""
    try:
        yield
    except ProviderError as error:
        error.request_id = error.request_id or request_id
        raise connection.without_key(error) from error.__cause__
    except TransportErrors as exc:
        error = map_transport_error(provider, exc, begun=True)
        error.request_id = request_id
        raise error from exc
    except (ValueError, RecursionError) as exc:
        said = f"{type(exc).__name__}: {exc}"[:200]
        raise ProviderStreamBroken(
            f"The answer of {provider} cannot be read: {said}.", request_id=request_id
        ) from exc


def _is_json(answer: Answer) -> bool:
    kind = answer.headers.get("content-type", "").lower()
    return "json" in kind and "event-stream" not in kind


async def _read_to_end(chunks: AsyncIterator[bytes]) -> None:
    """Leave the connection fit for another request, if its answer ends soon."""
    try:
        async with asyncio.timeout(END_OF_BODY_SECONDS):
            async for _ in chunks:
                continue
    except TransportErrors:
        log.debug("The connection ended after the answer.")
