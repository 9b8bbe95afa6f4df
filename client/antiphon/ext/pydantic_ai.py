"""pydantic-ai: agents that run turns, a conversation store, and message histories in both directions.

A conversation is a log: its history may return to an earlier message and leave a branch, and its forks share its
messages. It is not stored as a session. Each change is one script.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from msgspec import UNSET, UnsetType
from pydantic import TypeAdapter
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
    ToolFailed,
    UsageLimits,
)
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
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

from antiphon.encryption.keyring import keyring_of_process
from antiphon.errors import TurnFailed, UsageError
from antiphon.ext.histories import kept_by, outcome_of
from antiphon.ext.turns import FunctionTurn, ModelAnswer, TurnFunction
from antiphon.input.values import lifetime
from antiphon.model import (
    File,
    Image,
    Item,
    Message,
    OpenCall,
    OpenCallKind,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from antiphon.redis.cells import prefix_of
from antiphon.redis.connections import ConnectionsByLoop
from antiphon.session.runtime import DEFAULT_TTL_SECONDS
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected

__all__ = ["AntiphonConversationStore", "PydanticAIRunner", "messages_of", "model_messages"]


PROVIDER = "pydantic-ai"


def model_messages(messages: Iterable[Message]) -> list[ModelMessage]:
    """Return Antiphon messages as a pydantic-ai message history.

    >>> [message.kind for message in model_messages([Message.user("Hi"), Message.assistant("Hello")])]
    ['request', 'response']
    """
    return [_model_message(message) for message in messages]


def messages_of(history: Sequence[ModelMessage]) -> list[Message]:
    """Return a pydantic-ai message history as Antiphon messages, for ``session.add_message``.

    >>> history = model_messages([Message.user("Hi"), Message.assistant("Hello")])
    >>> [message.text for message in messages_of(history)]
    ['Hi', 'Hello']
    """
    return [
        message
        for one in history
        for message in ([answer_of(one).message] if isinstance(one, ModelResponse) else _of_request(one))
    ]


def _model_message(message: Message) -> ModelMessage:
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return _with_ids(ModelMessagesTypeAdapter.validate_python([kept])[0], message.tool_calls)
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


def _with_ids(kept: ModelMessage, calls: Sequence[ToolCall]) -> ModelMessage:
    """Set the call ids of a response to those of the message: call ids are unique in a turn."""
    theirs = [part for part in kept.parts if isinstance(part, ToolCallPart)]
    for part, call in zip(theirs, calls, strict=False):
        part.tool_call_id = call.call_id
    return kept


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
                ToolResult(
                    part.tool_call_id, part.model_response_str(), part.tool_name, part.outcome != "success"
                )
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


def answer_of(response: ModelResponse) -> ModelAnswer:
    """Return an answer that includes the whole response and the parts that other readers understand."""
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


class PydanticAIRunner(TurnFunction):
    """Runs turns with an agent of pydantic-ai: ``App(providers={"support": PydanticAIRunner(agent)})``.

    >>> from pydantic_ai import Agent as PydanticAgent
    >>> from pydantic_ai.models.test import TestModel
    >>> from antiphon import Agent
    >>> runner = PydanticAIRunner(PydanticAgent(TestModel(custom_output_text="Hello")))
    >>> Agent(provider=runner, model="any").session().run("Hi").text
    'Hello'

    The turn has a lease, stream, journal, limits and cancellation (see ``TurnFunction``). The agent keeps its model,
    instructions, tools with their retries, and output type: an output that is not text becomes the answer as JSON. Each
    model request is a step, and each tool result is in the journal as text or JSON. After a crash, the agent starts
    again and receives the answers and results of the journal. ``deps`` makes the agent's dependencies from the turn; by
    default they are ``turn.context``. A deferred tool suspends the turn, without a worker, until a caller approves or
    rejects its call (``requires_approval=True``, ``ApprovalRequired``) or gives its result (``CallDeferred``,
    ``ExternalToolset``).
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
        if isinstance(done.output, DeferredToolRequests):
            names = ", ".join(
                sorted({call.tool_name for call in [*done.output.calls, *done.output.approvals]})
            )
            raise TurnFailed(
                f"Tools of pydantic-ai deferred a call again after a decision about it: {names}. Let a tool defer a "
                "call once.",
                code="turn_function",
            )
        await turn.settle(_results(done.new_messages()))
        if not journal.called_tools and isinstance(done.output, str):
            return None
        return done.output if isinstance(done.output, str) else to_json(done.output).decode()


