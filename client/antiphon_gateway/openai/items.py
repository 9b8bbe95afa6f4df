"""Converts between the items of the Responses interface and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from antiphon.errors import InvalidMessage
from antiphon.input.messages import to_messages
from antiphon.model import File, Image, Message, Part, Reasoning, Refusal, Text, ToolCall, Usage
from antiphon.model.parts import STORED
from antiphon_gateway.openai.errors import refused

Given = str | list[dict[str, Any]]
Seal = Callable[[str, Reasoning], Any]
"""Returns the encrypted content of reasoning, for the id of its item."""
Content = str | list[Text | Image | File]

# The fields of each item, besides its type. Those that clients repeat from an output are ignored.
FIELDS = {
    "message": {"role", "content", "id", "status", "phase"},
    "function_call": {"call_id", "name", "arguments", "id", "status"},
    "function_call_output": {"call_id", "output", "id", "status"},
    "reasoning": {"summary", "content", "encrypted_content", "id", "status"},
    "compaction": {"encrypted_content", "id", "created_by"},
}
ROLES = {"user", "system", "developer", "assistant"}
PARTS = {"input_text", "text", "output_text", "refusal", "input_image", "input_file"}
SUMMARY = "What came before in this conversation, in short:\n\n"


def messages_of(given: Given, summary: Callable[[str], str]) -> list[Message]:
    """Return input items as messages. ``summary`` reads the content of a compaction. Raises ``Refused``."""
    if isinstance(given, str):
        return [Message.user(given)]
    found: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        where = f"input[{number}]"
        match _kind(item, where):
            case "message":
                _add_message(found, item, where)
            case "function_call":
                _said(found).setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                found.append({"role": "tool", "tool_call_id": _text(item, "call_id", where),
                              "content": _output(item, where)})  # fmt: skip
            case "reasoning":
                _add_thought(found, _thought(item))
            case _:
                text = summary(_text(item, "encrypted_content", where))
                found.append({"role": "system", "content": SUMMARY + text})
    return read_messages(found, "input")


def read_messages(found: Sequence[dict[str, Any]], param: str) -> list[Message]:
    """Read messages whose tool calls are each followed by one result. Raises ``Refused``, which names the field."""
    _check_calls(found, param)
    try:
        return to_messages(found)
    except InvalidMessage as exc:
        raise refused(param, f"{param}: {exc.message}") from exc


def results_of(given: Given) -> dict[str, Content] | None:
    """Return the results of tool calls, by the ids of the calls, if the input contains nothing else.

    Raises ``Refused`` for other input after results, as results continue a turn that waits for them.
    """
    if isinstance(given, str) or not given or item_type(given[0]) != "function_call_output":
        return None
    found: dict[str, Content] = {}
    for number, item in enumerate(given):
        where = f"input[{number}]"
        if _kind(item, where) != "function_call_output":
            raise refused(
                "input",
                f"{where}: send tool results alone, and other input in the next request.",
            )
        call, content = result_in(item, where)
        if call in found:
            raise refused("input", f"{where}: the call {call[:80]!r} has two results.")
        found[call] = content
    return found


def result_in(item: dict[str, Any], where: str) -> tuple[str, Content]:
    """Return the call id and the result in an item. Raises ``Refused``."""
    call = _text(item, "call_id", where)
    message = {"role": "tool", "tool_call_id": call, "content": _output(item, where)}
    try:
        return call, to_messages([message])[0].tool_results[0].content
    except InvalidMessage as exc:
        raise refused("input", f"{where}: {exc.message}") from exc


def _check_calls(messages: Sequence[dict[str, Any]], param: str) -> None:
    """Raise ``Refused`` unless each tool call of the messages is followed by one result, and each result
    preceded by its call.
    """
    open_calls: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            call = message.get("tool_call_id")
            if call not in open_calls:
                raise refused(
                    param, f"{param}: no pending tool call {str(call)[:80]!r} was found for this result."
                )
            open_calls.discard(cast("str", call))
            continue
        if open_calls:
            break
        open_calls |= {str(call["id"]) for call in message.get("tool_calls") or ()}
    if open_calls:
        named = ", ".join(repr(call[:80]) for call in sorted(open_calls))
        raise refused(param, f"{param}: no result follows the tool call {named}.")


def is_reference(item: Any) -> bool:
    """Return whether an input item only references another one. Its type may be omitted."""
    return isinstance(item, dict) and item_type(item) == "item_reference"


def is_reasoning(item: Any) -> bool:
    """Return whether an input item is the reasoning of a model."""
    return item_type(item) == "reasoning"


def item_type(item: Any) -> Any:
    """Return the type of an item, which messages and references may omit."""
    if not isinstance(item, dict):
        return None
    named = item.get("type")
    return named or ("message" if "role" in item else "item_reference" if "id" in item else None)


def _kind(item: dict[str, Any], where: str) -> str:
    kind = item_type(item)
    if kind not in FIELDS:
        raise refused("input", f"{where}: an item of the type {kind!r} is not supported: omit it.")
    for name, value in item.items():
        if name != "type" and name not in FIELDS[kind] and value is not None:
            raise refused("input", f"{where}: a {kind} has no field {name[:50]!r} here: omit it.")
    return kind


def _add_message(found: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise refused("input", f"{where}: the role must be one of {', '.join(sorted(ROLES))}.")
    if not isinstance(content, str | list):
        raise refused("input", f"{where}: the content must be text or a list of parts.")
    _check_parts(content, where)
    if role == "assistant" and _only_thought(found):
        found[-1]["content"] += [content] if isinstance(content, str) else content
    else:
        found.append({"role": role, "content": content})


def _only_thought(found: list[dict[str, Any]]) -> bool:
    """Return whether the last message is only reasoning, which the model's answer joins."""
    last = found[-1] if found else {}
    return (
        all(isinstance(part, Reasoning) for part in last.get("content") or [None])
        and "tool_calls" not in last
    )


