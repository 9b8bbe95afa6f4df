"""Trees of turns that somebody attacks: agents that ask themselves, queues without workers, deleted sessions."""

import pytest
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER
from worker.process.test_children import (
    ASK,
    Desk,
    _after_its_tool,
    _pending,
    asking,
    stored,
)

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.errors import TurnNotFound
from antiphon.testing import script, tool_call
from antiphon.tools import Context
from antiphon_worker.app import App

pytestmark = pytest.mark.one_server


def _asking_itself(request):
    last = request.messages[-1]
    return last.tool_results[0].text if last.role == "tool" else tool_call("ask", text="Again.")


async def test_an_agent_that_asks_itself_ends_at_the_depth(place):
    desk = Desk()

    @tool
    async def ask(text: str, context: Context) -> str:
        """Ask the same agent."""
        return await context.run_agent(desk.writer, text)

    desk.writer = Agent(script(_asking_itself, repeat=True), "any", name="writer", tools=[ask])
    async with place(desk.writer) as session_of:
        turn = await session_of("s").submit("Go.")
        response = await turn.result(60)
        found, depth = await turn.tree(), 0
        while found.children:
            [found] = found.children
            depth += 1
    assert "nested 3 deep" in response.text
    assert depth == 3


async def test_a_child_that_no_worker_takes_ends_in_its_queue(redis_url):
    desk = Desk(timeout=0.5)
    desk.research.queue = "nobody"
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", "Plan it.", agent="writer")
        [call] = (await turn.result(30)).tool_calls
        [child] = (await turn.tree()).children
    assert call.result == "The agent research did not answer in time, and was stopped."
    assert (child.status, child.started) == ("cancelled", None)


async def test_a_tree_whose_child_is_suspended_is_deleted_with_its_session(redis_url):
    desk = Desk(
        tool_call("research", input=MARKER), MARKER, answers=(_after_its_tool,), tools=[asking("refunded")]
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        turn = await client.submit("s", MARKER, agent="writer")
        [call] = await _pending(turn, 1)
        child = client.turn(call.call_id.partition(":")[0])
        assert await client.session("s").delete()

        async def gone():
            return not stored(redis_url)

        await wait_until_async(gone, 20, "nothing is left")
        with pytest.raises(TurnNotFound):
            await (await child).info()


async def test_forgetting_a_user_of_one_tenant_leaves_the_trees_of_another(redis_url):
    desk = Desk([ASK], MARKER, answers=(MARKER,))
    desk.said.entries, desk.said.repeat = [_done_or_asking], True
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[desk.writer])):
        for tenant in ("acme", "other"):
            turn = await client.submit(f"of-{tenant}", "Plan it.", agent="writer", tenant=tenant, user="ann")
            await turn.result(20)
        erased = await client.forget(user="ann", tenant="acme")
        assert len(erased.sessions) == 2
        assert erased.left == []
        [child] = await client.session("of-other", tenant="other").children()
        assert (await client.session(child, tenant="other").messages())[-1].text == MARKER
        assert await client.session("of-acme", tenant="acme").children() == []


def _done_or_asking(request):
    return MARKER if request.messages[-1].role == "tool" else ASK
