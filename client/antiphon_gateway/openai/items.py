"""Converts messages to the items of a response. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.model import File, Image, Message, Part, Reasoning, Refusal, Text, ToolCall, Usage
from antiphon_gateway.openai.errors import refused

__all__ = [
    "ItemList",
    "ItemQuery",
    "call_item",
    "input_items",
    "items_of",
    "message_item",
    "output_item",
    "page_of",
    "reasoning_item",
    "said_item",
    "step_items",
    "usage_of",
]


class ItemQuery(Struct, kw_only=True):
    """A page of items: those behind ``after``, the last ones first unless ``order`` is ``asc``."""

    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class ItemList(Struct):
    """A page of items."""

    data: list[dict[str, Any]]
    object: str = "list"
    has_more: bool = False
    first_id: str | None = None
    last_id: str | None = None


def page_of(items: list[dict[str, Any]], asked: ItemQuery) -> ItemList:
    """Return a page of items, which are given in their order. Raises ``Refused``."""
    ordered = items if asked.order == "asc" else items[::-1]
    start = 0
    if asked.after is not None:
        names = [item["id"] for item in ordered]
        if asked.after not in names:
            raise refused("after", f"after: there is no item {asked.after[:100]!r}.")
        start = names.index(asked.after) + 1
    page = ordered[start : start + asked.limit]
    ends = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return ItemList(page, has_more=start + asked.limit < len(ordered), first_id=ends[0], last_id=ends[1])


def items_of(messages: Iterable[Message], turn: str) -> list[dict[str, Any]]:
    """Return what a turn said as output items: its reasoning, its words, its tool calls and their results.

    An item is named by the turn, the step (model call) and its place there, as the stream names it.
    """
    found: list[dict[str, Any]] = []
    step = 0
    for message in messages:
        if message.role == "assistant":
            step += 1
            found += step_items(message, turn, step)
        elif message.role == "tool":
            found += [output_item(part.call_id, part.content, turn) for part in message.tool_results]
    return found


def step_items(message: Message, turn: str, step: int) -> list[dict[str, Any]]:
    """Return what one model call of a turn said as output items."""
    found: list[dict[str, Any]] = []
    words: list[dict[str, Any]] | None = None
    status = "incomplete" if message.interrupted else "completed"
    for part in message.parts:
        name = f"{turn}_{step}_{len(found)}"
        match part:
            case Text() | Refusal():
                if words is None:
                    words = list[dict[str, Any]]()
                    found.append({**message_item(name, status), "content": words})
                _add(words, part)
                continue
            case Reasoning() if part.text:
                found.append(reasoning_item(name, part.text))
            case ToolCall():
                found.append(call_item(name, part.call_id, part.name, part.arguments_text))
            case _:
                continue
        words = None
    return found


def _add(words: list[dict[str, Any]], part: Text | Refusal) -> None:
    """Add words to a message. Texts that follow each other are one, as they are in the stream."""
    if isinstance(part, Refusal):
        words.append({"type": "refusal", "refusal": part.text})
    elif words and words[-1]["type"] == "output_text":
        words[-1]["text"] += part.text
    else:
        words.append({"type": "output_text", "text": part.text, "annotations": [], "logprobs": []})


def message_item(name: str, status: str) -> dict[str, Any]:
    """Return a message of the assistant without content."""
    return {"type": "message", "id": f"msg_{name}", "status": status, "role": "assistant", "content": []}


def reasoning_item(name: str, text: str) -> dict[str, Any]:
    """Return what the model thought."""
    content = [{"type": "reasoning_text", "text": text}] if text else []
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}


def call_item(
    name: str, call: str, function: str, arguments: str, status: str = "completed"
) -> dict[str, Any]:
    """Return a tool call."""
    return {
        "type": "function_call", "id": f"fc_{name}", "call_id": call, "name": function, "arguments": arguments,
        "status": status,
    }  # fmt: skip


def output_item(call: str, output: str | list[Text | Image | File], turn: str) -> dict[str, Any]:
    """Return the result of a tool call."""
    return {
        "type": "function_call_output", "id": f"fco_{turn}_{call}", "call_id": call,
        "output": output if isinstance(output, str) else [_input_part(part) for part in output],
        "status": "completed",
    }  # fmt: skip


def input_items(messages: Iterable[Message], turn: str) -> list[dict[str, Any]]:
    """Return the input of a turn as items."""
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        name = f"{turn}_in{number}"
        if message.role in ("assistant", "tool"):
            found += items_of([message], name)
        else:
            found.append(said_item(f"msg_{name}", message))
    return found


def said_item(name: str, message: Message) -> dict[str, Any]:
    """Return a message of a user, or of the system."""
    content = [_input_part(part) for part in message.parts]
    return {"type": "message", "id": name, "status": "completed", "role": message.role, "content": content}


def _input_part(part: Part) -> dict[str, Any]:
    match part:
        case Image():
            return {"type": "input_image", "image_url": _address(part), "detail": part.detail or "auto"}
        case File():
            found: dict[str, Any] = {"type": "input_file"}
            given = {"filename": part.name, "file_url": part.url, "file_id": part.file_id}
            given["file_data"] = _address(part) if part.data else None
            return found | {name: value for name, value in given.items() if value}
        case _:
            return {"type": "input_text", "text": part.text if isinstance(part, Text) else ""}


def _address(part: Image | File) -> str | None:
    return f"data:{part.media_type or ''};base64,{part.data}" if part.data else part.url


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return the tokens of a turn."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_input_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
