"""The tools of MCP servers in one turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from mcp_types import CallToolResult, InputRequiredResult

from antiphon.errors import InvalidTool, ToolError, ToolRaised
from antiphon.mcp import BETWEEN, MCP, Requester, check_no_shadow, server_of
from antiphon.model import Message
from antiphon.tools import Context, Tool
from antiphon_worker.loop.durable import MOST_ROUNDS, durable_of
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import JournalEntry, steps_of
from antiphon_worker.mcp.connection import Connection
from antiphon_worker.mcp.questions import NO_ANSWERS, Answers, Pending, answers_to, noted
from antiphon_worker.mcp.resources import resource_tools
from antiphon_worker.mcp.servers import server
from antiphon_worker.mcp.task_models import NewTask
from antiphon_worker.mcp.tasks import result_of_task, tasks_of
from antiphon_worker.mcp.tools import Arguments, RemoteTool, content_of, missing_tool

Note: TypeAlias = Callable[[MCP, Sequence[RemoteTool]], Awaitable[bool]]
"""Compares the tools of a server with its earlier ones. Returns whether it could."""

UNAVAILABLE = "These services cannot be used at the moment, and their tools are not available: {names}."


async def offer_tools(
    inp: LoopInput, servers: Sequence[MCP], tenant: str | None, user: str | None, journal: Iterable[JournalEntry],
    note: Note,
) -> None:  # fmt: skip
    """Add the tools of these servers to those that the model may call. ``note`` receives each new list.

    A server that cannot be used adds none, and a note names it for the model. Calls in the journal whose tools are not
    listed now get an error result; if the server cannot be used, calls that wait for its tasks continue. Raises
    ``InvalidTool`` if another tool has a name that belongs to a server.
    """
    names = {one.name for one in servers}
    others = [one.name for one in (*inp.tools, *inp.caller_tools)]
    check_no_shadow(names, others, InvalidTool)
    users = [_User(one, Requester(tenant, user, one.name), note) for one in servers]
    found = await asyncio.gather(*(one.tools() for one in users))
    tools = [tool for each in found for tool in each or ()]
    known = {tool.name for tool in tools}
    entries = [*journal]
    calls = {call.call_id: call.name for step in steps_of(entries) for call in step.open_calls}
    waiting = {calls[call] for call in tasks_of(entries) if call in calls}
    lost = [
        one.unlisted(name, waits=name in waiting)
        for one in users
        for name in sorted({*calls.values()} - known)
        if server_of(name) == one.server.name
    ]
    inp.tools = [*inp.tools, *tools, *lost]
    down = [one.server.name for one in users if one.failure]
    if down:
        inp.notes = [*inp.notes, Message.system(UNAVAILABLE.format(names=", ".join(down)))]


class _User:
    """A server as one user uses it in a turn."""

    def __init__(self, declared: MCP, requester: Requester, note: Note) -> None:
        self.server, self._requester, self._note = declared, requester, note
        self.failure = ""

    async def tools(self) -> list[RemoteTool]:
        """Return the tools of the server, or none if it cannot be used."""
        try:
            async with self._use() as connection:
                tools = await connection.tools()
                if not connection.noted:
                    connection.noted = await self._note(self.server, tools)
                found = [tool.bound(self._call) for tool in tools]
                return [*found, *self._for_resources(connection, {tool.name for tool in tools})]
        except ToolError as exc:
            self.failure = exc.message
        except TimeoutError:
            self.failure = (
                f"{self.server.name} did not list its tools within {self.server.connect_timeout:g} s."
            )
        return []

    def unlisted(self, name: str, *, waits: bool) -> Tool[..., Any]:
        """Return the tool for an unanswered call of a turn. If it ``waits`` for a task, it does not need the list."""
        if self.failure and waits:
            remote = name.removeprefix(f"{self.server.name}{BETWEEN}")
            return RemoteTool(self.server, remote, "", {"type": "object"}).bound(self._call)
        reason = self.failure or f"{self.server.name} has no tool {name!r} any more."
        return missing_tool(self.server, name, reason)

    def _for_resources(self, connection: Connection, known: Container[str]) -> list[RemoteTool]:
        """Return the tools for the server's resources, unless it has none or tools of these names."""
        if not (self.server.resources and connection.has_resources):
            return []
        return [tool for tool in resource_tools(self.server, self._use) if tool.name not in known]

    async def _call(self, tool: RemoteTool, arguments: Arguments, context: Context) -> Any:
        """Call a tool, again with each round of answers to its questions."""
        durable, answers = durable_of(context), NO_ANSWERS
        for _ in range(MOST_ROUNDS):
            asked = None
            if durable is None or not durable.repeats:
                async with self._use() as connection:
                    result = await _called(connection, tool, arguments, context, answers)
                    if isinstance(result, CallToolResult):
                        return content_of(result, connection.credentials)
                    asked = noted(result, connection.credentials)
            found = await answers_to(asked, context)
            if isinstance(found, Pending):
                return await result_of_task(self._use, found, context)
            answers = found
        raise ToolRaised(f"The tool {tool.name} asked questions {MOST_ROUNDS} times.")

    def _use(self) -> AbstractAsyncContextManager[Connection]:
        return server(self.server).use(self._requester)


async def _called(
    connection: Connection, tool: RemoteTool, arguments: Arguments, context: Context, answers: Answers
) -> CallToolResult | InputRequiredResult | NewTask:
    async def told(progress: float, total: float | None, message: str | None) -> None:
        fraction = min(max(progress / total, 0.0), 1.0) if total else None
        context.progress(connection.credentials.out_of(message or ""), fraction)

    return await connection.call(tool.remote, arguments, told, answers)
