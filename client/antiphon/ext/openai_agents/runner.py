"""``AgentsRunner``: the Agents SDK's ``Runner`` runs the turns of an agent of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from agents import Agent, FunctionTool, Model, ModelProvider, ModelResponse, RunConfig, RunHooks, Runner
from agents import Usage as SDKUsage
from agents.models.multi_provider import MultiProvider
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

from antiphon.errors import ProviderStreamBroken, TurnFailed
from antiphon.ext.openai_agents.items import items_of, message_of
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.model import Message, Usage

if TYPE_CHECKING:
    from agents.models.interface import ModelTracing
    from agents.tool_context import ToolContext

__all__ = ["AgentsRunner"]

_turn: ContextVar[FunctionTurn | None] = ContextVar("antiphon_turn", default=None)
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

    The turn has our lease, stream, journal, limits and cancel (see ``TurnFunction``). Agents keep their own models,
    tools, guardrails and handoffs. Each model call of the run is a step, and each result of a tool is in the journal:
    after a crash, the ``Runner`` begins again, and is given the answers and results that it has had. Guardrails and
    hooks run again. A result that is not text is written as JSON. The input is the session's history; do not give a
    ``Session`` of the SDK as well.

    ``context`` makes the SDK's context from our turn; by default it is ``turn.context``, so that tools change the
    session's variables. ``run_config`` and ``hooks`` go to the ``Runner``. Turns begin with ``agent``, whichever one
    has answered last. A tool of the SDK that needs an approval fails the turn (``turn_function``).
    """

    def __init__(
        self,
        agent: Agent[Any],
        *,
        run_config: RunConfig | None = None,
        hooks: RunHooks[Any] | None = None,
        context: Callable[[FunctionTurn], Any] | None = None,
        name: str = "openai-agents",
    ) -> None:
        super().__init__(self._run, name)
        self._agent = agent
        self._hooks = _Hooks(hooks)
        config = run_config or RunConfig()
        model, models = config.model, config.model_provider
        self._config = dataclasses.replace(
            config,
            model=_JournalledModel(model) if isinstance(model, Model) else model,
            model_provider=_JournalledModels(models),
        )
        self._context = context

    async def _run(self, turn: FunctionTurn) -> str | None:
        _prepare(self._agent)
        token = _turn.set(turn)
        try:
            done = await Runner.run(
                self._agent,
                cast("Any", [item for message in turn.messages for item in items_of(message)]),
                context=self._context(turn) if self._context else turn.context,
                run_config=self._config,
                hooks=self._hooks,
                max_turns=None,
            )
        finally:
            _turn.reset(token)
        if done.interruptions:
            raise TurnFailed(
                "A tool of the Agents SDK waits for an approval, which a turn cannot do.",
                code="turn_function",
            )
        ended_by_tool = done.raw_responses and any(
            item.type == "function_call" for item in done.raw_responses[-1].output
        )
        return str(done.final_output) if ended_by_tool else None


class _Hooks(RunHooks[Any]):
    """Prepares the agents that a handoff leads to, and calls the user's own hooks."""

    def __init__(self, own: RunHooks[Any] | None) -> None:
        self._own = own or RunHooks[Any]()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_") and name != "on_handoff":
            return getattr(self._own, name)
        return super().__getattribute__(name)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        _prepare(to_agent)
        await self._own.on_handoff(context, from_agent, to_agent)


def _prepare(agent: Agent[Any]) -> None:
    """Let the model and the tools of an agent look whether a turn of ours runs them."""
    if "get_all_tools" in vars(agent):
        return
    listed = agent.get_all_tools

    async def get_all_tools(run_context: Any) -> list[Any]:
        tools = await listed(run_context)
        if _turn.get() is None:
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
        turn = _turn.get()
        assert turn is not None
        return (
            await turn.tool_call(context.tool_call_id, lambda _: tool.on_invoke_tool(context, arguments))
        ).text

    return dataclasses.replace(tool, on_invoke_tool=invoke)


class _JournalledModels(ModelProvider):
    def __init__(self, models: ModelProvider | None) -> None:
        self._models = models or MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        return _JournalledModel(self._models.get_model(model_name))

    async def aclose(self) -> None:
        await self._models.aclose()


class _JournalledModel(Model):
    """A model whose answers are steps of the turn. Outside a turn it is the model alone."""

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
        turn = _turn.get()
        if turn is None:
            return await self._model.get_response(*request, **options)
        await turn.settle(_results(input))
        answer = await turn.model_call(
            lambda: _streamed(turn, self._model.stream_response(*request, **options))
        )
        return _response_of(answer)


async def _streamed(turn: FunctionTurn, events: AsyncIterator[Any]) -> ModelAnswer:
    """Publish the events of a model call as they come, and return its answer."""
    response: Response | None = None
    names: dict[str, tuple[str, str]] = {}  # of calls whose arguments come, by the ids of their items
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
    return _answer_of(response)


def _answer_of(response: Response) -> ModelAnswer:
    items = [item.model_dump(mode="json", exclude_unset=True) for item in response.output]
    message = message_of(items) if items else Message.assistant("")
    usage, reason = response.usage, response.incomplete_details and response.incomplete_details.reason
    return ModelAnswer(
        message,
        Usage()
        if usage is None
        else Usage(
            usage.input_tokens,
            usage.output_tokens,
            cached_input_tokens=usage.input_tokens_details.cached_tokens or 0,
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
    """The results of calls that a request holds: also of those that were no functions of ours, such as handoffs."""
    if isinstance(sent, str):
        return {}
    return {
        str(item["call_id"]): str(item.get("output") or "")
        for item in cast("list[dict[str, Any]]", sent)
        if str(item.get("type") or "").endswith("_output") and item.get("call_id")
    }
