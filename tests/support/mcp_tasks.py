"""Tasks of MCP (the extension ``io.modelcontextprotocol/tasks``) for the official client, which lacks them."""

from typing import Any, ClassVar, Literal

from mcp.client import ClientExtension
from mcp.client.extension import ClaimContext, ResultClaim
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict, TypeAdapter

EXTENSION = "io.modelcontextprotocol/tasks"
ANY: Any = TypeAdapter(dict[str, Any])


class NewTask(Result):
    """The task that a server returns instead of a result."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class Params(RequestParams):
    model_config = ConfigDict(extra="allow")
    task_id: str


class OfTask(Request[Params, str]):
    """A request about a task."""

    name_param: ClassVar[str | None] = "taskId"


async def about_task(session: Any, method: str, task: str, **more: Any) -> dict[str, Any]:
    """Return what the server answers to a request about a task."""
    params = Params(task_id=task, **more)
    return await session.send_request(OfTask(method=method, params=params), ANY)


class Tasks(ClientExtension):
    """Polls tasks until they end. ``seen`` has their states."""

    identifier = EXTENSION

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=NewTask, resolve=self._ended)]

    async def _ended(self, task: NewTask, context: ClaimContext) -> CallToolResult:
        while True:
            state = await about_task(context.session, "tasks/get", task.task_id)
            self.seen.append(state)
            if state["status"] == "completed":
                return CallToolResult.model_validate(state["result"])
            if state["status"] == "input_required":
                await about_task(
                    context.session, "tasks/update", task.task_id,
                    inputResponses={
                        name: {"action": "accept", "content": {"approve": True}} for name in state["inputRequests"]
                    },
                )  # fmt: skip
            assert state["status"] in ("working", "input_required"), state
