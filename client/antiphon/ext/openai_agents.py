"""The OpenAI Agents SDK: its sessions on Redis, and its ``Runner`` inside a turn.

A message made from items keeps them unchanged in its last part; its other parts have their content in a form for
people and for models of other services. Other messages are converted to equivalent items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from agents import (
    Agent,
    FunctionTool,
    Handoff,
    InputGuardrailTripwireTriggered,
    Model,
    ModelProvider,
    ModelResponse,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunHooks,
    Runner,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents import Usage as SDKUsage
from agents.models.multi_provider import MultiProvider
from msgspec import UNSET, UnsetType
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseIncompleteEvent,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseTextDeltaEvent,
)
from pydantic import TypeAdapter

from antiphon import agent as antiphon_agent
from antiphon.errors import ProviderStreamBroken, TurnFailed, UsageError
from antiphon.ext.histories import kept_by, outcome_of
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.input.values import lifetime
from antiphon.model import (
    File,
    Image,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from antiphon.session.runtime import Edit, SessionRef
from antiphon.text import text_of

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem
    from agents.models.interface import ModelTracing
    from agents.tool_context import ToolContext

__all__ = ["AgentsRunner", "AntiphonSession"]


PROVIDER = "openai-agents"
CALLS = ("function_call", "custom_tool_call")

_ROLES: dict[str, Role] = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}


def messages_of(items: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return items as messages. Consecutive items of a model are one message, and so are consecutive call results."""
    groups: list[list[dict[str, Any]]] = []
    for item in items:
        role = _role(item)
        if groups and role in ("assistant", "tool") and _role(groups[-1][-1]) == role:
            groups[-1].append(dict(item))
        else:
            groups.append([dict(item)])
    return [message_of(group) for group in groups]


def message_of(
    items: Sequence[Mapping[str, Any]], before: Message | None = None, *, agent: str = ""
) -> Message:
    """Return the message for these items, which have one role, with the name of the agent that answered.

    It replaces ``before``, and keeps its id, turn and time.
    """
    parts = [part for item in items for part in _parts(item)]
    parts.append(Item(PROVIDER, {"items": list(items)} | ({"agent": agent} if agent else {})))
    message = Message(_role(items[0]), parts, provider=PROVIDER)
    if before is not None:
        message.id, message.turn_id, message.created = before.id, before.turn_id, before.created
    return message


def items_of(message: Message) -> list[dict[str, Any]]:
    """Return the items of a message: those that it was made from, or equivalent ones."""
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return _with_ids(kept["items"], message.tool_calls)
    if message.role == "tool":
        return [_output(result) for result in message.tool_results]
    if message.role == "assistant":
        return list(_said(message))
    content = [one for part in message.parts for one in _content(part)]
    if all(isinstance(part, Text) for part in message.parts):
        return [{"role": message.role, "content": message.text}]
    return [{"role": message.role, "content": content}]


def _with_ids(items: list[dict[str, Any]], calls: list[ToolCall]) -> list[dict[str, Any]]:
    """Set the ids of the calls among the items to those of the message: call ids are unique in a turn."""
    ids = iter([call.call_id for call in calls])
    return [
        item | {"call_id": next(ids, item["call_id"])} if item.get("type") in CALLS else item
        for item in items
    ]


def _role(item: Mapping[str, Any]) -> Role:
    kind = str(item.get("type") or "message")
    if kind == "message":
        return _ROLES.get(str(item.get("role")), "user")
    return "tool" if kind.endswith("_output") else "assistant"


def _parts(item: Mapping[str, Any]) -> Iterator[Part]:
    """Convert an item to parts that every provider reads."""
    match item.get("type") or "message":
        case "message":
            yield from _parts_of_content(item.get("content"))
        case kind if kind in CALLS:
            text = item.get("arguments", item.get("input"))
            yield ToolCall.from_text(str(item["call_id"]), str(item.get("name") or ""), _text(text))
        case "reasoning":
            pieces = cast("Sequence[Mapping[str, Any]]", item.get("summary") or item.get("content") or ())
            yield Reasoning("".join(str(piece.get("text") or "") for piece in pieces))
        case kind if str(kind).endswith("_output") and item.get("call_id"):
            yield ToolResult(str(item["call_id"]), _result(item.get("output")))
        case _:
            return


