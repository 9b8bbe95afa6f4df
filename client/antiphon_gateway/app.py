"""``gateway(client)``: the ASGI application, run by uvicorn or mounted in your own."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Protocol, cast

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from antiphon.client import AsyncClient
from antiphon.errors import SettingsError
from antiphon.input.values import is_a
from antiphon_gateway.a2a import operations as a2a_routes
from antiphon_gateway.access.access import Access, check_origin
from antiphon_gateway.access.caller import Caller
from antiphon_gateway.frontends import ag_ui, ai_sdk
from antiphon_gateway.http.operations import (
    Answer,
    Call,
    Counting,
    Operation,
    Routes,
    Services,
    operation,
    read_body,
    read_query,
)
from antiphon_gateway.http.streams import EventStream
from antiphon_gateway.interface import administration, events, sent_events, sessions, turns
from antiphon_gateway.interface import files as stored_files
from antiphon_gateway.interface.openapi import openapi
from antiphon_gateway.mcp import route as mcp
from antiphon_gateway.openai import (
    chat,
    compaction,
    conversations,
    input_tokens,
    models,
    responses,
    websocket,
)
from antiphon_gateway.openai.errors import openai_error
from antiphon_gateway.page import files
from antiphon_gateway.problems import Draining, Refused, problem_response
from antiphon_gateway.published import A2AAgent, published
from antiphon_gateway.settings import Limits, is_origin

log = logging.getLogger("antiphon.gateway")

CallerOf = Callable[[Request], Awaitable[Caller]]
HEADERS = [
    "authorization", "content-type", "idempotency-key", "last-event-id", "traceparent",
    "mcp-protocol-version", "mcp-method", "mcp-name", "a2a-version", "a2a-extensions",
]  # fmt: skip
METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
NO_ROUTE = "none"


class Tracing(Protocol):
    """Creates a span for each request."""

    def span(self, scope: Scope) -> AbstractContextManager[Any]: ...
    def answered(self, span: Any, method: str, route: str, status: int) -> None: ...


def gateway(
    client: AsyncClient,
    *,
    access: Access | CallerOf | None = None,
    limits: Limits | None = None,
    cors: Iterable[str] = (),
    metrics: Counting | None = None,
    traces: Tracing | None = None,
    a2a: Iterable[A2AAgent] = (),
) -> Gateway:
    """Return an ASGI application that serves the sessions of ``client`` over HTTP.

    Mount it in Starlette or FastAPI, or run ``antiphon serve``. ``access`` authenticates requests: an ``Access``, or a
    coroutine function of your own that returns the ``Caller`` of a request or raises ``Refused``. Without it, only
    programs on this machine may call. ``cors`` lists the other origins whose pages may call. ``metrics`` is a
    ``GatewayMetrics``, and ``traces`` a ``GatewayTraces``. ``a2a`` lists the agents that other agents may call over
    the A2A protocol. Close the client yourself. Raises ``SettingsError``.

    >>> from antiphon import AsyncClient
    >>> app = gateway(AsyncClient("redis://localhost:6379/0"))
    """
    if not is_a(client, AsyncClient):
        raise SettingsError(f"client= must be an AsyncClient, not {type(client).__name__}.")
    if access is not None and not isinstance(access, Access) and not callable(access):
        raise SettingsError(
            "access= must be an Access, or a coroutine function that returns the Caller of a request."
        )
    if isinstance(cors, str) or not all(is_origin(one) for one in cors):
        raise SettingsError(
            "cors= must be a list of origins such as https://chat.example.com, without * or a path."
        )
    return Gateway(client, access, limits or Limits(), cors, metrics, traces, published(a2a))


class Gateway:
    """An ASGI application without session state: any number of replicas may serve the same Redis.

    >>> app.drain()
    """

    def __init__(
        self,
        client: AsyncClient,
        access: Access | CallerOf | None,
        limits: Limits,
        cors: Iterable[str],
        metrics: Counting | None,
        traces: Tracing | None,
        a2a: Mapping[str, A2AAgent],
    ) -> None:
        own = access if isinstance(access, Access) else Access()
        closed = own.closed or (access is not None and access is not own)
        self._services = Services(client, own, limits, counting=metrics, a2a=a2a, closed=closed)
        self._traces = traces
        self._caller_of = None if access is None or isinstance(access, Access) else access
        self._routes = Routes(operations())
        self._origins = {one.lower() for one in cors}
        self._app: ASGIApp = self._serve
        if self._origins:
            self._app = CORSMiddleware(
                self._serve, allow_origins=[*self._origins], allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=HEADERS, expose_headers=["location", "retry-after"], max_age=600,
            )  # fmt: skip

    def drain(self) -> None:
        """End every stream at a cursor from which its reader can resume at another replica.

        Requests that wait for a turn are refused with 503: repeat them at another replica. ``antiphon serve`` does this
        on SIGTERM.

        >>> app.drain()
        """
        self._services.stopping.begin()
        self._services.watch.end()

    @property
    def draining(self) -> bool:
        """Whether ``drain`` was called: send no further requests to this process."""
        return self._services.stopping.began

    @property
    def streams(self) -> int:
        """How many streams and WebSockets are open."""
        return self._services.quotas.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            await self._talk(scope, receive, send)

    async def _talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve responses over a WebSocket to a caller with the right to make them."""
        headers = [
            one for one in scope["headers"] if one[0] != b"idempotency-key"
        ]  # it would apply to every response
        request = Request({**scope, "type": "http", "method": "POST", "headers": headers})
        with nullcontext() if self._traces is None else self._traces.span(request.scope) as span:
            sent = _Sent(send)
            status, began = 101, time.monotonic()
            try:
                status = await self._talk_within(WebSocket(scope, receive, sent), request)
            finally:
                self._tell(span, request.scope, "GET", status, began, sent.began or time.monotonic())

    async def _talk_within(self, peer: WebSocket, request: Request) -> int:
        """Return the status of the answer to the handshake."""
        try:
            known, path = self._routes.find(request.scope)
            request.scope["route"] = known.route
            if known.name != responses.create_response.__name__:
                raise Refused(404, "route_not_found", "WebSockets are supported only at /v1/responses.")
            caller = await self._caller(request, known, path)
            await websocket.serve(peer, Call(self._services, caller, path, None, None, request))
            return 101
        except Exception as exc:
            if peer.application_state is not WebSocketState.CONNECTING:
                raise
            self._services.refused(exc)
            refusal = openai_error(exc)
            await peer.send_denial_response(refusal)
            return refusal.status_code

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with nullcontext() if self._traces is None else self._traces.span(scope) as span:
            began = time.monotonic()  # the request is not kept: a stream may last for hours
            response = await self._response(Request(scope, receive))
            ready = time.monotonic()
            try:
                await response(scope, receive, send)
            except Exception as exc:  # noqa: BLE001 - the stream could not begin: it logs later errors itself
                response = self._refusal(Request(scope, receive), exc)
                await response(scope, receive, send)
            finally:
                self._tell(span, scope, scope["method"], response.status_code, began, ready)

    def _tell(self, span: Any, scope: Scope, method: str, status: int, began: float, ready: float) -> None:
        """Record a request that has ended, whose response began at ``ready``."""
        label = method if method in METHODS else "_OTHER"
        route: str = scope.get("route", NO_ROUTE)
        if self._services.counting is not None:
            self._services.counting.answered(label, route, status, ready - began)
        if self._traces is not None:
            self._traces.answered(span, label, route, status)
        _log_request(scope, method, status, time.monotonic() - began)

    async def _response(self, request: Request) -> Response:
        try:
            known, path = self._routes.find(request.scope)
            request.scope["route"], request.scope["path_params"] = known.route, path
            response = _encoded(await self._answer(request, known, path), known)
            return await _headers_of(response) if request.method == "HEAD" else response
        except Exception as exc:  # noqa: BLE001 - every error is answered, and logged if it is not ours
            return self._refusal(request, exc)

    def _refusal(self, request: Request, error: Exception) -> Response:
        """Return the error response in the form that the route's callers expect."""
        self._services.refused(error)
        below = request.url.path.removeprefix(request.scope.get("root_path", ""))
        if below.startswith(a2a_routes.ROOT):
            return a2a_routes.refusal(error, request.scope.get("route", NO_ROUTE))
        return openai_error(error) if below.startswith("/v1/") else problem_response(error)

    async def _answer(self, request: Request, known: Operation, path: dict[str, str]) -> Any:
        caller = _NOBODY if known.right is None else await self._caller(request, known, path)
        query = read_query(request, known.query)
        body = (
            None
            if known.body is None
            else await read_body(request, known.body, self._services.limits.body_bytes)
        )
        return await known.handler(Call(self._services, caller, path, query, body, request))

    async def _caller(self, request: Request, known: Operation, path: dict[str, str]) -> Caller:
        """Return the caller of the request, once its access is checked. Raises ``Refused``."""
        assert known.right is not None
        check_origin(request, self._origins)
        if self._caller_of is None:
            caller = await self._services.access.caller(request, stream=known.streams)
        else:
            caller = await self._caller_of(request)
        await self._services.secret.learn()
        self._services.quotas.take(caller.name, caller.rate or self._services.limits.rate)
        caller.check_right(known.right)
        if "session" in path:
            caller.check_session(path["session"])
        return caller


