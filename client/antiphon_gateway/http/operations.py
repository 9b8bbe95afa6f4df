"""Operations: what a gateway does on request. Each is declared once, by its function.

    @operation("GET", "/turns/{turn}", right="read")
    async def show(call: Call[None, None]) -> TurnInfo:
        \"\"\"Read a turn.\"\"\"

The annotation of ``call`` names the struct of the query and that of the body; the function returns the response.
Routes, checks and the OpenAPI document are made from these.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from email.message import Message
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from antiphon.client import AsyncClient
from antiphon.errors import SessionBusy, TurnDeleted, TurnNotFound, WrongTenant
from antiphon.input.ids import new_session_id, session_id
from antiphon.input.wrong_values import wrong_value
from antiphon.redis.edits import found_in
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Caller, Right
from antiphon_gateway.access.secret import SharedSecret
from antiphon_gateway.http.streams import Closing, EventStream, Stopping, Watch
from antiphon_gateway.problems import Refused
from antiphon_gateway.settings import Limits

MOST_CALLERS = 10_000


class _Taken:
    """The quota of a caller: ``left`` requests at the time ``at``, and open ``streams``."""

    __slots__ = ("at", "left", "streams")

    def __init__(self, left: float) -> None:
        self.left, self.at, self.streams = left, time.monotonic(), 0


class _Held(AbstractContextManager[None]):
    """Counts a stream while it is entered. A generator would take four times the memory."""

    __slots__ = ("_most", "_name", "_quotas", "_taken")

    def __init__(self, quotas: Quotas, name: str, most: int) -> None:
        self._quotas, self._name, self._most = quotas, name, most

    def __enter__(self) -> None:
        self._taken = self._quotas.hold(self._name, self._most)

    def __exit__(self, *_: object) -> None:
        self._quotas.let_go(self._taken)


class Quotas:
    """Limits each caller by name: to ``rate`` requests a second, twice as many at once, and to its open streams."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Taken] = OrderedDict()
        self.streams = 0  # open streams of all callers

    def take(self, name: str, rate: float) -> None:
        """Count one request. Raises ``Refused`` with 429 if the caller is too quick."""
        most = max(1.0, rate * 2)
        taken, now = self._of(name, most), time.monotonic()
        taken.left = min(most, taken.left + (now - taken.at) * rate)
        taken.at = now
        if taken.left < 1:
            raise Refused(
                429, "too_many_requests", f"This key may make {rate:g} requests a second: wait.",
                retry_after=(1 - taken.left) / rate, limit="rate",
            )  # fmt: skip
        taken.left -= 1

    def stream(self, name: str, most: int) -> AbstractContextManager[None]:
        """Count one stream for as long as it is open. Entering raises ``Refused`` with 429 for one too many."""
        return _Held(self, name, most)

    def hold(self, name: str, most: int) -> _Taken:
        """Count one more stream. Raises ``Refused``."""
        taken = self._of(name, 1)
        if taken.streams >= most:
            raise Refused(
                429, "too_many_streams", f"This key may hold {most} streams at once: close one.",
                retry_after=1, limit="streams",
            )  # fmt: skip
        taken.streams += 1
        self.streams += 1
        return taken

    def let_go(self, taken: _Taken) -> None:
        """Count one stream less."""
        taken.streams -= 1
        self.streams -= 1

    def _of(self, name: str, left: float) -> _Taken:
        found = self._callers.get(name)
        if found is None:
            found = self._callers[name] = _Taken(left)
            self._forget()
        self._callers.move_to_end(name)
        return found

    def _forget(self) -> None:
        """Forget the callers without open streams whose last requests are the oldest."""
        for name in list(self._callers)[: max(0, len(self._callers) - MOST_CALLERS)]:
            if not self._callers[name].streams:
                del self._callers[name]


class Counting(Protocol):
    """Counts what a gateway answers and sends."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None: ...
    def refused(self, limit: str) -> None: ...
    def sent(self, chunk: bytes, began: float) -> None: ...


class CountedStream(EventStream):
    """A stream whose messages are counted."""

    def __init__(self, *args: Any, counting: Counting, **more: Any) -> None:
        super().__init__(*args, **more)
        self._counting = counting
        self._began = time.time()

    async def _write(self, message: bytes) -> None:
        await super()._write(message)
        self._counting.sent(message, self._began)


BODY_SECONDS = PATIENCE_SECONDS = 30.0
CHARSETS = ("utf-8", "utf8", "us-ascii")
CODINGS = {"gzip": zlib.MAX_WBITS + 16, "deflate": zlib.MAX_WBITS}


async def read_bytes(request: Request, most: int) -> bytes:
    """Return the request's body as it was sent. Raises ``Refused``."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > most:
        raise _too_large(most)
    return await _bytes(request, most)


async def read_body(request: Request, kind: Any, most: int) -> Any:
    """Return the request's JSON as a value of this type. Raises ``Refused``."""
    content = Message()
    content["content-type"] = request.headers.get("content-type", "")
    charset = str(content.get_param("charset", "utf-8")).lower()
    if content.get_content_type() != "application/json" or charset not in CHARSETS:
        raise Refused(
            415, "invalid_body", "Send JSON in UTF-8, with the header Content-Type: application/json."
        )
    try:
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        return msgspec.json.decode(unpacked(await read_bytes(request, most), coding, most), type=kind)
    except msgspec.ValidationError as exc:
        sentence, field = wrong_value(exc, kind)
        raise Refused(400, "invalid_body", sentence, param=field or None) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise Refused(400, "invalid_body", f"The body is not JSON: {exc}.") from None


def unpacked(data: bytes, coding: str, most: int) -> bytes:
    """Return a body without its ``Content-Encoding``. Raises ``Refused``."""
    if coding == "identity":
        return data
    if coding not in CODINGS:
        known = ", ".join(CODINGS)
        sentence = f"The Content-Encoding {coding[:50]!r} is not supported: use {known} or none."
        raise Refused(415, "unsupported_encoding", sentence, headers={"accept-encoding": known})
    whole = zlib.decompressobj(CODINGS[coding])
    try:
        found = whole.decompress(data, most + 1)
    except zlib.error as exc:
        raise Refused(400, "invalid_body", f"The body is not {coding}: {exc}.") from None
    if len(found) > most:
        raise _too_large(most)
    if not whole.eof or whole.unused_data:
        raise Refused(400, "invalid_body", f"The body is not one whole {coding} stream: send it again.")
    return found


async def _bytes(request: Request, most: int) -> bytes:
    chunks, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                chunks.append(chunk)
    except TimeoutError:
        raise Refused(408, "body_timed_out", "The body did not arrive in time: send it again.") from None
    except ClientDisconnect:
        raise Refused(400, "invalid_body", "The body was cut off.") from None
    return b"".join(chunks)


def read_query(request: Request, kind: Any) -> Any:
    """Return the query as a value of this type. Raises ``Refused``."""
    given: dict[str, Any] = {}
    for written, value in request.query_params.multi_items():
        name = written.removesuffix("[]")  # OpenAI's clients write each value of a list like this
        if name != written and isinstance(given.setdefault(name, []), list):
            given[name].append(value)
        elif name in given:
            raise Refused(400, "invalid_query", f"The query names {name} twice.")
        else:
            given[name] = value
    given.pop("token", None)
    for name in given:
        if kind is None or name not in kind.__struct_fields__:
            known = ", ".join(kind.__struct_fields__) if kind is not None else "nothing"
            raise Refused(400, "invalid_query", f"The query may name {known}; {name[:50]!r} is unknown.")
    if kind is None:
        return None
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as exc:
        raise Refused(400, "invalid_query", f"Query: {wrong_value(exc, kind)[0]}") from None


def _too_large(most: int) -> Refused:
    return Refused(413, "body_too_large", f"The body has more than {most} bytes.", limit="body_bytes")


