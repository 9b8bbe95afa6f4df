"""The MCP server of one caller: it lists the tools that the caller may use, and calls them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, cast

import msgspec
from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from antiphon_gateway.http.operations import Call
from antiphon_gateway.mcp.questions import can_ask, give_answers, questions_of
from antiphon_gateway.mcp.tasks import new_task, serve_tasks, takes_tasks
from antiphon_gateway.mcp.tools import CancelTurn, Offered, Outcome, offered, read_arguments, schema_of
from antiphon_gateway.mcp.turns import followed, run_tool, sentence_of, submitted
from antiphon_gateway.problems import problem_of

KEEP_MS = 10_000
"""How long clients may cache the list of tools: workers come and go."""
INSTRUCTIONS = (
    "Each tool ask_… passes a message to an agent and returns its answer. Pass the session_id of a result to continue "
    "the conversation. An agent that works for long continues after the call: get_turn waits for its answer."
)
_RESULT = schema_of(Outcome)


def server_of(call: Call[Any, Any]) -> Server[Any]:
    """Return the server for a caller with the right to read."""
    tools = _Tools(call)
    server: Server[Any] = Server(
        "antiphon", version=version("antiphon"), title="Antiphon", instructions=INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(KEEP_MS, "private")}, get_tool_input_schema=lambda _: None,
        on_list_tools=tools.listed, on_call_tool=cast("Any", tools.called),
    )  # fmt: skip
    serve_tasks(server, call, _result)
    return server


class _Tools:
    """The tools of a caller."""

    def __init__(self, call: Call[Any, Any]) -> None:
        self._call = call

    async def listed(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_shown(one) for one in await self._offered()])

    async def called(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> Any:
        """Return the result of a tool, a task, or questions to the user of the client."""
        try:
            tool = next((one for one in await self._offered() if one.name == params.name), None)
            if tool is None:
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
            given = read_arguments(tool, params.arguments or {})
            return await self._done(context, params, tool, given)
        except MCPError:
            raise
        except Exception as exc:  # noqa: BLE001 - every error is answered, and logged if it is not ours
            self._call.services.refused(exc)
            problem = problem_of(exc)
            return CallToolResult(content=[_text(f"{problem.code}: {problem.detail}")], is_error=True)

    async def _done(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams, tool: Offered, given: Any
    ) -> Any:
        call, report, asks = self._call, _reporter(context), can_ask(self._call, context)
        if params.request_state is not None and tool.arguments is not CancelTurn:
            # The id of a turn, which the client could also name itself.
            turn = await call.turn(params.request_state)
            with call.held():
                asks = asks and await give_answers(call, turn, params.input_responses) == "decided"
                found = await followed(call, turn, given.wait, report)
        elif tool.agent and takes_tasks(context):
            return await new_task(await submitted(call, tool.agent, given))
        else:
            found = await run_tool(call, tool.agent, given, report)
        if asks and found.status == "suspended" and found.calls:
            return InputRequiredResult(input_requests=dict(questions_of(found)), request_state=found.turn_id)
        return _result(found)

    async def _offered(self) -> list[Offered]:
        return await offered(self._call.client, self._call.caller.rights)


def _shown(tool: Offered) -> Tool:
    reads = tool.right == "read"
    return Tool(
        name=tool.name, description=tool.description, input_schema=tool.schema, output_schema=_RESULT,
        annotations=ToolAnnotations(
            read_only_hint=reads, destructive_hint=None if reads else not tool.agent, open_world_hint=bool(tool.agent)
        ),
    )  # fmt: skip


def _reporter(context: ServerRequestContext[Any]) -> Any:
    async def report(number: int, text: str) -> None:
        await context.session.report_progress(number, None, text)

    return report


def _result(found: Outcome) -> CallToolResult:
    where = {"status": found.status, "turn_id": found.turn_id, "session_id": found.session_id}
    return CallToolResult(
        content=[_text(sentence_of(found)), _text(msgspec.json.encode(where).decode())],
        structured_content=msgspec.to_builtins(found), is_error=found.status in ("failed", "cancelled"),
    )  # fmt: skip


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
