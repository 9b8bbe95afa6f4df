"""The Chat Completions interface: each request contains its whole conversation and is a session of its own.

Only the caller's own tools are shown: the workers' tools are not. A chunk cannot be taken back. So when a model call
begins again, its output is compared with what was sent; if it differs, the stream ends with an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Struct
from starlette.responses import Response as HTTPResponse

from antiphon.errors import AgentError
from antiphon.events import Event, StepFinished, TurnRetrying, TurnSuspended
from antiphon.input.request import AgentSpec
from antiphon.model import CallerTool, Response
from antiphon.redis.turn import AsyncTurn
from antiphon.session.streams import EventIterator
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.openai.errors import NO_RETRY, error_of, refused, turn_failure
from antiphon_gateway.openai.fields import Elsewhere, Unserved, check_fields, param, params_of, refuses
from antiphon_gateway.openai.items import logprobs, read_messages
from antiphon_gateway.openai.requests import (
    Effort,
    Positive,
    Share,
    Short,
    StreamOptions,
    Temperature,
    Tier,
    TopLogprobs,
    agent_of,
    check_metadata,
    chosen,
    function_tools,
    logprobs_of,
    tier_of,
    user_of,
)
from antiphon_gateway.openai.submission import STATELESS_SECONDS, awaited, check_model, key_of
from antiphon_gateway.problems import Refused
from antiphon_gateway.turn_stream import Part, TurnStream

WAIT_SECONDS = 60.0
"""How long a call of the caller's tool keeps its turn if the gateway dies before it cancels the turn."""


class ChunkOptions(StreamOptions, kw_only=True, forbid_unknown_fields=True):
    """With ``include_usage`` the last chunk has the usage."""

    include_usage: bool | None = None


class CreateCompletion(Struct, kw_only=True, forbid_unknown_fields=True):
    """A chat completion to make. ``model`` is the name of an agent of the workers, or ``provider/model``."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: ChunkOptions | None = None
    temperature: Annotated[Temperature | None, param("temperature")] = None
    top_p: Annotated[Share | None, param("top_p")] = None
    presence_penalty: Annotated[float | None, param("presence_penalty")] = None
    frequency_penalty: Annotated[float | None, param("frequency_penalty")] = None
    logit_bias: Annotated[dict[str, float] | None, param("logit_bias")] = None
    stop: Annotated[str | list[str] | None, param("stop")] = None
    seed: Annotated[int | None, param("seed")] = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, param("verbosity")] = None
    parallel_tool_calls: Annotated[bool | None, param("parallel_tool_calls")] = None
    user: Annotated[str | None, param("user")] = None
    safety_identifier: Annotated[Short | None, param("safety_identifier")] = None
    prompt_cache_key: Annotated[Short | None, param("prompt_cache_key")] = None
    max_tokens: Annotated[Positive | None, param("max_tokens")] = None
    max_completion_tokens: Positive | None = None
    reasoning_effort: Effort | None = None
    service_tier: Tier | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    n: Annotated[int | None, refuses("{} must be 1: send the request again for another answer.", 1)] = None
    modalities: Annotated[list[str] | None, refuses('{} must be ["text"].', ["text"])] = None
    store: Annotated[
        bool | None, refuses("Chat completions are not stored: omit {}, or use /v1/responses.", False)
    ] = None
    functions: Annotated[Any, refuses("{} is not supported: use tools.", [])] = None
    function_call: Annotated[Any, refuses("{} is not supported: use tool_choice.", "none")] = None
    web_search_options: Annotated[
        Any, refuses("{} is not supported: use an agent with a tool that searches.")
    ] = None
    prompt_cache_retention: Elsewhere = None
    prompt_cache_options: Elsewhere = None
    moderation: Unserved = None
    audio: Unserved = None
    prediction: Unserved = None


MESSAGE_FIELDS = {
    "system": {"content"}, "developer": {"content"}, "user": {"content"}, "tool": {"content", "tool_call_id"},
    "assistant": {"content", "refusal", "tool_calls", "reasoning_content"},
}  # fmt: skip
PARTS = {"text", "image_url", "file", "refusal"}


def completion_options(request: CreateCompletion) -> dict[str, Any]:
    """Return the options of the turn that a request asks for. Raises ``Refused``, and ``InvalidTool``."""
    _check(request)
    agent = agent_of(request.model)
    params = params_of(request) | logprobs_of(request.top_logprobs, request.logprobs)
    params |= tier_of(request.service_tier)
    if request.max_completion_tokens is not None:
        params["max_tokens"] = request.max_completion_tokens
    if request.reasoning_effort is not None:
        params["reasoning"] = {"effort": request.reasoning_effort}
    tools = function_tools([_flat(tool) for tool in request.tools or ()])
    choice, offered = chosen(_choice(request.tool_choice), tools, isinstance(agent, AgentSpec))
    if choice is not None:
        params["tool_choice"] = choice
    return {
        "agent": agent, "params": params, "schema": _schema(request.response_format),
        "caller_tools": [_passing(tool) for tool in offered] or None, "metadata": request.metadata or {},
        "user": user_of(request.user, request.safety_identifier),
    }  # fmt: skip


def _check(request: CreateCompletion) -> None:
    check_fields(request)
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
            raise refused("messages", f"{where}: {name[:50]!r} is not supported: omit it.")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in PARTS:
            raise refused("messages", f"{where}: a part of the type {kind!r} is not supported: omit it.")
    for call in message.get("tool_calls") or ():
        if not isinstance(call, dict) or call.get("type", "function") != "function" or "id" not in call:
            raise refused("messages", f"{where}: a tool call must be of the type function, with an id.")


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in the format of the Responses interface."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise refused("tools", f"A tool of the type {tool.get('type')!r} is not supported: use function.")
    if "type" in function:
        raise refused("tools", "tools: a function has no 'type'.")
    return {"type": "function", **function}


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return a tool choice in the format of the Responses interface."""
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
    """Return a tool that keeps its turn only briefly: the result comes with another request, in a new turn."""
    return CallerTool(tool.name, tool.description, tool.parameters, timeout=WAIT_SECONDS, at_limit="fail")