Q = TypeVar("Q")
B = TypeVar("B")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Content = Literal["", "body", "answer"]
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
    a2a: Mapping[str, Any] = field(default_factory=dict[str, Any])
    closed: bool = False
    secret: SharedSecret = field(init=False)

    def __post_init__(self) -> None:
        self.secret = SharedSecret(self.client, self.access.secret)

    def refused(self, error: Exception) -> None:
        """Count an error if a limit caused it."""
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
        """Return the path of a resource of this gateway, with the prefix where it is mounted."""
        return "/".join([self.request.scope.get("root_path", ""), *(quote(one, safe="") for one in segments)])

    def new_session(self, key: str | None, route: str = "") -> str:
        """Return a new session id that the caller may use; the same one for the same key of the same route.

        ``route`` replaces the path if several paths mean the same. The id cannot be predicted, so that no other tenant
        can take it first. Raises ``Refused`` for a caller that may use only sessions of certain ids.
        """
        who = self.caller.name, self.caller.tenant or ""
        digest = self.services.secret.digest
        new = new_session_id() if key is None else digest(*who, route or self.request.url.path, key)[:32]
        allowed = self.caller.sessions
        found = next((one[:-1] for one in allowed or () if one.endswith("*")), "") + new
        self.caller.check_session(found)
        return found

    def held(self) -> AbstractContextManager[None]:
        """Count a stream of the caller for as long as this is entered. Raises ``Refused`` with 429."""
        most = self.services.limits.streams if self.caller.streams is None else self.caller.streams
        return self.services.quotas.stream(self.caller.name, most)

    def stream(
        self, events: Closing, messages: AsyncGenerator[bytes], headers: dict[str, str] | None = None
    ) -> EventStream:
        """Return a response that sends these messages of these events. It counts as a stream of the caller."""
        services, until, held = self.services, self.caller.until, self.held()
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

    async def page(self, items: AsyncGenerator[T, None], limit: int, most: int | None = None) -> list[T]:
        """Return the first items whose sessions the caller may use, after reading at most ``most`` items."""
        found: list[T] = []
        looked_at = 0
        async with aclosing(items):
            async for one in items:
                looked_at += 1
                if self.caller.may_use(cast("Any", one).session_id):
                    found.append(one)
                if len(found) == limit or looked_at == most:
                    break
        return found

    async def patiently(self, work: Awaitable[T]) -> T:
        """Wait for a session's turns, but not forever. Raises ``SessionBusy``, and ``Draining``."""
        try:
            return await self.services.stopping.within(PATIENCE_SECONDS, work)
        except TimeoutError:
            raise SessionBusy("The session still has turns: cancel them, or try again later.") from None

    async def check_life(self) -> None:
        """Raise ``Refused`` if the caller's token is for a session that has ended. Call this after reading."""
        session, life = self.caller.session, self.caller.life
        if session is not None and life is not None:
            known = session_id(session)
            found = await found_in(self.client.connections.cell_of_session(known), known)
            if found.life != life:
                raise Refused(401, "unauthorized", "The session of this token has ended: make a new token.")

    async def turn(self, turn: str | None = None) -> AsyncTurn:
        """Return this turn, or that of the path. A turn that the caller may not use is not found.

        Raises ``TurnNotFound``.
        """
        try:
            name = self.path["turn"] if turn is None else turn
            found = await self.client.turn(name, tenant=self.caller.tenant)
        except WrongTenant:
            raise TurnNotFound from None
        except TurnDeleted as gone:
            if not self.caller.may_use(gone.session_id or ""):
                raise TurnNotFound from None
            raise
        if not self.caller.may_use(found.session_id):
            raise TurnNotFound
        await self.check_life()
        return found


def idempotency_key(call: Call[Any, Any], key: str | None = None) -> str | None:
    """Return the key of a request: that of the header ``Idempotency-Key``, or of the body. Raises ``Refused``."""
    named = call.request.headers.getlist("idempotency-key")
    if len(named) > 1 or (named and key not in (None, named[0])):
        raise Refused(400, "invalid_body", "The request names two keys: leave one out.")
    if named and not 1 <= len(named[0]) <= 1000:
        raise Refused(400, "invalid_body", "An Idempotency-Key has 1 to 1,000 characters.")
    return named[0] if named else key


