"""Reads a session's stored files while a request is built, and stores contents that tools and models return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

import msgspec

from antiphon.errors import LimitReached
from antiphon.model import Item, Message, ToolResult
from antiphon.redis.files import SessionFiles, has_contents, is_unfilled, marked

T = TypeVar("T")


class TurnFiles(ABC):
    """The stored files of a turn's session, opened when a message first names one."""

    @cached_property
    @abstractmethod
    def _files(self) -> SessionFiles: ...

    @abstractmethod
    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while Redis is unreachable."""

    async def filled(self, messages: list[Message]) -> list[Message]:
        """Return the messages as a model service receives them, with the contents of stored files."""
        if not is_unfilled(messages):
            return messages
        return await self._patiently(lambda: self._files.filled(messages))

    async def kept(self, results: Sequence[ToolResult]) -> list[ToolResult]:
        """Return the tool results with their large contents stored. One that exceeds a limit becomes an error."""
        return [await self._kept(one) for one in results]

    async def kept_answer(self, message: Message) -> Message:
        """Return the answer of a model with its large contents stored, or unchanged if they exceed a limit."""
        if Item not in map(type, message.parts):  # the usual answer costs no call
            return message
        message = msgspec.structs.replace(message, parts=[marked(part) for part in message.parts])
        if any(map(has_contents, message.parts)):
            with suppress(LimitReached):
                [message] = await self._patiently(lambda: self._files.moved([message]))
        return message

    async def _kept(self, result: ToolResult) -> ToolResult:
        if isinstance(result.content, str):
            return result
        try:
            return await self._patiently(lambda: self._files.moved_part(result))
        except LimitReached as exc:
            reason = f"The result of this tool cannot be stored: {exc.message}"
            return msgspec.structs.replace(result, content=reason, is_error=True)
