"""Reads messages in three formats: ``Message``, OpenAI's chat dictionaries and Anthropic's dictionaries.

The format is detected for each part, so that mixed histories work. One dictionary can become two messages, because
Anthropic puts tool results into user messages. Consecutive tool messages of OpenAI become one message, because they
belong to one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

import msgspec

from antiphon.errors import CorruptRecord, InvalidMessage
from antiphon.input.wrong_values import wrong_value
from antiphon.model import (
    ROLES,
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
    decode_message,
)
from antiphon.model.parts import STORED, media_problem

MessageLike: TypeAlias = Message | Mapping[str, Any]
Input: TypeAlias = str | Part | MessageLike | Sequence[Part | MessageLike]

_ROLES: dict[str, Role] = {
    **{role: cast("Role", role) for role in ROLES},
    "developer": "system",
    "agent": "assistant",
    "model": "assistant",
    "function": "tool",
}


def to_input(value: Input) -> list[Message]:
    """Read the input of a turn: text, parts, or messages. Raises ``InvalidMessage``, also for an empty input."""
    messages = _input(value)
    if not any(_has_content(part) for message in messages for part in message.parts):
        raise InvalidMessage("The input is empty: pass non-blank text, an image or a file.")
    return messages


def _input(value: Input) -> list[Message]:
    if isinstance(value, str):
        return [_checked(Message.user(value))]
    if isinstance(value, get_args(Part)):
        return [_checked(Message.user([cast("Part", value)]))]
    if isinstance(value, Message | Mapping):
        return to_messages([value])
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not value:
        raise InvalidMessage(f"The input must be text, parts or messages, not {_kind(value)}.")
    if any(isinstance(one, Message) or (isinstance(one, Mapping) and "role" in one) for one in value):
        return to_messages(cast("Sequence[MessageLike]", value))
    parts = [part for one in value for part in _parts_of(one, "user")]
    return [_checked(Message.user(parts))]


def _has_content(part: Part) -> bool:
    return not isinstance(part, Text) or bool(part.text.strip())


def to_messages(values: Iterable[MessageLike]) -> list[Message]:
    """Read messages in any of the three formats. Raises ``InvalidMessage``, which names the invalid message."""
    if isinstance(values, str | bytes | Mapping | Message):
        raise InvalidMessage(f"Messages must be a list, not {_kind(values)}.")
    messages: list[Message] = []
    joins = False
    for number, value in enumerate(values):
        try:
            found = [value] if isinstance(value, Message) else _read(value)
            found = [_checked(message) for message in found]
        except InvalidMessage as exc:
            raise InvalidMessage(f"Message {number}: {exc.message}") from exc
        answers_step = not isinstance(value, Message) and "tool_call_id" in value
        if answers_step and joins:
            messages[-1] = Message.tool([*messages[-1].tool_results, *found[0].tool_results])
        else:
            messages += found
        joins = answers_step
    return messages


def _read(value: Any) -> list[Message]:
    if not isinstance(value, Mapping):
        raise InvalidMessage(f"A message must be a Message or a dictionary, not {_kind(value)}.")
    fields = cast("Mapping[str, Any]", value)
    role = _ROLES.get(str(fields.get("role")))
    if role is None:
        raise InvalidMessage(f"The role {fields.get('role')!r} is not one of {', '.join(ROLES)}.")
    if "parts" in fields:
        return [_own({**fields, "role": role})]
    if role == "tool":
        return [Message.tool([_openai_tool_result(fields)])]
    parts = _content(fields.get("content"), role)
    if reasoning := fields.get("reasoning_content"):
        parts.insert(0, Reasoning(str(reasoning)))
    if refusal := fields.get("refusal"):
        parts.append(Refusal(str(refusal)))
    parts += [_openai_tool_call(call) for call in fields.get("tool_calls") or ()]
    return _split(role, parts)


def _split(role: Role, parts: list[Part]) -> list[Message]:
    """Put tool results into a message of their own, before the user's other parts."""
    results = [part for part in parts if isinstance(part, ToolResult)]
    others: list[Part] = [part for part in parts if not isinstance(part, ToolResult)]
    if results and role != "user":
        raise InvalidMessage(f"A message with the role {role!r} cannot contain tool results.")
    messages = [Message.tool(results)] if results else []
    return [*messages, Message(role, others)] if others or not results else messages