def _parts_of_content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        yield Text(content)
        return
    for piece in cast("Sequence[Mapping[str, Any]]", content or ()):
        if piece.get("type") == "refusal":
            yield Refusal(str(piece.get("refusal") or ""))
        elif isinstance(text := piece.get("text"), str):
            yield Text(text)
        elif isinstance(url := piece.get("image_url"), str):
            yield Image(url=url)
        elif piece.get("file_id") or piece.get("file_url"):
            yield File(url=piece.get("file_url"), file_id=piece.get("file_id"), name=piece.get("filename"))


def _result(output: Any) -> str | list[Text | Image | File]:
    if not isinstance(output, list):
        return _text(output)
    pieces = _parts_of_content(cast("list[Any]", output))
    return [part for part in pieces if isinstance(part, Text | Image | File)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _said(message: Message) -> Iterator[dict[str, Any]]:
    texts = [one for part in message.parts for one in _content(part, said=True)]
    if texts:
        said = {"type": "message", "role": "assistant", "status": "completed", "content": texts}
        yield {"id": message.id or "msg", **said}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_text,
        }


def _output(result: ToolResult) -> dict[str, Any]:
    if isinstance(result.content, str):
        output: Any = result.content
    else:
        output = [one for part in result.content for one in _content(part)]
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _content(part: Part, *, said: bool = False) -> Iterator[dict[str, Any]]:
    match part:
        case Text(text=text) if text:
            yield (
                {"type": "output_text", "text": text, "annotations": []}
                if said
                else {
                    "type": "input_text",
                    "text": text,
                }
            )
        case Refusal(text=text):
            yield {"type": "refusal", "refusal": text} if said else {"type": "input_text", "text": text}
        case Image() if not said:
            url = part.url or f"data:{part.media_type or 'image/png'};base64,{part.data or ''}"
            yield {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
        case File(file_id=str(file_id)) if not said:
            yield {"type": "input_file", "file_id": file_id}
        case File(url=str(url)) if not said:
            yield {"type": "input_file", "file_url": url}
        case File() if not said:
            data = f"data:{part.media_type or 'application/octet-stream'};base64,{part.data or ''}"
            yield {"type": "input_file", "filename": part.name or "file", "file_data": data}
        case _:
            return


class AntiphonSession:
    """An Agents SDK session, for ``Runner.run(…, session=…)``, kept as the history of an Antiphon session.

    >>> from antiphon.ext.openai_agents import AntiphonSession
    >>> session = AntiphonSession("user-123", ttl=3600)
    >>> await session.add_items([{"role": "user", "content": "Hello"}])
    >>> await session.get_items()
    [{'role': 'user', 'content': 'Hello'}]
    >>> await session.pop_item()
    {'role': 'user', 'content': 'Hello'}

    ``redis`` is a URL, a list of URLs or a redis-py client; without it, the session lives in this process. ``ttl``
    (seconds or a timedelta; default: 30 days) is how long the unused session is kept. With a ``tenant``, a session of
    another tenant raises ``WrongTenant``.

    Items are returned as they were added, in order. Each change is one atomic step on the server: two callers that pop
    get different items, and the items of one call stay together. A cancelled change completes before the cancellation
    is raised, so that no item is lost. The session may be used from any event loop and thread, also with
    ``Runner.run_sync``. Turns in the session read the items that the SDK has added, and the SDK reads the messages of
    turns. A change waits for a running turn. Raises ``AgentError`` (``store_unavailable``, …).
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        *,
        redis: Any = None,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        tenant: str | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        agent = antiphon_agent.Agent(PROVIDER, "any", redis=redis, prefix=prefix)
        self._session = agent.session_async(session_id, ttl=ttl, tenant=tenant)
        self._runtime = agent.runtime
        self._ref = SessionRef(self._session.session_id, None, lifetime(ttl), tenant)
        self.session_id: str = self._session.session_id
        self.session_settings = _settings(session_settings)

    def __repr__(self) -> str:
        return f"AntiphonSession({self.session_id!r})"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in order, or the last ``limit`` of them.

        Without ``limit``, that of ``session_settings`` applies.

        >>> await AntiphonSession("new").get_items(limit=10)
        []
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            return _typed(_items(await self._session.load_files(await self._session.messages())))
        if limit <= 0:
            return []
        last = await self._session.load_files(await self._session.history(-limit))
        return _typed(_items(last)[-limit:])

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end, all in one step.

        >>> await AntiphonSession("new").add_items([])
        """
        if items:
            messages = messages_of(cast("list[dict[str, Any]]", items))
            await outcome_of(self._session.add_message(*messages))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it, or return None if there is none. No other caller gets the same item.

        >>> await AntiphonSession("new").pop_item()
        """
        popped: list[dict[str, Any]] = []
        of: list[Message] = []

        def shortened(last: Message | None) -> list[Message]:
            items = [] if last is None else items_of(last) or [{}]
            popped[:], of[:] = items[-1:], [] if last is None else [last]
            return [message_of(items[:-1], last)] if items[1:] else []

        while True:
            await outcome_of(self._runtime.edit(self._ref, Edit(ends_with=shortened)))
            if not popped:
                return None
            if popped[0]:  # a message without items for the SDK is removed with the next one
                return _typed(_items(await self._session.load_files(of)))[-1]

    async def clear_session(self) -> None:
        """Remove all items.

        >>> await AntiphonSession("new").clear_session()
        """
        await outcome_of(self._session.clear())


def _settings(settings: SessionSettings | dict[str, Any] | None) -> SessionSettings:
    from agents import SessionSettings
    from agents.memory.session_settings import coerce_session_settings

    return SessionSettings() if settings is None else coerce_session_settings(settings)


def _items(messages: list[Message]) -> list[dict[str, Any]]:
    return [item for message in messages for item in items_of(message)]


def _typed(items: list[dict[str, Any]]) -> list[TResponseInputItem]:
    return cast("list[TResponseInputItem]", items)


@dataclasses.dataclass
class _Run:
    """A run of the ``Runner`` in a turn. ``agent`` is the name of the agent in charge, '' for the first one."""

    turn: FunctionTurn
    agent: str = ""


_run: ContextVar[_Run | None] = ContextVar("antiphon_run", default=None)
_anything: TypeAdapter[Any] = TypeAdapter(Any)
_outputs: TypeAdapter[list[Any]] = TypeAdapter(list[ResponseOutputItem])


class AgentsRunner(TurnFunction):
    """Runs turns with the SDK's ``Runner``: ``App(providers={"support": AgentsRunner(sdk_agent)})``.

    >>> from agents import Agent as SDKAgent
    >>> from agents.testing import ScriptedModel, assistant_message
    >>> from antiphon import Agent
    >>> from antiphon.ext.openai_agents import AgentsRunner
    >>> model = ScriptedModel([[assistant_message("Hello")]])
    >>> runner = AgentsRunner(SDKAgent(name="parrot", model=model))
    >>> Agent(provider=runner, model="any").session().run("Hi").text
    'Hello'

    The turn has a lease, stream, journal, limits and cancellation (see ``TurnFunction``). Agents keep their own models,
    tools, guardrails and handoffs. Each model call of the run is a step, and each tool result is in the journal: after
    a crash, the ``Runner`` starts again and receives the answers and results of the journal. Guardrails and hooks run
    again. A result that is not text is written as JSON. The input is the session's history; do not pass a ``Session``
    of the SDK as well.

    ``context`` makes the SDK's context from the turn; by default it is ``turn.context``, so that tools can change the
    session's variables. ``run_config`` and ``hooks`` are passed to the ``Runner``. After a handoff, the next turn
    returns to ``agent``; with ``after_handoff="stay"`` it begins with the agent that answered last, found by its name.
    An SDK tool that needs an approval fails the turn (``turn_function``), and so does a guardrail that trips
    (``guardrail_tripwire``, with its name and its ``output_info``).
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        context: Callable[[FunctionTurn], Any] | None = None,
        after_handoff: Literal["return", "stay"] = "return",
        name: str = "openai-agents",
    ) -> None:
        if after_handoff not in ("return", "stay"):
            raise UsageError(f'after_handoff= must be "return" or "stay", not {after_handoff!r}.')
        super().__init__(self._run, name)
        self._agent = agent
        self._stays = after_handoff == "stay"
        self._hooks = _Hooks(hooks, agent)
        config = run_config or RunConfig()
        model, models = config.model, config.model_provider
        self._config = dataclasses.replace(
            config,
            model=_JournalledModel(model) if isinstance(model, Model) else model,
            model_provider=_JournalledModels(models),
        )
        self._context = context

    async def _run(self, turn: FunctionTurn) -> str | None:
        agent = self._first_agent(turn)
        _prepare(agent)
        token = _run.set(_Run(turn, _name_beside(self._agent, agent)))
        try:
            done = await Runner.run(
                agent,
                cast("Any", [item for message in turn.messages for item in items_of(message)]),
                context=self._context(turn) if self._context else turn.context,
                run_config=self._config,
                hooks=self._hooks,
                max_turns=None,
            )
        except tuple(_TRIPWIRES) as exc:
            raise TurnFailed(_tripped(exc), code="guardrail_tripwire") from exc
        finally:
            _run.reset(token)
        if done.interruptions:
            raise TurnFailed(
                "A tool of the Agents SDK needs an approval, which turns of the SDK do not support: use "
                "approval= of an Antiphon agent.",
                code="turn_function",
            )
        ended_by_tool = done.raw_responses and any(
            item.type == "function_call" for item in done.raw_responses[-1].output
        )
        return str(done.final_output) if ended_by_tool else None

    def _first_agent(self, turn: FunctionTurn) -> Agent[Any]:
        answers = [message for message in turn.messages if message.role == "assistant"]
        kept = kept_by(PROVIDER, answers[-1]) if self._stays and answers else None
        name = kept.get("agent") if kept else None
        return next((one for one in _reachable(self._agent) if one.name == name), self._agent)


