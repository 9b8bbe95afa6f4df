"""LangGraph: a checkpointer on Redis, and graphs that run the turns of an agent.

A thread has two keys. A hash holds its checkpoints, the values of its channels and its pending writes; a sorted set
holds the names of the checkpoints and writes in order. Each change is one transaction. Both keys of a thread expire
together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from msgspec import UNSET, UnsetType

from antiphon.encryption.records import sealer_of
from antiphon.errors import TurnFailed, UsageError
from antiphon.ext.histories import kept_by, outcome_of
from antiphon.ext.langchain import PROVIDER, langchain_messages, messages_of
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.input.ids import SessionId
from antiphon.input.values import lifetime
from antiphon.model import Message, StopReason, Usage
from antiphon.redis.cells import prefix_of
from antiphon.redis.connections import ConnectionsByLoop
from antiphon.session.background import call, iterate
from antiphon.session.runtime import DEFAULT_TTL_SECONDS
from antiphon.text import text_of
from antiphon.wire.cell import Cell

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = ["AntiphonSaver", "GraphRunner"]


PAGE = 100
END = "\x00"  # ends each part of a name
CHECKPOINT, VALUE, WRITE = "c", "v", "w"
KIND, SEALED = "graph", b"1:graph:"


class AntiphonSaver(BaseCheckpointSaver[str]):
    """A checkpointer for ``graph.compile(checkpointer=…)`` on the Redis or Valkey that workers use.

    >>> from langgraph.graph import START, MessagesState, StateGraph
    >>> from antiphon.ext.langgraph import AntiphonSaver
    >>> graph = StateGraph(MessagesState)
    >>> graph = graph.add_node("hear", lambda state: {"messages": []}).add_edge(START, "hear")
    >>> graph = graph.compile(checkpointer=AntiphonSaver("redis://localhost:6379/0"))
    >>> thread = {"configurable": {"thread_id": "user-123"}}
    >>> for text in ("I am Alice", "Who am I?"):
    ...     state = graph.invoke({"messages": [("user", text)]}, thread)
    >>> [message.content for message in state["messages"]]
    ['I am Alice', 'Who am I?']

    ``redis`` is a URL, a list of URLs (each thread is on one of these servers) or a redis-py client. ``ttl`` (seconds
    or a timedelta; default: 30 days) is how long a thread is kept after its last write; None keeps it forever. All
    methods exist in both forms; the synchronous ones may be used from any thread. A checkpoint is stored whole or not
    at all; whether an acknowledged write survives a crash depends on the server's persistence settings. Errors are
    those of redis-py. With ``ANTIPHON_ENCRYPTION_KEYS``, values and metadata are encrypted; names of threads, channels
    and tasks are not. Reading encrypted data can raise ``KeyMissing`` and ``SealBroken``.
    """

    def __init__(
        self,
        redis: Any,
        *,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        serde: SerializerProtocol | None = None,
    ) -> None:
        super().__init__(serde=serde)
        self._connections = ConnectionsByLoop(redis, prefix_of(prefix))
        self._seal = sealer_of()
        seconds = lifetime(ttl)
        seconds = DEFAULT_TTL_SECONDS if isinstance(seconds, UnsetType) else seconds
        self._ttl_ms = None if seconds is None else int(seconds * 1000)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the newest one of its thread, or None."""
        thread, space = _thread(config), _space(config)
        cell = await self._cell(thread)
        checkpoint_id = get_checkpoint_id(config)
        if checkpoint_id is None:
            low, high = _within(CHECKPOINT, space)
            redis: Any = cell.redis
            names = await redis.zrevrangebylex(cell.keys.graph_index(thread), high, low, start=0, num=1)
            if not names:
                return None
            checkpoint_id = _last_part(names[0])
        return await self._read(cell, thread, space, checkpoint_id)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first in each namespace of a thread. Without a config, use all threads."""
        if limit is not None and limit <= 0:
            return
        found = 0
        before_id = get_checkpoint_id(before) if before else None
        only = get_checkpoint_id(config) if config else None
        async for thread, space, checkpoint_id in self._named(config):
            if (only and checkpoint_id != only) or (before_id and checkpoint_id >= before_id):
                continue
            one = await self._read(await self._cell(thread), thread, space, checkpoint_id)
            metadata = cast("dict[str, Any]", one.metadata) if one else {}
            if one is None or any(metadata.get(name) != value for name, value in (filter or {}).items()):
                continue
            yield one
            found += 1
            if found == limit:
                return

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint with the new values of its channels. Returns the config that names it."""
        thread, space = _thread(config), _space(config)
        bare = cast("dict[str, Any]", checkpoint.copy())
        values: dict[str, Any] = bare.pop("channel_values")
        name = _name(CHECKPOINT, space, checkpoint["id"])
        parent = config.get("configurable", {}).get("checkpoint_id")
        kept = [self._dumped(bare), self._dumped(get_checkpoint_metadata(config, metadata)), parent]
        fields = {name: msgspec.msgpack.encode(kept)}
        for channel, version in new_versions.items():
            if channel in values:
                data = msgspec.msgpack.encode(self._dumped(values[channel]))
                fields[_name(VALUE, space, channel, str(version))] = data
        await self._write(thread, fields, [name])
        return _config(thread, space, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes with a checkpoint. Existing ones stay, except to channels in ``WRITES_IDX_MAP``."""
        thread, space = _thread(config), _space(config)
        checkpoint_id = config.get("configurable", {})["checkpoint_id"]
        kept: dict[str, bytes] = {}
        once: dict[str, bytes] = {}
        for number, (channel, value) in enumerate(writes):
            place = WRITES_IDX_MAP.get(channel, number)
            name = _name(WRITE, space, checkpoint_id, task_id, str(place))
            data = [task_path, task_id, place, channel, self._dumped(value)]
            (once if place >= 0 else kept)[name] = msgspec.msgpack.encode(data)
        await self._write(thread, kept, [*kept, *once], once)

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all data of a thread."""
        cell = await self._cell(thread_id)
        await cell.redis.delete(cell.keys.graph_data(thread_id), cell.keys.graph_index(thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all data of a thread to another thread, which may be on another server."""
        cell = await self._cell(source_thread_id)
        redis: Any = cell.redis
        fields = await redis.hgetall(cell.keys.graph_data(source_thread_id))
        names = await redis.zrange(cell.keys.graph_index(source_thread_id), 0, -1)
        if fields:
            opened = {name: self._opened(source_thread_id, value) for name, value in fields.items()}
            await self._write(target_thread_id, opened, names)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They also close when the loop ends."""
        await self._connections.aclose()

    # The synchronous forms.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return call(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return iterate(cast("Any", self.alist(config, filter=filter, before=before, limit=limit)))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return call(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        call(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        call(self.adelete_thread(thread_id))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        call(self.acopy_thread(source_thread_id, target_thread_id))

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return the next version of a channel; versions sort as text."""
        return f"{int((current or '0').split('.')[0]) + 1:032}"

    # How it is stored.

    async def _cell(self, thread: str) -> Cell:
        return (await self._connections.here()).cell_of_session(SessionId(thread))

    async def _write(
        self,
        thread: str,
        fields: dict[Any, bytes],
        names: Sequence[Any],
        once: dict[str, bytes] | None = None,
    ) -> None:
        cell = await self._cell(thread)
        data_key, index = cell.keys.graph_data(thread), cell.keys.graph_index(thread)
        pipe = cell.redis.pipeline(transaction=True)
        if fields:
            sealed = {name: self._sealed(thread, one) for name, one in fields.items()}
            pipe.hset(data_key, mapping=sealed)
        for name, data in (once or {}).items():
            pipe.hsetnx(data_key, name, self._sealed(thread, data))
        if names:
            pipe.zadd(index, dict.fromkeys(names, 0))
        for key in (data_key, index):
            if self._ttl_ms is None:
                pipe.persist(key)
            else:
                pipe.pexpire(key, self._ttl_ms)
        await outcome_of(pipe.execute())

    async def _named(self, config: RunnableConfig | None) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the thread, namespace and id of checkpoints, newest first in each namespace of a thread."""
        if config is not None:
            space = config.get("configurable", {}).get("checkpoint_ns")
            async for one in self._of_thread(_thread(config), space):
                yield one
            return
        for cell in (await self._connections.here()).cells:
            seen = set[str]()  # a scan may return a key twice, for example after a cell has moved
            pattern, part = (
                cell.keys.graph_index("*"),
                cell.keys.graph_index("").removeprefix(cell.keys.prefix),
            )
            async for key in cast("AsyncIterator[bytes]", cell.redis.scan_iter(match=pattern, count=PAGE)):
                thread = text_of(key).partition(part)[2]
                if thread not in seen:
                    seen.add(thread)
                    async for one in self._of_thread(thread, None):
                        yield one

    async def _of_thread(self, thread: str, space: str | None) -> AsyncIterator[tuple[str, str, str]]:
        low, high = _within(CHECKPOINT) if space is None else _within(CHECKPOINT, space)
        cell = await self._cell(thread)
        redis: Any = cell.redis
        while True:
            names = await redis.zrevrangebylex(cell.keys.graph_index(thread), high, low, start=0, num=PAGE)
            for name in names:
                _, found, checkpoint_id = text_of(name).split(END)
                yield thread, found, checkpoint_id
            if len(names) < PAGE:
                return
            high = b"(" + names[-1]

    async def _read(self, cell: Cell, thread: str, space: str, checkpoint_id: str) -> CheckpointTuple | None:
        redis: Any = cell.redis
        key = cell.keys.graph_data(thread)
        low, high = _within(WRITE, space, checkpoint_id)
        pipe = redis.pipeline(transaction=True)
        pipe.hget(key, _name(CHECKPOINT, space, checkpoint_id))
        pipe.zrangebylex(cell.keys.graph_index(thread), low, high)
        data, names = await pipe.execute()
        if data is None:
            return None
        kept, metadata, parent = msgspec.msgpack.decode(self._opened(thread, data))
        checkpoint = self._loaded(kept)
        versions: dict[str, Any] = checkpoint["channel_versions"]
        values = [_name(VALUE, space, channel, str(version)) for channel, version in versions.items()]
        raw: list[bytes | None] = await redis.hmget(key, [*values, *names]) if values or names else []
        found = [one and self._opened(thread, one) for one in raw]
        writes = sorted(msgspec.msgpack.decode(one) for one in found[len(values) :] if one is not None)
        checkpoint["channel_values"] = {
            channel: self._loaded(msgspec.msgpack.decode(one))
            for channel, one in zip(versions, found, strict=False)
            if one is not None
        }
        return CheckpointTuple(
            config=_config(thread, space, checkpoint_id),
            checkpoint=checkpoint,
            metadata=self._loaded(metadata),
            parent_config=_config(thread, space, parent) if parent else None,
            pending_writes=[(task, channel, self._loaded(one)) for _, task, _, channel, one in writes],
        )

    def _sealed(self, thread: str, data: bytes) -> bytes:
        return self._seal.encrypted(thread, KIND, data) if self._seal.on else data

    def _opened(self, thread: str, data: bytes) -> bytes:
        """Decrypt data that begins with ``SEALED``, as our msgpack never does."""
        if data.startswith(SEALED):
            return self._seal.decrypted(thread, KIND, data)
        return self._seal.plain(KIND, data)

    def _dumped(self, value: Any) -> tuple[str, bytes]:
        return self.serde.dumps_typed(value)

    def _loaded(self, kept: Any) -> Any:
        return self.serde.loads_typed((kept[0], kept[1]))


def _thread(config: RunnableConfig) -> str:
    return str(config.get("configurable", {})["thread_id"])


def _space(config: RunnableConfig) -> str:
    return str(config.get("configurable", {}).get("checkpoint_ns") or "")


def _config(thread: str, space: str, checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": space, "checkpoint_id": checkpoint_id}}


def _name(*parts: str) -> str:
    return END.join(parts)


def _within(*parts: str) -> tuple[bytes, bytes]:
    """Return the range of the names that begin with these parts."""
    return b"[" + (_name(*parts) + END).encode(), b"(" + (_name(*parts) + "\x01").encode()


def _last_part(name: bytes) -> str:
    return text_of(name).rpartition(END)[2]


GIVEN = "antiphon-"  # begins the ids of a run's input messages


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

    The state has ``messages``, like ``MessagesState``. A run receives the session's history and the other values of the
    state after the last answer, as far as the graph's input accepts them. Each run of a turn has its own thread in the
    checkpointer, so a failed turn does not affect later ones. After a crash, the graph resumes from its last
    checkpoint, on any worker that reaches the same checkpointer. An unfinished node runs again. Messages enter the
    journal when they are in a checkpoint.

    Tokens are published as they arrive. Each new answer in ``messages`` is a step, and limits are checked after it; an
    answer that a node does not add to ``messages`` is neither a step nor counted. Nodes and tools find ``turn.context``
    as the ``context`` of their ``Runtime``. ``make_input`` makes the graph's input from the turn, and ``answer`` makes
    the answer's text from the last state; by default, both use the messages. ``config`` is merged into the run's.

    Raises ``UsageError`` if the graph has no checkpointer. A graph that stops at an ``interrupt`` fails the turn
    (``turn_function``).
    """

    runs_hooks = False  # its nodes have called models and tools before the turn learns of it

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
                "Compile the graph with a checkpointer, so that a turn can resume after a crash."
            )
        super().__init__(self._run, name)
        self._graph = graph
        self._make_input = make_input
        self._answer = answer
        self._config = config

    async def _run(self, turn: FunctionTurn) -> str | None:
        config = self._config_of(turn)
        told = _Told(turn, config["configurable"]["thread_id"])
        before = await self._graph.aget_state(config)
        begun = before.created_at is not None
        if not begun or before.tasks:  # also tasks that ran but whose checkpoint was not written
            given = None if begun else await self._given(turn)
            await self._follow(told, self._events(turn, given, config))
        state = await self._graph.aget_state(config)
        await told.messages(state.values)
        if state.tasks:
            waiting = ", ".join(task.name for task in state.tasks)
            raise TurnFailed(
                f"The graph stopped at an interrupt before {waiting}, which a turn cannot do.",
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
        """Return the events of the run. With ``sync``, a state is emitted after its checkpoint is stored."""
        return self._graph.astream(
            given, config, context=turn.context, stream_mode=["messages", "values"], durability="sync"
        )

    async def _given(self, turn: FunctionTurn) -> Mapping[str, Any]:
        """Return the input of the run, with the values of the state after the last answer."""
        answers = [message for message in turn.messages if message.role == "assistant"]
        kept = kept_by(PROVIDER, answers[-1]) if answers else None
        thread = str(kept.get("thread")) if kept else ""
        if (
            not answers or f":{answers[-1].turn_id}:" not in thread
        ):  # a caller must not name the thread of another turn
            return self._input(turn)
        former = await self._graph.aget_state(self._config_with(thread))
        return {**former.values, **self._input(turn)}

    def _input(self, turn: FunctionTurn) -> Mapping[str, Any]:
        if self._make_input is not None:
            return self._make_input(turn)
        system = [Message.system(turn.system)] if turn.system else []
        given = langchain_messages([*system, *turn.messages])
        for number, message in enumerate(given):
            message.id = f"{GIVEN}{number}"
        return {"messages": given}

    def _config_of(self, turn: FunctionTurn) -> dict[str, Any]:
        return self._config_with(f"{turn.context.session_id}:{turn.context.turn_id}:{turn.context.run}")

    def _config_with(self, thread: str) -> dict[str, Any]:
        own = cast("dict[str, Any]", self._config or {})
        return {**own, "configurable": {**own.get("configurable", {}), "thread_id": thread}}


class _Told:
    """Passes the graph's new messages and pieces on to the turn."""

    def __init__(self, turn: FunctionTurn, thread: str) -> None:
        self._turn = turn
        self._thread = thread
        self._seen: set[str] = set()  # ids of messages
        self._calls: dict[str, str] = {}  # the ids that the turn gave to calls of the last answer
        self._names: dict[tuple[str | None, Any], str] = {}  # ids of calls whose arguments are arriving

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
            return _answer_of(message, self._thread)

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


def _answer_of(message: AIMessage, thread: str) -> ModelAnswer:
    (ours,) = messages_of([message])
    if kept := kept_by(PROVIDER, ours):
        kept["thread"] = thread  # where later turns find the rest of the state
    said = cast("dict[str, Any]", message.response_metadata)
    cut = said.get("finish_reason", said.get("stop_reason")) in ("length", "max_tokens")
    reason: StopReason = "tool_use" if ours.tool_calls else "max_tokens" if cut else "end"
    return ModelAnswer(ours, _usage_of(message), reason, str(said.get("model_name") or ""))


def _usage_of(message: AIMessage) -> Usage:
    used = message.usage_metadata
    if used is None:
        return Usage()
    given = cast("dict[str, int]", used.get("input_token_details", {}))
    made = cast("dict[str, int]", used.get("output_token_details", {}))
    return Usage(
        used["input_tokens"],
        used["output_tokens"],
        cached_input_tokens=_counted(given, "cache_read"),
        cache_write_tokens=_counted(given, "cache_creation", "_input_tokens"),
        reasoning_tokens=_counted(made, "reasoning"),
    )


def _counted(details: Mapping[str, int], *endings: str) -> int:
    """Add up the counts that services name ``priority_cache_creation``, ``ephemeral_5m_input_tokens`` and so on."""
    return sum(count for name, count in details.items() if name.endswith(endings))
