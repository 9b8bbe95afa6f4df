"""Shared parts of the adapters that keep another framework's history in a session."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from antiphon.model import Item, Message


def kept_by(provider: str, message: Message) -> dict[str, Any] | None:
    """Return the data that a framework keeps in a message, or None if the message does not come from it.

    >>> from antiphon.model import Text
    >>> kept_by("langchain", Message("user", [Text("Hi"), Item("langchain", {"messages": []})]))
    {'messages': []}
    """
    last = message.parts[-1] if message.parts else None
    return last.item if isinstance(last, Item) and last.provider == provider else None


T = TypeVar("T")


async def outcome_of(change: Coroutine[Any, Any, T]) -> T:
    """Return the result of a change. A cancellation in the meantime is raised after the change has ended."""
    task = asyncio.ensure_future(change)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as exc:
            cancelled = cancelled or exc
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
