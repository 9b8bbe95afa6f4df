"""The AI SDK's ``useChat``: its routes and its UI message stream.

https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from starlette.responses import Response

from antiphon.errors import AgentError, InvalidMessage, TurnNotFound, WrongTenant
from antiphon.events import Event, StepFinished, ToolResultEvent, TurnRetrying, TurnSuspended
from antiphon.model import (
    CallerTool,
    Decision,
    File,
    Image,
    Message,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.frontends.answers import Answer, behind_suspension, give, still_open
from antiphon_gateway.http.operations import Answer as Answered
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.problems import Refused
from antiphon_gateway.turn_stream import Part, TurnStream

DONE = b"data: [DONE]\n\n"
FINISH = {"end": "stop", "max_tokens": "length", "content_filter": "content-filter", "tool_use": "tool-calls"}


def encode(part: Mapping[str, Any]) -> bytes:
    """Return a part as one server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(part)


class UiStream(TurnStream[dict[str, Any]]):
    """Converts the events of one turn to parts of one message, whose id is that of the turn.

    A model call that begins again takes back what it had sent in its step, with ``reset-step``.
    """

    def __init__(self, turn_id: str) -> None:
        super().__init__()
        self._turn = turn_id
        self._begun = self._in_step = False
        self._texts = 0
        self._calls = set[str]()
        self._approvals = set[str]()
        self._rejected = set[str]()

    def of(self, event: Event) -> list[dict[str, Any]]:
        """Return the parts for an event of the turn, in order."""
        found = [] if self._begun else [{"type": "start", "messageId": self._turn}]
        self._begun = True
        return [*found, *super().of(event)]

    def suspended(self) -> list[dict[str, Any]]:
        """Return the parts that end the stream of a turn that waits for a decision."""
        return [*self.close(), *self.step_ended(), {"type": "finish", "finishReason": "tool-calls"}]

    def began(self, part: Part) -> list[dict[str, Any]]:
        if part.kind != "call":
            self._texts += 1
            return [*self._step(), {"type": f"{part.kind}-start", "id": f"{self._texts}"}]
        if part.call_id in self._calls:
            return []
        self._calls.add(part.call_id)
        call = {"toolCallId": part.call_id, "toolName": part.name, "dynamic": True}
        return [*self._step(), {"type": "tool-input-start", **call}]

    def grew(self, part: Part, text: str) -> list[dict[str, Any]]:
        if part.kind == "call":
            return [{"type": "tool-input-delta", "toolCallId": part.call_id, "inputTextDelta": text}]
        return [{"type": f"{part.kind}-delta", "id": f"{self._texts}", "delta": text}]

    def ended(self, part: Part, *, whole: bool) -> list[dict[str, Any]]:
        return [] if part.kind == "call" else [{"type": f"{part.kind}-end", "id": f"{self._texts}"}]

    def whole_call(self, call: Any, step: int) -> list[dict[str, Any]]:
        _, found = self.begin("call", step, call.call_id, call.name)
        whole = {"toolCallId": call.call_id, "toolName": call.name, "input": call.arguments, "dynamic": True}
        return [*found, {"type": "tool-input-available", **whole}]

    def result(self, event: ToolResultEvent) -> list[dict[str, Any]]:
        call = {"toolCallId": event.call_id}
        if event.call_id in self._rejected:
            return [{"type": "tool-output-denied", **call}]
        if event.is_error:
            return [{"type": "tool-output-error", **call, "errorText": event.result, "dynamic": True}]
        return [{"type": "tool-output-available", **call, "output": event.result, "dynamic": True}]

    def step_ended(self) -> list[dict[str, Any]]:
        ends, self._in_step = self._in_step, False
        return [{"type": "finish-step"}] if ends else []

    def taken_back(self, event: StepFinished | TurnRetrying) -> list[dict[str, Any]]:
        """Return the parts for a step that begins again. Earlier parts, such as tool results, stay."""
        if not self._in_step:
            return []
        if event.step == self.step:
            self._calls -= {one.call_id for one in self.of_step}
        return [*super().taken_back(event), {"type": "reset-step"}]

    def asked(self, event: TurnSuspended) -> list[dict[str, Any]]:
        """Return the parts for pending calls. The id of an approval is that of its call; other calls stay open."""
        found = list[dict[str, Any]]()
        for call in event.calls:
            if call.call_id not in self._calls:
                found += self.whole_call(call, self.step)
            if call.kind == "approval":
                self._approvals.add(call.call_id)
                asked = {"approvalId": call.call_id, "toolCallId": call.call_id}
                found.append({"type": "tool-approval-request", **asked})
        return found

    def other(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_resumed":
                self._rejected |= {one.call_id for one in event.decisions if one.kind == "reject"}
                return [_decision(one) for one in event.decisions if one.call_id in self._approvals]
            case "tool_progress":
                data = {"name": event.name, "text": event.text, "fraction": event.fraction}
                return [{"type": "data-progress", "id": event.call_id, "data": data}]
            case "custom":
                return [{"type": f"data-{event.name}", "data": event.data}]
            case "output_delta":
                return [{"type": "data-output", "id": "output", "data": event.output}]
            case "turn_finished":
                reason = FINISH.get(event.response.stop_reason if event.response else "end", "other")
                return [*self.close(), *self.step_ended(), {"type": "finish", "finishReason": reason}]
            case "turn_failed":
                return [*self.close(), {"type": "error", "errorText": event.user_message}]
            case "turn_cancelled":
                return [*self.close(), {"type": "abort", "reason": event.reason}]
            case _:
                return []

    def _step(self) -> list[dict[str, Any]]:
        begins, self._in_step = not self._in_step, True
        return [{"type": "start-step"}] if begins else []


def _decision(one: Decision) -> dict[str, Any]:
    part = {"type": "tool-approval-response", "approvalId": one.call_id, "approved": one.kind == "approve"}
    return part if one.reason is None else {**part, "reason": one.reason}


def answers_of(message: Mapping[str, Any]) -> list[Answer]:
    """Return the decisions in a message of the assistant about its tool calls: approvals, rejections and results."""
    found: list[Answer] = []
    for part in message.get("parts") or ():
        match part:
            case {
                "toolCallId": str(call),
                "state": "approval-responded",
                "approval": {"approved": bool(yes)} as said,
            }:
                found.append(Answer(call, "approve") if yes else Answer(call, "reject", said.get("reason")))
            case {"toolCallId": str(call), "state": "output-available", "output": output}:
                found.append(Answer(call, "result", output))
            case {"toolCallId": str(call), "state": "output-error", "errorText": error}:
                found.append(Answer(call, "result", error, is_error=True))
            case _:
                continue
    return found


def input_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a user's UI message, for ``submit``. Raises ``InvalidMessage``."""
    parts = message.get("parts")
    if message.get("role") != "user" or not isinstance(parts, list):
        raise InvalidMessage("The last message must be one of the user's, with parts.")
    return {"role": "user", "content": [_input_part(part) for part in parts]}


def _input_part(part: Any) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "file", "url": str(url), "mediaType": str(kind)} if kind.startswith("image/"):
            return {"type": "image_url", "image_url": url}
        case {"type": "file", "url": str(url)}:
            how = "file_data" if url.startswith("data:") else "file_url"
            return {"type": "file", "file": {how: url, "filename": part.get("filename")}}
        case _:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise InvalidMessage(f"A part of the type {kind!r} cannot be sent: use text and file.")


