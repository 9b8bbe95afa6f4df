"""Reads what is stored: the items of earlier responses and conversations, and encrypted content."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.errors import TurnNotFound, UsageError
from antiphon.model import TERMINAL, Reasoning
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.turn_records import finished_steps
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.access.secret import opened, sealed
from antiphon_gateway.http.operations import Call
from antiphon_gateway.openai.errors import RefusedField, refused
from antiphon_gateway.openai.items import (
    Given,
    Seal,
    compaction_item,
    history_items,
    input_items,
    is_reasoning,
    is_reference,
    items_of,
)
from antiphon_gateway.openai.requests import ENCRYPTED, check_include
from antiphon_gateway.openai.stream import ResponseStream, resource
from antiphon_gateway.problems import Refused

T = TypeVar("T")

READ_SECONDS = 5.0
MOST_TURNS = 1000
"""The most turns that the item references of one request may name."""


def echo_in(info: TurnInfo) -> dict[str, Any]:
    """Return the fields of its request that the response of a turn repeats."""
    return info.metadata.get("openai") or {}


def is_stored(info: TurnInfo) -> bool:
    """Return whether the response of a turn may be read again."""
    return echo_in(info).get("store") is not False


class Thought(Struct):
    """The encrypted content of reasoning: the id of its item, and the text if that item is not found."""

    id: str
    text: str


def sealed_content(call: Call[Any, Any], value: Any) -> str:
    """Return a value as text that only gateways with the same keys can read, for a caller of the same tenant."""
    told = {"tenant": call.caller.tenant, "text": value}
    return sealed(call.services.secret.cursor_key, msgspec.json.encode(told).decode())


def opened_content(call: Call[Any, Any], content: Any, kind: type[T]) -> T:
    """Return the value of encrypted content. Raises ``Refused``."""
    try:
        told = msgspec.json.decode(opened(call.services.secret.cursor_key, content), type=dict[str, Any])
        if told["tenant"] == call.caller.tenant:
            return msgspec.convert(told["text"], kind)
    except (Refused, msgspec.MsgspecError, UnicodeError, AttributeError, KeyError):
        pass  # it is not ours
    raise refused(
        "input",
        "input: the encrypted content is from another deployment, tenant or service: leave the item out.",
    )


def summary_of(call: Call[Any, Any]) -> Callable[[str], str]:
    """Return the function that reads the summary of a compaction. It raises ``Refused``."""
    return lambda content: opened_content(call, content, str)


def seal_for(call: Call[Any, Any], include: Collection[str]) -> Seal | None:
    """Return the function that encrypts reasoning, if a request includes that. Raises ``Refused``.

    The content names the item, as a stream does not have the whole reasoning.
    """
    check_include(include)
    if ENCRYPTED not in include:
        return None
    return lambda name, thought: sealed_content(call, Thought(name, thought.text))


def seal_of(call: Call[Any, Any], info: TurnInfo, include: Collection[str] = ()) -> Seal | None:
    """Return the function that encrypts a response's reasoning. ``include`` adds to what its own request includes."""
    return seal_for(call, [*(echo_in(info).get("include") or ()), *include])


async def stream_of(
    call: Call[Any, Any], turn: AsyncTurn, part: int, include: Collection[str] = ()
) -> ResponseStream:
    """Return the object that makes the events of a response. ``include`` is that of ``seal_of``."""
    info = await turn.info()
    return ResponseStream(resource(info), turn.id, part, seal_of(call, info, include))


async def so_far(
    call: Call[Any, Any], turn: AsyncTurn, info: TurnInfo, part: int, include: Collection[str] = ()
) -> ResponseStream:
    """Return a response that may not have ended, after the events so far. ``include`` is that of ``seal_of``."""
    made = ResponseStream(resource(info), turn.id, part, seal_of(call, info, include))
    with suppress(TimeoutError):
        await call.services.stopping.within(READ_SECONDS, _read(call, turn, made))
    return made


async def _read(call: Call[Any, Any], turn: AsyncTurn, made: ResponseStream) -> None:
    async with call.client.subscribe(turn.session_id) as now, turn.stream() as events:
        events.until = now.cursor or 0
        async for event in events:
            made.of(event)
            if made.over:
                break


async def dereferenced(call: Call[Any, Any], given: Given, session: str | None) -> Given:
    """Return input in which references and encrypted content are replaced by their items. Raises ``Refused``.

    Items of responses are found for a week. An item that was added to a conversation is found if the request names
    that conversation, ``session``.
    """
    if isinstance(given, str):
        return given
    named = {number: str(item.get("id")) for number, item in enumerate(given) if is_reference(item)}
    thoughts = {
        number: opened_content(call, item["encrypted_content"], Thought)
        for number, item in enumerate(given)
        if is_reasoning(item) and item.get("encrypted_content")
    }
    if not named and not thoughts:
        return given
    known = await _known(call, [*named.values(), *(one.id for one in thoughts.values())])
    if session is not None and any(name not in known for name in named.values()):
        history = await call.client.session(session, tenant=call.caller.tenant).history()
        known |= {item["id"]: (item, True) for item in history_items(history, _as_it_is)}
    found = list(given)
    for number, name in named.items():
        item, stored = known.get(name, ({}, False))
        if not stored:
            raise RefusedField(
                "input", f"input[{number}]: unknown item {name[:100]!r}: send the item itself.",
                status=404, code="item_not_found",
            )  # fmt: skip
        found[number] = item
    for number, told in thoughts.items():
        shown = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": told.text}]}
        found[number] = known.get(told.id, (shown, True))[0]
    return found


async def _known(call: Call[Any, Any], names: Iterable[str]) -> dict[str, tuple[dict[str, Any], bool]]:
    """Return all items of the turns of these items, by id, each with whether it was stored. Raises ``Refused``."""
    turns = {name.partition("_")[2].partition("_")[0] for name in names} - {""}
    if len(turns) > MOST_TURNS:
        raise refused("input", f"input: the items that it names may be of {MOST_TURNS} responses.")
    found = await asyncio.gather(*(_items(call, turn) for turn in turns))
    return {item["id"]: (item, stored) for items, stored in found for item in items}


async def _items(call: Call[Any, Any], name: str) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a turn: its input, its output so far, and its compaction if it was one."""
    try:
        turn = await call.turn(name)
    except (TurnNotFound, UsageError):
        return [], False
    info = await turn.info()
    messages, summary = info.messages, list[dict[str, Any]]()
    if info.status in TERMINAL:
        text = "".join(one.text for one in messages[-1:])
        summary = [compaction_item(turn.id, sealed_content(call, text))]
    else:
        cell = call.client.connections.cell_of_turn(turn.id)
        messages = await finished_steps(cell, turn.session_id, turn.id)
    output = items_of(messages, turn.id, _as_it_is)
    return [*input_items(info.input, turn.id, _as_it_is), *output, *summary], is_stored(info)


def _as_it_is(_: str, thought: Reasoning) -> Reasoning:
    """Return reasoning as it is, for a model that receives it again."""
    return thought
