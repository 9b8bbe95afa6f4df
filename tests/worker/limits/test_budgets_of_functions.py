"""Turn functions draw on budgets as agents do: each of their model calls is reserved and settled."""

import asyncio

import pytest
from support.cells import open_cell
from support.here import running_worker

from antiphon import Agent, Message
from antiphon.client import AsyncClient
from antiphon.errors import BudgetReached, TurnFailed
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.model import Budget, Text, ToolCall
from antiphon.model.usage import Usage
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price

pytestmark = pytest.mark.one_server
PRICES = {"any": Price(input=0.0, output=1000.0)}


def app_of(run, **options):
    agent = Agent("framework", "any", name="a", max_tokens=500, **options)
    return App(agents=[agent], providers={"framework": TurnFunction(run)}, prices=PRICES)


def costing(turn, tokens, *calls):
    async def ask():
        return ModelAnswer(Message.assistant([Text("Done."), *calls]), Usage(1, tokens))

    return turn.model_call(ask)


async def run(client, session="s"):
    return await (await client.submit(session, "Hello", agent="a")).result(20)


async def test_each_model_call_is_charged(redis_url):
    """Also those inside a tool, which are made side by side and charged one after the other."""

    async def work(turn):
        await costing(turn, 100, ToolCall("c1", "look", {}), ToolCall("c2", "look", {}))

        async def look(context):
            return (await costing(turn, 30)).message.text

        await asyncio.gather(turn.tool_call("c1", look), turn.tool_call("c2", look))
        await costing(turn, 7)

    app = app_of(work, budgets=[Budget(cost=1)])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await run(client)
        found = await cell.redis.hmget(cell.keys.spent("agent:day:a"), "cost", "held_cost", "estimated_cost")
        assert [int(one or 0) for one in found] == [167_000_000, 0, 0]


async def test_a_function_makes_no_call_when_its_budget_is_used_up(redis_url):
    """It ends the turn, also where the function catches the error and asks again, and is said once."""
    asked = []

    async def work(turn):
        asked.append(turn.input[0].text)
        for _ in range(2):
            try:
                await costing(turn, 1000)
            except BudgetReached:
                continue

    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(work, budgets=[Budget(cost=1)])),
    ):
        for session in ("s1", "s2"):
            turn = await client.submit(session, "Hello", agent="a")
            assert [event.type async for event in turn.stream()].count("budget_reached") == 1
            with pytest.raises(BudgetReached):
                await turn.result(20)
    assert len(asked) == 2


async def test_what_a_function_raises_costs_nothing(redis_url):
    async def work(turn):
        async def ask():
            raise KeyError("x")

        await turn.model_call(ask)

    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        async with running_worker(redis_url, app_of(work, budgets=[Budget(cost=1)])):
            with pytest.raises(TurnFailed):
                await run(client)
        assert int((await cell.redis.hget(cell.keys.spent("agent:day:a"), "held_cost")) or 0) == 0
