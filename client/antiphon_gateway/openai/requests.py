"""Reads requests for responses. What a field cannot mean here is refused with a sentence. Pure functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from antiphon.input.request import AgentSpec
from antiphon.model import CallerTool
from antiphon_gateway.openai.errors import refused
from antiphon_gateway.openai.items import Given

Effort = Literal["none", "low", "medium", "high", "xhigh"]


class Reasoning(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much the model thinks."""

    effort: Effort | None = None
    summary: Literal["concise", "detailed", "auto"] | None = None


class TextOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class CreateResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """A response to make. ``model`` is the name of an agent of the workers, or ``provider/model``.

    A response is a turn. It belongs to the session that ``conversation`` names, to that of ``previous_response_id`` or
    to a new one.
    """

    model: str | None = None
    input: Given | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    background: bool | None = None
    store: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    parallel_tool_calls: bool | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=64)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    user: str | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tool_calls: int | None = None
    include: list[str] | None = None


# Parameters of the model by their names here and at our providers.
PARAMS = {
    "temperature": "temperature", "top_p": "top_p", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "max_output_tokens": "max_tokens",
    "parallel_tool_calls": "parallel_tool_calls", "user": "user", "safety_identifier": "safety_identifier",
    "prompt_cache_key": "prompt_cache_key",
}  # fmt: skip
REFUSED = {
    "max_tool_calls": "max_tool_calls is not supported: set max_steps of the agent.",
    "include": "include is not supported: omit it.",
    "top_logprobs": "top_logprobs is not supported: omit it.",
}
TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}
ECHOED = (
    "model", "instructions", "previous_response_id", "metadata", "background", "temperature", "top_p",
    "presence_penalty", "frequency_penalty", "max_output_tokens", "parallel_tool_calls", "service_tier",
    "prompt_cache_key", "safety_identifier",
)  # fmt: skip


def check(request: CreateResponse) -> None:
    """Refuse what a response cannot do here. Raises ``Refused``."""
    for name, sentence in REFUSED.items():
        if getattr(request, name):
            raise refused(name, sentence)
    if not request.input:
        raise refused("input", "input must be text or a list of items that is not empty.")
    if request.truncation not in (None, "disabled"):
        raise refused("truncation", "truncation must be disabled: set the window of the agent.")
    if request.previous_response_id is not None and request.conversation is not None:
        raise refused("conversation", "Name previous_response_id or conversation, not both.")
    if request.store is False and (request.conversation is not None or request.background):
        raise refused(
            "store", "With store=False, omit conversation and background: the response cannot be read later."
        )
    if any(value for value in (request.stream_options or {}).values()):
        raise refused("stream_options", "stream_options is not supported: omit it.")
    check_metadata(request.metadata)


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Refuse metadata beyond OpenAI's limits. Raises ``Refused``."""
    for name, value in (metadata or {}).items():
        if len(name) > 64 or len(value) > 512:
            raise refused("metadata", "A key of metadata has at most 64 characters, and a value 512.")
    if len(metadata or ()) > 16:
        raise refused("metadata", "metadata may have 16 entries.")


def conversation_of(request: CreateResponse) -> str | None:
    """Return the id of the conversation that a request names. Raises ``Refused``."""
    named = request.conversation
    if isinstance(named, dict):
        if set(named) != {"id"}:
            raise refused("conversation", 'conversation must be an id, or an object {"id": …}.')
        return named["id"]
    return named


def agent_of(model: str | None, instructions: str | None = None) -> str | AgentSpec | None:
    """Return the agent that ``model`` names; without a name, the session's or the only one. Raises ``Refused``."""
    if model == "":
        raise refused("model", "model must name an agent, or provider/model.")
    provider, slash, name = (model or "").partition("/")
    if slash:
        if not provider or not name or "*" in (provider, name):
            raise refused("model", f"model must name an agent, or provider/model, not {model!r:.80}.")
        return AgentSpec(provider=provider, model=name, system=instructions)
    if instructions is not None:
        raise refused("instructions", f"The agent {model!r} has its own instructions: omit them.")
    return model