def ui_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return a history as UI messages. The answer of a turn is one message, with the turn's id."""
    found: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        if message.role in ("user", "system"):
            name = message.id or f"{message.turn_id}.input"
            found.append({"id": name, "role": message.role, "parts": _shown(message, calls)})
            continue
        same = found and found[-1]["role"] == "assistant" and found[-1]["id"] == message.turn_id
        if not same:
            found.append({"id": message.turn_id or message.id, "role": "assistant", "parts": []})
        step = [{"type": "step-start"}] if message.role == "assistant" else []
        found[-1]["parts"] += [*step, *_shown(message, calls)]
    return found


def _shown(message: Message, calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text():
                parts.append({"type": "text", "text": part.text, "state": "done"})
            case Refusal():
                parts.append({"type": "text", "text": part.text, "state": "done"})
            case Reasoning() if part.text:
                parts.append({"type": "reasoning", "text": part.text, "state": "done"})
            case ToolCall():
                call = {"type": "dynamic-tool", "toolName": part.name, "toolCallId": part.call_id}
                calls[part.call_id] = {**call, "state": "input-available", "input": part.arguments}
                parts.append(calls[part.call_id])
            case ToolResult() if part.call_id in calls:
                ended = {"state": "output-error", "errorText": part.text} if part.is_error else {
                    "state": "output-available", "output": part.text
                }  # fmt: skip
                calls[part.call_id].update(ended)
            case Image() | File() if part.url or part.data:
                kind = part.media_type or "image/*"
                url = part.url or f"data:{kind};base64,{part.data}"
                parts.append({"type": "file", "url": url, "mediaType": kind})
            case _:
                continue
    return parts


HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
MOST_MESSAGES = 1000


class ChatRequest(Struct, kw_only=True):
    """What ``useChat`` sends.

    ``id`` is the session. Only the last message is read, as the session has the others. Add ``agent``, ``caller_tools``
    and ``user`` with ``body``: the name of an agent of the workers, the tools that the page runs, and the name of the
    turn's user.
    """

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    trigger: str = "submit-message"
    messageId: str | None = None  # noqa: N815 - the AI SDK's name
    agent: str | None = None
    caller_tools: list[CallerTool] = field(default_factory=list)
    user: str | None = None


class UiMessages(Struct):
    """A history in the format of the AI SDK."""

    messages: list[dict[str, Any]]


@operation("POST", "/chat", right="write", streams=True)
async def start_chat(call: Call[None, ChatRequest]) -> Response:
    """Submit the last message of an AI SDK chat, and stream the answer

    The session is the chat's `id`. Sent twice, a message is answered once: its own `id` is the key. With the trigger
    `regenerate-message` the last question is answered again. If the last message is the assistant's, its approvals,
    rejections and tool results are given to the turn that waits for them, and the rest of its answer is streamed.
    """
    given, tools = call.body, call.body.caller_tools or None
    call.caller.check_session(given.id)
    user = call.caller.user_for(given.user)
    if given.trigger == "regenerate-message":
        session = call.client.session(given.id, tenant=call.caller.tenant)
        turn = await session.regenerate(agent=given.agent, caller_tools=tools, user=user)
        return _stream(call, await call.client.turn(turn.id))
    if given.trigger != "submit-message" or not given.messages:
        raise Refused(400, "invalid_body", "Send a new message, or the trigger regenerate-message.")
    last = given.messages[-1]
    named = last.get("id")
    if last.get("role") == "assistant":
        return await _answered(call, last)
    if given.messageId is not None:
        raise Refused(400, "invalid_body", "To edit a message, PUT /sessions/{session}/messages/{message}.")
    turn = await call.client.submit(
        given.id, input_of(last), agent=given.agent, tenant=call.caller.tenant,
        key=f"ui:{named}" if isinstance(named, str) and named else None, caller_tools=tools,
        user=user,
    )  # fmt: skip
    return _stream(call, turn)


async def _answered(call: Call[None, ChatRequest], message: dict[str, Any]) -> Response:
    """Give a turn the answers in its message, and stream what follows. Raises ``TurnNotFound``."""
    answers = answers_of(message)
    if not answers:
        raise Refused(400, "invalid_body", "The last message has no approval and no result of a tool.")
    try:
        turn = await call.client.turn(str(message.get("id")), tenant=call.caller.tenant)
    except WrongTenant:
        raise TurnNotFound from None
    if turn.session_id != call.body.id:
        raise TurnNotFound
    return _stream(call, turn, await give(turn, answers, call.caller.name))


@operation("GET", "/chat/{session}/stream", right="read", streams=True)
async def resume_chat(call: Call[None, None]) -> Response:
    """Stream the answer in progress, from its beginning; 204 without one"""
    snapshot = await call.client.snapshot(call.path["session"], tenant=call.caller.tenant, last=0)
    pending = [turn for turn in snapshot.pending if turn.due is None]
    if not pending:
        return Response(None, 204)
    return _stream(call, await call.turn(pending[0].turn_id))


@operation("POST", "/chat/{session}/stop", right="write", status=204)
async def stop_chat(call: Call[None, None]) -> None:
    """Stop the answer in progress; its output so far is kept"""
    await call.client.session(call.path["session"], tenant=call.caller.tenant).cancel("stopped by the user")


@operation("GET", "/chat/{session}/messages", right="read")
async def show_chat(call: Call[None, None]) -> Answered[UiMessages]:
    """Read the last messages, and what waits for an answer, as UI messages: the chat's first `messages`"""
    session = call.client.session(call.path["session"], tenant=call.caller.tenant)
    messages = await session.load_files(await session.history(-MOST_MESSAGES, pending=True))
    return Answered(UiMessages(ui_messages(messages)))


def _stream(call: Call[Any, Any], turn: AsyncTurn, behind: Collection[str] = ()) -> Response:
    events = turn.stream()
    return call.stream(events, _parts(behind_suspension(events, behind), turn), HEADERS)


async def _parts(events: AsyncIterator[Event], turn: AsyncTurn) -> AsyncGenerator[bytes]:
    parts = UiStream(turn.id)
    try:
        async for event in events:
            if found := parts.of(event):
                yield b"".join(map(encode, found))
            if isinstance(event, TurnSuspended) and await still_open(turn, event):
                yield b"".join(map(encode, parts.suspended()))
                break
    except AgentError as exc:
        if exc.retryable:
            return
        yield encode({"type": "error", "errorText": exc.user_message})
    yield DONE


OPERATIONS = [start_chat, resume_chat, stop_chat, show_chat]
