"""Requests to Chat Completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from antiphon.model import File, Image, Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from antiphon_worker.providers.base import ModelRequest, OutputSchema, ToolSpec
from antiphon_worker.providers.http.connection import Call
from antiphon_worker.providers.request import (
    data_url,
    encode_body,
    fitting_id,
    function_name,
    settled,
    split_params,
)
from antiphon_worker.providers.stream.json_text import is_object

LONGEST_CALL_ID = 40


def chat_call(request: ModelRequest, provider: str, *, limit_name: str, include_usage: bool) -> Call:
    """Build the JSON of a request; ``limit_name`` is the server's name for the limit of an answer's tokens."""
    params, extras = split_params(request.params)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": list(_messages(request, provider)),
        "stream": True,
    }
    if include_usage:
        body["stream_options"] = {**params.pop("stream_options", {}), "include_usage": True}
    tools = [_tool(tool) for tool in request.tools] + list(params.pop("tools", ()))
    if tools:
        body["tools"] = tools
    if request.output is not None:
        body["response_format"] = _response_format(request.output)
    body |= _params(params, limit_name, bool(tools))
    return Call(
        "/chat/completions", encode_body(body | extras.body), extras.headers, extras.query, extras.timeout
    )


def _params(params: dict[str, Any], limit_name: str, has_tools: bool) -> dict[str, Any]:
    if "max_tokens" in params:
        params[limit_name] = params.pop("max_tokens")
    if "stop_sequences" in params:
        params["stop"] = params.pop("stop_sequences")
    effort = params.pop("effort", None) or params.get("reasoning")
    if isinstance(effort, str):
        params.pop("reasoning", None)
        params["reasoning_effort"] = effort
    choice = params.pop("tool_choice", None)
    if has_tools and choice is not None:
        params["tool_choice"] = _tool_choice(choice)
    if not has_tools:
        params.pop("parallel_tool_calls", None)
    return params


def _tool_choice(choice: Any) -> Any:
    if choice == "any":
        return "required"
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        return {"type": "function", "function": {"name": choice}}
    if is_object(choice) and set(choice) == {"name"}:
        return {"type": "function", "function": choice}
    return choice


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


def _messages(request: ModelRequest, provider: str) -> Iterator[dict[str, Any]]:
    fit = fitting_id(LONGEST_CALL_ID)
    messages = settled(request.messages)
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    if request.system:
        yield {"role": "system", "content": request.system}
    for i, message in enumerate(messages):
        if message.role == "assistant":
            own = message.provider == provider
            yield from _assistant(message, fit, own=own, thinking=own and i > last_user)
        elif message.role == "tool":
            yield from _tool_results(message.tool_results, fit)
        elif content := _content(message.parts):
            yield {"role": message.role, "content": content}


def _assistant(
    message: Message, fit: Callable[[str], str], *, own: bool, thinking: bool
) -> Iterator[dict[str, Any]]:
    """Convert an answer. Its reasoning is sent back to the service that made it, until the end of its turn."""
    said: dict[str, Any] = {"role": "assistant", "content": None}
    text = "".join(part.text for part in message.parts if isinstance(part, Text | Refusal))
    if text:
        said["content"] = text
    if own:
        _give_back_reasoning(said, message, text, thinking=thinking)
    calls = [_call(call, fit, own=own) for call in message.tool_calls]
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


def _call(call: ToolCall, fit: Callable[[str], str], *, own: bool) -> dict[str, Any]:
    if call.item is not None and call.item.get("type") == "custom":
        custom = {"name": call.name, "input": call.arguments.get("input", "")}
        return {"id": fit(call.call_id), "type": "custom", "custom": custom}
    function = {"name": function_name(call.name), "arguments": call.arguments_text}
    said = {"id": fit(call.call_id), "type": "function", "function": function}
    if own and call.item is not None and "extra_content" in call.item:
        said["extra_content"] = call.item["extra_content"]  # Gemini refuses its own call without it
    return said


def _tool_results(results: list[ToolResult], fit: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """Convert each result to a message. Images and files, which it cannot hold, follow in a user message."""
    shown: list[dict[str, Any]] = []
    for result in results:
        attached = (
            [] if isinstance(result.content, str) else [p for p in result.content if not isinstance(p, Text)]
        )
        text = result.text
        if attached:
            text = text or "The result follows in the next message."
            shown.append({"type": "text", "text": f"Result of the tool call {fit(result.call_id)}:"})
            shown += _content(attached)
        yield {"role": "tool", "tool_call_id": fit(result.call_id), "content": text}
    if shown:
        yield {"role": "user", "content": shown}


def _content(parts: Any) -> Any:
    """Convert the parts of a message that is not the model's; a single text stays a text."""
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
