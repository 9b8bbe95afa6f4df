"""Requests to the Responses API. The service stores nothing: the history contains the reasoning in encrypted form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from antiphon.model import File, Image, Item, Message, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
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

LONGEST_CALL_ID = 64
# Names of other services' parameters, so that an agent's parameters stay valid when its model changes.
_UNKNOWN = ("stop", "stop_sequences", "seed", "n", "frequency_penalty", "presence_penalty", "logit_bias")
_CONTENT_PARTS = frozenset({"output_text", "refusal", "output_audio", "output_image"})


def responses_call(request: ModelRequest, provider: str) -> Call:
    """Build the JSON of a request."""
    params, extras = split_params(request.params)
    body: dict[str, Any] = {
        "model": request.model,
        "input": list(_input(request.messages, provider)),
        "store": False,
        "stream": True,
    }
    if request.system:
        body["instructions"] = request.system
    tools = [_tool(tool) for tool in request.tools] + list(params.pop("tools", ()))
    if tools:
        body["tools"] = tools
    body |= _params(params, bool(tools))
    if request.output is not None:
        body["text"] = {**body.get("text", {}), "format": _format(request.output)}
    return Call("/responses", encode_body(body | extras.body), extras.headers, extras.query, extras.timeout)


def _params(params: dict[str, Any], has_tools: bool) -> dict[str, Any]:
    for name in _UNKNOWN:
        params.pop(name, None)
    for name in ("max_tokens", "max_completion_tokens"):
        if name in params:
            params["max_output_tokens"] = params.pop(name)
    effort = params.pop("effort", None) or params.pop("reasoning_effort", None)
    if isinstance(params.get("reasoning"), str):
        effort = effort or params.pop("reasoning")
    if effort:
        params["reasoning"] = {"effort": effort, **params.get("reasoning", {})}
    if "verbosity" in params:
        params["text"] = {"verbosity": params.pop("verbosity"), **params.get("text", {})}
    choice = params.pop("tool_choice", None)
    if has_tools and choice is not None:
        params["tool_choice"] = _tool_choice(choice)
    if not has_tools:
        params.pop("parallel_tool_calls", None)
    params["include"] = list(dict.fromkeys(["reasoning.encrypted_content", *params.get("include", ())]))
    return params


def _tool_choice(choice: Any) -> Any:
    if choice == "any":
        return "required"
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        return {"type": "function", "name": choice}
    if isinstance(choice, dict) and "type" not in choice:
        return {"type": "function", **choice}
    return choice


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _format(output: OutputSchema) -> dict[str, Any]:
    name = function_name(output.name)
    return {"type": "json_schema", "name": name, "schema": output.schema, "strict": output.strict}


def _input(messages: Iterable[Message], provider: str) -> Iterator[dict[str, Any]]:
    fit = fitting_id(LONGEST_CALL_ID)
    custom: set[str] = set()
    for message in settled(messages):
        if message.role == "assistant":
            own = message.provider == provider
            custom = {c.call_id for c in message.tool_calls if own and _is_custom(c)}
            yield from _answer(message, fit, own=own)
        elif message.role == "tool":
            for result in message.tool_results:
                yield _tool_result(result, fit, custom=result.call_id in custom)
        elif content := list(_content(message.parts)):
            role = "developer" if message.role == "system" else "user"
            yield {"role": role, "content": content}


def _answer(message: Message, fit: Callable[[str], str], *, own: bool) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            if part.text:
                yield _said(part, own=own)
        elif isinstance(part, ToolCall):
            yield _call(part, fit, own=own)
        elif isinstance(part, Reasoning):
            if own and part.item is not None and part.item.get("encrypted_content"):
                yield _without_empty(part.item)
        elif isinstance(part, Item) and own and part.item.get("type") not in _CONTENT_PARTS:
            yield _without_empty(part.item)


def _without_empty(item: dict[str, Any]) -> dict[str, Any]:
    """Remove the empty fields of an item, which the service sends but does not accept."""
    return {name: value for name, value in item.items() if value is not None}


def _said(part: Text | Refusal, *, own: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "output_text", "text": part.text}
    if isinstance(part, Refusal):
        content = {"type": "refusal", "refusal": part.text}
    elif own and part.annotations:
        content["annotations"] = part.annotations
    said: dict[str, Any] = {"type": "message", "role": "assistant", "content": [content]}
    if own and isinstance(part, Text) and part.item and "phase" in part.item:
        said["phase"] = part.item["phase"]
    return said


def _is_custom(call: ToolCall) -> bool:
    return call.item is not None and call.item.get("type") == "custom_tool_call"


def _call(call: ToolCall, fit: Callable[[str], str], *, own: bool) -> dict[str, Any]:
    if own and call.item is not None:
        return _without_empty({**call.item, "call_id": fit(call.call_id)})
    return {
        "type": "function_call",
        "call_id": fit(call.call_id),
        "name": function_name(call.name),
        "arguments": call.arguments_text,
    }


def _tool_result(result: ToolResult, fit: Callable[[str], str], *, custom: bool) -> dict[str, Any]:
    output: Any = result.content if isinstance(result.content, str) else list(_content(result.content))
    kind = "custom_tool_call_output" if custom else "function_call_output"
    return {"type": kind, "call_id": fit(result.call_id), "output": output or ""}


def _content(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Text | Refusal):
            if part.text:
                yield {"type": "input_text", "text": part.text}
        elif isinstance(part, Image):
            yield {"type": "input_image", "image_url": data_url(part), "detail": part.detail or "auto"}
        elif isinstance(part, File):
            yield _file(part)


def _file(part: File) -> dict[str, Any]:
    if part.file_id is not None:
        return {"type": "input_file", "file_id": part.file_id}
    url = data_url(part) or ""
    if url.startswith("data:"):
        return {"type": "input_file", "filename": part.name or "file", "file_data": url}
    return {"type": "input_file", "file_url": url}
