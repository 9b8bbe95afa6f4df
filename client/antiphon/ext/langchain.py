"""LangChain: messages in both directions, and a chat message history. Needs ``antiphon[langchain]``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_chunk_to_message,
    messages_from_dict,
)
from msgspec import UNSET, UnsetType

from antiphon.agent import Agent
from antiphon.ext.histories import kept_by, outcome_of
from antiphon.model import File, Image, Item, Message, Part, Reasoning, Text, ToolCall, ToolResult

__all__ = ["AntiphonMessageHistory", "langchain_messages", "messages_of"]

PROVIDER = "langchain"


class AntiphonMessageHistory(BaseChatMessageHistory):
    """A LangChain chat message history, kept as the history of an Antiphon session.

    >>> from langchain_core.messages import HumanMessage
    >>> from antiphon.ext.langchain import AntiphonMessageHistory
    >>> history = AntiphonMessageHistory("user-123", ttl=3600)
    >>> history.add_messages([HumanMessage("Hello")])
    >>> [message.content for message in history.messages]
    ['Hello']

    ``redis`` is a URL, a list of URLs or a redis-py client; without it, the session lives in this process. ``ttl``
    (seconds or a timedelta; default: 30 days) is how long the unused session is kept. With a ``tenant``, a session of
    another tenant raises ``WrongTenant``.

    Messages are returned as they were added, in order, and the messages of one call stay together. A cancelled change
    completes before the cancellation is raised. Turns in the session read the messages that LangChain has added, and
    LangChain reads the messages of turns; a change waits for a running turn. In a coroutine, use the asynchronous
    methods. Raises ``AgentError`` (``store_unavailable``, …).
    """

    def __init__(
        self,
        session_id: str,
        *,
        redis: Any = None,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        tenant: str | None = None,
    ) -> None:
        agent = Agent(PROVIDER, "any", redis=redis, prefix=prefix)
        self._session = agent.session(session_id, ttl=ttl, tenant=tenant)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # a plain attribute in LangChain
        """Return all messages, in order.

        >>> AntiphonMessageHistory("new").messages
        []
        """
        return langchain_messages(self._session.load_files(self._session.messages))

    async def aget_messages(self) -> list[BaseMessage]:
        """Return all messages, in order.

        >>> await AntiphonMessageHistory("new").aget_messages()
        []
        """
        session = self._session
        return langchain_messages(await session.load_files_async(await session.messages_async()))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """``aadd_messages``, without ``await``."""
        if messages:
            self._session.add_message(*messages_of(messages))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages at the end, all in one step.

        >>> await AntiphonMessageHistory("new").aadd_messages([])
        """
        if messages:
            await outcome_of(self._session.add_message_async(*messages_of(messages)))

    def clear(self) -> None:
        """``aclear``, without ``await``."""
        self._session.clear()

    async def aclear(self) -> None:
        """Remove all messages.

        >>> await AntiphonMessageHistory("new").aclear()
        """
        await outcome_of(self._session.clear_async())


def langchain_messages(messages: Iterable[Message]) -> list[BaseMessage]:
    """Return Antiphon messages as LangChain messages.

    >>> [message.type for message in langchain_messages([Message.user("Hi"), Message.assistant("Hello")])]
    ['human', 'ai']
    """
    return [theirs for message in messages for theirs in _kept(message) or _theirs(message)]


def messages_of(messages: Iterable[BaseMessage]) -> list[Message]:
    """Return LangChain messages as Antiphon messages, for ``session.add_message``. ``langchain_messages`` reverses it.

    >>> theirs = langchain_messages([Message.user("Hi"), Message.assistant("Hello")])
    >>> [message.text for message in messages_of(theirs)]
    ['Hi', 'Hello']
    """
    groups: list[list[BaseMessage]] = []
    for message in messages:
        whole = message_chunk_to_message(message) if isinstance(message, BaseMessageChunk) else message
        if groups and isinstance(whole, ToolMessage) and isinstance(groups[-1][0], ToolMessage):
            groups[-1].append(whole)
        else:
            groups.append([whole])
    return [_ours(group) for group in groups]


def _ours(group: Sequence[BaseMessage]) -> Message:
    """Return one message; a group of tool results becomes one. The last part keeps the LangChain messages."""
    kept = [{"type": one.type, "data": one.model_dump(mode="json")} for one in group]
    parts = [part for one in group for part in _parts(one)]
    parts.append(Item(PROVIDER, {"messages": kept}))
    first = group[0]
    if isinstance(first, AIMessage):
        return Message("assistant", parts)
    if isinstance(first, ToolMessage):
        return Message("tool", parts)
    return Message("system" if isinstance(first, SystemMessage) else "user", parts)


def _parts(message: BaseMessage) -> Iterator[Part]:
    if isinstance(message, ToolMessage):
        text = str(message.text)
        yield ToolResult(message.tool_call_id, text, message.name or "", message.status == "error")
        return
    for block in cast("list[dict[str, Any]]", message.content_blocks):
        match block["type"]:
            case "text" if block["text"]:
                yield Text(block["text"])
            case "reasoning" if block.get("reasoning"):
                yield Reasoning(block["reasoning"])
            case "image":
                yield Image(url=block.get("url"), data=block.get("base64"), media_type=block.get("mime_type"))
            case "file":
                yield File(
                    url=block.get("url"),
                    data=block.get("base64"),
                    media_type=block.get("mime_type"),
                    file_id=block.get("file_id"),
                )
            case _:
                pass
    if isinstance(message, AIMessage):
        for call in message.tool_calls:
            yield ToolCall(str(call["id"] or ""), call["name"], call["args"])
        for broken in message.invalid_tool_calls:
            yield ToolCall.from_text(
                str(broken["id"] or ""), str(broken["name"] or ""), str(broken["args"] or "")
            )


def _kept(message: Message) -> list[BaseMessage]:
    """Return the LangChain messages that a message was made from, or [] if there are none or its call ids changed."""
    found = kept_by(PROVIDER, message)
    if found is None:
        return []
    kept = messages_from_dict(found["messages"])
    ids = [str(call["id"] or "") for one in kept if isinstance(one, AIMessage) for call in one.tool_calls]
    ids += [str(one["id"] or "") for ai in kept if isinstance(ai, AIMessage) for one in ai.invalid_tool_calls]
    return kept if ids == [call.call_id for call in message.tool_calls] else []


def _theirs(message: Message) -> list[BaseMessage]:
    match message.role:
        case "system":
            return [SystemMessage(message.text, id=message.id)]
        case "assistant":
            calls: list[Any] = [
                {"type": "tool_call", "id": call.call_id, "name": call.name, "args": call.arguments}
                for call in message.tool_calls
            ]
            return [AIMessage(message.text, id=message.id, tool_calls=calls)]
        case "tool":
            return [
                ToolMessage(
                    one.text,
                    tool_call_id=one.call_id,
                    name=one.name,
                    status="error" if one.is_error else "success",
                )
                for one in message.tool_results
            ]
        case "user":
            if all(isinstance(part, Text) for part in message.parts):
                return [HumanMessage(message.text, id=message.id)]
            return [HumanMessage([block for part in message.parts for block in _block(part)], id=message.id)]


def _block(part: Part) -> Iterator[Any]:
    match part:
        case Text(text=text):
            yield {"type": "text", "text": text}
        case Image() | File():
            block = {
                "type": "image" if isinstance(part, Image) else "file",
                "url": part.url,
                "base64": part.data,
                "mime_type": part.media_type,
                "file_id": part.file_id if isinstance(part, File) else None,
            }
            yield {name: value for name, value in block.items() if value is not None}
        case _:
            return