@dataclass(slots=True)
class Answer(Generic[T]):
    """A value with a status or headers of its own."""

    value: T
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one route. ``right`` is the right that the caller needs, None if it needs no key.

    ``content`` is ``body`` or ``answer`` if that one is the content of a file, instead of JSON.
    """

    method: Method
    route: str
    handler: Handler
    right: Right | None
    status: int
    query: Any
    body: Any
    answer: Any
    streams: bool
    content: Content = ""

    @property
    def name(self) -> str:
        return getattr(self.handler, "__name__", "")

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.handler) or ""


def operation(
    method: Method,
    route: str,
    *,
    right: Right | None,
    status: int = 200,
    streams: bool = False,
    content: Content = "",
    query: Any = None,
    body: Any = None,
) -> Callable[[F], F]:
    """Declare a function as an operation. ``query`` and ``body`` are structs that are made from declared options."""

    def declared(handler: F) -> F:
        hints = get_type_hints(handler)
        asked, brought = get_args(hints["call"])
        answer = None if streams or hints["return"] is Response else hints["return"]
        answer = get_args(answer)[0] if get_origin(answer) is Answer else answer
        nothing = type(None)
        known = Operation(
            method, route, handler, right, status,
            query or (None if asked is nothing else asked), body or (None if brought is nothing else brought),
            None if answer is nothing else answer, streams, content,
        )  # fmt: skip
        handler.operation = known  # type: ignore[attr-defined]
        return handler

    return declared


class Routes:
    """The operations by their paths. Literal segments are preferred to placeholders."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._routes: dict[int, dict[tuple[str, ...], dict[str, Operation]]] = {}
        for one in operations:
            parts = tuple(one.route.split("/")[1:])
            self._routes.setdefault(len(parts), {}).setdefault(parts, {})[one.method] = one

    def find(self, scope: Any) -> tuple[Operation, dict[str, str]]:
        """Return the operation and the values of its placeholders. Raises ``Refused``."""
        found = _segments(scope)
        fitting = [
            (sum(part[:1] == "{" for part in parts), parts, methods)
            for parts, methods in self._routes.get(len(found), {}).items()
            if all(part[:1] == "{" or part == segment for part, segment in zip(parts, found, strict=True))
        ]
        if not fitting:
            raise Refused(404, "route_not_found", "Not found: GET /openapi.json lists all routes.")
        _, parts, methods = min(fitting, key=lambda one: one[0])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method not in methods:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            raise Refused(405, "method_not_allowed", f"Use {allowed} here.", headers={"allow": allowed})
        names = {part[1:-1]: segment for part, segment in zip(parts, found, strict=True) if part[:1] == "{"}
        return methods[method], names


def _segments(scope: Any) -> list[str]:
    """Return the decoded segments of the path, without the prefix where the gateway is mounted. Raises ``Refused``."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    root: str = scope.get("root_path", "").rstrip("/")
    segments = raw.partition(b"?")[0].split(b"/")[1:]
    if root and (scope["path"] + "/").startswith(root + "/"):
        segments = segments[root.count("/") :]
    try:
        found = [unquote_to_bytes(segment).decode() for segment in segments]
    except UnicodeDecodeError:
        raise Refused(400, "invalid_path", "The path is not percent-encoded UTF-8.") from None
    if found == [""]:
        sentence = "Nothing is at /: the dashboard is at /live, and GET /openapi.json lists all routes."
        raise Refused(404, "route_not_found", sentence)
    if found[0] == "a2a" and not found[-1]:
        found.pop()  # clients join paths to the address of an agent, which then ends with a slash
    if not all(found):
        raise Refused(
            404, "route_not_found", "The path has an empty part: GET /openapi.json lists all routes."
        )
    return found
