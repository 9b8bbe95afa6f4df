"""Compaction: a conversation becomes the messages of its user and a summary, which only this gateway can read.

The model writes the summary, in a session of its own that is kept for an hour. In the input of a response it stands
for what it tells of.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from antiphon.input.request import AgentSpec
from antiphon.model import Message
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.openai.errors import refused
from antiphon_gateway.openai.items import Given, input_items, messages_of, usage_of
from antiphon_gateway.openai.requests import agent_of
from antiphon_gateway.openai.submission import (
    STATELESS_SECONDS,
    history_until,
    key_of,
    previous,
    result_of,
    sealed_summary,
    summary_of,
)

ASK = (
    "Summarize this conversation, so that another assistant can go on with it and needs nothing else: what the user "
    "wants, what was found and decided, and what is still to do. Keep names, numbers and open questions exactly. "
    "Call no tools, and answer with the summary alone."
)


class CompactResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to compact: ``input``, behind that of ``previous_response_id`` if that is given."""

    model: str
    input: Given | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    prompt_cache_key: str | None = None


class Compaction(Struct):
    """The messages of the user, and a summary of all: the input of what comes next."""

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
    told = [*await _before(call, given.previous_response_id), *_input(call, given)]
    if not told:
        raise refused("input", "There is nothing to compact: give input or previous_response_id.")
    agent = agent_of(given.model, given.instructions)
    params: dict[str, Any] = {} if isinstance(agent, AgentSpec) else {"tool_choice": "none"}
    if given.prompt_cache_key is not None:
        params["prompt_cache_key"] = given.prompt_cache_key
    turn = await call.client.submit(
        call.new_session(key), [*told, Message.user(ASK)], agent=agent, params=params, tenant=call.caller.tenant,
        key=key, ttl=STATELESS_SECONDS,
    )  # fmt: skip
    made, info = await result_of(call, turn), await turn.info()
    summary = {
        "type": "compaction",
        "id": f"cmp_{turn.id}",
        "encrypted_content": sealed_summary(call, made.text),
    }
    said = input_items([one for one in told if one.role == "user"], turn.id)
    return Compaction(f"resp_{turn.id}", info.created // 1000, [*said, summary], usage_of(made.usage))


def _input(call: Call[None, CompactResponse], given: CompactResponse) -> list[Message]:
    return messages_of(given.input, summary_of(call)) if given.input else []


async def _before(call: Call[None, CompactResponse], name: str | None) -> list[Message]:
    """Return the conversation that ends with a response, as messages that are new."""
    if name is None:
        return []
    found, end = await history_until(call, *await previous(call, name))
    return [Message(one.role, one.parts) for one in found.messages[:end]]


OPERATIONS = [compact_response]
