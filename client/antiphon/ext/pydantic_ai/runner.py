"""``PydanticAIRunner``: an agent of pydantic-ai runs the turns of an agent of ours."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from typing import Any, cast

from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)
from pydantic_core import to_json

from antiphon.ext.pydantic_ai.messages import PROVIDER, answer_of, model_messages
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction

__all__ = ["PydanticAIRunner"]


class PydanticAIRunner(TurnFunction):
    """Runs turns with an agent of pydantic-ai: ``App(providers={"support": PydanticAIRunner(agent)})``.

    >>> from pydantic_ai import Agent as PydanticAgent
    >>> from pydantic_ai.models.test import TestModel
    >>> from antiphon import Agent
    >>> runner = PydanticAIRunner(PydanticAgent(TestModel(custom_output_text="Hello")))
    >>> Agent(provider=runner, model="any").session().run("Hi").text
    'Hello'

    The turn has our lease, stream, journal, limits and cancel (see ``TurnFunction``). The agent keeps its model, its
    instructions, its tools with their retries, and its output type: an output that is no text is the answer as JSON.
    Each model request is a step, and each result of a tool is in the journal as text or JSON. After a crash the agent
    begins again, and is given what it has had. ``deps`` makes the agent's dependencies from our turn, by default
    ``turn.context``.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        *,
        deps: Callable[[FunctionTurn], Any] | None = None,
        name: str = PROVIDER,
    ) -> None:
        super().__init__(self._run, name)
        self._agent = agent
        self._deps = deps

    async def _run(self, turn: FunctionTurn) -> str | None:
        journal = _Journal(turn)
        done = await self._agent.run(
            message_history=model_messages(turn.messages),
            deps=self._deps(turn) if self._deps else turn.context,
            capabilities=[journal],
            event_stream_handler=journal.publish,
            usage_limits=UsageLimits(request_limit=None),
        )
        await turn.settle(_results(done.new_messages()))
        if not journal.called_tools and isinstance(done.output, str):
            return None
        return done.output if isinstance(done.output, str) else to_json(done.output).decode()


class _Journal(AbstractCapability[Any]):
    """Makes the model requests and tool calls of a run those of a turn."""

    def __init__(self, turn: FunctionTurn) -> None:
        self._turn = turn
        self._asking = False
        self.called_tools = False  # the last answer has

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, handler: Callable[[Any], Any]
    ) -> ModelResponse:
        await self._turn.settle(_results(request_context.messages))

        async def ask() -> ModelAnswer:
            self._asking = True
            try:
                return answer_of(await handler(request_context))
            finally:
                self._asking = False

        answer = await self._turn.model_call(ask)
        self.called_tools = bool(answer.message.tool_calls)
        (response,) = model_messages([answer.message])
        return cast("ModelResponse", response)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: Any,
        args: Any,
        handler: Callable[[Any], Any],
    ) -> Any:
        async def run(_: Any) -> Any:
            said = await handler(args)
            return said if isinstance(said, str) else to_json(said).decode()

        return (await self._turn.tool_call(call.tool_call_id, run)).text

    async def publish(self, ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        """Publish what comes of an answer. What an earlier attempt has had is not published again."""
        calls: dict[int, str] = {}
        async for event in events:
            if not self._asking:
                continue
            match event:
                case (
                    PartStartEvent(part=TextPart(content=text))
                    | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
                ):
                    await self._turn.text(text)
                case (
                    PartStartEvent(part=ThinkingPart(content=text))
                    | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
                ):
                    await self._turn.reasoning(text)
                case PartStartEvent(part=ToolCallPart() as part):
                    calls[event.index] = part.tool_call_id
                    text = part.args_as_json_str() if part.args else ""
                    await self._turn.call_delta(part.tool_call_id, part.tool_name, text)
                case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=str(text))):
                    await self._turn.call_delta(calls.get(event.index, ""), "", text)
                case _:
                    pass


def _results(messages: Sequence[ModelMessage]) -> dict[str, str]:
    """The results of calls in the last request: also of those that no tool ran, such as an output."""
    last = messages[-1] if messages else None
    parts = last.parts if isinstance(last, ModelRequest) else []
    return {
        part.tool_call_id: part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)
    }
