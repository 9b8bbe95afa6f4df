"""Answers that OpenAI writes in the background, and that another attempt continues to read after a crash.

The id of an answer is kept as soon as the service names it. From then on no attempt asks for the answer again: it reads
the answer of the first one from its beginning, and leaves out what readers already have. Where only the connection is
lost, the same attempt reads on after the last event that it has taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

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
from antiphon_worker.providers.openai_responses.stream import Event, ResponsesDecoder
from antiphon_worker.providers.stream.increments import AnswerStream

log = logging.getLogger("antiphon.providers")

MOST_RECONNECTS = 3
CANCEL_SECONDS = 2.0
LOST = (ProviderStreamBroken, ProviderUnreachable, ProviderTimedOut, ProviderOverloaded)
"""Errors after which the service may still be writing the answer."""


class NumberedEvent(Event):
    sequence_number: int = -1


class _Created(msgspec.Struct):
    id: str


class BackgroundDecoder(ResponsesDecoder):
    """Decodes one answer, over several connections. ``after`` is the number of the last event that it has taken."""

    EVENT: ClassVar[type[Any]] = NumberedEvent

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, model)
        self.response_id = ""
        self.after = -1
        self.ended = False  # the service writes no more

    def _end(self, response: dict[str, Any], out: Increments) -> None:
        self.ended = True
        super()._end(response, out)


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

    async def into(self, outlet: Outlet) -> StepResult:
        """Put the increments that readers do not have yet into an outlet, and return the result."""
        decoder, keeper = self._background, self._keeper
        if keeper.response_id:
            decoder.response_id = keeper.response_id
            outlet = _Rest(outlet, await keeper.published())
            self._read_on(0)
        else:
            outlet = _Beginning(outlet, decoder, keeper)
        for reconnects in range(MOST_RECONNECTS + 1):
            try:
                return await super().into(outlet)
            except asyncio.CancelledError:
                if decoder.response_id and keeper.stopped:
                    await self._cancel()
                raise
            except ProviderError as exc:
                if not decoder.response_id or isinstance(exc, ProviderRateLimited):
                    raise
                if decoder.ended or not isinstance(exc, LOST):
                    await self._give_up(exc)
                if reconnects == MOST_RECONNECTS:
                    raise
                log.debug("%s lost the answer, and reads on: %s", self._provider, exc.message)
                self._read_on(max(decoder.after, 0))
        raise AssertionError("unreachable")

    def _read_on(self, after: int) -> None:
        query = {"stream": "true", "starting_after": after}
        path = f"/responses/{self._background.response_id}"
        self._call = msgspec.structs.replace(
            self._call, method="GET", path=path, body=b"", query={**self._call.query, **query}
        )

    async def _give_up(self, exc: ProviderError) -> None:
        """Forget the answer. Raises the error, as one that is retried where the answer could not be found again."""
        await self._keeper.gone()
        if self._call.method == "GET" and not self._background.ended:
            raise ProviderStreamBroken(
                f"{self._provider} no longer has the answer that was begun, and is asked again. {exc.message}",
                status=exc.status, request_id=exc.request_id,
            ) from exc  # fmt: skip
        raise exc

    async def _cancel(self) -> None:
        """Ask the service to stop writing an answer that no worker will read."""
        path = f"/responses/{self._background.response_id}/cancel"
        call = msgspec.structs.replace(self._call, method="POST", path=path, body=b"{}", query={})
        with suppress(ProviderError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await (await self._connection.open(self._provider, call)).aclose()


class _Beginning:
    """An outlet that keeps the id of the answer as soon as it is known, before anything else is read."""

    def __init__(self, outlet: Outlet, decoder: BackgroundDecoder, keeper: AnswerKeeper) -> None:
        self.append = outlet.append
        self._outlet = outlet
        self._decoder = decoder
        self._keeper = keeper
        self._kept = False

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
    """An outlet that leaves out the beginning of an answer, which readers have."""

    def __init__(self, outlet: Outlet, published: Published) -> None:
        self._outlet = outlet
        self._left = published
        self.drain = outlet.drain

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
