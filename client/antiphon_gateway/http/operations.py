"""Operations: what the gateway can be asked to do. Each is declared once, by its function.

    @operation("GET", "/turns/{turn}", right="read")
    async def show(call: Call[None, None]) -> TurnInfo:
        \"\"\"Read a turn.\"\"\"

The annotation of ``call`` names the struct of the query and that of the body; the function's answer is the response.
Routes, checks and the OpenAPI document are made from these.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from antiphon.client import AsyncClient
from antiphon.errors import TurnNotFound, WrongTenant
from antiphon.input.ids import new_session_id
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Caller, Right
from antiphon_gateway.http.counting import CountedStream, Counting
from antiphon_gateway.http.quotas import Quotas
from antiphon_gateway.http.stopping import Stopping
from antiphon_gateway.http.streams import Closing, EventStream
from antiphon_gateway.http.watch import Watch
from antiphon_gateway.settings import Limits

__all__ = ["Answer", "Call", "Method", "Operation", "Services", "operation"]

Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler: TypeAlias = Callable[[Any], Awaitable[Any]]


@dataclass(slots=True)
class Services:
    """What all requests of a gateway share."""

    client: AsyncClient
    access: Access
    limits: Limits
    quotas: Quotas = field(default_factory=Quotas)
    stopping: Stopping = field(default_factory=Stopping)
    watch: Watch = field(default_factory=Watch)
    counting: Counting | None = None

    def refused(self, error: Exception) -> None:
        """Count an error that a limit is the reason of."""
        limit = getattr(error, "limit", None)
        if self.counting is not None and limit:
            self.counting.refused(str(limit))


@dataclass(slots=True)
class Call(Generic[Q, B]):
    """One request whose caller, query and body are checked. ``path`` has the values of the route's placeholders."""

    services: Services
    caller: Caller
    path: dict[str, str]
    query: Q
    body: B
    request: Request

    @property
    def client(self) -> AsyncClient:
        return self.services.client

    def address(self, *segments: str) -> str:
        """Return the path of something of this gateway, from the place where it is mounted."""
        return "/".join([self.request.scope.get("root_path", ""), *(quote(one, safe="") for one in segments)])

    def new_session(self, key: str | None) -> str:
        """Return a new session id that the caller may use; the same one for the same key of the same route."""
        seed = f"{self.caller.name}\0{self.request.url.path}\0{key}".encode()
        new = new_session_id() if key is None else hashlib.sha256(seed).hexdigest()[:32]
        allowed = self.caller.sessions
        return next((one[:-1] for one in allowed or () if one.endswith("*")), "") + new

    def stream(
        self, events: Closing, messages: AsyncGenerator[bytes], headers: dict[str, str] | None = None
    ) -> EventStream:
        """Return a response that sends these messages of these events. It counts as a stream of the caller."""
        services = self.services
        most = services.limits.streams if self.caller.streams is None else self.caller.streams
        until, held = self.caller.until, services.quotas.stream(self.caller.name, most)
        if services.counting is None:
            return EventStream(events, messages, services.watch, until=until, held=held, headers=headers)
        return CountedStream(
            events,
            messages,
            services.watch,
            until=until,
            held=held,
            headers=headers,
            counting=services.counting,
        )

    async def turn(self) -> AsyncTurn:
        """Return the turn of the path. Another tenant's turn, or another session's, does not exist for the caller.

        Raises ``TurnNotFound``.
        """
        try:
            found = await self.client.turn(self.path["turn"], tenant=self.caller.tenant)
        except WrongTenant:
            raise TurnNotFound from None
        if not self.caller.may_use(found.session_id):
            raise TurnNotFound
        return found


@dataclass(slots=True)
class Answer(Generic[T]):
    """A value with a status or headers of its own."""

    value: T
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route. ``right`` is what the caller needs, None for everybody."""

    method: Method
    route: str
    handler: Handler
    right: Right | None
    status: int
    query: Any
    body: Any
    answer: Any
    streams: bool

    @property
    def name(self) -> str:
        return getattr(self.handler, "__name__", "")

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.handler) or ""


def operation(
    method: Method, route: str, *, right: Right | None, status: int = 200, streams: bool = False
) -> Callable[[F], F]:
    """Declare a function as an operation. ``operations_of`` finds it."""

    def declared(handler: F) -> F:
        hints = get_type_hints(handler)
        query, body = get_args(hints["call"])
        answer = None if streams or hints["return"] is Response else hints["return"]
        answer = get_args(answer)[0] if get_origin(answer) is Answer else answer
        nothing = type(None)
        known = Operation(
            method, route, handler, right, status,
            None if query is nothing else query, None if body is nothing else body,
            None if answer is nothing else answer, streams,
        )  # fmt: skip
        handler.operation = known  # type: ignore[attr-defined]
        return handler

    return declared
