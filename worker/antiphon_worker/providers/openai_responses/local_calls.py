"""Calls of tools that OpenAI declares and the caller runs: the computer, the shell and file patches.

An agent's tool with the name of such a tool runs its calls. Without one, a call stays an item of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.model import Image, Text, ToolCall, ToolResult
from antiphon_worker.providers.request import data_url
from antiphon_worker.providers.stream.json_text import as_dict, as_dicts, as_text

TOOLS = {
    "computer": "computer",
    "computer_use_preview": "computer",
    "shell": "shell",
    "apply_patch": "apply_patch",
}
"""The names of the agent's tools by the types of the service's tools."""

_CALLS = {"computer_call": "computer", "shell_call": "shell", "apply_patch_call": "apply_patch"}


class _Exit(Struct, tag="exit", tag_field="type", forbid_unknown_fields=True):
    exit_code: int = 0


class _Timeout(Struct, tag="timeout", tag_field="type", forbid_unknown_fields=True):
    pass


class _Output(Struct, forbid_unknown_fields=True):
    """The output of one command of a shell call."""

    stdout: str = ""
    stderr: str = ""
    outcome: _Exit | _Timeout = field(default_factory=_Exit)


def local_call(item: dict[str, Any], tools: frozenset[str]) -> ToolCall | None:
    """Return the call of an item if one of these tools runs it. A shell of the service has its own output."""
    name = _CALLS.get(as_text(item.get("type")) or "")
    hosted = (as_dict(item.get("environment")) or {}).get("type") not in (None, "local")
    if name not in tools or hosted:
        return None
    call_id = as_text(item.get("call_id")) or as_text(item.get("id")) or ""
    return ToolCall(call_id, name or "", _arguments(item), None, item)


def _arguments(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] != "computer_call":
        given = as_dict(item.get("action")) or as_dict(item.get("operation")) or {}
        return {name: value for name, value in given.items() if value is not None}
    action = as_dict(item.get("action"))
    actions = as_dicts(item.get("actions")) or ([action] if action else [])
    checks = as_dicts(item.get("pending_safety_checks"))
    return {"actions": actions} | ({"pending_safety_checks": checks} if checks else {})


def choice_of(choice: dict[str, Any], tools: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the choice of a tool by name in the service's form: its own tools are chosen by type."""
    kinds = [tool.get("type") for tool in tools if TOOLS.get(tool.get("type", "")) == choice.get("name")]
    return {"type": kinds[0]} if kinds else choice


def is_local(call: ToolCall) -> bool:
    """Return whether the service requested the call with an item of its own form."""
    return call.item is not None and call.item.get("type") in _CALLS


def output_of(call: ToolCall, result: ToolResult) -> dict[str, Any] | None:
    """Return the result of a call in the form of its item, or None for a computer call without a screenshot."""
    item = call.item or {}
    kind = as_text(item.get("type")) or ""
    output: dict[str, Any] = {"type": f"{kind}_output", "call_id": result.call_id}
    if kind == "computer_call":
        shown = next(_images(result), None)
        if shown is None:
            return None
        output["output"] = {"type": "computer_screenshot", "image_url": shown}
        if checks := as_dicts(item.get("pending_safety_checks")):
            output["acknowledged_safety_checks"] = checks
    elif kind == "shell_call":
        output["output"] = msgspec.to_builtins(_outputs(result))
        longest = (as_dict(item.get("action")) or {}).get("max_output_length")
        output |= {} if longest is None else {"max_output_length": longest}
    else:
        output |= {"status": "failed" if result.is_error else "completed", "output": _text(result)}
    caller = as_dict(item.get("caller"))
    return output | ({"caller": caller} if caller and kind != "computer_call" else {})


def _images(result: ToolResult) -> Iterator[str]:
    parts = () if isinstance(result.content, str) else result.content
    return (url for part in parts if isinstance(part, Image) and (url := data_url(part)))


def _text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return "\n".join(part.text for part in result.content if isinstance(part, Text))


def _outputs(result: ToolResult) -> list[_Output]:
    """Return the output of each command as the tool returned it, or else its text as the output of one command."""
    text = _text(result)
    try:
        found = msgspec.json.decode(text, type=list[_Output] | _Output)
    except (msgspec.MsgspecError, RecursionError):
        if result.is_error:
            return [_Output(stderr=text, outcome=_Exit(1))]
        return [_Output(stdout=text)]
    return found if isinstance(found, list) else [found]
