"""Chat Completions as a provider, for OpenAI and compatible servers: options and requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

from antiphon.model import File, Image, Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from antiphon_worker.providers.base import ModelRequest, OutputSchema, ToolSpec, names_of
from antiphon_worker.providers.http.connection import Call
from antiphon_worker.providers.openai_batches import OpenAIBatches
from antiphon_worker.providers.openai_chat.stream import ChatDecoder
from antiphon_worker.providers.openai_sdk import OpenAIConnection, is_openai
from antiphon_worker.providers.request import (
    call_of,
    choose_tool,
    data_url,
    function_name,
    params_of,
    route_to_cache,
    settled,
    tools_of,
)
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream

LONGEST_CALL_ID = 40


class OpenAIChat(ModelService):
    """A Chat Completions server: ``OpenAIChat(base_url="https://api.groq.com/openai/v1", api_key=…)``.

    Use ``include_usage=False`` for servers that reject ``stream_options``, and ``earlier_reasoning=False`` for servers
    that reject the reasoning of earlier turns. ``max_tokens`` is sent to OpenAI itself as
    ``max_completion_tokens``, to others under its own name.
    """

    default_name = "openai-chat"
    connect = OpenAIConnection
    in_batches = OpenAIBatches

    def __init__(
        self, *, name: str | None = None, include_usage: bool = True, earlier_reasoning: bool = True,
        **options: Unpack[OptionFields],
    ) -> None:  # fmt: skip
        super().__init__(name, options)
        self._include_usage = include_usage
        self._earlier_reasoning = earlier_reasoning

    def stream(self, request: ModelRequest) -> AnswerStream:
        openai = is_openai(self.options.base_url)
        call = chat_call(
            request, self.name, limit_name="max_completion_tokens" if openai else "max_tokens",
            include_usage=self._include_usage, earlier_reasoning=self._earlier_reasoning, routed=openai,
        )  # fmt: skip
        return self.send(request, call, ChatDecoder(self.name, request.model, names_of(request.tools)))


def chat_call(
    request: ModelRequest, provider: str, *, limit_name: str, include_usage: bool, earlier_reasoning: bool = True,
    routed: bool = False,
) -> Call:  # fmt: skip
    """Build the JSON of a request; ``limit_name`` is the server's name for the limit of output tokens.

    ``routed``: the service routes calls with the same ``prompt_cache_key`` to the same cache.
    """
    params = params_of(request, {"max_tokens": limit_name, "stop_sequences": "stop", "background": None})
    if routed:
        route_to_cache(request, params)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(_messages(request, provider, earlier_reasoning)),
        "stream": True,
    }
    if include_usage:
        body["stream_options"] = {**params.pop("stream_options", {}), "include_usage": True}
    tools = tools_of(request, params, _tool)
    if tools:
        body["tools"] = tools
    if request.output is not None:
        body["response_format"] = _response_format(request.output)
    effort = params.pop("effort", None) or params.get("reasoning")
    if isinstance(effort, str):
        params.pop("reasoning", None)
        params["reasoning_effort"] = effort
    choose_tool(params, tools, lambda choice: {"function": choice})
    return call_of(request, "/chat/completions", body | params)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _response_format(output: OutputSchema) -> dict[str, Any]:
    schema = {"name": function_name(output.name), "schema": output.schema, "strict": output.strict}
    return {"type": "json_schema", "json_schema": schema}


def _messages(request: ModelRequest, provider: str, earlier_reasoning: bool) -> Iterator[dict[str, Any]]:
    messages = settled(request.messages, LONGEST_CALL_ID)
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    if request.system:
        yield {"role": "system", "content": request.system}
    for i, message in enumerate(messages):
        if message.role == "assistant":
            own = message.provider == provider
            yield from _assistant(message, own=own, thinking=earlier_reasoning or i > last_user)
        elif message.role == "tool":
            yield from _tool_results(message.tool_results)
        elif content := _content(message.parts):
            yield {"role": message.role, "content": content}


def _assistant(message: Message, *, own: bool, thinking: bool) -> Iterator[dict[str, Any]]:
    """Convert an answer. Its own service gets its reasoning back: without ``thinking``, only as detail blocks."""
    said: dict[str, Any] = {"role": "assistant", "content": None}
    text = "".join(part.text for part in message.parts if isinstance(part, Text | Refusal))
    if text:
        said["content"] = text
    if own:
        _give_back_reasoning(said, message, text, thinking=thinking)
    calls = [_call(call, own=own) for call in message.tool_calls]
    if calls:
        said["tool_calls"] = calls
    if said["content"] is not None or calls:
        yield said


def _give_back_reasoning(said: dict[str, Any], message: Message, text: str, *, thinking: bool) -> None:
    for part in message.parts:
        if isinstance(part, Item) and part.item.get("type") == "audio" and "id" in part.item:
            said["audio"] = {"id": part.item["id"]}
        if not isinstance(part, Reasoning) or part.item is None:
            continue
        source = part.item.get("type")
        if source == "reasoning_details":
            said["reasoning_details"] = part.item["reasoning_details"]
        elif thinking and source in ("reasoning", "reasoning_content"):
            said[source] = said.get(source, "") + part.text
        elif thinking and source == "thinking":
            thought = {"type": "thinking", "thinking": [{"type": "text", "text": part.text}]}
            said["content"] = [thought, *([{"type": "text", "text": text}] if text else [])]


def _call(call: ToolCall, *, own: bool) -> dict[str, Any]:
    if call.item is not None and call.item.get("type") == "custom":
        custom = {"name": call.name, "input": call.arguments.get("input", "")}
        return {"id": call.call_id, "type": "custom", "custom": custom}
    function = {"name": function_name(call.name), "arguments": call.arguments_text}
    said = {"id": call.call_id, "type": "function", "function": function}
    if own and call.item is not None and "extra_content" in call.item:
        said["extra_content"] = call.item["extra_content"]  # Gemini refuses its own call without it
    return said


def _tool_results(results: list[ToolResult]) -> Iterator[dict[str, Any]]:
    """Convert each result to a message. Images and files, which it cannot hold, follow in a user message."""
    shown: list[dict[str, Any]] = []
    for result in results:
        attached = (
            [] if isinstance(result.content, str) else [p for p in result.content if not isinstance(p, Text)]
        )
        text = result.text
        if attached:
            text = text or "The result follows in the next message."
            shown.append({"type": "text", "text": f"Result of the tool call {result.call_id}:"})
            shown += _content(attached)
        yield {"role": "tool", "tool_call_id": result.call_id, "content": text}
    if shown:
        yield {"role": "user", "content": shown}


def _content(parts: Any) -> Any:
    """Convert the parts of a message that is not the model's; parts that are all text become one string."""
    if all(isinstance(part, Text | Refusal) for part in parts):
        return "".join(part.text for part in parts)
    return [content for part in parts if (content := _content_part(part)) is not None]


def _content_part(part: Any) -> dict[str, Any] | None:
    if isinstance(part, Text | Refusal):
        return {"type": "text", "text": part.text} if part.text else None
    if isinstance(part, Image):
        image = {"url": data_url(part)}
        if part.detail:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}
    if isinstance(part, File):
        return _file(part)
    return None


def _file(part: File) -> dict[str, Any]:
    if part.file_id is not None:
        return {"type": "file", "file": {"file_id": part.file_id}}
    url = data_url(part) or ""
    if not url.startswith("data:"):
        return {"type": "text", "text": f"[file{f' {part.name}' if part.name else ''}: {url}]"}
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": url}}
