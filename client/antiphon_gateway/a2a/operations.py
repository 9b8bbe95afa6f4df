"""The routes of the A2A protocol. The first request imports the package of the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from antiphon.errors import MissingPackage
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.problems import Refused, problem_response
from antiphon_gateway.published import A2AAgent

if TYPE_CHECKING:
    from antiphon_gateway.a2a.bindings import Binding

ROOT = "/a2a/"
WELL_KNOWN = ".well-known/agent-card.json"
_COUNT = ("historyLength", int | None, None)
TaskQuery = msgspec.defstruct("TaskQuery", [_COUNT], module=__name__)
TasksQuery = msgspec.defstruct(
    "TasksQuery",
    [
        *((name, str | None, None) for name in ("contextId", "status", "pageToken", "statusTimestampAfter")),
        ("pageSize", int | None, None), ("includeArtifacts", bool | None, None), _COUNT,
    ],
    module=__name__,
)  # fmt: skip


@operation("GET", "/" + WELL_KNOWN, right=None)
async def show_first_agent_card(call: Call[None, None]) -> Response:
    """Read the A2A card of the agent that is published first"""
    return _bound(call, next(iter(call.services.a2a.values()), None)).card()


@operation("GET", "/a2a/{agent}/" + WELL_KNOWN, right=None)
async def show_agent_card(call: Call[None, None]) -> Response:
    """Read the A2A card of a published agent: what it can do, where it is reached, and how callers authenticate"""
    return _bound(call).card()


@operation("POST", "/a2a/{agent}", right="read")
async def call_agent(call: Call[None, None]) -> Response:
    """Call a published agent by A2A's JSON-RPC binding

    `SendMessage`, `SendStreamingMessage` and `CancelTask` need the right to write.
    """
    return await _bound(call).rpc()


@operation("POST", "/a2a/{agent}/message:send", right="write")
async def send_a2a_message(call: Call[None, None]) -> Response:
    """Send a message to a published agent (A2A), and wait until its task has ended or asks for input"""
    return await _bound(call).rest("SendMessage")


@operation("POST", "/a2a/{agent}/message:stream", right="write")
async def stream_a2a_message(call: Call[None, None]) -> Response:
    """Send a message to a published agent (A2A), and stream the updates of its task"""
    return await _bound(call).rest("SendStreamingMessage")


@operation("GET", "/a2a/{agent}/tasks", right="read", query=TasksQuery)
async def list_a2a_tasks(call: Call[Any, None]) -> Response:
    """List the tasks of a published agent (A2A), the last change first"""
    return await _bound(call).rest("ListTasks")


@operation("GET", "/a2a/{agent}/tasks/{task}", right="read", query=TaskQuery)
async def show_a2a_task(call: Call[Any, None]) -> Response:
    """Read a task of a published agent (A2A); add `:subscribe` to the id to follow it"""
    return await _on_task(call, {"": "GetTask", "subscribe": "SubscribeToTask"})


@operation("POST", "/a2a/{agent}/tasks/{task}", right="read")
async def act_on_a2a_task(call: Call[None, None]) -> Response:
    """Cancel a task of a published agent (A2A), or follow it: add `:cancel` or `:subscribe` to the id

    With the header `Last-Event-ID`, a stream continues after the update that the client has seen last. To cancel needs
    the right to write.
    """
    return await _on_task(call, {"cancel": "CancelTask", "subscribe": "SubscribeToTask"})


@operation("POST", "/a2a/{agent}/tasks/{task}/pushNotificationConfigs", right="write")
async def set_a2a_push(call: Call[None, None]) -> Response:
    """Have push notifications about a task of a published agent (A2A) sent to a URL"""
    return await _bound(call).rest("CreateTaskPushNotificationConfig", task_id=call.path["task"])


@operation("GET", "/a2a/{agent}/tasks/{task}/pushNotificationConfigs", right="read")
async def list_a2a_push(call: Call[None, None]) -> Response:
    """List where push notifications about a task (A2A) are sent"""
    return await _bound(call).rest("ListTaskPushNotificationConfigs", task_id=call.path["task"])


@operation("GET", "/a2a/{agent}/tasks/{task}/pushNotificationConfigs/{config}", right="read")
async def show_a2a_push(call: Call[None, None]) -> Response:
    """Read where push notifications about a task (A2A) are sent"""
    return await _bound(call).rest(
        "GetTaskPushNotificationConfig", task_id=call.path["task"], id=call.path["config"]
    )


@operation("DELETE", "/a2a/{agent}/tasks/{task}/pushNotificationConfigs/{config}", right="write")
async def delete_a2a_push(call: Call[None, None]) -> Response:
    """Send push notifications about a task (A2A) there no more"""
    return await _bound(call).rest(
        "DeleteTaskPushNotificationConfig", task_id=call.path["task"], id=call.path["config"]
    )


@operation("GET", "/a2a/{agent}/extendedAgentCard", right="read")
async def show_extended_agent_card(call: Call[None, None]) -> Response:
    """Always refused: the A2A cards of agents are the same for every caller"""
    return await _bound(call).rest("GetExtendedAgentCard")


def refusal(error: Exception, route: str) -> Response:
    """Return the error response of a route of this protocol, in the form of its binding."""
    try:
        from antiphon_gateway.a2a.errors import rest_error, rpc_error
    except ImportError:
        return problem_response(error)
    return rpc_error(error) if route == call_agent.operation.route else rest_error(error)  # type: ignore[attr-defined]


async def _on_task(call: Call[Any, None], methods: dict[str, str]) -> Response:
    """Call the method for the verb after the id of a task. Ids contain no colon."""
    task, _, verb = call.path["task"].partition(":")
    if verb not in methods:
        known = " or ".join(f":{one}" for one in methods if one)
        raise Refused(404, "route_not_found", f"Add only {known} to the id of a task.")
    return await _bound(call).rest(methods[verb], id=task)


def _bound(call: Call[Any, None], agent: A2AAgent | None = None) -> Binding:
    """Return the published agent of the path, bound to this request. Raises ``Refused`` and ``MissingPackage``."""
    agent = agent or call.services.a2a.get(call.path.get("agent", ""))
    if agent is None:
        raise Refused(
            404, "agent_not_found", "No agent of this name is published by A2A: see a2a= of the gateway."
        )
    try:
        from antiphon_gateway.a2a.bindings import Binding
    except ImportError:
        raise MissingPackage("A2A needs the package a2a-sdk: pip install 'antiphon[a2a]'.") from None
    return Binding(call, agent)


OPERATIONS = [
    show_first_agent_card, show_agent_card, call_agent, send_a2a_message, stream_a2a_message, list_a2a_tasks,
    show_a2a_task, act_on_a2a_task, set_a2a_push, list_a2a_push, show_a2a_push, delete_a2a_push,
    show_extended_agent_card,
]  # fmt: skip
