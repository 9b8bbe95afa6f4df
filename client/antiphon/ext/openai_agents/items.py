"""Items of the Agents SDK as messages of a history, and back.

A message that holds items keeps them as they came, in its last part; its other parts are what they say, for people and
for models of other services. Messages of our own turns become the items that say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from antiphon.ext.kept import kept_by
from antiphon.model import (
    File,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
)

__all__ = ["PROVIDER", "items_of", "message_of", "messages_of"]

PROVIDER = "openai-agents"

_ROLES: dict[str, Role] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}


def messages_of(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return items as messages. What a model says at once is one message, and so are the results of its calls."""
    groups: list[list[dict[str, Any]]] = []
    for item in items:
        role = _role(item)
        if groups and role in ("assistant", "tool") and _role(groups[-1][-1]) == role:
            groups[-1].append(dict(item))
        else:
            groups.append([dict(item)])
    return [message_of(group) for group in groups]


def message_of(items: Sequence[Mapping[str, Any]], before: Message | None = None) -> Message:
    """Return the message that holds these items, which have one role. It takes the place of ``before``."""
    parts = [part for item in items for part in _parts(item)]
    parts.append(Item(PROVIDER, {"items": list(items)}))
    message = Message(_role(items[0]), parts, provider=PROVIDER)
    if before is not None:
        message.id, message.turn_id, message.created = before.id, before.turn_id, before.created
    return message


def items_of(message: Message) -> list[dict[str, Any]]:
    """Return the items of a message: those that it holds, or those that say the same."""
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return cast("list[dict[str, Any]]", kept["items"])
    if message.role == "tool":
        return [_output(result) for result in message.tool_results]
    if message.role == "assistant":
        return list(_said(message))
    content = [one for part in message.parts for one in _content(part)]
    if all(isinstance(part, Text) for part in message.parts):
        return [{"role": message.role, "content": message.text}]
    return [{"role": message.role, "content": content}]


def _role(item: Mapping[str, Any]) -> Role:
    kind = str(item.get("type") or "message")
    if kind == "message":
        return _ROLES.get(str(item.get("role")), "user")
    return "tool" if kind.endswith("_output") else "assistant"


def _parts(item: Mapping[str, Any]) -> Iterator[Part]:
    """What an item says, in parts that every provider reads."""
    match item.get("type") or "message":
        case "message":
            yield from _parts_of_content(item.get("content"))
        case "function_call" | "custom_tool_call":
            text = item.get("arguments", item.get("input"))
            yield ToolCall.from_text(str(item["call_id"]), str(item.get("name") or ""), _text(text))
        case "reasoning":
            pieces = cast("Sequence[Mapping[str, Any]]", item.get("summary") or item.get("content") or ())
            yield Reasoning("".join(str(piece.get("text") or "") for piece in pieces))
        case kind if str(kind).endswith("_output") and item.get("call_id"):
            yield ToolResult(str(item["call_id"]), _result(item.get("output")))
        case _:
            return


def _parts_of_content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for piece in cast("Sequence[Mapping[str, Any]]", content or ()):
        if piece.get("type") == "refusal":
            yield Refusal(str(piece.get("refusal") or ""))
        elif isinstance(text := piece.get("text"), str):
            yield Text(text)
        elif isinstance(url := piece.get("image_url"), str):
            yield Image(url=url)
        elif piece.get("file_id") or piece.get("file_url"):
            yield File(url=piece.get("file_url"), file_id=piece.get("file_id"), name=piece.get("filename"))


def _result(output: Any) -> str | list[Text | Image | File]:
    if not isinstance(output, list):
        return _text(output)
    pieces = _parts_of_content(cast("list[Any]", output))
    return [part for part in pieces if isinstance(part, Text | Image | File)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _said(message: Message) -> Iterator[dict[str, Any]]:
    texts = [one for part in message.parts for one in _content(part, said=True)]
    if texts:
        said = {"type": "message", "role": "assistant", "status": "completed", "content": texts}
        yield {"id": message.id or "msg", **said}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_text,
        }


def _output(result: ToolResult) -> dict[str, Any]:
    if isinstance(result.content, str):
        output: Any = result.content
    else:
        output = [one for part in result.content for one in _content(part)]
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _content(part: Part, *, said: bool = False) -> Iterator[dict[str, Any]]:
    match part:
        case Text(text=text) if text:
            yield (
                {"type": "output_text", "text": text, "annotations": []}
                if said
                else {
                    "type": "input_text",
                    "text": text,
                }
            )
        case Refusal(text=text):
            yield {"type": "refusal", "refusal": text} if said else {"type": "input_text", "text": text}
        case Image() if not said:
            url = part.url or f"data:{part.media_type or 'image/png'};base64,{part.data or ''}"
            yield {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
        case File(file_id=str(file_id)) if not said:
            yield {"type": "input_file", "file_id": file_id}
        case File(url=str(url)) if not said:
            yield {"type": "input_file", "file_url": url}
        case File() if not said:
            data = f"data:{part.media_type or 'application/octet-stream'};base64,{part.data or ''}"
            yield {"type": "input_file", "filename": part.name or "file", "file_data": data}
        case _:
            return
