"""Questions of a tool suspend the turn, and their answers continue the call on any worker."""

from contextlib import asynccontextmanager
from typing import Annotated

import pytest
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp_types import ElicitRequest, ElicitRequestURLParams, InputRequiredResult
from pydantic import BaseModel
from support.eventually import wait_until_async
from support.here import running_worker
from support.mcp_servers import Desk

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.testing import script, tool_call
from antiphon_worker.app import App
from antiphon_worker.mcp.servers import close_servers

pytestmark = pytest.mark.one_server

BOOK = tool_call("desk__book", flight="LX 8")


class Seat(BaseModel):
    row: int


class Airline(Desk):
    """``book`` asks for a seat, and then whether it may cost more. ``calls`` are the calls that have arrived."""

    def __init__(self, **options):
        super().__init__(json=True, **options)
        self.calls = []

        class Price(BaseModel):
            agreed: bool

        async def which_seat() -> Elicit[Seat]:
            return Elicit("Which row?", Seat)

        async def agreed(seat: Annotated[Seat, Resolve(which_seat)]) -> Elicit[Price] | Price:
            return Elicit("Row 1 costs more. Do you agree?", Price) if seat.row == 1 else Price(agreed=True)

        @self.server.tool()
        async def book(
            flight: str,
            seat: Annotated[Seat, Resolve(which_seat)],
            price: Annotated[Price, Resolve(agreed)],
        ) -> str:
            """Book a seat."""
            self.calls.append(flight)
            return f"{flight}: row {seat.row}, {price.agreed}"

        @self.server.tool()
        async def pay(context: Context) -> str | InputRequiredResult:
            """Pay."""
            if context.input_responses:
                return context.input_responses["page"].action
            request = ElicitRequest(
                params=ElicitRequestURLParams(message="Pay here.", url="https://pay.example/1")
            )
            return InputRequiredResult(input_requests={"page": request}, request_state="r1")

        @self.server.tool()
        async def work(context: Context) -> str | InputRequiredResult:
            """Work for some rounds."""
            rounds = int(context.request_state or 0)
            return f"after {rounds}" if rounds == 2 else InputRequiredResult(request_state=str(rounds + 1))


async def waiting_for(turn):
    """The only wait of a suspended turn."""

    async def suspended():
        return (await turn.info()).waits

    [wait] = await wait_until_async(suspended, 20)
    return wait


def app_of(desk, *said, **options):
    return App([Agent(script(*said, "Done."), "any", name="a", mcp=[desk.declared(**options)])])


@asynccontextmanager
async def stand(redis_url, call):
    """A worker with an agent that makes this call."""
    async with (
        Airline().running() as desk, AsyncClient(redis_url) as client, running_worker(redis_url, app_of(desk, call)),
    ):  # fmt: skip
        yield desk, client
        await close_servers()


async def test_a_question_suspends_the_turn_until_it_is_answered_and_any_worker_continues(redis_url):
    async with Airline().running() as desk, AsyncClient(redis_url) as client:
        app = app_of(desk, BOOK)
        turn = await client.submit("s", "Go.", agent="a", tenant="acme")
        async with running_worker(redis_url, app):
            wait = await waiting_for(turn)
        [(name, question)] = wait.about["questions"].items()
        assert question["message"] == "Which row?"
        assert question["schema"]["properties"]["row"]["type"] == "integer"
        assert not desk.calls
        await client.send_event(
            wait.event, {name: {"action": "accept", "content": {"row": 1}}}, tenant="acme"
        )
        async with running_worker(redis_url, app):
            second = await wait_until_async(lambda: _other(turn, wait), 20)
            [(name, question)] = second.about["questions"].items()
            assert question["message"] == "Row 1 costs more. Do you agree?"
            await client.send_event(
                second.event, {name: {"action": "accept", "content": {"agreed": True}}}, tenant="acme"
            )
            [call] = (await turn.result()).tool_calls
            await close_servers()
    assert (call.result, call.is_error, desk.calls) == ("LX 8: row 1, True", False, ["LX 8"])


async def _other(turn, before):
    return next((one for one in (await turn.info()).waits if one.name != before.name), None)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "Cancel"),
        ({"action": "accept"}, "must name"),
        ("yes", "must name"),
        ({"*": {"action": "decline"}}, "Decline"),
        ({"*": {"action": "perhaps"}}, "must name"),
        ({"*": {"action": "accept", "content": {"row": "first"}}}, ""),
    ],
)
async def test_an_answer_that_does_not_agree_is_an_error_of_the_call(redis_url, answers, said):
    async with stand(redis_url, BOOK) as (desk, client):
        turn = await client.submit("s", "Go.", agent="a")
        wait = await waiting_for(turn)
        if isinstance(answers, dict) and "*" in answers:
            answers = dict.fromkeys(wait.about["questions"], answers["*"])
        await client.send_event(wait.event, answers)
        [call] = (await turn.result()).tool_calls
    assert call.is_error
    assert said.lower() in call.result.lower()
    assert not desk.calls


async def test_a_page_that_the_user_is_to_visit_is_a_question_with_its_address(redis_url):
    async with stand(redis_url, tool_call("desk__pay")) as (_, client):
        turn = await client.submit("s", "Go.", agent="a")
        wait = await waiting_for(turn)
        assert wait.about == {"questions": {"page": {"message": "Pay here.", "url": "https://pay.example/1"}}}
        await client.send_event(wait.event, {"page": {"action": "accept"}})
        [call] = (await turn.result()).tool_calls
    assert (call.result, call.is_error) == ("accept", False)


async def test_a_tool_that_needs_more_time_is_asked_again_without_a_worker(redis_url):
    async with stand(redis_url, tool_call("desk__work")) as (_, client):
        events = [event async for event in client.session("s", agent="a").stream("Go.")]
    [result] = [event.result for event in events if event.type == "tool_result"]
    assert result == "after 2"
    assert [event.type for event in events].count("turn_sleeping") == 2


async def test_a_question_of_an_earlier_protocol_is_an_error_of_the_call(redis_url):
    async with Airline(modern=False).running() as desk:
        agent = Agent(script(BOOK, "Done."), "any", mcp=[desk.declared()])
        [call] = (await agent.session_async().run("Go.")).tool_calls
        await close_servers()
    assert call.is_error
    assert not desk.calls
