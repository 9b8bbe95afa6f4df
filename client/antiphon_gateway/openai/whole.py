"""Finds the turn that waits for tool results if a request repeats the whole conversation.

Some clients, such as `@ai-sdk/openai`, name no response: they repeat the conversation up to the calls, and add the
results. A keyed hash of the repeated part identifies the response that ended with these calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from antiphon.input.ids import SessionId
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon_gateway.http.operations import Call
from antiphon_gateway.openai.errors import refused
from antiphon_gateway.openai.items import Content, Given, item_type, result_in

KEPT_SECONDS = 24 * 3600
"""How long a response can be found by its conversation."""


class Whole(Struct):
    """A conversation that a request contains whole, and the other fields of the request."""

    asks: dict[str, Any]
    items: Sequence[dict[str, Any]]

    def results(self) -> dict[str, Content]:
        """Return the tool results at the end of the conversation, by the ids of their calls. Raises ``Refused``."""
        end = len(_until_results(self.items))
        return dict(
            result_in(item, f"input[{number}]") for number, item in enumerate(self.items[end:], start=end)
        )

    def name(self, call: Call[Any, Any], output: Sequence[dict[str, Any]] = ()) -> str:
        """Return the name of the conversation, with the ``output`` of its response, for this caller and this request.

        Reasoning is left out, as clients need not repeat it, and so are the results at the end.
        """
        items = _until_results([*self.items, *output])
        said = [found for item in items if (found := _said(item)) is not None]
        try:
            return _digest(call, "whole", text_of(_sorted([self.asks, said])))
        except RecursionError:
            raise refused("input", "input: its values are nested too deeply.") from None


def whole_of(asks: dict[str, Any], given: Given) -> Whole:
    """Return the conversation in a request that contains all of it."""
    return Whole(asks, [{"role": "user", "content": given}] if isinstance(given, str) else given)


def name_of_key(call: Call[Any, Any], key: str, whole: str) -> str:
    """Return the name of a request with an idempotency key and a conversation of this name."""
    return _digest(call, "key", key, whole)


async def hand_out(call: Call[Any, Any], name: str, response: str) -> None:
    """Store which response has a name. Raises ``StoreError``."""
    cell = _cell(call, name)
    await asked(cell.redis.set(cell.keys.handed_out(name), response, ex=KEPT_SECONDS))


async def handed_out(call: Call[Any, Any], name: str) -> str | None:
    """Return the response that has a name, or None. Raises ``StoreError``."""
    cell = _cell(call, name)
    found: bytes | None = await asked(cell.redis.get(cell.keys.handed_out(name)))
    return None if found is None else text_of(found)


def _cell(call: Call[Any, Any], name: str) -> Cell:
    return call.client.connections.cell_of_session(cast("SessionId", name))


def _digest(call: Call[Any, Any], *parts: str) -> str:
    return call.services.secret.digest(call.caller.name, call.caller.tenant or "", *parts)


def _until_results(items: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    end = len(items)
    while end and item_type(items[end - 1]) == "function_call_output":
        end -= 1
    return items[:end]


def _said(item: dict[str, Any]) -> Any:
    """Return the content of an item, the same for every form in which clients repeat it. None for reasoning."""
    match item_type(item):
        case "message":
            return [item.get("role"), _texts(item.get("content"))]
        case "function_call":
            return ["call", item.get("call_id"), item.get("name"), _arguments(item.get("arguments"))]
        case "function_call_output":
            return ["result", item.get("call_id"), _texts(item.get("output"))]
        case "reasoning":
            return None
        case _:
            return item


def _texts(content: Any) -> Any:
    """Return the parts of a content. A plain text equals a list with that text."""
    parts: list[Any] = content if isinstance(content, list) else [content]
    return [_text(part) for part in parts]


def _text(part: Any) -> Any:
    match part:
        case {"text": str(text)} | {"refusal": str(text)}:
            return text
        case dict():
            return {name: value for name, value in cast("dict[str, Any]", part).items() if value is not None}
        case _:
            return part


def _arguments(text: Any) -> Any:
    """Return arguments in one form of JSON: a client may have parsed and written them again."""
    try:
        return text_of(_sorted(_PLAIN.decode(text)))
    except (msgspec.MsgspecError, TypeError, UnicodeError, RecursionError):
        return text


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


_PLAIN = msgspec.json.Decoder(float_hook=_number)
_sorted = msgspec.json.Encoder(order="deterministic").encode
