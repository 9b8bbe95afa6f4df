"""A call that becomes a task of its server suspends the turn until the task ends, on any worker."""

import pytest
from mcp import MCPError
from mcp.server.extension import Extension, MethodBinding
from mcp_types import INVALID_PARAMS
from support.eventually import wait_until_async
from support.here import running_worker
from support.mcp_servers import Desk

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.mcp import tasks
from antiphon_worker.mcp.servers import close_servers
from antiphon_worker.mcp.task_models import EXTENSION, TaskParams

pytestmark = pytest.mark.one_server

COOK = tool_call("desk__cook", dish="soup")
TOKEN = "token-Zx81-secret"


class Kitchen(Desk):
    """``cook`` is a task. ``state`` is what the server says about it; ``given`` are the answers that have come."""

    def __init__(self):
        super().__init__(json=True)
        kitchen = self
        self.task = "t1"
        self.state, self.given, self.calls, self.looks = {"status": "working"}, [], [], 0

        class Tasks(Extension):
            identifier = EXTENSION

            async def intercept_tool_call(self, params, context, call_next):
                if params.name != "cook":
                    return await call_next(context)
                assert EXTENSION in context.session.client_capabilities.extensions
                kitchen.calls.append(params.arguments)
                return {
                    "resultType": "task",
                    "taskId": kitchen.task,
                    "status": "working",
                    "pollIntervalMs": 1000,
                    "ttlMs": None,
                }

            def methods(self):
                return [
                    MethodBinding("tasks/get", TaskParams, kitchen.look),
                    MethodBinding("tasks/update", TaskParams, kitchen.update),
                ]

        self.server = type(self.server)("desk", extensions=[Tasks()])

        @self.server.tool()
        async def cook(dish: str) -> str:
            """Cook."""
            raise AssertionError

    async def look(self, context, params):
        self.looks += 1
        if params.task_id != "t1" or self.state is None:
            raise MCPError(INVALID_PARAMS, "Task not found")
        return {"taskId": "t1", "ttlMs": None, "pollIntervalMs": 1000, **self.state}

    async def update(self, context, params):
        self.given.append({name: one.content for name, one in params.input_responses.items()})
        self.ends("soup")
        return {}

    def ends(self, text, **more):
        self.state = {"status": "completed", "result": {"content": [{"type": "text", "text": text}], **more}}

    async def looked(self, times=1):
        before = self.looks
        await wait_until_async(lambda: self.looks >= before + times, 30, "the task was looked at")


def app_of(desk, *said, **options):
    return App([Agent(script(*said, "Done."), "any", name="a", mcp=[desk.declared(**options)])])


async def call_of(turn):
    [call] = (await turn.result()).tool_calls
    return call


async def test_the_turn_is_suspended_until_the_task_ends_and_any_worker_continues(redis_url):
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        app = app_of(kitchen, COOK)
        kitchen.state["statusMessage"] = "The water boils."
        turn = await client.submit("s", "Go.", agent="a")
        async with running_worker(redis_url, app):
            await kitchen.looked(2)

            async def suspended():
                return (await turn.info()).status == "suspended"

            await wait_until_async(suspended, 20)
            await close_servers()
        kitchen.ends("The soup is ready.")
        async with running_worker(redis_url, app):
            call = await call_of(turn)
            await close_servers()
        events = [event async for event in turn.stream()]
    assert (call.result, call.is_error, kitchen.calls) == ("The soup is ready.", False, [{"dish": "soup"}])
    assert "The water boils." in {event.text for event in events if event.type == "tool_progress"}
    assert "turn_sleeping" in {event.type for event in events}


async def test_a_task_asks_the_user_once(redis_url):
    question = {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": "How much salt?",
            "requestedSchema": {"type": "object", "properties": {}},
        },
    }
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.state = {"status": "input_required", "inputRequests": {"salt": question}}
        turn = await client.submit("s", "Go.", agent="a")
        async with running_worker(redis_url, app_of(kitchen, COOK)):

            async def asked():
                return next((wait for wait in (await turn.info()).waits if wait.about), None)

            wait = await wait_until_async(asked, 20)
            assert wait.about["questions"]["salt"]["message"] == "How much salt?"
            await client.send_event(wait.event, {"salt": {"action": "accept", "content": {"grams": 2}}})
            call = await call_of(turn)
            await close_servers()
    assert (call.result, kitchen.given) == ("soup", [{"salt": {"grams": 2}}])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            {"status": "failed", "error": {"code": -32603, "message": "No gas."}},
            "The task was failed: No gas.",
        ),
        ({"status": "cancelled"}, "The task was cancelled: It gives no reason."),
        ({"status": "completed", "result": {"content": "soup"}}, "does not follow the protocol"),
        ({"status": "completed"}, "does not follow the protocol"),
        ({"status": "burning"}, "does not follow the protocol"),
        (None, "Task not found"),
        (
            {
                "status": "completed",
                "result": {"content": [{"type": "text", "text": "Burnt."}], "isError": True},
            },
            "Burnt.",
        ),
    ],
    ids=[
        "failed",
        "cancelled",
        "wrong result",
        "no result",
        "wrong status",
        "unknown",
        "an error of the tool",
    ],
)
async def test_a_task_without_a_result_is_an_error_of_the_call(redis_url, state, said):
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.state = state
        async with running_worker(redis_url, app_of(kitchen, COOK)):
            call = await call_of(await client.submit("s", "Go.", agent="a"))
            await close_servers()
    assert call.is_error
    assert said in call.result


async def test_credentials_in_the_texts_of_a_task_are_removed(redis_url):
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.ends(f"{TOKEN} soup")
        async with running_worker(redis_url, app_of(kitchen, COOK, auth=lambda _: TOKEN)):
            call = await call_of(await client.submit("s", "Go.", agent="a"))
            await close_servers()
    assert call.result == "[credentials] soup"


async def test_a_task_whose_id_repeats_credentials_is_an_error(redis_url):
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.task = TOKEN
        async with running_worker(redis_url, app_of(kitchen, COOK, auth=lambda _: TOKEN)):
            call = await call_of(await client.submit("s", "Go.", agent="a"))
            await close_servers()
    assert (call.result, call.is_error) == ("The tool repeats credentials in the id of its task.", True)


async def test_a_server_that_cannot_be_reached_for_a_while_loses_no_task(redis_url, monkeypatch):
    failures = iter([True, True, False])
    original = tasks._Task._look

    async def looks(self, connection):
        if next(failures, False):
            raise tasks.Unreachable("down")
        return await original(self, connection)

    monkeypatch.setattr(tasks._Task, "_look", looks)
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.ends("soup")
        async with running_worker(redis_url, app_of(kitchen, COOK)):
            call = await call_of(await client.submit("s", "Go.", agent="a"))
            await close_servers()
    assert call.result == "soup"


async def test_a_task_whose_server_stays_away_is_an_error(redis_url, monkeypatch):
    async def down(self, connection):
        raise tasks.Unreachable("down")

    monkeypatch.setattr(tasks._Task, "_look", down)
    monkeypatch.setattr(tasks, "MOST_FAILURES", 2)
    async with (
        Kitchen().running() as kitchen,
        AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):
        call = await call_of(await client.submit("s", "Go.", agent="a"))
        await close_servers()
    assert (call.is_error, "cannot be reached any more" in call.result) == (True, True)