def _reachable(first: Agent[Any]) -> list[Agent[Any]]:
    """Return the first agent and all agents that handoffs can reach."""
    found = [first]
    for agent in found:
        for one in agent.handoffs:
            refer = getattr(one, "_agent_ref", None) if isinstance(one, Handoff) else None
            other: Any = refer() if refer else one
            if isinstance(other, Agent) and all(other is not known for known in found):
                found.append(cast("Agent[Any]", other))
    return found


def _name_beside(first: Agent[Any], agent: Agent[Any]) -> str:
    return "" if agent is first else agent.name


_TRIPWIRES: dict[type[Exception], str] = {
    InputGuardrailTripwireTriggered: "input",
    OutputGuardrailTripwireTriggered: "output",
    ToolInputGuardrailTripwireTriggered: "tool input",
    ToolOutputGuardrailTripwireTriggered: "tool output",
}


def _tripped(exc: Any) -> str:
    """Return a sentence with the guardrail that ended a run, and its reason."""
    found = getattr(exc, "guardrail_result", exc)
    info = text_of(_anything.dump_json(found.output.output_info, fallback=str))
    return f"The {_TRIPWIRES[type(exc)]} guardrail {found.guardrail.get_name()!r} stopped the turn: {info}."


class _Hooks(RunHooks[Any]):
    """Prepares the agents that a handoff leads to, notes which one is in charge, and calls the user's own hooks."""

    def __init__(self, own: RunHooks[Any] | None, first: Agent[Any]) -> None:
        self._own = own or RunHooks[Any]()
        self._first = first

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name != "on_handoff":
            return getattr(self._own, name)
        return super().__getattribute__(name)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        _prepare(to_agent)
        if run := _run.get():
            run.agent = _name_beside(self._first, to_agent)
        await self._own.on_handoff(context, from_agent, to_agent)