class _Journal(AbstractCapability[Any]):
    """Keeps the model requests and tool calls of a run in the journal of a turn."""

    def __init__(self, turn: FunctionTurn) -> None:
        self._turn = turn
        self._asking = False
        self.called_tools = False  # whether the last answer did

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

        known = self._turn.decision(call.tool_call_id)
        if isinstance(known, ToolResult):
            raise CallDeferred  # as it did before it waited: its code does not run again
        if known is not None and not ctx.tool_call_approved:
            raise ApprovalRequired
        return (await self._turn.tool_call(call.tool_call_id, run)).text

    def get_ordering(self) -> CapabilityOrdering:
        """Let the agent's own handlers of deferred tools run first."""
        return CapabilityOrdering(position="innermost")

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults:
        """Suspend the turn until callers have decided, and return their decisions."""
        waiting = [_opened(call, "approval") for call in requests.approvals]
        waiting += [_opened(call, "tool") for call in requests.calls]
        decided = await self._turn.decided(waiting)
        return DeferredToolResults(
            approvals={
                call.tool_call_id: _approval(decided[call.tool_call_id]) for call in requests.approvals
            },
            calls={call.tool_call_id: _result(decided[call.tool_call_id]) for call in requests.calls},
        )

    async def publish(self, ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
        """Publish the pieces of an answer. Answers of earlier attempts are not published again."""
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


def _opened(call: ToolCallPart, kind: OpenCallKind) -> OpenCall:
    return OpenCall(call.tool_call_id, call.tool_name, call.args_as_dict(), kind)


def _approval(decided: ToolCall | ToolResult) -> ToolApproved | ToolDenied:
    if isinstance(decided, ToolResult):
        return ToolDenied(decided.text)
    return ToolApproved(override_args=decided.arguments)


def _result(decided: ToolCall | ToolResult) -> Any:
    assert isinstance(decided, ToolResult)
    if decided.is_error:
        return ToolFailed(decided.text)
    return decided.content if isinstance(decided.content, str) else [*_content(decided.content)]


def _results(messages: Sequence[ModelMessage]) -> dict[str, str]:
    """Return the call results in the last request, including those of calls that no tool ran, such as an output."""
    last = messages[-1] if messages else None
    parts = last.parts if isinstance(last, ModelRequest) else []
    return {
        part.tool_call_id: part.model_response_str() for part in parts if isinstance(part, ToolReturnPart)
    }


PAGE = 100
_RECORDS = TypeAdapter(ConversationRecord)


class AntiphonConversationStore(ConversationStore):
    """A store for ``Conversation``s of pydantic-ai on Redis or Valkey: ``store.load``, ``save``, ``branch``, ``fork``.

    >>> from dataclasses import replace
    >>> from pydantic_ai import Agent
    >>> from pydantic_ai.conversation import Conversation
    >>> from pydantic_ai.models.test import TestModel
    >>> from antiphon.ext.pydantic_ai import AntiphonConversationStore
    >>> store = AntiphonConversationStore("redis://localhost:6379/0", ttl=7 * 86400)
    >>> conversation = await store.load("user-123") or Conversation(conversation_id="user-123")
    >>> result = await Agent(TestModel()).run("Hello", conversation=conversation)
    >>> len(await store.save(result, scope="acme"))
    2
    >>> [record.conversation_id for record in await store.list_conversations(scope="acme")]
    ['user-123']

    ``redis`` is a URL, a list of URLs (all conversations are on one of these servers) or a redis-py client. ``ttl``
    (seconds or a timedelta; default: 30 days) is how long a conversation is kept after it was last saved; None keeps it
    forever.

    A save compares the revision and stores the record and its messages in one atomic step on the server: if two callers
    save the same conversation, one gets ``ConversationConflict``, and none of its messages are stored. A cancelled
    change completes before the cancellation is raised. ``delete`` also deletes the messages, except those that another
    fork or the original still has. The store may be used from any event loop. Raises ``AgentError``
    (``store_unavailable``, …).
    """

    def __init__(
        self,
        redis: Any,
        *,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
    ) -> None:
        if keyring_of_process() is not None:
            raise UsageError(
                "Conversations of pydantic-ai cannot be encrypted: use sessions instead, or unset "
                "ANTIPHON_ENCRYPTION_KEYS."
            )
        self._connections = ConnectionsByLoop(redis, prefix_of(prefix))
        seconds = lifetime(ttl)
        seconds = DEFAULT_TTL_SECONDS if isinstance(seconds, UnsetType) else seconds
        self._ttl_ms = "" if seconds is None else int(seconds * 1000)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the stored data of a conversation without its messages, or None.

        >>> (await store.read_record("user-123")).scope
        'acme'
        """
        cell = await self._cell()
        data = await asked(cell.redis.hget(cell.keys.pydantic_record(conversation_id), "record"))
        return None if data is None else _RECORDS.validate_json(data)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records of conversations, optionally only those of a scope, most recently saved first.

        >>> await store.read_records(scope="nobody")
        []
        """
        cell = await self._cell()
        keys = cell.keys
        index = keys.pydantic_index if scope is None else keys.pydantic_scope(_given(scope))
        found: list[ConversationRecord] = []
        start = 0
        while limit is None or len(found) < limit:
            names: list[bytes] = await asked(cell.redis.zrevrange(index, start, start + PAGE - 1))
            if not names:
                break
            pipe = cell.redis.pipeline(transaction=False)
            for name in names:
                pipe.hget(keys.pydantic_record(text_of(name)), "record")
            found += [
                _RECORDS.validate_json(data) for data in await asked(pipe.execute()) if data is not None
            ]
            start += PAGE
        return found[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries in one step, replacing the record with the expected revision.

        >>> record = replace(await store.read_record("user-123"), revision="mine")
        >>> await store.write_record(record, expected_revision="another")
        Traceback (most recent call last):
        pydantic_ai.conversation_store.ConversationConflict: Conversation 'user-123' was saved or deleted since ...
        """
        cell = await self._cell()
        entries = [
            value for entry in new_entries for value in (entry.id, entry.parent_id or "", _dumped(entry))
        ]
        change = cell.run(
            "conversations/write", record.conversation_id, expected_revision or "", record.revision,
            record.head_id or "", "\n".join(record.branches), _given(record.scope),
            _microseconds(record.updated_at), self._ttl_ms, _RECORDS.dump_json(record), len(new_entries), *entries,
        )  # fmt: skip
        answer = await outcome_of(change)
        if answer[0] == b"CONFLICT" and await self._revision(record.conversation_id) == record.revision:
            return  # the first try was stored, and its answer lost: no other save has this revision
        _check(answer, record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with this revision, and the entries that no other conversation has, in one step.

        >>> await store.delete_record("nobody", expected_revision="any")
        Traceback (most recent call last):
        pydantic_ai.conversation_store.ConversationConflict: Conversation 'nobody' was saved or deleted since ...
        """
        cell = await self._cell()
        stored = await self._revision(conversation_id) == expected_revision
        answer = await outcome_of(cell.run("conversations/delete", conversation_id, expected_revision))
        if answer[0] == b"CONFLICT" and stored and await self._revision(conversation_id) is None:
            return  # it was deleted by the first try, whose answer was lost
        _check(answer, conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. Raises ``LookupError`` if there is none.

        >>> (await store.read_entry((await store.read_record("user-123")).head_id)).message.kind
        'response'
        """
        (entry,) = await self.read_history(entry_id, limit=1)
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to this one, or the last ``limit`` of them. Raises ``LookupError``.

        >>> await store.read_history("nothing")
        Traceback (most recent call last):
        LookupError: There is no entry 'nothing'.
        """
        if head_id is None or limit == 0:
            return []
        cell = await self._cell()
        match await cell.run("conversations/history", head_id, "" if limit is None else limit):
            case [b"ENTRIES", *found]:
                return [_entry(*each) for each in reversed(found)]
            case [b"MISSING", entry]:
                raise LookupError(f"There is no entry {text_of(entry)!r}.")
            case answer:
                raise unexpected("conversations/history", answer)

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They also close when the loop ends.

        >>> await store.aclose()
        """
        await self._connections.aclose()

    async def _revision(self, conversation_id: str) -> str | None:
        """Return the revision of the stored record, or None."""
        cell = await self._cell()
        found = await asked(cell.redis.hget(cell.keys.pydantic_record(conversation_id), "revision"))
        return None if found is None else text_of(found)

    async def _cell(self) -> Cell:
        """Return the one cell of all conversations: an entry does not name its conversation."""
        return (await self._connections.here()).cells.of_session("conversations")


def _check(answer: list[bytes], conversation_id: str) -> None:
    if answer[0] == b"CONFLICT":
        raise ConversationConflict(conversation_id)


def _given(scope: str | None) -> str:
    """Return the scope as the scripts expect it: '' for none."""
    return "" if scope is None else f"={scope}"


def _microseconds(time: datetime) -> int:
    return int(time.timestamp() * 1_000_000)


def _dumped(entry: ConversationEntry) -> bytes:
    return ModelMessagesTypeAdapter.dump_json([entry.message])


def _entry(entry_id: bytes, parent: bytes, data: bytes) -> ConversationEntry:
    (message,) = ModelMessagesTypeAdapter.validate_json(data)
    return ConversationEntry(id=text_of(entry_id), parent_id=text_of(parent) or None, message=message)
