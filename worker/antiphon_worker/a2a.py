"""Calls agents of other systems over A2A. This module is imported only when a turn has such a tool.

The id of the task is a step in the journal: after a crash, any worker waits for the same task. The message that
begins it has the same id each time. A question of the other agent suspends the turn, like a question of an MCP
server.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

import httpx
import msgspec
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.struct_pb2 import Value

from antiphon.a2a import RemoteAgent
from antiphon.errors import EventTimeout, LimitReached, StepFailed, ToolError, ToolRaised
from antiphon.input.limits import LIMITS, check_values
from antiphon.mcp import Requester
from antiphon.model import File, Image, Text
from antiphon.tools import Context, Tool
from antiphon.tools.durable import LONGEST_SLEEP
from antiphon_worker.loop.durable import MOST_ROUNDS, durable_of
from antiphon_worker.mcp.credentials import Credentials, headers_for

BINDINGS = ["JSONRPC", "HTTP+JSON"]
ENDED = (
    pb.TASK_STATE_COMPLETED, pb.TASK_STATE_FAILED, pb.TASK_STATE_CANCELED, pb.TASK_STATE_REJECTED,
)  # fmt: skip
HOW = {
    pb.TASK_STATE_FAILED: "has failed", pb.TASK_STATE_CANCELED: "was cancelled",
    pb.TASK_STATE_REJECTED: "was rejected", pb.TASK_STATE_AUTH_REQUIRED: "needs a login",
}  # fmt: skip
"""How a model is informed about a task that has stopped without an answer."""
STOPPED = (*ENDED, pb.TASK_STATE_INPUT_REQUIRED, pb.TASK_STATE_AUTH_REQUIRED)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
READ_SECONDS = 60.0
"""How long an agent may be silent in an answer or a stream, in seconds, before its task is read instead."""
CANCEL_SECONDS = 5.0
RETRIES = 2
MOST_FAILURES = 5
"""After this many failed reads in a row, the task is given up."""
MOST_TEXT = 500
LONGEST_ID = 1_000
"""The longest id of a task, in characters."""
STEP_MARGIN = 1024
"""The bytes of a journal step that are not part of its result, at most."""
LONGEST_EVENT = 256 * 1024
"""The longest event of a stream, in bytes. If one is longer, the task is read instead."""
EVENTS = "text/event-stream"
_FAILURES = (
    A2AError, A2AClientError, httpx.HTTPError, httpx.InvalidURL, ParseError, ValueError, TypeError, KeyError,
    AttributeError, OverflowError, RecursionError,
)  # fmt: skip
QUESTION = {
    "type": "object",
    "properties": {"answer": {"type": "string"}, "data": {"description": "An answer as data."}},
}


def bound_tools(
    tools: Sequence[Tool[..., Any]], tenant: str | None, user: str | None
) -> list[Tool[..., Any]]:
    """Return the tools of a turn, with remote agents bound to this user."""
    return [
        one.bound(partial(_call, Requester(tenant, user, one.name))) if isinstance(one, RemoteAgent) else one
        for one in tools
    ]


async def cancel_task(remote: RemoteAgent, requester: Requester, task: str) -> None:
    """Ask a remote agent to cancel a task. It may refuse."""
    await _Call(remote, requester, Context("", "", "", {}, 1, 1)).cancel(task)


async def _call(requester: Requester, remote: RemoteAgent, task: str, context: Context) -> Any:
    """Give a task to a remote agent and return its answer. Raises ``ToolError``."""
    return await _Call(remote, requester, context).answer(task)


class _Call:
    """One call of a remote agent by one user."""

    def __init__(self, remote: RemoteAgent, requester: Requester, context: Context) -> None:
        self._remote, self._requester, self._context = remote, requester, context
        self._credentials = Credentials(remote)
        self._card: pb.AgentCard | None = None
        self._until = 0.0  # the end of the time limit, by the clock of the loop

    async def answer(self, task: str) -> Any:
        """Return the content of the answer. Raises ``ToolError``."""
        self._begin_time()
        begun = await self._step("send", self._send, [pb.Part(text=task)], self._context.key, "")
        if "content" in begun:
            return _content(begun["content"])
        if "error" in begun:
            raise ToolRaised(begun["error"])
        durable, answered = durable_of(self._context), ""
        for number in range(1, MOST_ROUNDS + 1):
            found = None
            if durable is None or not durable.repeats:
                found = await self._in_time(begun["task"], answered)
                if found.status.state != pb.TASK_STATE_INPUT_REQUIRED:
                    return self._outcome(found)
            asked = await self._step("question", self._question, found)
            given, answered = await self._asked(asked["message"], begun["task"]), asked["id"]
            self._begin_time()
            key = f"{self._context.key}.{number}"
            await self._step("answer", self._send, given, key, begun["task"])
        raise ToolRaised(f"{self._remote.name} asked for input {MOST_ROUNDS} times.")

    def _begin_time(self) -> None:
        self._until = asyncio.get_running_loop().time() + self._remote.seconds

    def _late(self) -> str:
        return f"{self._remote.name} did not answer within {self._remote.seconds:g} s"

    async def _step(self, name: str, *what: Any) -> Any:
        try:
            return await self._context.step(name, *what, retries=RETRIES)
        except StepFailed as exc:
            raise ToolRaised(self._text(exc.message)) from None

    # The other agent.

    @asynccontextmanager
    async def _client(self, *, streaming: bool = False) -> AsyncGenerator[Client]:
        """Connect to the agent as this user. Raises ``ToolRaised`` for failures inside this context."""
        remote = self._remote
        self._credentials.replace(await headers_for(remote, self._requester))
        timeout = httpx.Timeout(READ_SECONDS, connect=remote.connect_timeout)
        headers = {**remote.headers, **self._credentials.headers, "accept-encoding": "identity"}
        network = _Limited(httpx.AsyncHTTPTransport(verify=_trusted(), trust_env=False))
        try:
            async with httpx.AsyncClient(transport=network, headers=headers, timeout=timeout) as http:
                if self._card is None:
                    async with asyncio.timeout(remote.connect_timeout):
                        self._card = _usable(await A2ACardResolver(http, remote.url).get_agent_card(), remote)
                config = ClientConfig(
                    httpx_client=http, streaming=streaming, supported_protocol_bindings=BINDINGS
                )
                yield ClientFactory(config).create(self._card)
        except TimeoutError:
            raise ToolRaised(f"{remote.name} did not answer within {remote.connect_timeout:g} s.") from None
        except _FAILURES as exc:
            said = self._text(str(exc) or type(exc).__name__)
            raise ToolRaised(f"{remote.name}: {said}") from None

    async def _send(self, parts: list[pb.Part], key: str, task: str) -> dict[str, Any]:
        """Send a message, and return the id of its task, or the whole answer."""
        message = pb.Message(message_id=key, role=pb.ROLE_USER, parts=parts, task_id=task)
        if not task and self._remote.own_context:
            message.context_id = self._context.key
        asked = pb.SendMessageRequest(message=message)
        asked.configuration.return_immediately = True
        try:
            async with asyncio.timeout_at(self._until), self._client() as client:
                async for found in client.send_message(asked):
                    if found.HasField("message"):
                        return self._said(found.message)
                    return {"task": self._id(found.task.id)}
        except TimeoutError:
            raise ToolRaised(f"{self._late()}.") from None
        raise ToolRaised(f"{self._remote.name} did not answer.")

    def _said(self, message: pb.Message) -> dict[str, Any]:
        """Return the journal's form of a message. One too large to keep becomes an error, not requested again."""
        content = self._parts(message.parts)
        if len(msgspec.json.encode(content)) > LIMITS.step_bytes - STEP_MARGIN:
            most = (
                f"a message of an agent has at most {LIMITS.step_bytes} bytes, an artifact {LIMITS.a2a_bytes}"
            )
            return {"error": f"The answer of {self._remote.name} is too large: {most}."}
        return {"content": content}

    async def _in_time(self, task: str, answered: str) -> pb.Task:
        """Return a task when it has stopped, except at the question already ``answered``.

        A task that takes too long is cancelled.
        """
        try:
            async with asyncio.timeout_at(self._until):
                return await self._stopped(task, answered)
        except TimeoutError:
            await self.cancel(task)
            raise ToolRaised(f"{self._late()}; it was asked to cancel its task.") from None

    async def _stopped(self, task: str, answered: str) -> pb.Task:
        pause, failures = SHORTEST_PAUSE, 0
        while True:
            try:
                async with self._client(streaming=True) as client:
                    found = await self._read(client, task)
                    if not self._has_stopped(found, answered):
                        await self._follow(client, task)
                        found = await self._read(client, task)
                failures = 0
                if self._has_stopped(found, answered):
                    return found
            except ToolError:
                failures += 1
                if failures == MOST_FAILURES:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _read(self, client: Client, task: str) -> pb.Task:
        found = await client.get_task(pb.GetTaskRequest(id=task))
        if found.id != task:
            raise ToolRaised(f"{self._remote.name} returns another task than the one that was asked for.")
        return found

    def _has_stopped(self, task: pb.Task, answered: str) -> bool:
        """Return whether a task has stopped. An agent may still show a question for a while after the answer."""
        asks = task.status.state == pb.TASK_STATE_INPUT_REQUIRED
        return task.status.state in STOPPED and not (asks and self._id_of_question(task) == answered != "")

    async def _follow(self, client: Client, task: str) -> None:
        """Follow a task until it stops or its stream ends. Does nothing without streams: the task is read later."""
        if self._card is None or not self._card.capabilities.streaming:
            return
        try:
            async for update in client.subscribe(pb.SubscribeToTaskRequest(id=task)):
                status = update.status_update.status
                if update.HasField("status_update") and update.status_update.task_id in ("", task):
                    if said := self._text(_text(status.message.parts)):
                        self._context.progress(said)
                    if status.state in STOPPED:
                        return
        except (*_FAILURES, NotImplementedError):
            return

    async def cancel(self, task: str) -> None:
        """Ask the agent to cancel a task. If it does not answer in time, the task may continue."""
        try:
            async with asyncio.timeout(CANCEL_SECONDS), self._client() as client:
                await client.cancel_task(pb.CancelTaskRequest(id=task))
        except (TimeoutError, ToolError):
            return

    # Its questions and answers.

    async def _question(self, task: pb.Task | None) -> dict[str, str]:
        """Return the journal's form of a question."""
        assert task is not None
        said = self._text(_text(task.status.message.parts), LIMITS.custom_bytes)
        return {"message": said, "id": self._id_of_question(task)}

    def _id_of_question(self, task: pb.Task) -> str:
        return self._text(task.status.message.message_id or task.status.timestamp.ToJsonString())

    def _id(self, task: str) -> str:
        """Return the id of a task, for the journal. Raises ``ToolRaised`` for an unusable id."""
        if not 0 < len(task) <= LONGEST_ID:
            raise ToolRaised(
                f"{self._remote.name} returns a task whose id has {len(task)} characters: "
                f"1 to {LONGEST_ID} are expected."
            )
        if self._credentials.out_of(task) != task:
            raise ToolRaised(f"{self._remote.name} repeats credentials in the id of its task.")
        return task

    async def _asked(self, question: str, task: str) -> list[pb.Part]:
        """Return the answer to a question of the agent. Suspends the turn until it arrives."""
        durable = durable_of(self._context)
        if durable is None:
            raise ToolRaised(f"{self._remote.name} asks for input, which needs a turn: {question}")
        about = {
            "questions": {"input": {"message": question, "schema": QUESTION}},
            "agent": self._remote.name,
        }
        try:
            found = await durable.wait_for_event(
                f"answers:{self._context.key}", LONGEST_SLEEP.total_seconds(), about
            )
        except EventTimeout:
            await self.cancel(task)
            raise ToolRaised(f"The question of {self._remote.name} was not answered.") from None
        match found:
            case {"input": {"action": "accept", "content": {"data": data}}}:
                return [pb.Part(data=ParseDict(data, Value()), media_type="application/json")]
            case {"input": {"action": "accept", "content": {"answer": str(text)}}}:
                return [pb.Part(text=text)]
            case _:
                await self.cancel(task)
                raise ToolRaised(f"The user did not answer the question of {self._remote.name}.")

    def _outcome(self, task: pb.Task) -> Any:
        """Return the content of a task that has ended. Raises ``ToolRaised`` if it has not completed."""
        said = task.status.message.parts
        if task.status.state != pb.TASK_STATE_COMPLETED:
            text = self._text(_text(said))
            how = HOW.get(task.status.state, "has not completed")
            raise ToolRaised(f"The task of {self._remote.name} {how}{f': {text}' if text else ''}.")
        parts = [part for artifact in task.artifacts for part in artifact.parts] or [*said]
        return _content(self._parts(parts))

    def _parts(self, parts: Sequence[pb.Part]) -> list[dict[str, Any]]:
        return [self._credentials.out_of_json(_plain(part)) for part in parts]

    def _text(self, text: str, most: int = MOST_TEXT) -> str:
        return self._credentials.out_of(" ".join(text.split()))[:most].rstrip(".")