def _prepare(agent: Agent[Any]) -> None:
    """Make the model and the tools of an agent use the journal when a turn runs them."""
    if "get_all_tools" in vars(agent):
        return
    listed = agent.get_all_tools

    async def get_all_tools(run_context: Any) -> list[Any]:
        tools = await listed(run_context)
        if _run.get() is None:
            return tools
        return [_journalled(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]

    cast("Any", agent).get_all_tools = get_all_tools
    if isinstance(agent.model, Model):
        agent.model = _JournalledModel(agent.model)
    for other in agent.handoffs:
        if isinstance(other, Agent):
            _prepare(other)


def _journalled(tool: FunctionTool) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        run = _run.get()
        assert run is not None

        async def call(_: Any) -> Any:
            return await tool.on_invoke_tool(context, arguments)

        return (await run.turn.tool_call(context.tool_call_id, call)).text

    return dataclasses.replace(tool, on_invoke_tool=invoke)


class _JournalledModels(ModelProvider):
    def __init__(self, models: ModelProvider | None) -> None:
        self._models = models or MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        return _JournalledModel(self._models.get_model(model_name))

    async def aclose(self) -> None:
        await self._models.aclose()


class _JournalledModel(Model):
    """A model whose answers are steps of the turn. Outside a turn, only the model is called."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        return self._model.stream_response(*args, **options)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 - the SDK's name
        model_settings: Any,
        tools: Any,
        output_schema: Any,
        handoffs: Any,
        tracing: ModelTracing,
        **options: Any,
    ) -> ModelResponse:
        request = (system_instructions, input, model_settings, tools, output_schema, handoffs, tracing)
        run = _run.get()
        if run is None:
            return await self._model.get_response(*request, **options)
        await run.turn.settle(_results(input))
        answer = await run.turn.model_call(
            lambda: _streamed(run, self._model.stream_response(*request, **options))
        )
        return _response_of(answer)


async def _streamed(run: _Run, events: AsyncIterator[Any]) -> ModelAnswer:
    """Publish the events of a model call as they arrive, and return its answer."""
    turn = run.turn
    response: Response | None = None
    names: dict[str, tuple[str, str]] = {}  # call ids and names of calls, by the ids of their items
    async for event in events:
        match event:
            case ResponseTextDeltaEvent():
                await turn.text(event.delta)
            case ResponseReasoningTextDeltaEvent() | ResponseReasoningSummaryTextDeltaEvent():
                await turn.reasoning(event.delta)
            case ResponseOutputItemAddedEvent() if event.item.type == "function_call":
                names[event.item.id or ""] = (event.item.call_id, event.item.name)
            case ResponseFunctionCallArgumentsDeltaEvent():
                call_id, name = names.get(event.item_id, (event.item_id, ""))
                names[event.item_id] = (call_id, "")
                await turn.call_delta(call_id, name, event.delta)
            case ResponseCompletedEvent() | ResponseIncompleteEvent():
                response = event.response
            case _:
                pass
    if response is None:
        raise ProviderStreamBroken("The model's answer ended without a result.")
    return _answer_of(response, run.agent)


def _answer_of(response: Response, agent: str) -> ModelAnswer:
    items = [item.model_dump(mode="json", exclude_unset=True) for item in response.output]
    message = message_of(items, agent=agent) if items else Message.assistant("")
    usage, reason = response.usage, response.incomplete_details and response.incomplete_details.reason
    return ModelAnswer(
        message,
        Usage()
        if usage is None
        else Usage(
            usage.input_tokens,
            usage.output_tokens,
            cached_input_tokens=usage.input_tokens_details.cached_tokens or 0,
            cache_write_tokens=usage.input_tokens_details.cache_write_tokens or 0,
            reasoning_tokens=usage.output_tokens_details.reasoning_tokens or 0,
        ),
        "tool_use" if message.tool_calls else "max_tokens" if reason == "max_output_tokens" else "end",
        str(response.model or ""),
    )


def _response_of(answer: ModelAnswer) -> ModelResponse:
    used = answer.usage
    usage = SDKUsage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
    )
    items = items_of(answer.message) if answer.message.parts[-1:] != [] else []
    return ModelResponse(output=_outputs.validate_python(items), usage=usage, response_id=None)


def _results(sent: Any) -> dict[str, str]:
    """Return the call results in a request, including those of calls without a function tool, such as handoffs."""
    if isinstance(sent, str):
        return {}
    return {
        str(item["call_id"]): str(item.get("output") or "")
        for item in cast("list[dict[str, Any]]", sent)
        if str(item.get("type") or "").endswith("_output") and item.get("call_id")
    }
