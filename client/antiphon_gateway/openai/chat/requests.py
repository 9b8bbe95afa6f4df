"""Reads requests for chat completions. What a field cannot mean here is refused with a sentence. Pure functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from msgspec import Meta, Struct

from antiphon.input.request import AgentSpec
from antiphon.model import CallerTool
from antiphon_gateway.openai.errors import refused
from antiphon_gateway.openai.requests import agent_of, check_metadata, chosen, function_tools

__all__ = ["CreateCompletion", "completion_options"]

WAIT_SECONDS = 60.0
"""How long a call of the caller's tool keeps its turn, which the gateway cancels at once unless it dies."""


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """With ``include_usage`` the last chunk has the usage."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class CreateCompletion(Struct, kw_only=True, forbid_unknown_fields=True):
    """A chat completion to make. ``model`` is the name of an agent of the workers, or ``provider/model``."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    parallel_tool_calls: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None


PARAMS = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "seed", "verbosity",
    "parallel_tool_calls", "user", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
REFUSED = {
    "logprobs": "logprobs is not supported: leave it out.",
    "top_logprobs": "top_logprobs is not supported: leave it out.",
    "audio": "audio is not supported: leave it out.",
    "prediction": "prediction is not supported: leave it out.",
    "functions": "functions is not supported: use tools.",
    "function_call": "function_call is not supported: use tool_choice.",
    "web_search_options": "web_search_options is not supported: use an agent with a tool that searches.",
    "store": "Chat completions are not stored: leave store out, or use /v1/responses.",
}
MESSAGE_FIELDS = {
    "system": {"content"}, "developer": {"content"}, "user": {"content"}, "tool": {"content", "tool_call_id"},
    "assistant": {"content", "refusal", "tool_calls", "reasoning_content"},
}  # fmt: skip
PARTS = {"text", "image_url", "file", "refusal"}


def completion_options(request: CreateCompletion) -> dict[str, Any]:
    """Return the options of the turn that a request asks for. Raises ``Refused``, and ``InvalidTool``."""
    _check(request)
    agent = agent_of(request.model)
    params = {name: getattr(request, name) for name in PARAMS if getattr(request, name) is not None}
    most = request.max_completion_tokens if request.max_tokens is None else request.max_tokens
    if most is not None:
        params["max_tokens"] = most
    if request.reasoning_effort is not None:
        params["reasoning"] = {"effort": request.reasoning_effort}
    if request.service_tier in ("flex", "priority"):
        params["service_tier"] = request.service_tier
    tools = function_tools([_flat(tool) for tool in request.tools or ()])
    choice, offered = chosen(_choice(request.tool_choice), tools, isinstance(agent, AgentSpec))
    if choice is not None:
        params["tool_choice"] = choice
    return {
        "agent": agent, "params": params, "schema": _schema(request.response_format),
        "caller_tools": [_passing(tool) for tool in offered] or None, "metadata": request.metadata or {},
    }  # fmt: skip


def _check(request: CreateCompletion) -> None:
    for name, sentence in REFUSED.items():
        if getattr(request, name):
            raise refused(name, sentence)
    if request.n not in (None, 1):
        raise refused("n", "n must be 1: send the request again for another answer.")
    if request.modalities not in (None, ["text"]):
        raise refused("modalities", 'modalities must be ["text"].')
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise refused("max_tokens", "Give max_tokens or max_completion_tokens, not both.")
    if request.stream_options is not None and not request.stream:
        raise refused("stream_options", "stream_options is for stream=true.")
    check_metadata(request.metadata)
    for number, message in enumerate(request.messages):
        _check_message(message, f"messages[{number}]")
    if not request.messages:
        raise refused("messages", "messages must not be empty.")


def _check_message(message: dict[str, Any], where: str) -> None:
    fields = MESSAGE_FIELDS.get(message.get("role", ""))
    if fields is None:
        raise refused("messages", f"{where}: the role must be one of {', '.join(MESSAGE_FIELDS)}.")
    for name, value in message.items():
        if name != "role" and name not in fields and value not in (None, []):
            raise refused("messages", f"{where}: {name[:50]!r} is not supported: leave it out.")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in PARTS:
            raise refused("messages", f"{where}: a part of the type {kind!r} is not supported.")
    for call in message.get("tool_calls") or ():
        if not isinstance(call, dict) or call.get("type", "function") != "function" or "id" not in call:
            raise refused("messages", f"{where}: a tool call must be of the type function, with an id.")


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as the Responses interface has it."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise refused("tools", f"A tool of the type {tool.get('type')!r} is not supported: use function.")
    if "type" in function:
        raise refused("tools", "tools: a function has no 'type'.")
    return {"type": "function", **function}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """A choice as the Responses interface has it."""
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            return {"type": "function", "name": name}
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return {
                "type": "allowed_tools",
                "mode": mode,
                "tools": [_flat(tool) for tool in cast("list[Any]", tools)],
            }
        case _:
            return choice


def _schema(given: dict[str, Any] | None) -> dict[str, Any] | None:
    match given:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **more}}:
            return {"title": more["name"], **schema} if more.get("name") else schema
        case _:
            raise refused(
                "response_format", "response_format must be text, json_object, or json_schema with a schema."
            )


def _passing(tool: CallerTool) -> CallerTool:
    """The result comes with another request, so that a turn that waits for it only has to go away."""
    return CallerTool(tool.name, tool.description, tool.parameters, timeout=WAIT_SECONDS, at_limit="fail")