def _add_thought(found: list[dict[str, Any]], thought: Reasoning | None) -> None:
    if thought is not None and _only_thought(found):
        found[-1]["content"].append(thought)
    elif thought is not None:
        found.append({"role": "assistant", "content": [thought]})


def _thought(item: dict[str, Any]) -> Reasoning | None:
    """Return the reasoning in an item, or None if it is empty."""
    if isinstance(item.get("encrypted_content"), Reasoning):
        return item["encrypted_content"]  # found by its id
    parts: list[Any] = [*(item.get("content") or ()), *(item.get("summary") or ())]
    said = [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]
    text = "\n".join(str(part.get("text", "")) for part in said)
    return Reasoning(text) if text else None


def _said(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the assistant's message that a tool call belongs to."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": None})
    return found[-1]


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    function = {"name": _text(item, "name", where), "arguments": item.get("arguments")}
    if not isinstance(function["arguments"], str):
        raise refused("input", f"{where}: arguments must be JSON text.")
    return {"id": _text(item, "call_id", where), "type": "function", "function": function}


def _output(item: dict[str, Any], where: str) -> Any:
    output = item.get("output")
    if not isinstance(output, str | list):
        raise refused("input", f"{where}: output must be text or a list of parts.")
    _check_parts(output, where)
    return output


def _check_parts(content: Any, where: str) -> None:
    if isinstance(content, str):
        return
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in PARTS:
            raise refused("input", f"{where}: a part of the type {kind!r} is not supported: omit it.")


def _text(item: dict[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise refused("input", f"{where}: {name} must be a non-empty string.")
    return value


class IncludeQuery(Struct, kw_only=True):
    """What items include in addition, as in ``include`` of a request for a response."""

    include: list[str] = []


class ItemQuery(IncludeQuery, kw_only=True):
    """A page of items: those after the item ``after``, the last ones first unless ``order`` is ``asc``."""

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


def items_of(messages: Iterable[Message], turn: str, seal: Seal | None = None) -> list[dict[str, Any]]:
    """Return the output of a turn as output items: its reasoning, its words, its tool calls and their results.

    An item's id consists of the turn, the step (model call) and its index there, as in the stream. With ``seal``,
    reasoning has its encrypted content.
    """
    found: list[dict[str, Any]] = []
    step = 0
    for message in messages:
        if message.role == "assistant":
            step += 1
            found += step_items(message, turn, step, seal)
        elif message.role == "tool":
            found += [output_item(part.call_id, part.content, turn) for part in message.tool_results]
    return found


def step_items(message: Message, turn: str, step: int, seal: Seal | None = None) -> list[dict[str, Any]]:
    """Return the output of one model call of a turn as output items."""
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
                found.append(reasoning_item(name, part, seal))
            case ToolCall():
                found.append(call_item(name, part.call_id, part.name, part.arguments_text))
            case _:
                continue
        words = None
    return found


def _add(words: list[dict[str, Any]], part: Text | Refusal) -> None:
    """Add text to a message. Consecutive texts become one, as in the stream."""
    if isinstance(part, Refusal):
        words.append({"type": "refusal", "refusal": part.text})
    elif words and words[-1]["type"] == "output_text":
        words[-1]["text"] += part.text
        words[-1]["logprobs"] += logprobs(part)
    else:
        words.append(
            {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs(part)}
        )


def logprobs(part: Part) -> list[dict[str, Any]]:
    """Return the probabilities of the tokens of a text, if the model service returned them."""
    kept: Any = (part.item or {}).get("logprobs") if isinstance(part, Text) else None
    return [*((kept.get("content") if isinstance(kept, dict) else kept) or ())]


def message_item(name: str, status: str) -> dict[str, Any]:
    """Return an assistant message without content."""
    return {"type": "message", "id": f"msg_{name}", "status": status, "role": "assistant", "content": []}


def reasoning_item(name: str, thought: Reasoning, seal: Seal | None) -> dict[str, Any]:
    """Return reasoning as an item; with ``seal``, also as encrypted content."""
    content = [{"type": "reasoning_text", "text": thought.text}] if thought.text else []
    item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content}
    return item if seal is None or not content else {**item, "encrypted_content": seal(item["id"], thought)}


def call_item(
    name: str, call: str, function: str, arguments: str, status: str = "completed"
) -> dict[str, Any]:
    """Return a tool call as an item."""
    return {
        "type": "function_call", "id": f"fc_{name}", "call_id": call, "name": function, "arguments": arguments,
        "status": status,
    }  # fmt: skip


def output_item(call: str, output: str | list[Text | Image | File], turn: str) -> dict[str, Any]:
    """Return the result of a tool call as an item."""
    return {
        "type": "function_call_output", "id": f"fco_{turn}_{call}", "call_id": call,
        "output": output if isinstance(output, str) else [_input_part(part) for part in output],
        "status": "completed",
    }  # fmt: skip


def input_items(messages: Iterable[Message], turn: str, seal: Seal | None = None) -> list[dict[str, Any]]:
    """Return the input of a turn as items. ``seal`` is that of ``items_of``."""
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        name = f"{turn}_in{number}"
        if message.role in ("assistant", "tool"):
            found += items_of([message], name, seal)
        else:
            found.append(said_item(f"msg_{name}", message))
    return found


def history_items(messages: Iterable[Message], seal: Seal | None = None) -> list[dict[str, Any]]:
    """Return a history as items. Items of a response have the ids of its output, and of its input items.

    ``seal`` is that of ``items_of``.
    """
    found: list[dict[str, Any]] = []
    for turn, group in groupby(messages, key=lambda one: one.turn_id):
        if turn is None:
            for message in group:
                found += _added(message, message.id or "", seal)
            continue
        step = 0
        for number, message in enumerate(group):
            if message.role == "assistant" and message.provider is not None:
                step += 1
                found += step_items(message, turn, step, seal)
            elif message.role == "tool" and step:
                found += items_of([message], turn)
            else:
                found += _added(message, f"{turn}_in{number}", seal)
    return found


def _added(message: Message, name: str, seal: Seal | None) -> list[dict[str, Any]]:
    if message.role in ("assistant", "tool"):
        return items_of([message], name, seal)
    return [said_item(f"msg_{name}", message)]


def compaction_item(turn: str, content: str) -> dict[str, Any]:
    """Return the compaction item that a turn has written."""
    return {"type": "compaction", "id": f"cmp_{turn}", "encrypted_content": content}


def said_item(name: str, message: Message) -> dict[str, Any]:
    """Return a user or system message as an item."""
    content = [_input_part(part) for part in message.parts]
    return {"type": "message", "id": name, "status": "completed", "role": message.role, "content": content}


def _input_part(part: Part) -> dict[str, Any]:
    match part:
        case Image():
            return {"type": "input_image", "image_url": _address(part), "detail": part.detail or "auto"}
        case File():
            found: dict[str, Any] = {"type": "input_file"}
            given = {"filename": part.name, "file_url": part.url, "file_id": part.file_id}
            if part.data or part.id:
                given["file_data" if part.data else "file_url"] = _address(part)
            return found | {name: value for name, value in given.items() if value}
        case _:
            return {"type": "input_text", "text": part.text if isinstance(part, Text) else ""}


def _address(part: Image | File) -> str | None:
    if part.data:
        return f"data:{part.media_type or ''};base64,{part.data}"
    return part.url or (f"{STORED}{part.id}" if part.id else None)


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return the token usage of a turn."""
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
