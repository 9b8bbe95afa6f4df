"""A call that becomes a task of its server suspends the turn until the task ends, on any worker."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest
from mcp import MCPError
from mcp.server.extension import Extension, MethodBinding
from mcp_types import INVALID_PARAMS
from support.eventually import wait_until_async
from support.here import running_worker
from support.mcp_servers import Desk
from support.proxy import Proxy

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import TurnCancelled
from antiphon.mcp import Requester
from antiphon.testing import script, tool_call
from antiphon.tools import Context
from antiphon_worker.app import App
from antiphon_worker.loop.durable import CallWaits, Durable, UnpublishedCall
from antiphon_worker.loop.steps import DurableResult
from antiphon_worker.mcp import tasks
from antiphon_worker.mcp.questions import Pending
from antiphon_worker.mcp.servers import close_servers, server
from antiphon_worker.mcp.task_models import EXTENSION, TaskParams

pytestmark = pytest.mark.one_server

COOK = tool_call("desk__cook", dish="soup")
TOKEN = "token-Zx81-secret"
CONTEXT = Context("s", "t", "", {}, 1, 1)
SALT = {
    "method": "elicitation/create",
    "params": {
        "mode": "form", "message": "How much salt?", "requestedSchema": {"type": "object", "properties": {}}
    },
}  # fmt: skip


class Kitchen(Desk):
    """``cook`` is a task. ``state`` is what the server says about it; ``given`` are the answers that have come."""

    def __init__(self):
        super().__init__(json=True)
        kitchen = self
        self.task = "t1"
        self.cancelled, self.may_cancel = [], asyncio.Event()
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
                    MethodBinding("tasks/cancel", TaskParams, kitchen.cancel),
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

    async def cancel(self, context, params):
        self.cancelled.append(params.task_id)
        await self.may_cancel.wait()
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


async def asked_of(turn):
    """The wait of a turn that has questions."""

    async def asked():
        return next((wait for wait in (await turn.info()).waits if wait.about), None)

    return await wait_until_async(asked, 20)


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
    async with Kitchen().running() as kitchen, AsyncClient(redis_url) as client:
        kitchen.state = {"status": "input_required", "inputRequests": {"salt": SALT}}
        turn = await client.submit("s", "Go.", agent="a")
        async with running_worker(redis_url, app_of(kitchen, COOK)):
            wait = await asked_of(turn)
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
            "The task has failed: No gas.",
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


@asynccontextmanager
async def kitchen_on_a_network():
    """A server whose network a test may cut, with the proxy that does."""
    async with Kitchen().running() as kitchen:
        with Proxy(urlsplit(kitchen.url).port) as proxy:
            kitchen.url = f"http://127.0.0.1:{proxy.port}/mcp"
            yield kitchen, proxy


async def away(proxy, times=2):
    """Cut the network until the server was asked so often in vain."""
    proxy.refuse()
    before = proxy.accepted
    await wait_until_async(lambda: proxy.accepted >= before + times, 30, "the server was asked in vain")


async def test_a_server_that_is_away_for_a_while_loses_no_task(redis_url):
    async with (
        kitchen_on_a_network() as (kitchen, proxy), AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        turn = await client.submit("s", "Go.", agent="a")
        await kitchen.looked()
        await away(proxy)
        kitchen.ends("soup")
        proxy.heal()
        call = await call_of(turn)
        await close_servers()
    assert (call.result, call.is_error) == ("soup", False)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_load_balancer_without_its_server_loses_no_task(redis_url, status):
    async with (
        Kitchen().running() as kitchen, AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        turn = await client.submit("s", "Go.", agent="a")
        await kitchen.looked()
        kitchen.ends("soup")
        kitchen.away = status
        before = len(kitchen.seen)
        await wait_until_async(lambda: len(kitchen.seen) >= before + 2, 30, "the server was asked in vain")
        kitchen.away = 0
        call = await call_of(turn)
        await close_servers()
    assert (call.result, call.is_error) == ("soup", False)


async def test_answers_reach_a_server_that_was_away_and_are_asked_for_once(redis_url):
    async with (
        kitchen_on_a_network() as (kitchen, proxy), AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        kitchen.state = {"status": "input_required", "inputRequests": {"salt": SALT}}
        turn = await client.submit("s", "Go.", agent="a")
        wait = await asked_of(turn)
        proxy.refuse()
        await client.send_event(wait.event, {"salt": {"action": "accept", "content": {"grams": 2}}})
        await away(proxy)
        proxy.heal()
        call = await call_of(turn)
        await close_servers()
    assert (call.result, kitchen.given) == ("soup", [{"salt": {"grams": 2}}])


async def test_a_result_whose_server_is_away_is_read_later():
    """By another worker: the first one has died between the look and the result."""
    looked = {"status": "completed", "poll": 1.0, "questions": {}}
    journal = [DurableResult(1, "c", 1, "sleep"), DurableResult(1, "c", 2, "task", looked)]

    async def append(entries, events):
        journal.extend(entries)

    async def now():
        return clock[-1]

    clock = [0]
    async with kitchen_on_a_network() as (kitchen, proxy):
        kitchen.ends("soup")
        declared = kitchen.declared()

        async def result():
            durable = Durable("c", 1, {"c": [*journal]}, {}, append, now)
            context = CONTEXT.of_call("c", 1, UnpublishedCall(durable))
            use = partial(server(declared).use, Requester(None, None, "desk"))
            return await tasks.result_of_task(use, Pending("t1", 1.0), context)

        async with server(declared).use(Requester(None, None, "desk")):
            proxy.refuse()
        with pytest.raises(CallWaits):
            await result()
        clock.append(10_000)
        proxy.heal()
        assert await result() == "soup"
        await close_servers()


async def test_a_task_whose_server_stays_away_is_an_error(redis_url, monkeypatch):
    monkeypatch.setattr(tasks, "LONGEST_TASK", 3.0)
    async with (
        kitchen_on_a_network() as (kitchen, proxy), AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        turn = await client.submit("s", "Go.", agent="a")
        await kitchen.looked()
        proxy.refuse()
        call = await call_of(turn)
        await close_servers()
    assert (call.is_error, "cannot be reached any more" in call.result) == (True, True)


async def test_a_cancelled_turn_cancels_its_task_and_does_not_wait_for_that(redis_url):
    async with (
        Kitchen().running() as kitchen, AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        turn = await client.submit("s", "Go.", agent="a")
        await kitchen.looked()
        await turn.cancel("enough")
        with pytest.raises(TurnCancelled):
            await turn.result(30)
        await wait_until_async(lambda: kitchen.cancelled == ["t1"], 20)
        kitchen.may_cancel.set()
        await close_servers()


async def test_a_turn_is_cancelled_whose_server_is_away(redis_url):
    async with (
        kitchen_on_a_network() as (kitchen, proxy), AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(kitchen, COOK)),
    ):  # fmt: skip
        turn = await client.submit("s", "Go.", agent="a")
        await kitchen.looked()
        proxy.blackhole()
        await turn.cancel("enough")
        with pytest.raises(TurnCancelled):
            await turn.result(30)
        proxy.heal()
        await close_servers()