def options_of(request: CreateResponse) -> dict[str, Any]:
    """Return the options of the turn that a request asks for. Raises ``Refused``, and ``InvalidTool``."""
    agent = agent_of(request.model, request.instructions)
    params = {
        ours: getattr(request, name) for name, ours in PARAMS.items() if getattr(request, name) is not None
    }
    if request.service_tier in ("flex", "priority"):
        params["service_tier"] = request.service_tier
    if request.reasoning is not None:
        params["reasoning"] = msgspec.to_builtins(request.reasoning)
    if request.text is not None and request.text.verbosity is not None:
        params["verbosity"] = request.text.verbosity
    tools = function_tools(request.tools or [])
    choice, offered = chosen(request.tool_choice, tools, isinstance(agent, AgentSpec))
    if choice is not None:
        params["tool_choice"] = choice
    return {
        "agent": agent,
        "params": params,
        "schema": schema_of(request.text),
        "caller_tools": offered or None,
    }


def chosen(
    choice: str | dict[str, Any] | None, tools: list[CallerTool], only_theirs: bool
) -> tuple[str | None, list[CallerTool]]:
    """Return the choice for the first model call, and the tools that are offered. Raises ``Refused``.

    With ``only_theirs`` the agent has no tools of its own: tools that may not be called are not offered.
    """
    names = {tool.name for tool in tools}
    match choice:
        case None | "auto":
            return None, tools
        case "none":
            return (None, []) if only_theirs else ("none", tools)
        case "required" if tools or not only_theirs:
            return "required", tools
        case {"type": "function", "name": str(name)} if name in names:
            return name, tools
        case {"type": "allowed_tools", "tools": list(allowed)} if only_theirs:
            kept = {one.get("name") for one in allowed if isinstance(one, dict)}
            if not kept <= names:
                raise refused("tool_choice", "tool_choice: allowed_tools names a tool that is not in tools.")
            mode, _ = chosen(choice.get("mode"), tools, only_theirs)
            return mode, [] if choice.get("mode") == "none" else [one for one in tools if one.name in kept]
        case _:
            raise refused("tool_choice", f"tool_choice: {choice!r:.100} is not possible with these tools.")


def schema_of(text: TextOptions | None) -> dict[str, Any] | None:
    """Return the schema of structured output. Raises ``Refused``."""
    match text.format if text is not None else None:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"type": "object"}
        case {"type": "json_schema", "schema": dict(schema), **more}:
            return {"title": more["name"], **schema} if more.get("name") else schema
        case _:
            raise refused("text", "text.format must be text, json_object, or json_schema with a schema.")


def function_tools(tools: list[dict[str, Any]]) -> list[CallerTool]:
    """Return the client-side tools. Raises ``Refused``, and ``InvalidTool``."""
    found: list[CallerTool] = []
    for tool in tools:
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            kind = f"A tool of the type {tool.get('type')!r} is not supported: use function, with a name."
            raise refused("tools", kind)
        if unknown := sorted(name for name in tool.keys() - TOOL_FIELDS if tool[name] is not None):
            raise refused("tools", f"tools: a function has no {unknown[0][:50]!r} here: omit it.")
        parameters: Any = tool.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict) or not isinstance(tool.get("description") or "", str):
            raise refused("tools", "tools: parameters must be a JSON schema, and description text.")
        found.append(
            CallerTool(tool["name"], tool.get("description") or "", cast("dict[str, Any]", parameters))
        )
    return found


def echo_of(request: CreateResponse) -> dict[str, Any]:
    """Return what a response repeats of its request. It is kept with the turn, as metadata."""
    found = {name: getattr(request, name) for name in ECHOED if getattr(request, name) is not None}
    if request.tools:
        found["tools"] = [
            {"description": None, "parameters": None, "strict": None, **one} for one in request.tools
        ]
    if request.tool_choice is not None:
        choice = request.tool_choice
        found["tool_choice"] = (
            {"mode": "auto", **choice} if isinstance(choice, dict) and "tools" in choice else choice
        )
    if request.reasoning is not None:
        found["reasoning"] = {"effort": request.reasoning.effort, "summary": request.reasoning.summary}
    if request.text is not None:
        found["text"] = _text(request.text)
    if request.store is False:
        found["store"] = False
    return found


def _text(text: TextOptions) -> dict[str, Any]:
    """The form of the answer as the specification repeats it: without its schema."""
    given = text.format or {"type": "text"}
    if given.get("type") == "json_schema":
        given = {
            "type": "json_schema", "name": given.get("name") or "output", "description": given.get("description"),
            "schema": None, "strict": bool(given.get("strict")),
        }  # fmt: skip
    else:
        given = {"type": given.get("type")}
    return {"format": given, **({"verbosity": text.verbosity} if text.verbosity else {})}