DONE = b"data: [DONE]\n\n"
REASONS = {"max_tokens": "length", "limit": "length", "content_filter": "content_filter"}
BETWEEN_STEPS = "\n\n"
CHANGED = (
    "The model call began again and says something else: repeat the request with its key, without stream."
)


def encode(chunk: dict[str, Any]) -> bytes:
    """Return a chunk as a server-sent event."""
    return b"data: %b\n\n" % msgspec.json.encode(chunk)


class Completion(TurnStream[dict[str, Any]]):
    """One chat completion. ``streamed`` is whether its chunks are sent as they come.

    With ``checked``, the answer has a schema: it is sent whole once a worker has checked it. ``over`` is true after the
    last event, ``waits`` if that was because the turn waits for results, and ``failure`` is why it failed.
    """

    KINDS: ClassVar = {
        "text_delta": "content",
        "reasoning_delta": "reasoning_content",
        "refusal_delta": "refusal",
    }

    def __init__(
        self, turn: str, model: str, created: int, *, streamed: bool, checked: bool, usage: bool
    ) -> None:
        super().__init__()
        self.over = self.waits = False
        self.failure: Refused | None = None
        self._model = model
        self._head = {"id": f"chatcmpl-{turn}", "created": created, "model": model}
        self._streamed, self._checked, self._with_usage = streamed, checked, usage
        self._said: dict[str, str] = dict.fromkeys(self.KINDS.values(), "")
        self._place: dict[str, int] = dict.fromkeys(self.KINDS.values(), 0)  # how much has been repeated
        self._before = self._place  # the same, when the step began
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._reason = "stop"
        self._begun = False

    def of(self, event: Event) -> list[dict[str, Any]]:
        """Return the chunks for an event of the turn, in order."""
        found = [] if self._begun else [self._chunk({"role": "assistant", "content": ""})]
        self._begun = True
        return [*found, *super().of(event)]

    def whole(self) -> dict[str, Any]:
        """Return the completion. Raises ``Refused`` if it has failed."""
        if self.failure is not None:
            raise self.failure
        message: dict[str, Any] = {
            "role": "assistant", "content": self._said["content"] or None, "refusal": self._said["refusal"] or None,
        }  # fmt: skip
        if self._said["reasoning_content"]:
            message["reasoning_content"] = self._said["reasoning_content"]
        if self._calls:
            message["tool_calls"] = self._calls
        elif message["content"] is None and message["refusal"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": self._probable(), "finish_reason": self._reason}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage()}

    def error(self) -> dict[str, Any]:
        """Return the chunk that contains why the completion failed."""
        assert self.failure is not None
        return {"error": error_of(self.failure)[1]}

    def began(self, part: Part) -> list[dict[str, Any]]:
        if part.place == 0:
            self._before = dict(self._place)
        return []

    def grew(self, part: Part, text: str) -> list[dict[str, Any]]:
        kind = part.kind
        if kind == "call" or (self._checked and kind == "content"):
            return []
        said, place = self._said[kind], self._place[kind]
        if kind == "content" and text and place == self._before[kind] > 0:
            text = BETWEEN_STEPS + text
        known = said[place : place + len(text)]
        if not text.startswith(known):
            self._fail(Refused(500, "answer_changed", CHANGED, headers=NO_RETRY))
            return []
        self._place[kind] = place + len(text)
        new = text[len(known) :]
        self._said[kind] += new
        return [self._chunk({kind: new})] if new else []

    def step_ended(self) -> list[dict[str, Any]]:
        """Check that the repeated model call has returned all that was sent of it before."""
        if any(self._place[kind] < len(text) for kind, text in self._said.items()):
            self._fail(Refused(500, "answer_changed", CHANGED, headers=NO_RETRY))
        return []

    def taken_back(self, event: StepFinished | TurnRetrying) -> list[dict[str, Any]]:
        """Go back to the beginning of the model call. A rejected answer was not sent."""
        if event.type == "step_finished":
            return [*self.close(), *self.step_ended()]
        if event.step == self.step:
            self._place = dict(self._before)
            if not self._streamed:
                self._said = {kind: text[: self._before[kind]] for kind, text in self._said.items()}
        return [*super().taken_back(event)]

    def asked(self, event: TurnSuspended) -> list[dict[str, Any]]:
        calls = [call for call in event.calls if call.kind == "tool"]
        if not calls:
            return []  # it waits for a person
        for call in calls:
            function = {"name": call.name, "arguments": msgspec.json.encode(call.arguments).decode()}
            self._calls.append({"id": call.call_id, "type": "function", "function": function})
        self.waits, self._reason = True, "tool_calls"
        sent = [{"index": number, **call} for number, call in enumerate(self._calls)]
        return [self._chunk({"tool_calls": sent}), *self._end()]

    def other(self, event: Event) -> list[dict[str, Any]]:
        match event.type:
            case "turn_finished":
                return self._finished(event.response or Response())
            case "turn_failed":
                self._fail(turn_failure(event.code, event.message, self._model))
            case "turn_cancelled":
                self._fail(turn_failure("turn_cancelled", "The turn was cancelled.", self._model))
            case _:
                pass
        return []

    def _finished(self, response: Response) -> list[dict[str, Any]]:
        self.usage = response.usage
        self._reason = REASONS.get(response.stop_reason, "stop")
        self._logprobs = [
            one for message in response.messages for part in message.parts for one in logprobs(part)
        ]
        said = self._said["content"]
        texts = [one.text for one in response.messages if one.role == "assistant" and one.text]
        text = response.text if self._checked else BETWEEN_STEPS.join(texts)
        rest = text[len(said) :] if text.startswith(said) else ""
        self._said["content"] += rest
        return [*([self._chunk({"content": rest})] if rest else []), *self._end()]

    def _end(self) -> list[dict[str, Any]]:
        self.over = True
        last = self._chunk({}, self._reason)
        last["choices"][0]["logprobs"] = self._probable()
        if not self._with_usage:
            return [last]
        return [last, {**self._chunk({}), "choices": [], "usage": self._usage()}]

    def _probable(self) -> dict[str, Any] | None:
        return {"content": self._logprobs, "refusal": None} if self._logprobs else None

    def _fail(self, failure: Refused) -> None:
        self.over, self.failure = True, failure

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        found = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**found, "usage": None} if self._with_usage else found

    def _usage(self) -> dict[str, Any]:
        usage = self.usage
        return {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": usage.reasoning_tokens, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip


OVER = "its calls were handed to the caller"


@operation("POST", "/v1/chat/completions", right="write")
async def create_completion(call: Call[None, CreateCompletion]) -> Answer[dict[str, Any]]:
    """Answer a conversation that comes whole, as OpenAI's Chat Completions interface does

    The request is a turn in a session of its own, which is kept for an hour. With `stream` its chunks come.
    """
    given, key = call.body, key_of(call)
    options = completion_options(given)
    options["user"] = call.caller.user_for(options.get("user"))
    turn = await call.client.submit(
        call.new_session(key), read_messages(given.messages, "messages"), tenant=call.caller.tenant, key=key,
        ttl=STATELESS_SECONDS, **options,
    )  # fmt: skip
    info, usage = (
        await turn.info(),
        given.stream_options is not None and bool(given.stream_options.include_usage),
    )
    made = Completion(
        turn.id, given.model, info.created // 1000, streamed=bool(given.stream),
        checked=options["schema"] is not None, usage=usage,
    )  # fmt: skip
    if given.stream:
        events = turn.stream()
        return cast("Answer[dict[str, Any]]", _stream(call, events, turn, made))
    await awaited(call, turn, _follow(turn, made))
    if made.failure is not None:
        await check_model(call, made.failure, given.model)
    return Answer(made.whole())


async def _follow(turn: AsyncTurn, made: Completion) -> None:
    async with turn.stream() as events:
        async for event in events:
            made.of(event)
            if made.over:
                await _let_go(turn, made)
                return


def _stream(call: Call[Any, Any], events: EventIterator, turn: AsyncTurn, made: Completion) -> HTTPResponse:
    return call.stream(events, _chunks(events, turn, made))


async def _chunks(events: EventIterator, turn: AsyncTurn, made: Completion) -> AsyncGenerator[bytes]:
    try:
        async for event in events:
            found = made.of(event)
            if made.over:
                await _let_go(turn, made)
            for one in found:
                yield encode(one)
            if made.over:
                break
    except AgentError as exc:
        if exc.retryable:
            return
        yield encode({"error": error_of(exc)[1]})
    if made.failure is not None:
        yield encode(made.error())
    yield DONE


async def _let_go(turn: AsyncTurn, made: Completion) -> None:
    """Cancel a turn that waits for results of calls: they come with another request."""
    if made.waits:
        await turn.cancel(OVER, keep="nothing")


OPERATIONS = [create_completion]
