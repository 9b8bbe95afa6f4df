"""LlamaIndex: a chat store, and messages in both directions. Needs ``antiphon[llama-index]``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from llama_index.core.base.llms.types import (
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.storage.chat_store.base import BaseChatStore
from msgspec import UNSET, UnsetType

from antiphon.agent import Agent
from antiphon.ext.histories import kept_by, outcome_of
from antiphon.input.ids import session_id
from antiphon.input.messages import identified
from antiphon.input.values import lifetime, now_ms
from antiphon.model import File, Image, Item, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from antiphon.session.background import call
from antiphon.session.listing import AsyncSessionList, list_query
from antiphon.session.runtime import Edit, Runtime, SessionRef

__all__ = ["AntiphonChatStore", "chat_messages", "messages_of"]

PROVIDER = "llama-index"

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "function": "tool",
}


class AntiphonChatStore(BaseChatStore):
    """A LlamaIndex chat store: each key is the id of an Antiphon session, and its messages are the history.

    >>> from llama_index.core.llms import ChatMessage
    >>> from llama_index.core.memory import ChatMemoryBuffer
    >>> from antiphon.ext.llama_index import AntiphonChatStore
    >>> store = AntiphonChatStore(ttl=3600)
    >>> store.add_message("user-123", ChatMessage("Hello"))
    >>> [message.content for message in store.get_messages("user-123")]
    ['Hello']

    ``redis`` is a URL, a list of URLs or a redis-py client; without it, the sessions live in this process. ``ttl``
    (seconds or a timedelta; default: 30 days) is how long an unused session is kept. With a ``tenant``, the store lists
    only that tenant's sessions, and a session of another tenant raises ``WrongTenant``.

    Messages are returned as they were added, in order. Each change is one atomic step on the server, also at an index:
    no other caller's change comes in between. A cancelled change completes before the cancellation is raised. Turns in
    a session read the messages that LlamaIndex has stored there, and LlamaIndex reads the messages of turns. A change
    waits for a running turn. In a coroutine, use the asynchronous methods. Raises ``AgentError``
    (``store_unavailable``, …).
    """

    _runtime: Runtime = PrivateAttr()
    _ttl: float | UnsetType | None = PrivateAttr()
    _tenant: str | None = PrivateAttr()

    def __init__(
        self,
        *,
        redis: Any = None,
        prefix: str | None = None,
        ttl: float | timedelta | UnsetType | None = UNSET,
        tenant: str | None = None,
    ) -> None:
        super().__init__()
        self._runtime = Agent(PROVIDER, "any", redis=redis, prefix=prefix).runtime
        self._ttl, self._tenant = lifetime(ttl), tenant

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows the class.

        >>> AntiphonChatStore.class_name()
        'AntiphonChatStore'
        """
        return "AntiphonChatStore"

    async def aset_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace all messages. Messages at the beginning that are the same in both lists stay as they are.

        >>> await store.aset_messages("user-123", [ChatMessage("Hello"), ChatMessage("How are you?")])
        """
        await self._change(key, lambda old, added: _replaced(old, messages, added), messages)

    async def aget_messages(self, key: str) -> list[ChatMessage]:
        """Return all messages, or an empty list if the session does not exist.

        >>> await store.aget_messages("nobody")
        []
        """
        ref = self._ref(key)
        return chat_messages(await self._runtime.load_files(ref, await self._runtime.read(ref)))

    async def async_add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Add a message at the end, or before the one at an index.

        >>> await store.async_add_message("user-123", ChatMessage("Be brief.", role="system"), 0)
        >>> [str(message) for message in await store.aget_messages("user-123")]
        ['system: Be brief.', 'user: Hello']
        """
        if idx is None:
            added = _identified([message])
            await outcome_of(self._runtime.edit(self._ref(key), Edit(add=added)))
            return

        def inserted(old: list[Message], added: list[Message]) -> list[Message]:
            before, behind = _parted(old, idx)
            return [*before, *added, *behind]

        await self._change(key, inserted, [message])

    async def adelete_messages(self, key: str) -> list[ChatMessage] | None:
        """Remove all messages and return them, or None if there are none.

        >>> await store.adelete_messages("nobody")
        """
        return await self._taken(key, lambda old: (old, [])) or None

    async def adelete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Remove the message at an index and return it, or None if there is none. Negative indices count from the end.

        >>> print(await store.adelete_message("user-123", 0))
        user: Hello
        """

        def without(old: list[Message]) -> tuple[list[Message], list[Message]]:
            if not -len(chat_messages(old)) <= idx < len(chat_messages(old)):
                return [], old
            before, rest = _parted(old, idx)
            taken, behind = _parted(rest, 1)
            return taken, [*before, *behind]

        return next(iter(await self._taken(key, without)), None)

    async def adelete_last_message(self, key: str) -> ChatMessage | None:
        """Remove the last message and return it, or None if there is none.

        >>> print(await store.adelete_last_message("user-123"))
        user: Hello
        """
        return await self.adelete_message(key, -1)

    async def aget_keys(self) -> list[str]:
        """Return the ids of the sessions that have messages, including those that LlamaIndex did not create.

        >>> await AntiphonChatStore(tenant="nobody").aget_keys()
        []
        """
        which = list_query(tenant=self._tenant) if self._tenant is not None else list_query()
        listed = AsyncSessionList(lambda after, page: self._runtime.sessions(None, after, page), which)
        return [info.session_id async for info in listed if info.messages]

    # The synchronous forms.

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """``aset_messages``, without ``await``."""
        call(self.aset_messages(key, messages))

    def get_messages(self, key: str) -> list[ChatMessage]:
        """``aget_messages``, without ``await``."""
        return call(self.aget_messages(key))

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """``async_add_message``, without ``await``."""
        call(self.async_add_message(key, message, idx))

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """``adelete_messages``, without ``await``."""
        return call(self.adelete_messages(key))

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """``adelete_message``, without ``await``."""
        return call(self.adelete_message(key, idx))

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """``adelete_last_message``, without ``await``."""
        return call(self.adelete_last_message(key))

    def get_keys(self) -> list[str]:
        """``aget_keys``, without ``await``."""
        return call(self.aget_keys())

    def _ref(self, key: str) -> SessionRef:
        return SessionRef(session_id(key), None, self._ttl, self._tenant)

    async def _change(
        self,
        key: str,
        becomes: Callable[[list[Message], list[Message]], list[Message]],
        messages: Sequence[ChatMessage],
    ) -> None:
        """Replace the history with the result of ``becomes``, which takes it and these messages."""
        added = _identified(messages)
        await outcome_of(self._runtime.edit(self._ref(key), Edit(becomes=lambda old: becomes(old, added))))

    async def _taken(
        self, key: str, part: Callable[[list[Message]], tuple[list[Message], list[Message]]]
    ) -> list[ChatMessage]:
        """Split the history with ``part`` into messages to remove, which are returned, and messages to keep."""
        gone: list[Message] = []

        def becomes(old: list[Message]) -> list[Message]:
            gone[:], stays = part(old)
            return stays

        await outcome_of(self._runtime.edit(self._ref(key), Edit(becomes=becomes)))
        return chat_messages(await self._runtime.load_files(self._ref(key), gone))


def chat_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Return Antiphon messages as LlamaIndex messages.

    >>> [str(message) for message in chat_messages([Message.user("Hi"), Message.assistant("Hello")])]
    ['user: Hi', 'assistant: Hello']
    """
    return [theirs for message in messages for theirs in _theirs(message)]


