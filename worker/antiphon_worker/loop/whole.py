"""Repairs an imported history for a model: services want a result for each tool call, and a call for each result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from antiphon.model import Message, ToolCall, ToolResult

__all__ = ["whole"]

NO_RESULT = "The result of this call is not known."


def whole(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a result for each tool call, and without results that have no call."""
    return _repaired(messages) if _has_tools(messages) else [*messages]


def _has_tools(messages: Sequence[Message]) -> bool:
    for message in messages:
        if message.role == "tool":
            return True
        if message.role == "assistant":
            for part in message.parts:
                if type(part) is ToolCall:
                    return True
    return False


def _repaired(messages: Sequence[Message]) -> list[Message]:
    found: list[Message] = []
    open_calls: dict[str, str] = {}  # names by ids
    for message in messages:
        if message.role != "tool":
            found += _closed(open_calls)
            open_calls = {call.call_id: call.name for call in message.tool_calls}
            found.append(message)
            continue
        parts = [
            part for part in message.parts if not isinstance(part, ToolResult) or part.call_id in open_calls
        ]
        for result in message.tool_results:
            open_calls.pop(result.call_id, None)
        if len(parts) == len(message.parts):
            found.append(message)
        elif parts:
            found.append(msgspec.structs.replace(message, parts=parts))
    return found + _closed(open_calls)


def _closed(open_calls: dict[str, str]) -> list[Message]:
    results = [ToolResult(call_id, NO_RESULT, name, is_error=True) for call_id, name in open_calls.items()]
    return [Message.tool(results)] if results else []