def _usable(card: pb.AgentCard, remote: RemoteAgent) -> pb.AgentCard:
    """Return a card with only the interfaces at the agent's own address: credentials are sent nowhere else.

    Raises ``ToolRaised`` if there are none.
    """
    own = _origin(remote.url)
    usable = [
        one
        for one in card.supported_interfaces
        if _origin(one.url) == own and one.protocol_binding in BINDINGS
    ]
    if not usable:
        raise ToolRaised(
            f"The card of {remote.name} names no address at {own} for JSON-RPC or HTTP+JSON: it is not called."
        )
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(usable)
    return card


def _origin(url: str) -> str:
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    port = found.port or {"http": 80, "https": 443}.get(found.scheme)
    return f"{found.scheme}://{found.host}:{port}"


def _text(parts: Sequence[pb.Part]) -> str:
    return "\n".join(part.text for part in parts if part.WhichOneof("content") == "text")


def _plain(part: pb.Part) -> dict[str, Any]:
    """Return a part as plain data, for the journal."""
    match part.WhichOneof("content"):
        case "text":
            return {"text": part.text}
        case "data":
            return {"text": msgspec.json.encode(MessageToDict(part.data)).decode()}
        case "url":
            return {"text": f"{part.filename or 'File'}: {part.url}"}
        case "raw" if part.raw:
            return {
                "data": b64encode(part.raw).decode(), "media_type": part.media_type or None,
                "name": part.filename or None,
            }  # fmt: skip
        case _:
            return {"text": "[an empty part]"}


