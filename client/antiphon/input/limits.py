"""The limits on sizes, lengths and counts, in one table that docs/security.md repeats."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, cast

import msgspec

from antiphon.errors import LimitReached


def _limit(value: int, doc: str) -> Any:
    return field(default=value, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits. Each field has the name that ``LimitReached.limit`` reports."""

    request_bytes: int = _limit(
        8 * 1024 * 1024,
        "one stored turn: input, agent, parameters, metadata; a job's decompressed payload",
    )
    system_bytes: int = _limit(
        256 * 1024, "the system prompt of an agent or a session, the instructions of a turn"
    )
    variables_bytes: int = _limit(256 * 1024, "the variables of a session")
    metadata_bytes: int = _limit(64 * 1024, "the metadata of a turn or a session")
    params_bytes: int = _limit(1024 * 1024, "the parameters of an agent or a turn, a script among them")
    json_depth: int = _limit(64, "nesting of lists and objects in any JSON")
    opening_messages: int = _limit(10_000, "messages that a session begins with")
    opening_bytes: int = _limit(32 * 1024 * 1024, "these messages together")
    file_bytes: int = _limit(32 * 1024 * 1024, "one stored file")
    session_files: int = _limit(1_000, "stored files of one session")
    session_file_bytes: int = _limit(256 * 1024 * 1024, "these files together")
    history_messages: int = _limit(100_000, "messages of a history that one turn loads; a window loads fewer")
    waiting_turns: int = _limit(1_000, "turns in the inbox of one session (`SessionBusy`)")
    tenant_turns: int = _limit(10_000, "turns of one tenant in one Redis that have not ended")
    tenant_schedules: int = _limit(1_000, "schedules of one tenant in one Redis")
    event_bytes: int = _limit(64 * 1024, "the data of one `send_event`")
    tenant_events: int = _limit(
        10_000, "sent events of one tenant that one Redis keeps; the oldest are dropped first"
    )
    sessions: int = _limit(10_000_000, "sessions of one Redis")
    session_users: int = _limit(1_000, "users that the turns of one session name")
    delayed_turns: int = _limit(100_000, "delayed turns of one Redis that are not due yet")
    progress_bytes: int = _limit(4 * 1024, "the text of one `context.progress`; a longer one is cut")
    custom_bytes: int = _limit(16 * 1024, "the data of one `context.emit`")
    custom_events: int = _limit(1_000, "calls of `context.emit` in one tool call")
    step_bytes: int = _limit(1024 * 1024, "the result of one `context.step`")
    steps: int = _limit(
        10_000,
        "calls of `context.step`, `sleep`, `run_agent` and `wait_for_event` in one tool call or turn function",
    )
    decision_bytes: int = _limit(
        8 * 1024 * 1024, "one decision about a tool call: its reason, new arguments or result"
    )
    answer_bytes: int = _limit(32 * 1024 * 1024, "one stored answer of a model")
    answer_calls: int = _limit(256, "tool calls in one answer of a model")
    call_bytes: int = _limit(1024 * 1024, "one tool call of a model: its name, its id and its arguments")
    max_steps: int = _limit(1_000, "model calls of one turn")
    child_depth: int = _limit(3, "levels of sub-agents below a turn without a parent")
    mcp_bytes: int = _limit(4 * 1024 * 1024, "one answer or message of an MCP server")
    mcp_tools: int = _limit(256, "tools of one MCP server; the others are left out")
    mcp_tool_bytes: int = _limit(
        64 * 1024, "one tool of an MCP server: its name, description and schema; a larger one is left out"
    )
    a2a_bytes: int = _limit(4 * 1024 * 1024, "one answer or stream of a remote agent (A2A)")
    a2a_values: int = _limit(50_000, "values in the JSON of one message of A2A, in either direction")
    mcp_resources: int = _limit(256, "resources that an MCP server lists to a model; the others are left out")
    mcp_prompts: int = _limit(256, "prompts of one MCP server; the others are left out")
    fallbacks: int = _limit(16, "models that an agent names as fallbacks")
    script_answers: int = _limit(1_000, "answers of a script that comes with a turn")
    script_delay: int = _limit(60, "seconds before each of its pieces")
    id_bytes: int = _limit(200, "ids of sessions, names of tenants and users (`InvalidId`)")


LIMITS = Limits()


def table() -> list[tuple[str, int, str]]:
    """Return each limit as its name, its value and what it limits."""
    return [(known.name, getattr(LIMITS, known.name), known.metadata["doc"]) for known in fields(LIMITS)]


def check_size(limit: str, size: float, what: str, way_out: str = "") -> None:
    """Raise ``LimitReached`` if ``size`` exceeds this limit. ``way_out`` is advice that ends the message.

    >>> check_size("max_steps", 5_000, "The agent's max_steps")
    Traceback (most recent call last):
    antiphon.errors.LimitReached: The agent's max_steps: 5000 exceeds the limit max_steps, which is 1000.
    """
    most: int = getattr(LIMITS, limit)
    if size > most:
        raise LimitReached(
            f"{what}: {size:.15g} exceeds the limit {limit}, which is {most}.{way_out and ' '}{way_out}",
            limit=limit,
        )


def check_depth(value: Any, what: str) -> None:
    """Raise ``LimitReached`` for lists and dictionaries that are nested too deeply."""
    level, depth = [value], 0
    while level := [one for each in level for one in _within(each)]:
        depth += 1
        check_size("json_depth", depth, what)


def check_values(limit: str, value: Any, what: str, way_out: str = "") -> None:
    """Raise ``LimitReached`` if a value contains more lists, dictionaries and plain values than this limit."""
    level, count = [value], 1
    while level := [one for each in level for one in _within(each)]:
        count += len(level)
        check_size(limit, count, what, way_out)


def check_plain(name: str, values: dict[str, Any]) -> None:
    """Check the depth and the size of ``params``, ``metadata`` or ``variables``. Raises ``LimitReached``."""
    if values:
        check_depth(values, f"{name}=")
        check_size(f"{name}_bytes", len(msgspec.json.encode(values)), f"{name}=")


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []
