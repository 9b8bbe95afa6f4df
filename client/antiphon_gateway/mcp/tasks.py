"""Turns as tasks of the extension ``io.modelcontextprotocol/tasks``: the id of a task is that of its turn.

A client that declares the extension gets a task for each message to an agent, and polls it at any gateway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcp import MCPError
from mcp.server import Server, ServerRequestContext
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    InputResponses,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antiphon.errors import AgentError, NotFound, UsageError
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnInfo
from antiphon.text import time_text
from antiphon_gateway.http.operations import Call
from antiphon_gateway.mcp.questions import can_ask, give_answers, questions_of
from antiphon_gateway.mcp.tools import Outcome
from antiphon_gateway.mcp.turns import outcome_of, sentence_of
from antiphon_gateway.problems import Refused, problem_of

EXTENSION = "io.modelcontextprotocol/tasks"
POLL_MS = 1000
_REQUIRED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
P = TypeVar("P", bound="OfTask")
Shown = Callable[[Outcome], CallToolResult]


class OfTask(RequestParams):
    """The task of a request."""

    task_id: str


class UpdateTask(OfTask):
    """Answers to the questions of a task."""

    input_responses: InputResponses


def takes_tasks(context: ServerRequestContext[Any]) -> bool:
    """Return whether a request may be answered with a task."""
    known = context.session.client_capabilities
    declared = known is not None and EXTENSION in (known.extensions or {})
    return declared and context.protocol_version in MODERN_PROTOCOL_VERSIONS


async def new_task(turn: AsyncTurn) -> dict[str, Any]:
    """Return the task of a submitted turn."""
    return {"resultType": "task", **_task(await turn.info(), "working")}


def serve_tasks(server: Server[Any], call: Call[Any, Any], shown: Shown) -> None:
    """Let clients read, answer and cancel the tasks of a caller. ``shown`` makes the result of an ended turn."""
    tasks = _Tasks(call, shown)
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", OfTask, tasks.handler(tasks.get))
    server.add_request_handler("tasks/update", UpdateTask, tasks.handler(tasks.update))
    server.add_request_handler("tasks/cancel", OfTask, tasks.handler(tasks.cancel))


class _Tasks:
    def __init__(self, call: Call[Any, Any], shown: Shown) -> None:
        self._call, self._shown = call, shown

    def handler(
        self, method: Callable[[ServerRequestContext[Any], AsyncTurn, P], Awaitable[dict[str, Any]]]
    ) -> Callable[[ServerRequestContext[Any], P], Awaitable[dict[str, Any]]]:
        """Return the handler of a method: it finds the turn, and converts errors to those of the protocol."""

        async def handle(context: ServerRequestContext[Any], params: P) -> dict[str, Any]:
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
            if not takes_tasks(context):
                raise MCPError(
                    MISSING_REQUIRED_CLIENT_CAPABILITY, f"Declare the extension {EXTENSION}.", _REQUIRED
                )
            try:
                return await method(context, await self._call.turn(params.task_id), params)
            except (AgentError, Refused) as exc:
                self._call.services.refused(exc)
                code = INVALID_PARAMS if isinstance(exc, NotFound | UsageError) else -32603
                raise MCPError(code, problem_of(exc).detail) from None

        return handle

    async def get(
        self, context: ServerRequestContext[Any], turn: AsyncTurn, params: OfTask
    ) -> dict[str, Any]:
        info, found = await turn.info(), await outcome_of(self._call, turn)
        match found.status:
            case "finished" | "failed":
                result = self._shown(found).model_dump(by_alias=True, mode="json", exclude_none=True)
                return {**_task(info, "completed"), "result": result}
            case "cancelled":
                return {**_task(info, "cancelled"), "statusMessage": found.error}
            case "suspended" if found.calls and can_ask(self._call, context):
                asked = {
                    name: one.model_dump(by_alias=True, mode="json", exclude_none=True)
                    for name, one in questions_of(found).items()
                }
                return {**_task(info, "input_required"), "inputRequests": asked}
            case _:
                message = {"statusMessage": sentence_of(found)} if found.calls else {}
                return {**_task(info, "working"), **message}

    async def update(
        self, context: ServerRequestContext[Any], turn: AsyncTurn, params: UpdateTask
    ) -> dict[str, Any]:
        await give_answers(self._call, turn, params.input_responses)
        return {}

    async def cancel(
        self, context: ServerRequestContext[Any], turn: AsyncTurn, params: OfTask
    ) -> dict[str, Any]:
        self._call.caller.check_right("write")
        await turn.cancel()
        return {}


def _task(info: TurnInfo, status: str) -> dict[str, Any]:
    changed = max(info.created, info.started or 0, info.ended or 0)
    return {
        "taskId": info.turn_id, "status": status, "createdAt": time_text(info.created),
        "lastUpdatedAt": time_text(changed), "ttlMs": None, "pollIntervalMs": POLL_MS,
    }  # fmt: skip
