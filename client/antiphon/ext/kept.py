"""What another framework has said, kept whole in a message of ours: its last part, which only that framework reads."""

from __future__ import annotations

from typing import Any

from antiphon.model import Item, Message

__all__ = ["kept_by"]


def kept_by(provider: str, message: Message) -> dict[str, Any] | None:
    """Return what a framework keeps in a message, or None if the message does not come from there.

    >>> from antiphon.model import Text
    >>> kept_by("langchain", Message("user", [Text("Hi"), Item("langchain", {"messages": []})]))
    {'messages': []}
    """
    last = message.parts[-1] if message.parts else None
    return last.item if isinstance(last, Item) and last.provider == provider else None
