"""Sends a request, splits the body of the answer into events, and decodes them to increments and a result.

The three wire formats share this module. Each format has a ``Decoder``, which does not use the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType

from msgspec.structs import replace

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon.model import Refusal, Text, ToolCall, Usage
from antiphon_worker.providers.base import Increment, Outlet, Source, StepResult
from antiphon_worker.providers.http.connection import Answer, Call, Connection, Options
from antiphon_worker.providers.http.failures import TransportErrors, map_transport_error
from antiphon_worker.providers.stream.decoder import Decoder
from antiphon_worker.providers.stream.sse import EventSplitter

log = logging.getLogger("antiphon.providers")

# How long to wait for the end of a complete answer's body, so that its connection can be used again.
END_OF_BODY_SECONDS = 0.2
LONGEST_REQUEST_ID = 200
_EVENT_BEGINNINGS = (b"data:", b"event:", b"id:", b"retry:", b":", b"\xef\xbb\xbf")


class AnswerStream:
    """The answer to one request. The request is sent when reading starts.

    Iteration yields increments and then the ``StepResult``. ``into`` puts the same increments into an outlet. Both
    raise ``ProviderError``.
    """

    def __init__(self, connection: Connection, provider: str, call: Call, decoder: Decoder) -> None:
        self._connection = connection
        self._provider = provider
        self._call = call
        self._decoder = decoder
        self._iteration: AsyncGenerator[Increment, None] | None = None

    @property
    def body(self) -> bytes:
        """The JSON of the request."""
        return self._call.body

    @property
    def call(self) -> Call:
        """The request, to send it in another way, such as in a batch."""
        return self._call

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return self._decoder.counted

    def __aiter__(self) -> AsyncGenerator[Increment, None]:
        if self._iteration is None:
            self._iteration = self._iterate()
        return self._iteration

    async def __anext__(self) -> Increment:
        return await anext(aiter(self))

    async def aclose(self) -> None:
        """End an iteration early and close the connection."""
        await aiter(self).aclose()

    async def into(self, outlet: Outlet) -> StepResult:
        """Put the increments into an outlet and return the result."""
        result: StepResult | None = None
        async with aclosing(self._read(outlet)) as parts:
            async for result in parts:
                if result is None:
                    await outlet.drain()
        assert result is not None
        return result

    async def from_whole(self, body: bytes, outlet: Outlet) -> StepResult:
        """Put the increments of an answer that arrived in another way into an outlet, and return the result."""
        with _Failures(self._connection, self._provider, None):
            self._decoder.whole(body, outlet)
            result = _with_named_calls(self._decoder.result(outlet), self._provider)
        if outlet.full:
            await outlet.drain()
        return result

    async def _iterate(self) -> AsyncGenerator[Increment, None]:
        kept = _Kept()
        async with aclosing(self._read(kept)) as parts:
            async for result in parts:
                while kept.increments:
                    yield kept.increments.popleft()
                if result is not None:
                    yield result

    async def _read(self, outlet: Outlet) -> AsyncGenerator[StepResult | None, None]:
        """Send the request and read its answer. Yields None each time that the outlet is full, and then the result."""
        connection, decoder = self._connection, self._decoder
        answer = await connection.open(self._provider, self._call)
        self._call = replace(self._call, body=b"", upload=None)  # the body may be as long as the history
        request_id = _request_id(connection, answer)
        log.debug("%s answers, request id %s", self._provider, request_id)
        body = _Body(decoder, connection.options, outlet, json=_is_json(answer))
        answer.headers = ()  # the response takes more memory than the rest of an answer that is being read
        outlet.read_from(answer.source)
        try:
            with _Failures(connection, self._provider, request_id):
                while not await answer.into(body.take):
                    if decoder.finished:
                        await _read_to_end(answer)
                        break
                    yield None
                result = _with_named_calls(body.end(), self._provider)
                result.request_id = request_id
                yield result
        finally:
            outlet.read_from(None)
            await answer.aclose()


class _Kept:
    """Queues increments until they are read."""

    full = True

    def __init__(self) -> None:
        self.increments: deque[Increment] = deque()
        self.append = self.increments.append

    async def drain(self) -> None:
        """Never called, because the iteration takes the increments."""

    def read_from(self, source: Source | None) -> None:
        """Do nothing, because nothing waits here."""


class _Body:
    """The received part of an answer: events, or one JSON value."""

    __slots__ = (
        "_decoder", "_events", "_json", "_left", "_limit", "_outlet", "_splitter", "_start", "_whole",
    )  # fmt: skip

    def __init__(self, decoder: Decoder, options: Options, outlet: Outlet, *, json: bool) -> None:
        self._decoder = decoder
        self._outlet = outlet
        self._limit = self._left = options.max_answer_bytes
        self._splitter = EventSplitter(options.max_event_bytes)
        self._json = json  # according to the headers
        self._start = b""  # leading white space, until the body shows its format
        self._whole: bytearray | None = None  # the JSON value
        self._events = False

    def take(self, chunk: bytes) -> bool:
        """Put the increments of a chunk into the outlet. Returns False if reading must pause or end."""
        self._left -= len(chunk)
        if self._left < 0:
            raise ValueError(f"it is longer than {self._limit} bytes")
        if not self._events:
            chunk = self._begin(chunk)
        decoder, outlet = self._decoder, self._outlet
        for name, data in self._splitter.feed(chunk):
            decoder.event(name, data, outlet)
        return not (decoder.finished or outlet.full)

    def _begin(self, chunk: bytes) -> bytes:
        """Return the bytes that belong to events.

        The first character decides, because some servers label JSON as a stream of events and events as JSON.
        """
        if self._whole is not None:
            self._whole += chunk
            return b""
        self._start += chunk
        said = self._start.lstrip()
        if said[:1] == b"{" or (said and self._json and not said.startswith(_EVENT_BEGINNINGS)):
            self._whole = bytearray(self._start)
        self._events = bool(said) and self._whole is None
        return self._start if self._events else b""

    def end(self) -> StepResult:
        """At the end of the body, put the rest into the outlet and return the result."""
        if self._whole is not None or (self._json and not self._events):
            self._decoder.whole(bytes(self._whole or b""), self._outlet)
        else:
            self._flush()
        return self._decoder.result(self._outlet)

    def _flush(self) -> None:
        """Take a last event without its blank line if it is complete, else ignore it."""
        for name, data in self._splitter.flush():
            try:
                self._decoder.event(name, data, self._outlet)
            except ValueError:
                log.debug("The body ends in the middle of an event.")


class _Failures:
    """Converts errors of an answer to a ``ProviderError`` that names the request."""

    __slots__ = ("_connection", "_provider", "_request_id")

    def __init__(self, connection: Connection, provider: str, request_id: str | None) -> None:
        self._connection = connection
        self._provider = provider
        self._request_id = request_id

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, ProviderError):
            error = exc
        elif isinstance(exc, TransportErrors):
            error = map_transport_error(self._provider, exc, begun=True)
        elif isinstance(exc, ValueError | RecursionError):
            said = f"{type(exc).__name__}: {exc}"[:200]
            error = ProviderStreamBroken(f"The answer of {self._provider} cannot be read: {said}.")
        else:
            return
        error.request_id = error.request_id or self._request_id
        raise self._connection.publishable(error) from None


def _with_named_calls(result: StepResult, provider: str) -> StepResult:
    """Return the result without tool calls that have no name: they cannot run, and answering them would cause more.

    Raises ``ProviderStreamBroken`` if nothing would be left of an answer that asked for tools.
    """
    parts = result.message.parts
    named = [part for part in parts if not isinstance(part, ToolCall) or part.name.strip()]
    if len(named) == len(parts):
        return result
    asked = any(isinstance(part, ToolCall) and (part.arguments or part.raw) for part in parts)
    if asked and not any(isinstance(part, Text | Refusal | ToolCall) for part in named):
        raise ProviderStreamBroken(f"{provider} requested a tool without a name. Try again later.")
    result.message.parts = named
    if result.stop_reason == "tool_use" and not result.message.tool_calls:
        result.stop_reason = "end"
    return result


def _request_id(connection: Connection, answer: Answer) -> str | None:
    found = answer.header(connection.request_id_header) or answer.header(b"x-request-id")
    return connection.publishable_text(found[:LONGEST_REQUEST_ID]) if found else None


def _is_json(answer: Answer) -> bool:
    kind = answer.header(b"content-type").lower()
    return "json" in kind and "event-stream" not in kind


async def _read_to_end(answer: Answer) -> None:
    """Keep the connection usable for another request, if the answer ends soon."""
    try:
        async with asyncio.timeout(END_OF_BODY_SECONDS):
            while not await answer.into(lambda _: True):
                continue
    except TransportErrors:
        log.debug("The connection ended after the answer.")
