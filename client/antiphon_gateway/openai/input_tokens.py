"""Estimates the tokens of a request's input, as the windows of agents do: without a tokenizer, from its size."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from antiphon.model import Message
from antiphon.window import estimated_tokens
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.openai.fields import Unserved, check_fields
from antiphon_gateway.openai.items import Given, messages_of
from antiphon_gateway.openai.requests import (
    ReasoningOptions,
    TextOptions,
    conversation_of,
    function_tools,
    schema_of,
)
from antiphon_gateway.openai.stored import dereferenced, summary_of
from antiphon_gateway.openai.submission import history_until, previous


class CountTokens(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request whose input is counted. The fields are those of a request for a response."""

    model: str | None = None
    input: Given | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, str] | None = None
    tools: list[dict[str, Any]] | None = None
    text: TextOptions | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    truncation: str | None = None
    personality: Unserved = None


class InputTokens(Struct):
    """The estimated number of tokens of the input."""

    input_tokens: int
    object: str = "response.input_tokens"


@operation("POST", "/v1/responses/input_tokens", right="read")
async def count_input_tokens(call: Call[None, CountTokens]) -> InputTokens:
    """Estimate the tokens of the input of a response, from its size

    Counted are the conversation, the input, the instructions, the tools and the schema of the request.
    """
    given = call.body
    check_fields(given)
    session, history = conversation_of(given.conversation), list[Message]()
    if given.previous_response_id is not None:
        before, part = await previous(call, given.previous_response_id)
        session = before.session_id
        found, end = await history_until(call, before, part)
        history = found.messages[:end]
    elif session is not None:
        call.caller.check_session(session)
        history = await call.client.session(session, tenant=call.caller.tenant).history()
    items = await dereferenced(call, given.input or [], session)
    told = [
        given.instructions or "",
        *map(_json, function_tools(given.tools or [])),
        _json(schema_of(given.text)),
    ]
    extra = [Message.system(text) for text in told if text]
    return InputTokens(estimated_tokens([*history, *messages_of(items, summary_of(call)), *extra]))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value is not None else ""


OPERATIONS = [count_input_tokens]
