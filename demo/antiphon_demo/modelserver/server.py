"""The server: its routes, keys and faults, and its running streams."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from random import Random
from typing import Any, Self

import msgspec

from antiphon_demo.modelserver import background
from antiphon_demo.modelserver.answers import Ask, answer
from antiphon_demo.modelserver.chat import Chat
from antiphon_demo.modelserver.directives import Behaviour, Directives, Fault, read_directives
from antiphon_demo.modelserver.embeddings import EMBEDDINGS_PATHS, embeddings
from antiphon_demo.modelserver.formats import Format, encode, new_id
from antiphon_demo.modelserver.http import Connection, Request
from antiphon_demo.modelserver.limits import RateLimit
from antiphon_demo.modelserver.messages import Messages
from antiphon_demo.modelserver.responses import Responses
from antiphon_demo.modelserver.streams import AnswerStream, Wheel

UNKNOWN_MODEL = "no-such-model"
WRONG_KEY = "wrong"
_FORMATS: tuple[Format, ...] = (Chat(), Responses(), Messages())


@dataclass(slots=True)
class Statistics:
    """Counts since the start. ``abandoned`` counts streams whose client disconnected before the end,
    ``limited`` requests over the rate limit, ``background`` responses that were started in the background.
    """

    connections: int = 0
    requests: int = 0
    streams: int = 0
    live_streams: int = 0
    most_live_streams: int = 0
    chunks: int = 0
    faults: int = 0
    abandoned: int = 0
    limited: int = 0
    background: int = 0
    cancelled: int = 0


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ModelServer:
    """Serves within ``async with``, on the running loop.

    ``base_url`` is the base URL for the anthropic client, ``openai_url`` that for the openai client. A port in use
    raises ``OSError`` on entering.
    """

    def __init__(self, behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.host = host
        self.port = port
        self.statistics = Statistics()
        self.requests: deque[RecordedRequest] = deque(maxlen=self.behaviour.record)
        self._limit = RateLimit(
            self.behaviour.limit, self.behaviour.limit_seconds, told=self.behaviour.limit_told
        )
        self._chance = Random(self.behaviour.seed)
        self._background = background.Responses(kept=self.behaviour.background_kept)
        self._struck: Counter[tuple[Fault, str, str]] = Counter()
        self._connections: set[Connection] = set()
        self._formats = {
            path: form for form in _FORMATS for path in (form.path, form.path.removeprefix("/v1"))
        }

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def openai_url(self) -> str:
        return f"{self.base_url}/v1"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._wheel = Wheel(loop)
        self._listener = await loop.create_server(
            lambda: Connection(self), self.host, self.port, backlog=4096
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self._wheel.close()
        for connection in list(self._connections):
            connection.abort()
        await self._listener.wait_closed()

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.statistics.connections += 1

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def answer(self, connection: Connection, request: Request) -> None:
        """Answer a whole request. Connections call this."""
        if (found := self._background.find(request.path)) is not None:
            self._answer_background(connection, request, *found)
            return
        if request.method == "GET":
            self._answer_get(connection, request.path)
            return
        form = _FORMATS[0] if request.path in EMBEDDINGS_PATHS else self._formats.get(request.path)
        if form is None or request.method != "POST":
            connection.respond(404, encode(_FORMATS[0].error(404, f"There is no {request.path} here.")))
            return
        self.statistics.requests += 1
        refusal = self._refusal(form, request)
        if refusal is not None:
            connection.respond(refusal[0], encode(form.error(*refusal)), _request_id())
            return
        body: dict[str, Any] = msgspec.json.decode(request.body)
        if self.requests.maxlen:
            self.requests.append(RecordedRequest(request.path, dict(request.headers), body))
        if request.path in EMBEDDINGS_PATHS:
            self._embed(connection, body)
        else:
            background = body.get("background") is True and isinstance(form, Responses)
            self._answer_ask(connection, request, form, form.read(body), background=background)

    def _answer_background(
        self, connection: Connection, request: Request, response: background.Response | None, cancel: bool
    ) -> None:
        """Answer a request about a response that was started before."""
        if response is None:
            connection.respond(404, encode(_FORMATS[1].error(404, "There is no such response.")))
            return
        if cancel:
            self.statistics.cancelled += 1
            response.cancelled = True
        after = None if cancel else background.starting_after(request.query)
        if after is None:
            connection.respond(200, encode(response.whole()), _request_id())
            return
        if not self.behaviour.background_streams:
            connection.respond(400, encode(_FORMATS[1].error(400, "This response is not streamed any more.")))
            return
        wanted = Directives(0, response.pace, 0.0, None)
        self._stream(connection, _FORMATS[1], response.after(after), wanted, None, {})

    def _embed(self, connection: Connection, body: dict[str, Any]) -> None:
        found = embeddings(body)
        if found is None:
            error = _FORMATS[0].error(400, "input must be a text that is not empty, or a list of texts.")
            connection.respond(400, encode(error), _request_id())
        else:
            connection.respond(200, encode(found), _request_id())

    def _answer_get(self, connection: Connection, path: str) -> None:
        if path == "/stats":
            connection.respond(200, encode(asdict(self.statistics)))
        elif path in ("/v1/models", "/health"):
            connection.respond(200, b'{"object":"list","data":[]}')
        else:
            connection.respond(404, encode(_FORMATS[0].error(404, f"There is no {path} here.")))

    def _refusal(self, form: Format, request: Request) -> tuple[int, str] | None:
        """Return status and reason if the model does not answer the request."""
        key = form.key(request.headers)
        if key is None or key == WRONG_KEY:
            return 401, "The key is missing or wrong."
        try:
            body = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            return 400, f"The body is not JSON: {exc}."
        if not isinstance(body, dict):
            return 400, "The body is not a JSON object."
        if body.get("model") in (None, "", UNKNOWN_MODEL):
            return 404, f"The model {body.get('model')!r} does not exist."
        return None

    def _answer_ask(
        self, connection: Connection, request: Request, form: Format, ask: Ask, *, background: bool = False
    ) -> None:
        wait = self._limit.take()
        limits = self._limit.headers(request.path, wait)
        if wait is not None:
            self.statistics.limited += 1
            error = form.error(429, "Too many requests.")
            connection.respond(429, encode(error), _request_id() | limits)
            return
        wanted = read_directives(ask.conversation.question, request.headers, self.behaviour, self._chance)
        fault = self._strike(wanted.fault, ask)
        if fault is not None and fault.pieces is None:
            self._fail(connection, form, fault)
            return
        reply = answer(ask, wanted.length, len(request.body))
        if ask.stream:
            frames = form.stream(reply, ask, self.behaviour.stamp)
            if background:
                self.statistics.background += 1
                fails = fault.pieces if fault is not None and fault.kind == "failed" else None
                fault = fault if fails is None else None
                frames = self._background.begin(frames, wanted.pace, fails).after(-1)
            self._stream(connection, form, frames, wanted, fault, limits)
        elif fault is not None:
            self._fail(connection, form, fault)
        else:
            delay = wanted.first_piece_seconds + (reply.output_tokens / wanted.pace if wanted.pace > 0 else 0)
            self._later(
                delay, connection, lambda: connection.respond(200, encode(form.whole(reply)), _request_id())
            )

    def _strike(self, fault: Fault | None, ask: Ask) -> Fault | None:
        """Return the fault, unless this conversation has had it as often as requested."""
        if fault is None:
            return None
        place = (fault, ask.conversation.question, ask.conversation.digest())
        if fault.times is not None and self._struck[place] >= fault.times:
            return None
        self._struck[place] += 1
        self.statistics.faults += 1
        return fault

    def _fail(self, connection: Connection, form: Format, fault: Fault) -> None:
        """Fail instead of answering."""
        if fault.status is None:
            if fault.kind != "hang":
                connection.close()
            return
        headers = _request_id()
        if fault.value is not None:
            headers["retry-after"] = str(fault.value)
        body = form.error(fault.status, f"Asked to fail with {fault.status}.")
        connection.respond(fault.status, encode(body), headers)

    def _later(self, seconds: float, connection: Connection, action: Callable[[], None]) -> None:
        if seconds <= 0:
            action()
        else:
            self._wheel.at(asyncio.get_running_loop().time() + seconds, action)

    def _stream(
        self,
        connection: Connection,
        form: Format,
        frames: Iterator[bytes],
        wanted: Directives,
        fault: Fault | None,
        limits: dict[str, str],
    ) -> None:
        finish: Callable[[], None] | None = connection.end_stream
        if fault is not None:
            frames, finish = _cut(frames, fault, form, connection)
        statistics = self.statistics
        statistics.streams += 1
        statistics.live_streams += 1
        statistics.most_live_streams = max(statistics.most_live_streams, statistics.live_streams)

        def sent(count: int) -> None:
            statistics.chunks += count

        def finished() -> None:
            if finish is None:
                return
            statistics.live_streams -= 1
            connection.on_gone = None
            finish()

        stream = AnswerStream(
            connection,
            frames,
            wheel=self._wheel,
            pace=wanted.pace,
            first_piece_seconds=wanted.first_piece_seconds,
            sent=sent,
            finish=finished,
        )

        def gone() -> None:
            stream.stop()
            statistics.live_streams -= 1
            statistics.abandoned += 1

        connection.on_gone = gone
        connection.begin_stream(new_id("req_"), limits)
        stream.start()


def _cut(
    frames: Iterator[bytes], fault: Fault, form: Format, connection: Connection
) -> tuple[Iterator[bytes], Callable[[], None] | None]:
    """Return the opening, as many pieces as the fault permits, and the end, or None to keep the stream open."""
    frames = islice(frames, 1 + (fault.pieces or 0))
    if fault.kind in ("error", "failed"):
        return chain(frames, [form.stream_error()]), connection.end_stream
    if fault.kind == "cut":
        return frames, connection.close
    return frames, None


def _request_id() -> dict[str, str]:
    request_id = new_id("req_")
    return {"x-request-id": request_id, "request-id": request_id}