def _content(parts: Sequence[dict[str, Any]]) -> str | list[Text | Image | File]:
    """Return parts as the result of a tool."""
    if all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    found: list[Text | Image | File] = []
    for part in parts:
        if "text" in part:
            found.append(Text(part["text"]))
        elif (part["media_type"] or "").startswith("image/"):
            found.append(Image(data=part["data"], media_type=part["media_type"]))
        else:
            found.append(File(data=part["data"], media_type=part["media_type"], name=part["name"]))
    return found


@cache
def _trusted() -> ssl.SSLContext:
    """Return the trusted certificates. Reading them takes a moment."""
    return httpx.create_ssl_context()


class _Limited(httpx.AsyncBaseTransport):
    """Limits the bytes and values of each answer, because reading millions of values would block all other turns.

    Compressed answers are refused, because their size is unknown in advance.
    """

    def __init__(self, network: httpx.AsyncBaseTransport) -> None:
        self._network = network

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._network.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            await response.aclose()
            raise httpx.DecodingError("an answer is compressed, which was not asked for")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        streamed = request.headers.get("accept") == EVENTS and EVENTS in response.headers.get(
            "content-type", ""
        )
        response.stream = _LimitedStream(response.stream, LONGEST_EVENT if streamed else LIMITS.a2a_bytes)
        if response.is_success and not streamed:
            response.stream = httpx.ByteStream(await _read_json(response.stream))
        return response

    async def aclose(self) -> None:
        await self._network.aclose()


async def _read_json(stream: httpx.AsyncByteStream) -> bytes:
    """Return the body of an answer. Raises ``httpx.DecodingError`` if it is not JSON, or has too many values."""
    try:
        body = b"".join([chunk async for chunk in stream])
    finally:
        await stream.aclose()
    try:
        check_values("a2a_values", msgspec.json.decode(body), "The values of an answer")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise httpx.DecodingError(f"an answer is not JSON that can be read: {exc}") from None
    except LimitReached as exc:
        raise httpx.DecodingError(exc.message) from None
    return body


class _LimitedStream(httpx.AsyncByteStream):
    """Raises an error after too many bytes: in total, or (to within a chunk) in one event."""

    def __init__(self, stream: httpx.AsyncByteStream, most: int) -> None:
        self._stream, self._most = stream, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left, event, last = LIMITS.a2a_bytes, 0, b""
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx.ReadError(f"an answer has more than {LIMITS.a2a_bytes} bytes")
            last = last[-3:] + chunk
            end = max(last.rfind(b"\n\n"), last.rfind(b"\r\n\r\n"))
            event = event + len(chunk) if end < 0 else len(last) - end
            if event > self._most:
                raise httpx.ReadError(f"an event has more than {self._most} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
