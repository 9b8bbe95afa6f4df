"""pydantic-ai: its agents run our turns, and message histories in both directions. Needs ``antiphon[pydantic-ai]``."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_core import to_json

from antiphon.ext.kept import kept_by
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.model import File, Image, Item, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

__all__ = ["PydanticAIRunner", "messages_of", "model_messages"]

PROVIDER = "pydantic-ai"


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
                return _answer_of(await handler(request_context))
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


def model_messages(messages: Iterable[Message]) -> list[ModelMessage]:
    """Return messages of ours as a message history of pydantic-ai.

    >>> [message.kind for message in model_messages([Message.user("Hi"), Message.assistant("Hello")])]
    ['request', 'response']
    """
    return [_model_message(message) for message in messages]


def messages_of(history: Sequence[ModelMessage]) -> list[Message]:
    """Return a message history of pydantic-ai as messages of ours, for ``session.add_message``.

    >>> history = model_messages([Message.user("Hi"), Message.assistant("Hello")])
    >>> [message.text for message in messages_of(history)]
    ['Hi', 'Hello']
    """
    return [
        message
        for one in history
        for message in ([_answer_of(one).message] if isinstance(one, ModelResponse) else _of_request(one))
    ]


def _model_message(message: Message) -> ModelMessage:
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return ModelMessagesTypeAdapter.validate_python([kept])[0]
    if message.role == "assistant":
        parts = [one for part in message.parts if (one := _said(part)) is not None]
        return ModelResponse(parts=parts)
    if message.role == "tool":
        return ModelRequest(
            parts=[
                ToolReturnPart(tool_name=one.name, content=one.text, tool_call_id=one.call_id)
                for one in message.tool_results
            ]
        )
    if message.role == "system":
        return ModelRequest(parts=[SystemPromptPart(content=message.text)])
    if all(isinstance(part, Text) for part in message.parts):
        return ModelRequest(parts=[UserPromptPart(content=message.text)])
    return ModelRequest(parts=[UserPromptPart(content=[*_content(message.parts)])])


def _said(part: Part) -> Any:
    match part:
        case Text(text=text):
            return TextPart(content=text)
        case ToolCall():
            return ToolCallPart(tool_name=part.name, args=part.arguments_text, tool_call_id=part.call_id)
        case _:
            return None


def _content(parts: Iterable[Part]) -> Iterator[Any]:
    for part in parts:
        match part:
            case Text(text=text):
                yield text
            case Image(url=str(url)):
                yield ImageUrl(url=url)
            case File(url=str(url)):
                yield DocumentUrl(url=url)
            case Image(data=str(data)) | File(data=str(data)):
                media = part.media_type or "application/octet-stream"
                yield BinaryContent(data=base64.b64decode(data), media_type=media)
            case _:
                pass


def _of_request(request: ModelRequest) -> Iterator[Message]:
    returned = [part for part in request.parts if isinstance(part, ToolReturnPart)]
    if returned:
        yield Message.tool(
            [
                ToolResult(part.tool_call_id, _text(part), part.tool_name, part.outcome != "success")
                for part in returned
            ]
        )
    for part in request.parts:
        if isinstance(part, SystemPromptPart):
            yield Message.system(part.content)
        elif isinstance(part, UserPromptPart):
            yield _user(part)
        elif isinstance(part, RetryFeedbackPart):
            yield Message.user(part.model_response())


def _user(prompt: UserPromptPart) -> Message:
    if isinstance(prompt.content, str):
        return Message.user(prompt.content)
    parts: list[Part] = []
    for one in prompt.content:
        match one:
            case str():
                parts.append(Text(one))
            case ImageUrl(url=url):
                parts.append(Image(url=url))
            case DocumentUrl(url=url):
                parts.append(File(url=url))
            case BinaryContent(data=data, media_type=media):
                kind = Image if media.startswith("image/") else File
                parts.append(kind(data=base64.b64encode(data).decode(), media_type=media))
            case _:
                parts.append(Text(str(one)))
    return Message.user(parts)


def _answer_of(response: ModelResponse) -> ModelAnswer:
    """Return an answer that keeps the response whole beside what others can read of it."""
    parts: list[Part] = []
    for part in response.parts:
        match part:
            case TextPart(content=text):
                parts.append(Text(text))
            case ThinkingPart(content=text):
                parts.append(Reasoning(text))
            case ToolCallPart():
                parts.append(ToolCall.from_text(part.tool_call_id, part.tool_name, part.args_as_json_str()))
            case _:
                pass
    (whole,) = ModelMessagesTypeAdapter.dump_python([response], mode="json")
    message = Message("assistant", [*parts, Item(PROVIDER, whole)], provider=PROVIDER)
    used = response.usage
    usage = Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens)
    return ModelAnswer(message, usage, "tool_use" if message.tool_calls else "end", response.model_name or "")


def _results(messages: Sequence[ModelMessage]) -> dict[str, str]:
    """The results of calls in the last request: also of those that no tool ran, such as an output."""
    last = messages[-1] if messages else None
    parts = last.parts if isinstance(last, ModelRequest) else []
    return {part.tool_call_id: _text(part) for part in parts if isinstance(part, ToolReturnPart)}


def _text(part: Any) -> str:
    return cast("ToolReturnPart", part).model_response_str()