_NOBODY = Caller(name="", tenant=None, sessions=(), rights=frozenset())


@operation("GET", "/openapi.json", right=None)
async def show_document(call: Call[None, None]) -> dict[str, Any]:
    """Read this document"""
    return _document()


@operation("GET", "/health", right=None)
async def show_health(call: Call[None, None]) -> dict[str, str]:
    """Return whether this process takes requests: 503 while it drains"""
    if call.services.stopping.began:
        raise Draining
    return {"status": "ok"}


@cache
def _document() -> dict[str, Any]:
    return openapi(operations())


def operations() -> list[Operation]:
    """Return all operations, in the order of the reference."""
    rooms = (
        sessions, stored_files, turns, administration, sent_events, events, ai_sdk, ag_ui, a2a_routes,
        responses, compaction, input_tokens, conversations, models, chat, mcp, files,
    )  # fmt: skip
    handlers: list[Any] = [*(one for room in rooms for one in room.OPERATIONS), show_document, show_health]
    return [cast("Operation", handler.operation) for handler in handlers]


async def _headers_of(response: Response) -> Response:
    """Return a response to HEAD: without its body, and without a stream's events."""
    if isinstance(response, EventStream):
        await response.aclose()
        return Response(None, response.status_code, dict(response.headers))
    return response


def _encoded(found: Any, known: Operation) -> Response:
    if isinstance(found, Response):
        return found
    answer = found if isinstance(found, Answer) else Answer(found, known.status)
    headers = {"cache-control": "no-store", **answer.headers}
    if answer.value is None and known.answer is None:
        return Response(None, answer.status, headers)
    return Response(msgspec.json.encode(answer.value), answer.status, headers, media_type="application/json")


class _Sent:
    """Sends messages, and records when the first one was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.began: float | None = None

    async def __call__(self, message: Message) -> None:
        self.began = self.began or time.monotonic()
        await self._send(message)


def _log_request(scope: Scope, method: str, status: int, seconds: float) -> None:
    path: bytes = scope.get("raw_path") or scope["path"].encode()  # without the query: it may hold a token
    told = {
        name: value for name, value in scope.get("path_params", {}).items() if name in ("session", "turn")
    }
    log.info(
        "%s %s %d %.1f ms", method, path.partition(b"?")[0].decode("ascii", "replace"), status,
        seconds * 1000,
        extra={
            "action": "request", "method": method, "route": scope.get("route", NO_ROUTE),
            "status": status, "seconds": round(seconds, 4), **told,
        },
    )  # fmt: skip


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return
