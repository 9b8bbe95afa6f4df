"""Checks the model parameters and the extra fields of a request to a model service.

The submitter of a turn chooses these values. The worker sends them with its own API key, over connections that it
shares between turns. Therefore they must not change the framing or the host of a request, or contain a secret. The
client checks them when a turn is submitted. The worker checks them again, because turns can come from other clients.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict, cast

from antiphon.errors import UsageError

_TRANSPORT_HEADERS = frozenset((
    "accept", "connection", "expect", "host", "http2-settings", "keep-alive", "te", "trailer", "transfer-encoding",
    "upgrade", "via",
))  # fmt: skip
_TRANSPORT_KINDS = ("accept-", "content-", "proxy-")
"""Headers that only the transport may set: the length, end, destination and type of a request."""

_CREDENTIAL_WORDS = frozenset((
    "apikey", "auth", "authenticate", "authentication", "authorization", "cookie", "cookie2", "credential",
    "credentials", "key", "passwd", "password", "secret", "signature", "token",
))  # fmt: skip
_NO_SECRETS = ("idempotency-key",)
_NAME_SIGNS = string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~"

_WRITTEN = {
    "model": "model=…", "messages": "the turn's input", "input": "the turn's input",
    "system": "Agent(system=…)", "instructions": "Agent(system=…)",
    "tools": "tools=…", "stream": "session.stream(…)", "stream_options": "stream_options=…",
}  # fmt: skip
"""Fields of a request that the provider sets, and what to use instead."""
_NEVER_PARAMETERS = ("messages", "input", "system", "instructions", "stream")
_EXTRA = ("extra_headers", "extra_query", "extra_body")


def misplaced(params: Mapping[str, Any]) -> str | None:
    """Return why these parameters cannot be sent, or None if they can."""
    if not params:
        return None
    if params.keys().isdisjoint(_EXTRA):
        return _wrong_parameter(params)
    return (
        _wrong_shape(params)
        or _wrong_headers(params.get("extra_headers") or {})
        or _wrong_query(params.get("extra_query") or {})
        or _wrong_body(params.get("extra_body") or {})
        or _wrong_parameter(params)
    )


def is_transport_header(name: str) -> bool:
    """Return True if only the transport may set this header. ``_`` counts as ``-``, as on some servers."""
    name = _plain(name)
    return name in _TRANSPORT_HEADERS or name.startswith(_TRANSPORT_KINDS)


def is_credential(name: str) -> bool:
    """Return True if a header or query field with this name contains a secret."""
    name = _plain(name)
    return name not in _NO_SECRETS and not _CREDENTIAL_WORDS.isdisjoint(name.split("-"))


def is_header_name(name: object) -> bool:
    """Return True if this is a valid name of an HTTP header: ASCII letters, digits and a few signs."""
    return isinstance(name, str) and bool(name) and not name.strip(_NAME_SIGNS)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _wrong_shape(params: Mapping[str, Any]) -> str | None:
    for name in _EXTRA:
        if params.get(name) is not None and not isinstance(params[name], Mapping):
            return f"{name}= must be a dictionary, not {type(params[name]).__name__}."
    return None


def _wrong_headers(headers: Mapping[Any, Any]) -> str | None:
    for name, value in headers.items():
        if not is_header_name(name):
            return f"extra_headers contains {str(name)[:80]!r}, which is not a valid header name."
        if is_transport_header(name):
            return f"extra_headers contains {name!r}, which only the transport can set. Leave it out."
        if is_credential(name):
            return (
                f"extra_headers contains {name!r}, which looks like a secret and would be saved with the turn. Set "
                "keys in the environment of the process that runs the turn, or in a provider in App(providers={…})."
            )
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            return f"The value of {name!r} in extra_headers must be printable ASCII text."
    return None


def _wrong_query(query: Mapping[Any, Any]) -> str | None:
    for name, value in query.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            return f"extra_query contains {str(name)[:80]!r}: names must be text, values text or numbers."
        if is_credential(name):
            return (
                f"extra_query contains {name[:80]!r}, which looks like a secret and would be saved with the turn. Set "
                "keys in the environment of the process that runs the turn, or in a provider in App(providers={…})."
            )
    return None


def _wrong_body(body: Mapping[Any, Any]) -> str | None:
    for name in body:
        if name in _WRITTEN:
            return f"extra_body contains {name!r}, which the provider sets: use {_WRITTEN[cast(str, name)]}."
    return None


def _wrong_parameter(params: Mapping[str, Any]) -> str | None:
    for name in () if params.keys().isdisjoint(_NEVER_PARAMETERS) else _NEVER_PARAMETERS:
        if params.get(name) is not None:
            return f"{name}= is not a model parameter: use {_WRITTEN[name]}."
    return None


class ModelParams(TypedDict, total=False):
    """The model parameters that editors complete, for all services.

    Other parameters reach the service as well. Type checkers accept them in ``extra_body`` and in ``Agent(…)``.
    """

    model: str
    temperature: float | None
    top_p: float | None
    top_k: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    seed: int | None
    n: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[str, float] | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    effort: str | None
    reasoning: str | int | bool | Mapping[str, Any] | None
    thinking: Mapping[str, Any] | None
    verbosity: str | None
    background: bool | None
    prompt_cache: bool | None
    cache_control: Mapping[str, Any] | Literal[False] | None
    service_tier: str | None
    extra_body: Mapping[str, Any] | None
    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, Any] | None


SECRET = ("api_key", "apikey", "auth_token", "authorization", "x-api-key", "api-key")
CONNECTION = ("api_base", "base_url", "organization", "headers", "proxy", "max_retries", "connect_timeout")
"""Options for the connection of a provider. They stay in the process that calls the service."""

_PLACES: dict[str, str] = {
    "session.submit(…, key=…)": "key",
    "session.submit(…, delay=…)": "delay",
    "session.run(…, schema=…)": "schema output_type output_schema output_cls output_model response_model result_type "
    "structured_output structured_output_fn structured_output_model structured_outputs response_format",
    "session.stream(…)": "stream streaming",
    "session.run(…, agent=…)": "agent",
    "session.run(…, if_busy=…)": "if_busy",
    "agent.session(ttl=…)": "ttl",
    "agent.session(tenant=…)": "tenant",
    "agent.session(variables=…)": "variables context_variables context_schema initial_state session_state state "
    "state_schema",
    "agent.session(messages=…)": "messages history",
    "agent.session(session_id=…)": "session_id thread_id",
    "agent.session(…)": "session session_service conversation_manager",
    "Agent(system=…) or agent.session(system=…)": "system system_message system_prompt system_template prompt "
    "prompt_template prompt_templates state_prompt instruction instructions global_instruction role goal backstory",
    "Agent(provider=…, model=…)": "llm llm_config language_model model_client model_id model_name reasoning_model",
    "Agent(name=…)": "name",
    "Agent(label=…)": "version",
    "Agent(tools=[…])": "tool functions tool_retriever toolsets workbench",
    "@tool(timeout=…)": "tool_timeout",
    "Agent(approval=…)": "human_input_mode interrupt_after interrupt_before interrupt_on needs_approval",
    "Agent(window=…)": "window history_processors max_history num_history_runs respect_context_window",
    "Agent(max_steps=…)": "max_steps max_iter max_iterations max_tool_iterations max_turns",
    "Agent(limits=Limits(…))": "budget max_execution_time tool_use_behavior usage_limits",
    "Agent(retry=Retry(…))": "max_retry_limit retries",
    "Agent(redis=…)": "redis",
    "Agent(prefix=…)": "prefix",
    "Agent(redis=…) or Agent(store=…), which keep the history": "checkpointer db storage",
    "Agent(memory=…)": "knowledge knowledge_sources memory_key",
    "Agent(provider=…)": "provider",
    "the keywords themselves, such as Agent(…, temperature=0.2)": "generate_content_config model_settings params",
    "App(providers={…})": "providers",
    "session.variables, or submit(…, metadata=…), which tools read from their Context": "deps deps_type",
    "Agent(tools=[agent.as_tool()])": "allow_delegation managed_agents sub_agents team",
    "Agent(handoffs=[…])": "can_handoff_to handoff_description",
    "Agent(mcp=[MCP.http(…)])": "mcp_config mcp_servers",
    "Agent(hooks=[…])": "guardrails hooks hook_providers middleware",
    "Agent(hooks=[…]) with a TurnStart": "before_agent_callback input_guardrails",
    "Agent(hooks=[…]) with a TurnEnd": "after_agent_callback",
    "Agent(hooks=[…]) with a ModelStart": "before_model_callback pre_model_hook",
    "Agent(hooks=[…]) with a ModelEnd": "after_model_callback output_guardrails post_model_hook",
    "Agent(hooks=[…]) with a ToolStart": "before_tool_callback",
    "Agent(hooks=[…]) with a ToolEnd": "after_tool_callback",
    "Agent(hooks=[…]), or the events of session.stream(…)": "callbacks callback_handler debug debug_mode step_callback "
    "verbose",
    "a tool, a hook or code around session.run(…): Agent has no such option": "capabilities code_executor "
    "code_execution_config defer_model_check description early_stopping_method end_strategy max_concurrency planner "
    "planning_interval reset_tool_choice scratchpad_key validation_context",
    "parallel_tool_calls=…": "allow_parallel_tool_calls",
    "tool_choice=…": "initial_tool_choice",
}
"""What to use instead of keywords of other calls and other frameworks."""
BELONGS = {name: place for place, names in _PLACES.items() for name in names.split()}
_PARAMETERS_AS_WELL = ("prompt", "response_format")
"""Names that are also parameters of services, with dictionaries as values."""
OURS = [*BELONGS, "timeout", "metadata", "queue", "tools", "store", "handoffs"]
MODEL_PARAMETERS = [
    name for name in ModelParams.__annotations__ if name != "model"
]  # some services have models=
_OF_OTHER_SERVICES = ("keep_alive", "prompt_mode", "random_seed", "safe_prompt")
"""Parameters of Mistral and Ollama, some of which look like keywords of ours."""
KNOWN = {*OURS, *ModelParams.__annotations__, *_OF_OTHER_SERVICES}
ALIKE, MISSPELT = 0.8, 0.9
"""How similar an unknown keyword must be to one of ours, or to a model parameter, to count as a misspelling of it."""


def check_params(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for secrets, and for keywords that belong to another call or look misspelt."""
    check_secrets(params)
    for one in params.get("tools") or ():
        if not isinstance(one, Mapping):
            raise UsageError(
                "tools= of a turn are tools of the model service, as dictionaries: give functions to the agent, "
                "Agent(tools=[…])."
            )
    for name, value in params.items():
        if name in _PARAMETERS_AS_WELL and isinstance(value, Mapping):
            continue
        if name in BELONGS:
            raise UsageError(
                f"{name}= is not a model parameter: use {BELONGS[name]}. If the model does have a parameter with this "
                "name, put it into extra_body={…}."
            )
        if name in KNOWN:
            continue
        near = get_close_matches(name, OURS, 1, ALIKE) or get_close_matches(
            name, MODEL_PARAMETERS, 1, MISSPELT
        )
        if near:
            raise UsageError(
                f"{name}= is not known: did you mean {near[0]}=? If the model does have a parameter with this name, "
                "put it into extra_body={…}."
            )


def check_secrets(params: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` for parameters that must not be sent with a turn.

    These are API keys, connection options, and ``extra_headers``, ``extra_query`` and ``extra_body`` that contain a
    secret or change how or where the request is sent (see ``antiphon.input.parameters``).
    """
    for name in params:
        if name.lower() in SECRET:
            raise UsageError(
                f"{name}= is not a model parameter, and would be saved with the turn. Set the key in the environment "
                "of the process that runs the turn (OPENAI_API_KEY, ANTHROPIC_API_KEY), or in a provider in the "
                "worker's App(providers={…})."
            )
    for name in params:
        if name in CONNECTION:
            raise UsageError(
                f"{name}= is not a model parameter. Set it in the environment of the process that runs the turn "
                "(OPENAI_BASE_URL, ANTHROPIC_BASE_URL), or in a provider in App(providers={…})."
            )
    wrong = misplaced(params)
    if wrong is not None:
        raise UsageError(wrong)
