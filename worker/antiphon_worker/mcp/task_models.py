"""The messages of tasks: the extension ``io.modelcontextprotocol/tasks`` of the protocol of 2026-07-28."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NoReturn

from mcp.client import ClientExtension
from mcp.client.extension import ResultClaim
from mcp_types import InputRequests, InputResponses, Request, RequestParams, Result

EXTENSION = "io.modelcontextprotocol/tasks"


class NewTask(Result):
    """What a server may return in place of the result of a tool."""

    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: int | None = None


class TaskState(Result):
    """A task at the moment of reading."""

    status: Literal["working", "input_required", "completed", "cancelled", "failed"]
    status_message: str | None = None
    poll_interval_ms: int | None = None
    input_requests: InputRequests | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class TaskParams(RequestParams):
    task_id: str
    input_responses: InputResponses | None = None


class TaskRequest(Request[TaskParams, Literal["tasks/get", "tasks/update", "tasks/cancel"]]):
    """A request about a task. Its header names the task, for load balancers."""

    name_param: ClassVar[str | None] = "taskId"


class Tasks(ClientExtension):
    """Declares to servers that calls may return tasks."""

    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=NewTask, resolve=_elsewhere)]


async def _elsewhere(*_: Any) -> NoReturn:
    raise NotImplementedError("Turns wait for tasks themselves.")