def _own(fields: dict[str, Any]) -> Message:
    try:
        return decode_message(msgspec.json.encode(fields))  # keeps parts that this release does not know
    except (CorruptRecord, TypeError, UnicodeEncodeError) as exc:
        raise InvalidMessage(f"{exc}") from exc


def _content(content: Any, role: Role) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidMessage(f"The content must be text or a list of parts, not {_kind(content)}.")
    return [part for one in cast("Sequence[Any]", content) for part in _parts_of(one, role)]


def _parts_of(value: Any, role: Role) -> list[Part]:
    if isinstance(value, str):
        return [Text(value)]
    if isinstance(value, get_args(Part)):
        return [cast("Part", value)]
    part: Mapping[str, Any] = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    if not isinstance(part.get("type"), str):
        raise InvalidMessage(f"A part must be a dictionary with a type, not {_kind(value)}.")
    if part["type"] in _OWN and not part.keys() & _FOREIGN:
        return [_own_part(part)]
    reader = _READERS.get(part["type"])
    if reader is None:
        if role == "assistant":
            return [Item("anthropic", dict(part))]  # keeps server tools and new types as they are
        raise InvalidMessage(f"The part type {part['type']!r} is unknown.")
    try:
        return [reader(part)]
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        problem = f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise InvalidMessage(f"A part with the type {part['type']!r} cannot be read: {problem}.") from exc


def _own_part(part: Mapping[str, Any]) -> Part:
    try:
        return msgspec.convert(part, Part)
    except msgspec.ValidationError as exc:
        problem, _ = wrong_value(exc, Part)
        raise InvalidMessage(f"A part with the type {part['type']!r} cannot be read: {problem}") from exc


def _text(part: Mapping[str, Any]) -> Text:
    notes: list[Any] = part.get("citations") or part.get("annotations") or []
    return Text(_a_text(part["text"]), [dict(note) for note in notes], part.get("item"))


def _openai_image(part: Mapping[str, Any]) -> Image:
    source = part["image_url"]
    fields: Mapping[str, Any] = (
        cast("Mapping[str, Any]", source) if isinstance(source, Mapping) else {"url": source}
    )
    url, detail = fields["url"], fields.get("detail")
    if _a_text(url).startswith(STORED):
        return Image(detail=cast("str | None", detail or part.get("detail")), id=url.removeprefix(STORED))
    media_type, data = _data_url(url)
    detail = cast("str | None", detail or part.get("detail"))
    return Image(data=data, media_type=media_type, detail=detail) if data else Image(url=url, detail=detail)


def _openai_file(part: Mapping[str, Any]) -> File:
    fields = cast("Mapping[str, Any]", part.get("file") or part)
    if (url := fields.get("file_url") or "").startswith(STORED):
        return File(name=fields.get("filename"), id=url.removeprefix(STORED))
    media_type, data = _data_url(fields.get("file_data") or "")
    if not data and not fields.get("file_id") and not fields.get("file_url"):
        raise KeyError("file_id")
    return File(fields.get("file_url"), data, fields.get("file_id"), media_type, fields.get("filename"))


