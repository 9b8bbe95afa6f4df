"""OpenAI's Responses API as a provider: its requests.

The service stores only background answers: the history contains the reasoning in encrypted form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Unpack

from antiphon.model import File, Image, Item, Message, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from antiphon_worker.providers.base import AnswerKeeper, ModelRequest, OutputSchema, ToolSpec, names_of
from antiphon_worker.providers.http.connection import Call
from antiphon_worker.providers.openai_batches import OpenAIBatches
from antiphon_worker.providers.openai_responses import local_calls
from antiphon_worker.providers.openai_responses.background import BackgroundDecoder, BackgroundStream
from antiphon_worker.providers.openai_responses.stream import ResponsesDecoder
from antiphon_worker.providers.openai_sdk import OpenAIConnection, is_openai
from antiphon_worker.providers.request import (
    call_of,
    choose_tool,
    data_url,
    function_name,
    params_of,
    route_to_cache,
    settled,
    since_compaction,
    tools_of,
)
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream

LONGEST_CALL_ID = 64
# The service's names of parameters. Those without one (None) are left out, so that an agent's parameters stay valid
# when its model changes.
_NAMES = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    **dict.fromkeys(("stop", "stop_sequences", "seed", "n", "frequency_penalty", "presence_penalty"), None),
    "logit_bias": None,
}
_CONTENT_PARTS = ("output_text", "refusal", "output_audio", "output_image")


class OpenAIResponses(ModelService):
    """OpenAI's Responses API. It stores only background answers: the history has the reasoning in encrypted form."""

    default_name = "openai"
    connect = OpenAIConnection
    in_batches = OpenAIBatches

    def __init__(self, *, name: str | None = None, **options: Unpack[OptionFields]) -> None:
        super().__init__(name, options)

    def stream(self, request: ModelRequest) -> AnswerStream:
        call = responses_call(request, self.name, routed=is_openai(self.options.base_url))
        if request.keeper is not None:
            return self._in_background(request, request.keeper, call)
        return self.send(request, call, ResponsesDecoder(self.name, request.model, names_of(request.tools)))

    def _in_background(self, request: ModelRequest, keeper: AnswerKeeper, call: Call) -> AnswerStream:
        call, decoder = (
            self.checked(request, call),
            BackgroundDecoder(self.name, request.model, names_of(request.tools)),
        )
        return BackgroundStream(self.connection, self.name, call, decoder, keeper)


def responses_call(request: ModelRequest, provider: str, *, routed: bool = False) -> Call:
    """Build the JSON of a request. ``routed``: calls with the same ``prompt_cache_key`` go to the same cache."""
    params = params_of(request, _NAMES)
    if routed:
        route_to_cache(request, params)
    body: dict[str, Any] = {
        "model": request.model,
        "input": list(_input(request.messages, provider)),
        "store": params.get("background") is True,  # otherwise no other attempt could read the answer
        "stream": True,
    }
    if request.system:
        body["instructions"] = request.system
    tools = tools_of(request, params, _tool, local_calls.TOOLS)
    if tools:
        body["tools"] = tools
    choose_tool(params, tools, lambda choice: local_calls.choice_of(choice, tools))
    body |= _params(params)
    if request.output is not None:
        body["text"] = {**body.get("text", {}), "format": _format(request.output)}
    return call_of(request, "/responses", body)


def _params(params: dict[str, Any]) -> dict[str, Any]:
    effort = params.pop("effort", None) or params.pop("reasoning_effort", None)
    if isinstance(params.get("reasoning"), str):
        effort = effort or params.pop("reasoning")
    if effort:
        params["reasoning"] = {"effort": effort, **params.get("reasoning", {})}
    if "verbosity" in params:
        params["text"] = {"verbosity": params.pop("verbosity"), **params.get("text", {})}
    params["include"] = list(dict.fromkeys(["reasoning.encrypted_content", *params.get("include", ())]))
    return params


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


def _input(messages: Sequence[Message], provider: str) -> Iterator[dict[str, Any]]:
    history = settled(since_compaction(messages, provider), LONGEST_CALL_ID)
    outputs: dict[str, dict[str, Any]] = {}  # results of the answer's calls, in the calls' own form
    for place, message in enumerate(history, 1):
        if message.role == "assistant":
            own = message.provider == provider
            outputs = _outputs(message, history[place:]) if own else {}
            yield from _answer(message, outputs, own=own)
        elif message.role == "tool":
            for result in message.tool_results:
                yield outputs.get(result.call_id) or _tool_result(result)
        elif content := list(_content(message.parts)):
            role = "developer" if message.role == "system" else "user"
            yield {"role": role, "content": content}


def _outputs(answer: Message, after: Sequence[Message]) -> dict[str, dict[str, Any]]:
    """Return the results of an answer's calls that have a form of their own, by call id."""
    own = {call.call_id: call for call in answer.tool_calls if call.item is not None}
    results = takewhile(lambda message: message.role == "tool", after if own else ())
    found = [
        _output(own[result.call_id], result)
        for message in results
        for result in message.tool_results
        if result.call_id in own
    ]
    return {output["call_id"]: output for output in found if output is not None}


def _output(call: ToolCall, result: ToolResult) -> dict[str, Any] | None:
    if call.item is not None and call.item.get("type") == "custom_tool_call":
        return _tool_result(result, "custom_tool_call_output")
    return local_calls.output_of(call, result) if local_calls.is_local(call) else None


def _answer(
    message: Message, outputs: Mapping[str, dict[str, Any]], *, own: bool
) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            if part.text:
                yield _said(part, own=own)
        elif isinstance(part, ToolCall):
            yield _call(part, own=own and (part.call_id in outputs or not local_calls.is_local(part)))
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


def _call(call: ToolCall, *, own: bool) -> dict[str, Any]:
    if own and call.item is not None:
        return _without_empty({**call.item, "call_id": call.call_id})
    return {
        "type": "function_call",
        "call_id": call.call_id,
        "name": function_name(call.name),
        "arguments": call.arguments_text,
    }


def _tool_result(result: ToolResult, kind: str = "function_call_output") -> dict[str, Any]:
    output: Any = result.content if isinstance(result.content, str) else list(_content(result.content))
    return {"type": kind, "call_id": result.call_id, "output": output or ""}


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
