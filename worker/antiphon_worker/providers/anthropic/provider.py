"""The Messages API of Anthropic: the SDK's client, and the requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Unpack

from antiphon.errors import MissingPackage, ProviderError, ProviderUnauthorized
from antiphon.input.parameters import is_credential
from antiphon.model import File, Image, Item, Message, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from antiphon_worker.providers.anthropic.batches import AnthropicBatches
from antiphon_worker.providers.anthropic.stream import CONTAINER, AnthropicDecoder
from antiphon_worker.providers.base import ModelRequest, ToolSpec
from antiphon_worker.providers.http.connection import Call, Connection, HttpClient
from antiphon_worker.providers.http.failures import RawResponse
from antiphon_worker.providers.request import (
    caches,
    call_of,
    function_name,
    media,
    params_of,
    plain_text,
    settled,
    since_compaction,
    tools_of,
)
from antiphon_worker.providers.secrets import without_keys
from antiphon_worker.providers.service import ModelService, OptionFields
from antiphon_worker.providers.stream.increments import AnswerStream

try:
    import anthropic
except ImportError as exc:
    raise MissingPackage(
        "This provider needs the anthropic package: pip install 'antiphon[worker]'."
    ) from exc

LONGEST_CALL_ID = 64
# The service's names of parameters. Those without one (None) are left out, so that an agent's parameters stay valid
# when its model changes.
_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "stop": "stop_sequences",
    **dict.fromkeys(("seed", "n", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs"), None),
    **dict.fromkeys(("top_logprobs", "store", "background"), None),
}
_UNCACHED = ("thinking", "redacted_thinking")
_EARLIER = "(Earlier messages are not shown.)"
_NO_KEY = "There is no API key for Anthropic: set ANTHROPIC_API_KEY where the turns run."


class AnthropicConnection(Connection):
    """Sends requests with ``anthropic.AsyncAnthropic``. Key and base URL come from the options, or from ANTHROPIC_*."""

    sdk = anthropic
    request_id_header = b"request-id"

    def make_client(self, http_client: HttpClient) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(api_key=self.fixed_key(), **self.client_settings(http_client))

    def check_client(self, client: anthropic.AsyncAnthropic) -> None:
        given = client.api_key or client.auth_token or client.credentials
        if not given and not any(is_credential(name) for name in self.options.headers):
            raise ProviderUnauthorized(_NO_KEY)

    async def post(self, client: Any, call: Call, headers: dict[str, str]) -> RawResponse:
        try:
            return await super().post(client, call, headers)
        except TypeError as exc:
            if "authentication" not in str(exc):
                raise
            raise ProviderUnauthorized(_NO_KEY) from exc

    def map_error(self, provider: str, error: Exception) -> ProviderError | None:
        if isinstance(error, anthropic.CredentialsError):
            return ProviderUnauthorized(f"{provider}: {_NO_KEY} ({without_keys(str(error))})")
        return super().map_error(provider, error)


class Anthropic(ModelService):
    """``max_tokens`` is the default limit of an answer, because the service requires one."""

    default_name = "anthropic"
    connect = AnthropicConnection
    in_batches = AnthropicBatches

    def __init__(
        self, *, name: str | None = None, max_tokens: int = 8192, **options: Unpack[OptionFields]
    ) -> None:
        super().__init__(name, options)
        self._max_tokens = max_tokens

    def stream(self, request: ModelRequest) -> AnswerStream:
        call = anthropic_call(request, self.name, max_tokens=self._max_tokens)
        return self.send(request, call, AnthropicDecoder(self.name, request.model))


def anthropic_call(request: ModelRequest, provider: str, *, max_tokens: int) -> Call:
    """Build the JSON of a request; ``max_tokens`` is the limit if the caller gives none."""
    params = _params(request, max_tokens)
    marker = params.pop("cache_control", {"type": "ephemeral"}) if caches(request) else None
    tools = tools_of(request, params, _tool)
    _tool_choice(params, bool(tools))
    if not tools and (tools := _tools_called(request.messages)):
        params["tool_choice"] = {"type": "none"}
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request, provider), "stream": True}
    if request.system:
        body["system"] = [{"type": "text", "text": request.system}]
    if tools:
        body["tools"] = tools
    body |= params
    if "container" not in body and (container := _container(request.messages, provider, tools)):
        body["container"] = container
    if request.output is not None:
        schema = {"type": "json_schema", "schema": request.output.schema}
        body["output_config"] = {**body.get("output_config", {}), "format": schema}
    if marker:
        _mark_stable_prefix(body, marker)
    return call_of(request, "/v1/messages", body)


def _container(messages: Sequence[Message], provider: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """Return the container that the service's tools last used in the conversation, if it still exists."""
    if not any(tool.get("type", "custom") != "custom" for tool in tools):
        return None
    for message in reversed(messages):
        for part in reversed(message.parts if message.provider == provider else ()):
            if isinstance(part, Item) and part.item.get("type") == CONTAINER:
                return part.item.get("id") if _is_kept(part.item.get("expires_at")) else None
    return None


