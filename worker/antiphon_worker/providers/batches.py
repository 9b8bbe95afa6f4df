"""Batches of a model service: many requests in one order, answered within a day at half the price."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon_worker.providers.http.connection import Call, Connection
from antiphon_worker.providers.http.failures import TransportErrors, map_transport_error

LONGEST_LINE = 128 * 1024 * 1024
_OF_STREAMS = ("stream", "stream_options")

T = TypeVar("T")
Requests: TypeAlias = Sequence[tuple[str, bytes]]
"""The ids of steps, and the bodies of their requests."""


class Unreadable(ProviderStreamBroken):
    """An answer about a batch does not have the form that its service documents."""


class BatchAnswer(Struct):
    """The outcome of one request: the ``body`` of its answer, or the ``error``."""

    id: str
    body: bytes = b""
    error: str = ""


class Found(Struct):
    """A batch that was found. ``sure`` means that it has the label; otherwise its answers show if it is the one."""

    id: str
    sure: bool


class BatchState(Struct):
    """The progress of a batch. ``full`` means that the service accepts no more for now, and has run none of it.

    ``checked`` means that nothing is known yet. ``files`` are the files that the service keeps for the batch;
    ``answers`` are those that contain its answers.
    """

    status: Literal["checked", "running", "ended", "full"]
    error: str = ""
    answers: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


class Named(Struct):
    """The id of an object that a service has created."""

    id: str


class BatchEndpoint(ABC):
    """The batches of one provider. All methods raise ``ProviderError``, including ``Unreadable``."""

    price: ClassVar[float] = 0.5
    """The price of a token in a batch, as a fraction of its usual price."""

    def __init__(self, connection: Connection, provider: str) -> None:
        self._connection = connection
        self._provider = provider

    @abstractmethod
    async def order(self, label: str, path: str, requests: Requests, headers: Mapping[str, str]) -> Call:
        """Prepare a batch, and return the call that sends it."""

    async def create(self, order: Call) -> str:
        """Send a batch, and return its id."""
        return (await self._json(order, Named)).id

    @abstractmethod
    async def find(self, label: str, count: int, since: float, others: Container[str]) -> Found | None:
        """Return a batch that may be the one with this label, sent with ``count`` requests at ``since`` or later.

        ``since`` is in seconds since 1970, by another clock. The ids in ``others`` belong to other batches.
        """

    @abstractmethod
    async def state(self, batch_id: str) -> BatchState:
        """Return the progress of a batch."""

    @abstractmethod
    def answers(self, batch_id: str, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Yield the answers of an ended batch. Raises ``Unreadable`` after them if some could not be read."""

    @abstractmethod
    async def cancel(self, batch_id: str) -> None:
        """Ask the service to cancel the rest of a batch."""

    @abstractmethod
    async def forget(self, batch_id: str, state: BatchState) -> None:
        """Delete an ended batch with its requests and answers, except what the service refuses to delete."""

    async def _json(self, call: Call, kind: type[T]) -> T:
        body = bytearray()
        async for piece in self._read(call):
            body += piece
        return self._decoded(bytes(body), kind)

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise Unreadable(f"The answer of {self._provider} about a batch cannot be read: {exc}.") from exc

    async def _each(self, call: Call, answer: Callable[[bytes], BatchAnswer]) -> AsyncIterator[BatchAnswer]:
        """Read one answer from each line. Raises ``Unreadable`` after the last one if some could not be read."""
        unread: Unreadable | None = None
        async for line in self._lines(call):
            try:
                found = answer(line)
            except Unreadable as exc:
                unread = exc
            else:
                yield found
        if unread is not None:
            raise unread

    async def _call(self, call: Call) -> None:
        """Make a call whose answer does not matter."""
        async for _ in self._read(call):
            pass

    async def _delete(self, path: str) -> None:
        try:
            await self._call(Call(path, b"", method="DELETE"))
        except ProviderError as exc:
            if exc.retryable:
                raise

    async def _lines(self, call: Call) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._read(call):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line
            if len(rest) > LONGEST_LINE:
                raise Unreadable(f"A line of the answers of {self._provider} to a batch is too long.")
        if rest.strip():
            yield rest

    async def _read(self, call: Call) -> AsyncIterator[bytes]:
        answer = await self._connection.open(self._provider, call)
        pieces: list[bytes] = []

        def take(piece: bytes) -> bool:
            pieces.append(piece)
            return False

        try:
            ended = False
            while not ended:
                try:
                    ended = await answer.into(take)
                except TransportErrors as exc:
                    raise self._connection.publishable(
                        map_transport_error(self._provider, exc, begun=True)
                    ) from None
                while pieces:
                    yield pieces.pop(0)
        finally:
            await answer.aclose()


def batched_body(body: bytes) -> bytes:
    """Return the body of a request in a batch, without streaming: the answer arrives in one piece."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in _OF_STREAMS})
