"""Converts results of tools, and of calls that do not run, to content for the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import ToolRaised
from antiphon.model import Decision, File, Image, Text, ToolCall, ToolResult
from antiphon.model.parts import media_problem


def content_of(value: Any) -> str | list[Text | Image | File]:
    """Convert a returned value to the content for the model. Raises ``ToolRaised`` if it has no JSON form."""
    if value is None:
        return ""
    if type(value) is str:
        return value
    parts = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]
    if parts and all(isinstance(part, Text | Image | File) for part in parts):
        for part in parts:
            if problem := media_problem(part):
                raise ToolRaised(problem)
        return parts
    try:
        plain = msgspec.to_builtins(value, enc_hook=plain_value, str_keys=True)
        return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        kind = type(cast("object", value)).__name__
        raise ToolRaised(f"The tool returned a {kind} that cannot be written as JSON: {exc}.") from exc


def plain_value(value: Any) -> Any:
    """Convert types that msgspec does not encode: pydantic models and subclasses of plain types."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return value + 0
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    if isinstance(value, list):
        return list(cast("list[Any]", value))
    raise TypeError(f"a {type(value).__name__} has no JSON form")


NO_CODE = "This tool was not run: it is the caller's, who gave no result."
NOT_DECIDED = "This tool was not run: the turn ended while the call waited for a decision."
NOT_CONTINUED = "This tool was not run: the turn ended while another call waited for a decision."
NOT_BEGUN = "This tool was not run: it was approved, and the turn ended before it began."
NOT_RETURNED = "The turn ended before this call returned: it is unknown what it has done."


def decided_result(call: ToolCall, decision: Decision, has_code: bool = True) -> ToolResult | None:
    """Return the result that a decision gives to a call, or None for an approved call, which must run."""
    if decision.kind == "result":
        return ToolResult(call.call_id, decision.content, call.name, decision.is_error)
    if decision.kind == "approve":
        return None if has_code else _error(call, NO_CODE)
    who = f"{decision.who} rejected the call" if decision.who else "the call was rejected"
    why = f": {decision.reason}" if decision.reason else "."
    return _error(call, f"This tool was not run: {who}{why}")


def at_the_end(
    call: ToolCall, opened: Collection[str], decisions: Mapping[str, Decision], begun: Collection[str]
) -> ToolResult:
    """Return the result of a call that had none when its turn ended.

    ``opened`` are the calls of its step that waited for decisions, ``decisions`` the decisions about them, and
    ``begun`` the calls that may have started since.
    """
    if call.call_id not in opened:
        return _error(call, NOT_RETURNED)
    decision = decisions.get(call.call_id)
    if decision is None:
        return _error(call, NOT_DECIDED)
    if (result := decided_result(call, decision)) is not None:
        return result
    if call.call_id in begun:
        return _error(call, NOT_RETURNED)
    undecided = any(one not in decisions for one in opened)
    return _error(call, NOT_CONTINUED if undecided else NOT_BEGUN)


def noted(decision: Decision | None) -> Decision | None:
    """Return the decision as the history keeps it: without the result, which its message contains."""
    return None if decision is None else msgspec.structs.replace(decision, content="", is_error=False)


def _error(call: ToolCall, reason: str) -> ToolResult:
    return ToolResult(call.call_id, reason, call.name, is_error=True)