def messages_of(messages: Iterable[ChatMessage]) -> list[Message]:
    """Return LlamaIndex messages as Antiphon messages, for ``session.add_message``. ``chat_messages`` reverses it.

    >>> [message.text for message in messages_of([ChatMessage("Hi")])]
    ['Hi']
    """
    return [_ours(message) for message in messages]


def _identified(messages: Iterable[ChatMessage]) -> list[Message]:
    """Return the messages with ids, so that a repeated attempt of the same edit uses the same ids."""
    return identified(messages_of(messages), secrets.token_hex(8), now_ms())


def _replaced(old: Sequence[Message], new: Sequence[ChatMessage], added: Sequence[Message]) -> list[Message]:
    kept: list[Message] = []
    place = 0
    for message in old:
        theirs = chat_messages([message])
        if list(new[place : place + len(theirs)]) != theirs:
            break
        kept.append(message)
        place += len(theirs)
    return [*kept, *added[place:]]


def _parted(messages: list[Message], index: int) -> tuple[list[Message], list[Message]]:
    """Split a history before a LlamaIndex index, which counts each tool result."""
    if index < 0:
        index = max(index + len(chat_messages(messages)), 0)
    for place, message in enumerate(messages):
        count = len(chat_messages([message]))
        if index < count:
            left, right = _cut(message, index)
            return [*messages[:place], *left], [*right, *messages[place + 1 :]]
        index -= count
    return messages, []


