"""Client-side tools: declared without code, run by the client that submitted the turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from antiphon.errors import InvalidTool, UsageError
from antiphon.input.limits import check_depth
from antiphon.input.values import duration
from antiphon.input.wrong_values import wrong_value
from antiphon.model import CallerTool
from antiphon.tools.approval import check_at_limit
from antiphon.tools.functions import TOOL_NAME, Tool

_FIELDS = {"name", "description", "parameters", "timeout", "at_limit"}


def caller_tools(tools: object, others: Iterable[Tool[..., Any]] = ()) -> list[CallerTool]:
    """Return the tools that a caller declares. ``others`` are tools whose names are already taken.

    Each is a ``CallerTool``, a dictionary with the same fields (also in the form of OpenAI's services), or a function
    or ``Tool`` whose name, description and schema are used. Raises ``InvalidTool`` and ``UsageError``.
    """
    if not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
        raise UsageError(f"caller_tools= must be a list of tools, not {tools!r}: use caller_tools=[…].")
    found = [_checked(_declared(one)) for one in cast("Iterable[Any]", tools)]
    names = [one.name for one in (*others, *found)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidTool(f"Tools must have different names; these appear twice: {', '.join(twice)}.")
    return found


def _declared(tool: Any) -> CallerTool:
    if isinstance(tool, CallerTool):
        return tool
    if isinstance(tool, Tool):
        return CallerTool(tool.name, tool.description, tool.parameters)
    if isinstance(tool, Mapping):
        return _read(dict(cast("Mapping[str, Any]", tool)))
    if callable(tool):
        return _declared(Tool(tool))
    raise InvalidTool(f"A client-side tool must be a CallerTool, a dictionary or a function, not {tool!r}.")


def _read(fields: dict[str, Any]) -> CallerTool:
    """Read a dictionary. In OpenAI's format, its fields are in ``function``, next to ``type`` and ``strict``."""
    fields.pop("type", None)
    if isinstance(fields.get("function"), Mapping):
        fields = {**fields.pop("function"), **fields}
    fields = {name: value for name, value in fields.items() if value is not None and name != "strict"}
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise InvalidTool(
            f"A client-side tool does not accept {unknown[0]!r}, but: {', '.join(sorted(_FIELDS))}."
        )
    try:
        return msgspec.convert(fields, CallerTool)
    except msgspec.ValidationError as exc:
        raise InvalidTool(f"Invalid client-side tool: {wrong_value(exc, CallerTool)[0]}") from exc


def _checked(tool: CallerTool) -> CallerTool:
    """Return a copy that can be sent. Raises ``InvalidTool``."""
    try:
        if not TOOL_NAME.fullmatch(tool.name):
            raise InvalidTool(
                f"{tool.name!r} is not a valid tool name (1 to 64 letters, digits, '_' and '-')."
            )
        if tool.parameters.get("type") != "object":
            raise InvalidTool(f"The parameters of the tool {tool.name} must be a JSON schema of an object.")
        check_depth(tool.parameters, f"The parameters of the tool {tool.name}")
        if check_at_limit(tool.at_limit, "at_limit") == "approve":
            raise InvalidTool(
                f"The tool {tool.name} runs on the client: at_limit= must be 'reject' or 'fail'."
            )
        timeout = duration(tool.timeout, "timeout")
        copy = msgspec.json.decode(msgspec.json.encode(tool), type=CallerTool)
        return msgspec.structs.replace(copy, timeout=timeout)
    except InvalidTool:
        raise
    except UsageError as exc:
        raise InvalidTool(f"The tool {tool.name} on the client: {exc.message}") from exc
    except (TypeError, ValueError, AttributeError, RecursionError, msgspec.MsgspecError) as exc:
        raise InvalidTool(f"A client-side tool cannot be written as JSON: {exc}.") from exc