def _is_kept(until: object) -> bool:
    try:
        return datetime.fromisoformat(str(until)) > datetime.now(UTC)
    except (ValueError, TypeError):
        return False


def _mark_stable_prefix(body: dict[str, Any], marker: Any) -> None:
    """Let the service cache what the session's next request begins with: the instructions and the messages so far.

    The service looks for cached content in the 20 blocks before a mark. The end of the previous request is therefore
    marked as well, for answers with many calls.
    """
    instructions = body.get("system") or body.get("tools")
    if instructions:
        instructions[-1] = {**instructions[-1], "cache_control": marker}
    for message in body["messages"][-1:-4:-2]:  # the caller's, each followed by an answer
        content = message["content"]
        if content[-1].get("type") not in _UNCACHED:
            content[-1] = {**content[-1], "cache_control": marker}


def _params(request: ModelRequest, max_tokens: int) -> dict[str, Any]:
    params = params_of(request, _NAMES)
    if isinstance(params.get("stop_sequences"), str):
        params["stop_sequences"] = [params["stop_sequences"]]
    _reasoning(params)
    budget = (params.get("thinking") or {}).get("budget_tokens") or 0
    params.setdefault("max_tokens", max_tokens + budget)
    user = params.pop("user", None) or (params.pop("metadata", None) or {}).get("user_id")
    if user is not None:
        params["metadata"] = {"user_id": user}
    return params


def _reasoning(params: dict[str, Any]) -> None:
    """Convert ``reasoning``: a number of thinking tokens, a word for the effort, or the service's own ``thinking``."""
    reasoning = params.pop("reasoning", None) or params.pop("reasoning_effort", None)
    effort = params.pop("effort", None)
    if isinstance(reasoning, dict):
        effort = effort or reasoning.get("effort")
        if "type" in reasoning:
            params.setdefault("thinking", reasoning)
    elif isinstance(reasoning, str):
        effort = effort or reasoning
    elif isinstance(reasoning, int) and not isinstance(reasoning, bool):
        params.setdefault("thinking", {"type": "enabled", "budget_tokens": reasoning})
    if effort == "none":
        params.setdefault("thinking", {"type": "disabled"})
    elif effort:
        params.setdefault("thinking", {"type": "adaptive"})
        params["output_config"] = {"effort": effort, **params.get("output_config", {})}


def _tool_choice(params: dict[str, Any], has_tools: bool) -> None:
    choice = params.pop("tool_choice", None)
    parallel = params.pop("parallel_tool_calls", None)
    if not has_tools:
        return
    if choice in ("required", "any"):
        choice = {"type": "any"}
    elif choice in ("auto", "none"):
        choice = {"type": choice}
    elif isinstance(choice, str):
        choice = {"type": "tool", "name": choice}
    elif isinstance(choice, dict) and "type" not in choice:
        choice = {"type": "tool", **choice}
    if parallel is False and (choice or {}).get("type") != "none":
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    if choice is not None:
        params["tool_choice"] = choice