def _cut(message: Message, index: int) -> tuple[list[Message], list[Message]]:
    if not index:
        return [], [message]
    halves = message.parts[:index], message.parts[index:]
    ids = message.id, f"{message.id}.{index}"
    left, right = (
        msgspec.structs.replace(message, id=one, parts=parts) for one, parts in zip(ids, halves, strict=True)
    )
    return [left], [right]


def _ours(message: ChatMessage) -> Message:
    role = _ROLES.get(message.role.value, "user")
    parts = [*_result(message)] if role == "tool" else [*_parts(message)]
    return Message(role, [*parts, Item(PROVIDER, {"message": message.model_dump(mode="json")})])


def _result(message: ChatMessage) -> Iterator[Part]:
    said = message.additional_kwargs
    yield ToolResult(str(said.get("tool_call_id") or ""), message.content or "", str(said.get("name") or ""))


def _parts(message: ChatMessage) -> Iterator[Part]:
    """Convert a message to parts that every provider reads."""
    for block in message.blocks:
        match block:
            case TextBlock(text=text) if text:
                yield Text(text)
            case ThinkingBlock(content=str(text)):
                yield Reasoning(text)
            case ImageBlock(url=url, image=data):
                if url or isinstance(data, bytes):
                    base64 = data.decode() if isinstance(data, bytes) else None
                    yield Image(url=str(url) if url else None, data=base64, media_type=block.image_mimetype)
            case DocumentBlock(url=url, data=data):
                if url or isinstance(data, bytes):
                    base64 = data.decode() if isinstance(data, bytes) else None
                    yield File(url=url, data=base64, media_type=block.document_mimetype, name=block.title)
            case ToolCallBlock(tool_kwargs=dict(arguments)):
                yield ToolCall(block.tool_call_id or "", block.tool_name, arguments)
            case ToolCallBlock(tool_kwargs=str(arguments)):
                yield ToolCall.from_text(block.tool_call_id or "", block.tool_name, arguments)
            case _:
                pass


def _theirs(message: Message) -> list[ChatMessage]:
    kept = kept_by(PROVIDER, message)
    if kept is not None:
        return [ChatMessage.model_validate(kept["message"])]
    if message.role == "tool":
        return [
            ChatMessage(
                one.text, role="tool", additional_kwargs={"tool_call_id": one.call_id, "name": one.name}
            )
            for one in message.tool_results
        ]
    return [ChatMessage([block for part in message.parts for block in _block(part)], role=message.role)]


def _block(part: Part) -> Iterator[Any]:
    match part:
        case Text(text=text):
            yield TextBlock(text=text)
        case Reasoning(text=text):
            yield ThinkingBlock(content=text)
        case Image(url=url, data=data):
            yield ImageBlock(url=url, image=data.encode() if data else None, image_mimetype=part.media_type)
        case File(url=url, data=data) if url or data:
            raw = data.encode() if data else None
            yield DocumentBlock(url=url, data=raw, title=part.name, document_mimetype=part.media_type)
        case ToolCall():
            yield ToolCallBlock(
                tool_call_id=part.call_id, tool_name=part.name, tool_kwargs=part.arguments or {}
            )
        case _:
            pass
