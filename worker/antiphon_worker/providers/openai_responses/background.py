"""Answers that OpenAI writes in the background, and that another attempt continues to read after a crash.

The id of an answer is kept as soon as the service returns it. After that, no attempt repeats the request: it reads
the same answer from the beginning, and leaves out what readers already have. If only the connection is lost, the same
attempt continues after the last event that it has read. If the service no longer streams the answer, it is read whole.
The cost of a lost or cancelled answer is counted if the service reports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec

from antiphon.errors import (
    ProviderError,
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderStreamBroken,
    ProviderTimedOut,
    ProviderUnreachable,
)
from antiphon_worker.providers.base import (
    AnswerKeeper,
    Increment,
    Increments,
    ItemPart,
    Outlet,
    Published,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.http.connection import Call, Connection
from antiphon_worker.providers.http.failures import TransportErrors
from antiphon_worker.providers.openai_responses.stream import Event, ResponsesDecoder
from antiphon_worker.providers.stream.increments import AnswerStream
from antiphon_worker.providers.stream.json_text import as_dict

log = logging.getLogger("antiphon.providers")

MOST_RECONNECTS = 3
STREAM_OVER, NOT_FOUND = 400, 404
SHORT_SECONDS = 2.0  # for a call that only stops an answer, or asks what it has cost
LOST = (ProviderStreamBroken, ProviderUnreachable, ProviderTimedOut, ProviderOverloaded)
"""Errors after which the service may still be writing the answer."""


class NumberedEvent(Event):
    sequence_number: int = -1


class _Created(msgspec.Struct):
    id: str


class BackgroundDecoder(ResponsesDecoder):
    """Decodes one answer, over several connections. ``after`` is the number of the last event that it has taken."""

    EVENT: ClassVar[type[Any]] = NumberedEvent

    def __init__(self, provider: str, model: str, tools: frozenset[str] = frozenset()) -> None:
        super().__init__(provider, model, tools)
        self.response_id = ""
        self.after = -1
        self.ended = False  # the service writes no more

    def _end(self, response: dict[str, Any], out: Increments) -> None:
        self.ended = response.get("status") not in ("queued", "in_progress")
        self.charge(response)
        super()._end(response, out)

    def charge(self, response: dict[str, Any]) -> None:
        """Note the usage that the service has counted so far."""
        self._usage = as_dict(response.get("usage")) or self._usage


def _take_created(decoder: BackgroundDecoder, event: NumberedEvent, data: bytes, out: Increments) -> None:
    decoder.response_id = decoder.response_id or msgspec.json.decode(event.response, type=_Created).id


def _numbered(take: Callable[..., None]) -> Callable[..., None]:
    def taken(decoder: BackgroundDecoder, event: NumberedEvent, data: bytes, out: Increments) -> None:
        decoder.after = event.sequence_number
        take(decoder, event, data, out)

    return taken


BackgroundDecoder.TAKES = {
    kind: _numbered(take)
    for kind, take in {**ResponsesDecoder.TAKES, "response.created": _take_created}.items()
}


class BackgroundStream(AnswerStream):
    """The answer to a request with ``background``, which outlives its connections."""

    def __init__(
        self,
        connection: Connection,
        provider: str,
        call: Call,
        decoder: BackgroundDecoder,
        keeper: AnswerKeeper,
    ) -> None:
        super().__init__(connection, provider, call, decoder)
        self._background = decoder
        self._keeper = keeper
        self._query = call.query
        self._streams = True  # the service still streams the answer again, which it does for some minutes

    async def into(self, outlet: Outlet) -> StepResult:
        """Put the increments that readers do not have yet into an outlet, and return the result."""
        decoder, keeper = self._background, self._keeper
        if keeper.response_id:
            decoder.response_id = keeper.response_id
            outlet = _Rest(outlet, await keeper.published())
            self._read_on(0)
        else:
            outlet = _Beginning(outlet, decoder, keeper)
        reconnects = 0
        while True:
            try:
                return await super().into(outlet)
            except asyncio.CancelledError:
                if decoder.response_id and keeper.stopped:
                    await self._cancel()
                raise
            except ProviderError as exc:
                if not decoder.response_id or isinstance(exc, ProviderRateLimited):
                    raise
                if isinstance(exc, LOST) and not decoder.ended:
                    reconnects += 1
                elif exc.status == STREAM_OVER and self._streams and self._call.method == "GET":
                    self._streams = False
                else:
                    await self._give_up(exc)
                if reconnects > MOST_RECONNECTS:
                    raise
                log.debug("%s lost the answer, and reads on: %s", self._provider, exc.message)
                self._read_on(max(decoder.after, 0))

    def _read_on(self, after: int) -> None:
        """Let the next call read the rest of the answer, or all of it if the service no longer streams it."""
        self._call = self._about(
            "GET", query={"stream": "true", "starting_after": after} if self._streams else {}
        )

    def _about(
        self, method: Literal["GET", "POST"], path: str = "", query: Mapping[str, Any] = MappingProxyType({})
    ) -> Call:
        """Return a call about the answer that was begun."""
        path, body = f"/responses/{self._background.response_id}{path}", b"{}" if method == "POST" else b""
        return msgspec.structs.replace(
            self._call, method=method, path=path, body=body, query={**self._query, **query}
        )

    async def _give_up(self, exc: ProviderError) -> None:
        """Forget the answer. Raises the error, as a retryable one if the answer could not be found again."""
        if not self.counted.tokens and exc.status != NOT_FOUND:
            await self._charge(self._about("GET"))
        await self._keeper.gone(self.counted)
        if self._call.method == "GET" and not self._background.ended:
            raise ProviderStreamBroken(
                f"{self._provider} no longer has the answer that was begun, and is asked again. {exc.message}",
                status=exc.status, request_id=exc.request_id,
            ) from exc  # fmt: skip
        raise exc

    async def _cancel(self) -> None:
        """Ask the service to stop writing an answer that no worker will read."""
        await self._charge(self._about("POST", "/cancel"))

    async def _charge(self, call: Call) -> None:
        """Make a call about the answer, and note what the service has counted. Failures are ignored."""
        said = bytearray()

        def take(piece: bytes) -> bool:
            said.extend(piece)
            return len(said) <= self._connection.options.max_answer_bytes

        with suppress(ProviderError, TimeoutError, *TransportErrors, msgspec.MsgspecError, UnicodeError):
            async with asyncio.timeout(SHORT_SECONDS):
                answer = await self._connection.open(self._provider, call)
                try:
                    if await answer.into(take):
                        self._background.charge(msgspec.json.decode(said, type=dict[str, Any]))
                finally:
                    await answer.aclose()


class _Beginning:
    """An outlet that keeps the id of the answer as soon as it is known, before anything else is read."""

    def __init__(self, outlet: Outlet, decoder: BackgroundDecoder, keeper: AnswerKeeper) -> None:
        self.append = outlet.append
        self._outlet = outlet
        self._decoder = decoder
        self._keeper = keeper
        self._kept = False
        self.read_from = outlet.read_from

    @property
    def full(self) -> bool:
        return self._outlet.full or (not self._kept and self._decoder.response_id != "")

    async def drain(self) -> None:
        if not self._kept and self._decoder.response_id:
            self._kept = True
            await self._keeper.begun(self._decoder.response_id)
        if self._outlet.full:
            await self._outlet.drain()


class _Rest:
    """An outlet that leaves out the beginning of an answer, which readers already have."""

    def __init__(self, outlet: Outlet, published: Published) -> None:
        self._outlet = outlet
        self._left = published
        self.drain = outlet.drain
        self.read_from = outlet.read_from

    @property
    def full(self) -> bool:
        return self._outlet.full

    def append(self, increment: Increment) -> None:
        rest = self._rest_of(increment)
        if rest is not None:
            self._outlet.append(rest)

    def _rest_of(self, increment: Increment) -> Increment | None:
        match increment:
            case TextPiece(text=text):
                return TextPiece(rest) if (rest := _rest(self._left.texts, "text", text)) else None
            case ReasoningPiece(text=text):
                return ReasoningPiece(rest) if (rest := _rest(self._left.texts, "reasoning", text)) else None
            case RefusalPiece(text=text):
                return RefusalPiece(rest) if (rest := _rest(self._left.texts, "refusal", text)) else None
            case ToolCallPiece(call_id=call_id, name=name, arguments=arguments) if (
                call_id in self._left.calls
            ):
                rest = _rest(self._left.calls, call_id, arguments)
                return ToolCallPiece(call_id, "", rest) if rest and not name else None
            case ItemPart() if self._left.items:
                self._left.items -= 1
                return None
            case _:
                return increment


def _rest(left: dict[str, int], kind: str, text: str) -> str:
    known = min(left.get(kind, 0), len(text))
    if known:
        left[kind] -= known
    return text[known:]
