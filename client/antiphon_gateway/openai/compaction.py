"""Compaction: a conversation becomes the messages of its user and a summary, which only our gateways can read.

The model writes the summary, in a session of its own that is kept for an hour. In the input of a response it replaces
what it summarizes.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from antiphon.errors import AgentError
from antiphon.input.request import AgentSpec
from antiphon.model import Message, Response
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.openai.errors import refused, turn_failure
from antiphon_gateway.openai.fields import Elsewhere, Unserved, check_fields, param, params_of
from antiphon_gateway.openai.items import Given, compaction_item, input_items, messages_of, usage_of
from antiphon_gateway.openai.requests import Short, Tier, agent_of, instructions_for, tier_of
from antiphon_gateway.openai.stored import dereferenced, sealed_content, summary_of
from antiphon_gateway.openai.submission import (
    STATELESS_SECONDS,
    awaited,
    check_model,
    history_until,
    key_of,
    previous,
)

ASK = (
    "Summarize this conversation, so that another assistant can go on with it and needs nothing else: what the user "
    "wants, what was found and decided, and what is still to do. Keep names, numbers and open questions exactly. "
    "Call no tools, and answer with the summary alone."
)


class CompactResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to compact: ``input``, after the conversation of ``previous_response_id`` if that is given."""

    model: str
    input: Given | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: Annotated[Short | None, param("prompt_cache_key")] = None
    service_tier: Tier | None = None
    prompt_cache_retention: Elsewhere = None
    prompt_cache_options: Elsewhere = None
    image: Unserved = None


class Compaction(Struct):
    """The messages of the user, and a summary of all messages: the input of the next response."""

    id: str
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]
    object: str = "response.compaction"


@operation("POST", "/v1/responses/compact", right="write")
async def compact_response(call: Call[None, CompactResponse]) -> Compaction:
    """Summarize a conversation, to continue with the summary

    The session of the conversation stays as it is.
    """
    given, key = call.body, key_of(call)
    check_fields(given)
    before, user = await _before(call, given.previous_response_id)
    user = call.caller.user or user
    told = [*before, *await _input(call, given)]
    if not told:
        raise refused("input", "There is nothing to compact: give input or previous_response_id.")
    agent = agent_of(given.model, given.instructions)
    params: dict[str, Any] = {} if isinstance(agent, AgentSpec) else {"tool_choice": "none"}
    params |= params_of(given) | tier_of(given.service_tier)
    turn = await call.client.submit(
        call.new_session(key), [*told, Message.user(ASK)], agent=agent, params=params, tenant=call.caller.tenant,
        key=key, ttl=STATELESS_SECONDS, user=user, instructions=instructions_for(agent, given.instructions),
    )  # fmt: skip
    made, info = await _summary(call, turn, given.model), await turn.info()
    summary = compaction_item(turn.id, sealed_content(call, made.text))
    said = input_items([one for one in told if one.role == "user"], turn.id)
    return Compaction(f"resp_{turn.id}", info.created // 1000, [*said, summary], usage_of(made.usage))


async def _summary(call: Call[Any, Any], turn: AsyncTurn, model: str) -> Response:
    """Return the response with the summary. Raises ``Refused``."""
    try:
        return await awaited(call, turn, turn.result())
    except AgentError as exc:
        if exc.turn_id != turn.id:
            raise
        await check_model(call, exc, model)
        raise turn_failure(str(exc.code), exc.message, model) from exc


async def _input(call: Call[None, CompactResponse], given: CompactResponse) -> list[Message]:
    return messages_of(await dereferenced(call, given.input, None), summary_of(call)) if given.input else []


async def _before(call: Call[None, CompactResponse], name: str | None) -> tuple[list[Message], str | None]:
    """Return the conversation that ends with a response, as new messages, and the user of the response."""
    if name is None:
        return [], None
    turn, part = await previous(call, name)
    found, end = await history_until(call, turn, part)
    return [Message(one.role, one.parts) for one in found.messages[:end]], (await turn.info()).user


OPERATIONS = [compact_response]