def _source(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of an Anthropic image or document: its data, its URL or its file id."""
    source = part["source"]
    match source["type"]:
        case "base64":
            return {"data": source["data"], "media_type": source["media_type"]}
        case "url":
            return {"url": source["url"]}
        case "file":
            return {"file_id": source["file_id"]}
        case kind:
            raise ValueError(f"the source {kind!r} is not known")


def _anthropic_image(part: Mapping[str, Any]) -> Image:
    where = _source(part)
    if "file_id" in where:
        raise ValueError("an image by file id cannot be sent to other services: give a url or data")
    return Image(**where)


def _anthropic_document(part: Mapping[str, Any]) -> Part:
    source = part["source"]
    if source["type"] in {"text", "content"}:
        content = source.get("data", source.get("content"))
        return Text("".join(one.text for one in _content(content, "user") if isinstance(one, Text)))
    return File(**_source(part), name=part.get("title"))


def _anthropic_tool_result(part: Mapping[str, Any]) -> ToolResult:
    content = _result_content(part.get("content"))
    return ToolResult(_a_text(part["tool_use_id"]), content, is_error=bool(part.get("is_error")))


def _anthropic_tool_use(part: Mapping[str, Any]) -> ToolCall:
    return ToolCall(_a_text(part["id"]), _a_text(part["name"]), dict(part.get("input") or {}))


def _thinking(part: Mapping[str, Any]) -> Reasoning:
    return Reasoning(str(part.get("thinking") or ""), dict(part))


def _openai_tool_result(fields: Mapping[str, Any]) -> ToolResult:
    call_id = fields.get("tool_call_id")
    if not isinstance(call_id, str):
        raise InvalidMessage("A message with the role 'tool' must name its call in tool_call_id.")
    return ToolResult(call_id, _result_content(fields.get("content")), str(fields.get("name") or ""))


def _openai_tool_call(call: Any) -> ToolCall:
    try:
        function = call.get("function") or call.get("custom")
        return ToolCall.from_text(call["id"], function["name"], function.get("arguments", ""))
    except (AttributeError, KeyError, TypeError) as exc:
        raise InvalidMessage(f"A tool call cannot be read ({exc!r}): {call!r:.200}.") from exc


def _result_content(content: Any) -> str | list[Text | Image | File]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = _content(content, "user")
    if all(isinstance(part, Text) and not part.annotations for part in parts) and len(parts) == 1:
        return cast("Text", parts[0]).text
    if not all(isinstance(part, Text | Image | File) for part in parts):
        raise InvalidMessage("A tool result can contain only text, images and files.")
    return cast("list[Text | Image | File]", parts)


def _data_url(url: str) -> tuple[str | None, str | None]:
    """Return the media type and the base64 text of a data URL, or None and None for other text."""
    if not url.startswith("data:"):
        return None, None
    head, _, data = url[5:].partition(",")
    return head.partition(";")[0] or None, data


def _a_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {_kind(value)}")
    return value


def _checked(message: Message) -> Message:
    """Return a deep copy of the message. Raises ``InvalidMessage`` if it cannot be stored or sent to a service."""
    for part in message.parts:
        for one in [part, *(part.content if isinstance(part, ToolResult) else ())]:
            if problem := media_problem(one):
                raise InvalidMessage(problem)
    try:
        return message.copied()
    except (CorruptRecord, UnicodeEncodeError, TypeError, ValueError) as exc:
        raise InvalidMessage(f"The message has no JSON form: {exc}.") from exc


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"


_OWN = ("image", "file", "refusal", "reasoning", "tool_call", "tool_result", "item")
_FOREIGN = {"source", "file", "file_data", "file_url", "filename", "refusal", "tool_use_id"}
"""Fields that only OpenAI's and Anthropic's parts of these types have."""
_READERS: dict[str, Callable[[Mapping[str, Any]], Part]] = {
    "text": _text,
    "input_text": _text,
    "output_text": _text,
    "refusal": lambda part: Refusal(_a_text(part["refusal"])),
    "image_url": _openai_image,
    "input_image": _openai_image,
    "file": _openai_file,
    "input_file": _openai_file,
    "image": _anthropic_image,
    "document": _anthropic_document,
    "tool_result": _anthropic_tool_result,
    "tool_use": _anthropic_tool_use,
    "thinking": _thinking,
    "redacted_thinking": _thinking,
}


def identified(messages: Iterable[Message], source: str, now: int) -> list[Message]:
    """Return copies of messages that enter a history outside a turn, with ids, and with times if they have none."""
    return [
        msgspec.structs.replace(message, id=f"{source}.{number}", created=message.created or now)
        for number, message in enumerate(messages, 1)
    ]
