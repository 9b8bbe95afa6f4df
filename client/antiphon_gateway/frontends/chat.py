"""The routes of the AI SDK's ``useChat``: a POST starts an answer, a GET resumes it, another POST stops it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any

from msgspec import Struct, field
from starlette.responses import Response

from antiphon.errors import AgentError, TurnNotFound, WrongTenant
from antiphon.events import Event, TurnSuspended
from antiphon.model import CallerTool
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.frontends.answers import behind_suspension, give, still_open
from antiphon_gateway.frontends.ui_messages import DONE, UiStream, answers_of, encode, input_of, ui_messages
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.problems import Refused

__all__ = ["OPERATIONS"]

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
MOST_MESSAGES = 1000


class ChatRequest(Struct, kw_only=True):
    """What ``useChat`` sends.

    ``id`` is the session; of ``messages`` the last one is read, as the session has the others. ``agent`` and
    ``caller_tools`` are what you add with ``body``: the name of an agent of the workers, and the tools that the page
    runs.
    """

    id: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    trigger: str = "submit-message"
    messageId: str | None = None  # noqa: N815 - the AI SDK's name
    agent: str | None = None
    caller_tools: list[CallerTool] = field(default_factory=list)


class UiMessages(Struct):
    """A history as the AI SDK has it."""

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
    if given.trigger == "regenerate-message":
        session = call.client.session(given.id, tenant=call.caller.tenant)
        turn = await session.regenerate_async(agent=given.agent, caller_tools=tools)
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
    )  # fmt: skip
    return _stream(call, turn)


async def _answered(call: Call[None, ChatRequest], message: dict[str, Any]) -> Response:
    """Give a turn the answers that its message has, and stream what comes then. Raises ``TurnNotFound``."""
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
    """Stream the answer that is being written, from its beginning; 204 if there is none"""
    snapshot = await call.client.snapshot(call.path["session"], tenant=call.caller.tenant, last=0)
    pending = [turn for turn in snapshot.pending if turn.due is None]
    if not pending:
        return Response(None, 204)
    return _stream(call, await call.client.turn(pending[0].turn_id, tenant=call.caller.tenant))


@operation("POST", "/chat/{session}/stop", right="write", status=204)
async def stop_chat(call: Call[None, None]) -> None:
    """Stop the answer that is being written; what has been said stays"""
    await call.client.session(call.path["session"], tenant=call.caller.tenant).cancel_async(
        "stopped by the user"
    )


@operation("GET", "/chat/{session}/messages", right="read")
async def show_chat(call: Call[None, None]) -> Answer[UiMessages]:
    """Read the last messages, and what waits for an answer, as UI messages: the chat's first `messages`"""
    session = call.client.session(call.path["session"], tenant=call.caller.tenant)
    return Answer(UiMessages(ui_messages(await session.history_async(-MOST_MESSAGES, pending=True))))


def _stream(call: Call[Any, Any], turn: AsyncTurn, behind: Collection[str] = ()) -> Response:
    events = turn.stream()
    return call.stream(events, _parts(behind_suspension(events, behind), turn), HEADERS)


async def _parts(events: AsyncIterator[Event], turn: AsyncTurn) -> AsyncGenerator[bytes]:
    parts = UiStream(turn.id)
    try:
        async for event in events:
            if found := parts.parts(event):
                yield b"".join(map(encode, found))
            if isinstance(event, TurnSuspended) and await still_open(turn, event):
                yield b"".join(map(encode, parts.suspended()))
                break
    except AgentError as exc:
        if exc.retryable:
            return
        yield encode({"type": "error", "errorText": exc.message})
    yield DONE


OPERATIONS = [start_chat, resume_chat, stop_chat, show_chat]
