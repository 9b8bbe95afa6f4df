"""``GraphRunner``: a graph runs the turns of an agent of ours, and its checkpointer says where it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from antiphon.errors import TurnFailed, UsageError
from antiphon.ext.langchain import langchain_messages, messages_of
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.model import Message, StopReason, Usage

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["GraphRunner"]

GIVEN = "antiphon-"  # begins the ids of the messages that a run is given


class GraphRunner(TurnFunction):
    """Runs turns with a compiled graph: ``App(providers={"support": GraphRunner(graph)})``.

    >>> from langgraph.graph import START, MessagesState, StateGraph
    >>> from antiphon import Agent
    >>> from antiphon.ext.langgraph import AntiphonSaver, GraphRunner
    >>> graph = StateGraph(MessagesState)
    >>> graph = graph.add_node("greet", lambda state: {"messages": [("assistant", "Hello")]}).add_edge(START, "greet")
    >>> graph = graph.compile(checkpointer=AntiphonSaver("redis://localhost:6379/0", ttl=86400))
    >>> Agent(provider=GraphRunner(graph), model="any").session().run("Hi").text
    'Hello'

    The state has ``messages``, as ``MessagesState`` does. A run is given the session's history, and each run of a turn
    has a thread of its own in the checkpointer: a failed turn leaves nothing in the history. After a crash the graph
    goes on from its last checkpoint, on any worker that reaches the same checkpointer. A node that had not finished
    runs again. Messages enter the journal when they are in a checkpoint.

    Tokens are published as they come. Each new answer in ``messages`` is a step, and limits are looked at behind it;
    an answer that a node keeps to itself is neither a step nor counted. Nodes and tools find ``turn.context`` as the
    ``context`` of their ``Runtime``. ``make_input`` makes the input of the graph from our turn, and ``answer`` the text
    of the answer from the last state; by default both are the messages. ``config`` is merged into that of the run.

    Raises ``UsageError`` if the graph has no checkpointer. A graph that stops at an ``interrupt`` fails the turn
    (``turn_function``).
    """

    def __init__(
        self,
        graph: Any,
        *,
        make_input: Callable[[FunctionTurn], Mapping[str, Any]] | None = None,
        answer: Callable[[Mapping[str, Any]], str] | None = None,
        config: RunnableConfig | None = None,
        name: str = "langgraph",
    ) -> None:
        if not graph.checkpointer:
            raise UsageError(
                "Compile the graph with a checkpointer: a turn goes on from there after a crash."
            )
        super().__init__(self._run, name)
        self._graph = graph
        self._make_input = make_input
        self._answer = answer
        self._config = config

    async def _run(self, turn: FunctionTurn) -> str | None:
        config = self._config_of(turn)
        told = _Told(turn)
        before = await self._graph.aget_state(config)
        begun = before.created_at is not None
        if not begun or before.tasks:  # also those that ran, and whose checkpoint was not written
            given = None if begun else self._input(turn)
            await self._follow(told, self._events(turn, given, config))
        state = await self._graph.aget_state(config)
        await told.messages(state.values)
        if state.tasks:
            waiting = ", ".join(task.name for task in state.tasks)
            raise TurnFailed(
                f"The graph stopped before {waiting}, which a turn cannot do.",
                code="turn_function",
            )
        return self._answer(state.values) if self._answer else None

    async def _follow(self, told: _Told, events: AsyncIterator[tuple[str, Any]]) -> None:
        async for mode, data in events:
            if mode == "messages":
                await told.piece(data[0])
            else:
                await told.messages(data)

    def _events(self, turn: FunctionTurn, given: Any, config: Any) -> AsyncIterator[tuple[str, Any]]:
        """The events of the run. State is told when its checkpoint is stored: such is ``sync``."""
        return self._graph.astream(
            given, config, context=turn.context, stream_mode=["messages", "values"], durability="sync"
        )

    def _input(self, turn: FunctionTurn) -> Mapping[str, Any]:
        if self._make_input is not None:
            return self._make_input(turn)
        system = [Message.system(turn.system)] if turn.system else []
        given = langchain_messages([*system, *turn.messages])
        for number, message in enumerate(given):
            message.id = f"{GIVEN}{number}"
        return {"messages": given}

    def _config_of(self, turn: FunctionTurn) -> dict[str, Any]:
        own = cast("dict[str, Any]", self._config or {})
        place = f"{turn.context.session_id}:{turn.context.turn_id}:{turn.context.run}"
        return {**own, "configurable": {**own.get("configurable", {}), "thread_id": place}}


class _Told:
    """What the turn was told of the run."""

    def __init__(self, turn: FunctionTurn) -> None:
        self._turn = turn
        self._seen: set[str] = set()  # messages
        self._calls: dict[str, str] = {}  # the ids that the turn gave to calls of the last answer
        self._names: dict[tuple[str | None, Any], str] = {}  # calls whose arguments come

    async def messages(self, state: Mapping[str, Any]) -> None:
        """Keep the new messages of a state that is in a checkpoint."""
        for message in cast("Sequence[BaseMessage]", state.get("messages") or ()):
            one = message.id or ""
            if one in self._seen or one.startswith(GIVEN):
                continue
            self._seen.add(one)
            if isinstance(message, AIMessage):
                await self._step(message)
            elif isinstance(message, ToolMessage):
                call_id = self._calls.get(message.tool_call_id, message.tool_call_id)
                await self._turn.settle({call_id: str(message.text)})

    async def _step(self, message: AIMessage) -> None:
        async def ask() -> ModelAnswer:
            return _answer_of(message)

        kept = await self._turn.model_call(ask)
        calls = zip(message.tool_calls, kept.message.tool_calls, strict=False)
        self._calls = {str(theirs["id"]): ours.call_id for theirs, ours in calls}

    async def piece(self, message: BaseMessage) -> None:
        """Publish a piece of an answer."""
        if not isinstance(message, AIMessage):
            return
        await self._turn.text(str(message.text))
        for block in message.content_blocks:
            if block["type"] == "reasoning" and (text := block.get("reasoning")):
                await self._turn.reasoning(text)
        chunks = message.tool_call_chunks if isinstance(message, AIMessageChunk) else []
        for chunk in chunks:
            place = (message.id, chunk["index"])
            self._names[place] = chunk["id"] or self._names.get(place, "")
            await self._turn.call_delta(self._names[place], chunk["name"] or "", chunk["args"] or "")


def _answer_of(message: AIMessage) -> ModelAnswer:
    (ours,) = messages_of([message])
    said = cast("dict[str, Any]", message.response_metadata)
    cut = said.get("finish_reason", said.get("stop_reason")) in ("length", "max_tokens")
    reason: StopReason = "tool_use" if ours.tool_calls else "max_tokens" if cut else "end"
    return ModelAnswer(ours, _usage_of(message), reason, str(said.get("model_name") or ""))


def _usage_of(message: AIMessage) -> Usage:
    used = message.usage_metadata
    if used is None:
        return Usage()
    return Usage(
        used["input_tokens"],
        used["output_tokens"],
        cached_input_tokens=used.get("input_token_details", {}).get("cache_read", 0),
        reasoning_tokens=used.get("output_token_details", {}).get("reasoning", 0),
    )
