"""Messages of pydantic-ai as messages of a history, and back."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from antiphon.ext.kept import kept_by
from antiphon.ext.turns import ModelAnswer
from antiphon.model import File, Image, Item, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

__all__ = ["PROVIDER", "answer_of", "messages_of", "model_messages"]

PROVIDER = "pydantic-ai"


def model_messages(messages: Iterable[Message]) -> list[ModelMessage]:
    """Return messages of ours as a message history of pydantic-ai.

    >>> [message.kind for message in model_messages([Message.user("Hi"), Message.assistant("Hello")])]
    ['request', 'response']
    """
    return [_model_message(message) for message in messages]


def messages_of(history: Sequence[ModelMessage]) -> list[Message]:
    """Return a message history of pydantic-ai as messages of ours, for ``session.add_message``.

    >>> history = model_messages([Message.user("Hi"), Message.assistant("Hello")])
    >>> [message.text for message in messages_of(history)]
    ['Hi', 'Hello']
    """
    return [
        message
        for one in history
        for message in ([answer_of(one).message] if isinstance(one, ModelResponse) else _of_request(one))
    ]


def _model_message(message: Message) -> ModelMessage:
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return ModelMessagesTypeAdapter.validate_python([kept])[0]
    if message.role == "assistant":
        parts = [one for part in message.parts if (one := _said(part)) is not None]
        return ModelResponse(parts=parts)
    if message.role == "tool":
        return ModelRequest(
            parts=[
                ToolReturnPart(tool_name=one.name, content=one.text, tool_call_id=one.call_id)
                for one in message.tool_results
            ]
        )
    if message.role == "system":
        return ModelRequest(parts=[SystemPromptPart(content=message.text)])
    if all(isinstance(part, Text) for part in message.parts):
        return ModelRequest(parts=[UserPromptPart(content=message.text)])
    return ModelRequest(parts=[UserPromptPart(content=[*_content(message.parts)])])


def _said(part: Part) -> Any:
    match part:
        case Text(text=text):
            return TextPart(content=text)
        case ToolCall():
            return ToolCallPart(tool_name=part.name, args=part.arguments_text, tool_call_id=part.call_id)
        case _:
            return None


def _content(parts: Iterable[Part]) -> Iterator[Any]:
    for part in parts:
        match part:
            case Text(text=text):
                yield text
            case Image(url=str(url)):
                yield ImageUrl(url=url)
            case File(url=str(url)):
                yield DocumentUrl(url=url)
            case Image(data=str(data)) | File(data=str(data)):
                media = part.media_type or "application/octet-stream"
                yield BinaryContent(data=base64.b64decode(data), media_type=media)
            case _:
                pass


def _of_request(request: ModelRequest) -> Iterator[Message]:
    returned = [part for part in request.parts if isinstance(part, ToolReturnPart)]
    if returned:
        yield Message.tool(
            [
                ToolResult(
                    part.tool_call_id, part.model_response_str(), part.tool_name, part.outcome != "success"
                )
                for part in returned
            ]
        )
    for part in request.parts:
        if isinstance(part, SystemPromptPart):
            yield Message.system(part.content)
        elif isinstance(part, UserPromptPart):
            yield _user(part)
        elif isinstance(part, RetryFeedbackPart):
            yield Message.user(part.model_response())


def _user(prompt: UserPromptPart) -> Message:
    if isinstance(prompt.content, str):
        return Message.user(prompt.content)
    parts: list[Part] = []
    for one in prompt.content:
        match one:
            case str():
                parts.append(Text(one))
            case ImageUrl(url=url):
                parts.append(Image(url=url))
            case DocumentUrl(url=url):
                parts.append(File(url=url))
            case BinaryContent(data=data, media_type=media):
                kind = Image if media.startswith("image/") else File
                parts.append(kind(data=base64.b64encode(data).decode(), media_type=media))
            case _:
                parts.append(Text(str(one)))
    return Message.user(parts)


def answer_of(response: ModelResponse) -> ModelAnswer:
    """Return an answer that keeps the response whole beside what others can read of it."""
    parts: list[Part] = []
    for part in response.parts:
        match part:
            case TextPart(content=text):
                parts.append(Text(text))
            case ThinkingPart(content=text):
                parts.append(Reasoning(text))
            case ToolCallPart():
                parts.append(ToolCall.from_text(part.tool_call_id, part.tool_name, part.args_as_json_str()))
            case _:
                pass
    (whole,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    message = Message("assistant", [*parts, Item(PROVIDER, whole)], provider=PROVIDER)
    used = response.usage
    usage = Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens)
    return ModelAnswer(message, usage, "tool_use" if message.tool_calls else "end", response.model_name or "")
