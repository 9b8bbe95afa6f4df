"""Reads requests for responses. Unsupported fields are refused with an explanation. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidId
from antiphon.input.ids import user_name
from antiphon.input.request import AgentSpec
from antiphon.model import CallerTool
from antiphon.window import Window
from antiphon_gateway.openai.errors import refused
from antiphon_gateway.openai.fields import (
    ECHO,
    NEITHER,
    Elsewhere,
    Unserved,
    check_fields,
    param,
    params_of,
    refuses,
    repeated,
)
from antiphon_gateway.openai.items import Given

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Short = Annotated[str, Meta(max_length=128)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
AUTO_TOKENS = 100_000
"""The window of ``provider/model`` with ``truncation="auto"``. An agent of the workers has its own."""
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
INCLUDABLE = (ENCRYPTED, LOGPROBS, "message.input_image.image_url")
"""What ``include`` may name. Items of images always have their address."""


class ReasoningOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much the model reasons."""

    effort: Effort | None = None
    summary: Literal["concise", "detailed", "auto"] | None = None
    generate_summary: Annotated[Any, refuses("{} is not supported: use reasoning.summary.")] = None
    context: Unserved = None
    mode: Unserved = None


class TextOptions(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """How events are sent."""

    include_obfuscation: Annotated[bool | None, refuses(NEITHER, False)] = None


class CreateResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """A response to make. ``model`` is the name of an agent of the workers, or ``provider/model``.

    A response is a turn. It belongs to the session that ``conversation`` names, to that of ``previous_response_id`` or
    to a new one.
    """

    model: Annotated[str | None, ECHO] = None
    input: Given | None = None
    instructions: Annotated[str | None, ECHO] = None
    previous_response_id: Annotated[str | None, ECHO] = None
    conversation: str | dict[str, str] | None = None
    metadata: Annotated[dict[str, str] | None, ECHO] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: Annotated[bool | None, ECHO] = None
    store: bool | None = None
    include: Annotated[list[str] | None, ECHO] = None
    truncation: Annotated[Literal["auto", "disabled"] | None, ECHO] = None
    temperature: Annotated[Temperature | None, param("temperature")] = None
    top_p: Annotated[Share | None, param("top_p")] = None
    presence_penalty: Annotated[float | None, param("presence_penalty")] = None
    frequency_penalty: Annotated[float | None, param("frequency_penalty")] = None
    max_output_tokens: Annotated[Annotated[int, Meta(ge=16)] | None, param("max_tokens")] = None
    parallel_tool_calls: Annotated[bool | None, param("parallel_tool_calls")] = None
    safety_identifier: Annotated[Short | None, param("safety_identifier")] = None
    prompt_cache_key: Annotated[Short | None, param("prompt_cache_key")] = None
    user: Annotated[str | None, param("user")] = None
    service_tier: Annotated[Tier | None, ECHO] = None
    top_logprobs: Annotated[TopLogprobs | None, ECHO] = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    max_tool_calls: Annotated[Positive | None, ECHO] = None
    prompt: Annotated[Any, refuses("{} is not supported: send instructions and input.")] = None
    prompt_cache_retention: Elsewhere = None
    prompt_cache_options: Elsewhere = None
    context_management: Annotated[Any, refuses("{} is not supported: set the window of the agent.", [])] = (
        None
    )
    background_options: Unserved = None
    moderation: Unserved = None
    access_programs: Unserved = None
    image: Unserved = None


TOOL_FIELDS = {"type", "name", "description", "parameters", "strict"}


def check(request: CreateResponse) -> None:
    """Refuse requests that are not supported here. Raises ``Refused``."""
    check_fields(request)
    if not request.input:
        raise refused("input", "input must be text or a list of items that is not empty.")
    check_include(request.include or ())
    if request.previous_response_id is not None and request.conversation is not None:
        raise refused("conversation", "Name previous_response_id or conversation, not both.")
    if request.store is False and (request.conversation is not None or request.background):
        raise refused(
            "store", "With store=False, omit conversation and background: the response cannot be read later."
        )
    check_metadata(request.metadata)


def check_include(include: Iterable[str]) -> None:
    """Refuse unsupported values of ``include``. Raises ``Refused``."""
    if unknown := set(include).difference(INCLUDABLE):
        known = " or ".join(INCLUDABLE)
        raise refused("include", f"include: {min(unknown)!r:.80} is not supported, only {known}.")


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Refuse metadata beyond OpenAI's limits. Raises ``Refused``."""
    for name, value in (metadata or {}).items():
        if len(name) > 64 or len(value) > 512:
            raise refused("metadata", "A key of metadata has at most 64 characters, and a value 512.")
    if len(metadata or ()) > 16:
        raise refused("metadata", "metadata may have 16 entries.")


def conversation_of(named: str | dict[str, str] | None) -> str | None:
    """Return the id of the conversation that a request names. Raises ``Refused``."""
    if isinstance(named, dict):
        if set(named) != {"id"}:
            raise refused("conversation", 'conversation must be an id, or an object {"id": …}.')
        return named["id"]
    return named


def agent_of(
    model: str | None, instructions: str | None = None, truncation: str | None = None
) -> str | AgentSpec | None:
    """Return the agent that ``model`` names, or None for the session's or the only one. Raises ``Refused``.

    ``instructions`` apply to ``provider/model``: for the turn of another agent, they are an option.
    """
    if model == "":
        raise refused("model", "model must name an agent, or provider/model.")
    provider, slash, name = (model or "").partition("/")
    if slash:
        if not provider or not name or "*" in (provider, name):
            raise refused("model", f"model must name an agent, or provider/model, not {model!r:.80}.")
        window = Window(tokens=AUTO_TOKENS) if truncation == "auto" else None
        return AgentSpec(provider=provider, model=name, system=instructions, window=window)
    return model


def instructions_for(agent: str | AgentSpec | None, instructions: str | None) -> str | None:
    """Return the instructions for the turn of a workers' agent, which their App may forbid."""
    return None if isinstance(agent, AgentSpec) else instructions or None


def user_of(user: str | None, safety_identifier: str | None) -> str | None:
    """Return the user of a turn: ``user``, or ``safety_identifier`` without it. Raises ``Refused``."""
    field, value = ("user", user) if user else ("safety_identifier", safety_identifier)
    try:
        return user_name(value) if value else None
    except InvalidId as exc:
        raise refused(field, f"{field}: {exc.message}") from exc


def options_of(request: CreateResponse) -> dict[str, Any]:
    """Return the options of the turn that a request asks for. Raises ``Refused``, and ``InvalidTool``."""
    agent = agent_of(request.model, request.instructions, request.truncation)
    params = params_of(request) | tier_of(request.service_tier)
    params |= logprobs_of(request.top_logprobs, LOGPROBS in (request.include or ()))
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
        "user": user_of(request.user, request.safety_identifier),
        "instructions": instructions_for(agent, request.instructions),
        "max_tool_calls": request.max_tool_calls,
    }


def tier_of(tier: str | None) -> dict[str, Any]:
    """Return the parameter for a service tier other than the default."""
    return {} if tier in (None, "auto", "default") else {"service_tier": tier}


def logprobs_of(top: int | None, wanted: bool | None) -> dict[str, Any]:
    """Return the parameters that ask a model for the probabilities of its tokens."""
    return {"logprobs": True, **({"top_logprobs": top} if top else {})} if top or wanted else {}


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
            raise refused(
                "tool_choice",
                f"tool_choice: {choice!r:.100} is not possible: name one of the tools, none, auto or required.",
            )


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
    """Return the fields of a request that its response repeats. They are kept as metadata of the turn."""
    found = repeated(request)
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
    """Return the form of the answer as responses repeat it: without its schema."""
    given = text.format or {"type": "text"}
    if given.get("type") == "json_schema":
        given = {
            "type": "json_schema", "name": given.get("name") or "output", "description": given.get("description"),
            "schema": None, "strict": bool(given.get("strict")),
        }  # fmt: skip
    else:
        given = {"type": given.get("type")}
    return {"format": given, **({"verbosity": text.verbosity} if text.verbosity else {})}