def _tools_called(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return definitions of the tools that a conversation has called: the service refuses calls of undefined ones."""
    names = dict.fromkeys(function_name(call.name) for message in messages for call in message.tool_calls)
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def _tool(tool: ToolSpec) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
    }
    if tool.strict:
        made["strict"] = True
    return made


def _messages(request: ModelRequest, provider: str) -> list[dict[str, Any]]:
    """Convert the history; consecutive messages of one role become one message."""
    messages: list[dict[str, Any]] = []
    for message in settled(since_compaction(request.messages, provider), LONGEST_CALL_ID):
        role = "assistant" if message.role == "assistant" else "user"
        content = list(_content(message, provider))
        if not content:
            continue
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += content
        else:
            messages.append({"role": role, "content": content})
    if messages and messages[0]["role"] == "assistant":
        messages.insert(0, {"role": "user", "content": [{"type": "text", "text": _EARLIER}]})
    if messages and messages[-1]["role"] == "assistant":
        _trim_prefill(messages[-1]["content"])
    return messages


def _trim_prefill(content: list[dict[str, Any]]) -> None:
    """Strip the white space with which the beginning of an answer must not end."""
    if content[-1]["type"] == "text":
        content[-1] = {**content[-1], "text": content[-1]["text"].rstrip() or "…"}


def _content(message: Message, provider: str) -> Iterator[dict[str, Any]]:
    if message.role == "assistant":
        yield from _answer(message, own=message.provider == provider)
    elif message.role == "tool":
        for result in message.tool_results:
            yield _tool_result(result)
    elif message.role == "system":
        if message.text:
            yield {"type": "text", "text": f"<system>\n{message.text}\n</system>"}
    else:
        yield from _blocks(message.parts)


def _answer(message: Message, *, own: bool) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        if isinstance(part, Text | Refusal):
            if part.text.strip():
                yield _text(part, own=own)
        elif isinstance(part, ToolCall):
            yield _tool_use(part, own=own)
        elif isinstance(part, Reasoning):
            if own and part.item is not None:
                yield part.item
        elif isinstance(part, Item) and own and part.item.get("type") != CONTAINER:
            yield part.item


def _text(part: Text | Refusal, *, own: bool) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": part.text}
    if own and isinstance(part, Text) and part.annotations:
        block["citations"] = part.annotations
    return block


def _tool_use(call: ToolCall, *, own: bool) -> dict[str, Any]:
    more = call.item if own and call.item is not None else {"type": "tool_use"}
    return {**more, "id": call.call_id, "name": function_name(call.name), "input": call.arguments}


def _tool_result(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id}
    content: Any = result.content if isinstance(result.content, str) else list(_blocks(result.content))
    if content:
        block["content"] = content
    if result.is_error:
        block["is_error"] = True
    return block


def _blocks(parts: Iterable[Part]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if isinstance(part, Text | Refusal):
            if part.text.strip():
                yield {"type": "text", "text": part.text}
        elif isinstance(part, Image):
            yield {"type": "image", "source": _source(part)}
        elif isinstance(part, File):
            document = {"type": "document", "source": _file_source(part)}
            yield document if part.name is None else {**document, "title": part.name}


def _source(part: Image | File) -> dict[str, Any]:
    found = media(part)
    if found is None:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": found[0], "data": found[1]}


def _file_source(part: File) -> dict[str, Any]:
    if part.file_id is not None:
        return {"type": "file", "file_id": part.file_id}
    text = plain_text(part)
    if text is not None:
        return {"type": "text", "media_type": "text/plain", "data": text}
    return _source(part)
