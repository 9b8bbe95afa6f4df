"""Child turns draw on the budgets of the turns above them."""

import pytest
from support.cells import open_cell
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import BudgetReached
from antiphon.events import BudgetReachedEvent
from antiphon.model import Budget
from antiphon.model.usage import Usage
from antiphon.session.runtime import local_runtime
from antiphon.testing import answer, script, tool_call
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price
from antiphon_worker.process import budgets as module

pytestmark = pytest.mark.one_server

PRICES = {"any": Price(input=0.0, output=1000.0)}  # a tenth of a cent for each token


def costing(tokens, *calls):
    return answer(*(calls or ("Done.",)), usage=Usage(input_tokens=1, output_tokens=tokens))


def asking(count, name="research"):
    return [tool_call(name, input=f"Question {n}") for n in range(count)]


def research_of(*answers, **options):
    return Agent(script(*answers, repeat=True), "any", name="research", max_tokens=500, **options)


def writer_of(research, *answers, **options):
    options = {"max_tokens": 500} | options
    return Agent(script(*answers), "any", name="writer", tools=[research.as_tool()], **options)


async def used(cell, ledger):
    found = await cell.redis.hmget(cell.keys.spent(ledger), "cost", "held_cost")
    return [round(int(one or 0) / 1_000_000) for one in found]  # in tenths of a cent


async def run(client, session="s", **options):
    turn = await client.submit(session, "Hello", agent="writer", **options)
    return await turn.result(60)


async def until(turn, kind):
    """The first event of a kind."""
    async for event in turn.stream():
        if event.type == kind:
            yield event
            return


@pytest.mark.parametrize("per", ["turn", "session", "day"])
async def test_a_child_draws_on_the_budgets_of_its_parents_agent(redis_url, per):
    writer = writer_of(
        research_of(costing(300)), costing(100, *asking(1)), costing(50), budgets=[Budget(cost=1, per=per)]
    )
    async with (
        running_worker(redis_url, App(agents=[writer], prices=PRICES)),
        AsyncClient(redis_url) as client,
        open_cell(redis_url) as cell,
    ):
        turn = await client.submit("s", "Hello", agent="writer")
        await turn.result(20)
        ledger = {"turn": f"turn:{turn.id}", "session": "session::s", "day": "agent:day:writer"}[per]
        assert await used(cell, ledger) == [450, 0]


@pytest.mark.parametrize("scope", ["session", "tenant", "user"])
async def test_a_child_draws_on_the_budget_of_the_session_that_waits_for_it(redis_url, scope):
    """A budget per session counts the session of the parent, whoever's it is."""
    name = {"session": "s", "tenant": "acme", "user": "alice"}[scope]
    writer = writer_of(research_of(costing(300)), costing(100, *asking(1)), costing(50))
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        tenant = {"tenant": "acme"} if scope == "user" else {}
        await client.budgets(scope, name, **tenant).set([Budget(cost=1, per="session")])
        async with running_worker(redis_url, App(agents=[writer], prices=PRICES)):
            await run(client, tenant="acme", user="alice")
        assert await used(cell, "session::s") == [450, 0]


async def test_a_tree_draws_on_the_budget_of_the_turn_at_its_top(redis_url):
    look = Agent(script(costing(30), repeat=True), "any", name="look", max_tokens=500)
    research = Agent(
        script(costing(20, *asking(2, "look")), costing(200)), "any", name="research", max_tokens=500,
        tools=[look.as_tool()], budgets=[Budget(cost=1, per="turn")],
    )  # fmt: skip
    writer = writer_of(research, costing(100, *asking(1)), costing(50), budgets=[Budget(cost=1, per="turn")])
    async with (
        running_worker(redis_url, App(agents=[writer], prices=PRICES)),
        AsyncClient(redis_url) as client,
        open_cell(redis_url) as cell,
    ):
        turn = await client.submit("s", "Hello", agent="writer")
        await turn.result(20)
        [child] = {
            one.child_id async for one in turn.stream() if one.type == "child_event" and one.depth == 1
        }
        assert await used(cell, f"turn:{turn.id}") == [430, 0]
        assert await used(cell, f"turn:{child}") == [280, 0]


def test_a_child_is_rejected_where_its_parent_has_used_the_budget():
    writer = writer_of(
        research_of(costing(300)), costing(1000, *asking(1)), costing(1), budgets=[Budget(tokens=900, per="turn")]
    )  # fmt: skip
    session = writer.session("s")
    events = []
    with pytest.raises(BudgetReached, match="900 tokens of each turn"):
        events.extend(session.stream("Hello"))
    local_runtime().forget()


async def test_a_parent_is_rejected_where_its_child_has_used_the_budget(redis_url):
    writer = writer_of(
        research_of(costing(1000)), costing(1, *asking(1)), costing(1), budgets=[Budget(cost=1, per="turn")]
    )
    async with (
        running_worker(redis_url, App(agents=[writer], prices=PRICES)),
        AsyncClient(redis_url) as client,
    ):
        turn = await client.submit("s", "Hello", agent="writer")
        with pytest.raises(BudgetReached):
            await turn.result(20)
        assert [e.used async for e in turn.stream() if isinstance(e, BudgetReachedEvent)] == [1.001]


async def test_a_child_continues_when_the_budget_of_its_parents_session_is_raised(redis_url):
    writer = writer_of(research_of(costing(10)), costing(1000, *asking(1)), costing(1))
    async with AsyncClient(redis_url) as client:
        budgets = client.budgets("session", "s")
        await budgets.set([Budget(cost=1, per="day", reached="suspend")])
        async with running_worker(redis_url, App(agents=[writer], prices=PRICES)):
            turn = await client.submit("s", "Hello", agent="writer")
            [child] = [one async for one in until(turn, "child_event")]
            [waits] = [one async for one in until(await client.turn(child.child_id), "turn_retrying")]
            assert waits.code == "budget_reached"
            await budgets.set([Budget(cost=2, per="day", reached="suspend")])
            assert (await turn.result(20)).text == "Done."
        [state] = await budgets.read()
        assert (state.used, state.held) == (1.011, 0.0)


async def test_a_thousand_parallel_children_exceed_one_dollar_by_one_call(redis_url, monkeypatch):
    """Five turns with 200 children each share one dollar. Each call of a child costs up to five cents."""
    monkeypatch.setattr(module, "PAUSES", (0.01,) * 3)
    monkeypatch.setattr(module, "BACK_SECONDS", (0.05, 0.2))
    billed = []

    async def bill():
        billed.append(1)

    research = Agent(
        script(answer(bill, "Done.", usage=Usage(0, 49)), repeat=True), "any", name="research", max_tokens=50
    )
    writer = Agent(
        script(*[costing(1, *asking(200))] * 5, "Done.", repeat=True), "any", name="writer", max_tokens=5,
        tools=[research.as_tool()], budgets=[Budget(cost=1, per="day")],
    )  # fmt: skip
    async with (
        running_worker(redis_url, App(agents=[writer], prices=PRICES)),
        AsyncClient(redis_url) as client,
        open_cell(redis_url) as cell,
    ):
        turns = [await client.submit(f"s{n}", "Hello", agent="writer") for n in range(5)]
        for turn in turns:
            with pytest.raises(BudgetReached):
                await turn.result(120)
        [spent, held] = await used(cell, "agent:day:writer")
        events = [event for turn in turns async for event in turn.stream()]
    assert (spent, held) == (len(billed) * 49 + 5, 0)
    assert 1000 <= spent < 1000 + 50
    assert len({event.child_id for event in events if event.type == "child_event"}) == 1000
