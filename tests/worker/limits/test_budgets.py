"""Budgets: model calls reserve what they may use, and settle what they have used."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from support.cells import open_cell
from support.here import running_worker
from support.network import free_port
from support.servers import RedisServer

from antiphon import Agent, tool
from antiphon.client import AsyncClient
from antiphon.errors import (
    BudgetReached,
    ProviderRejected,
    StoreUnavailable,
    TurnCancelled,
    UnknownPrice,
    UsageError,
)
from antiphon.events import BudgetReachedEvent, ModelChanged, TurnRetrying
from antiphon.hooks import ModelEnd, hook
from antiphon.model import Budget
from antiphon.model.usage import Usage
from antiphon.redis.cells import open_cells
from antiphon.testing import answer, script, tool_call
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price
from antiphon_worker.process import budgets as module
from antiphon_worker.process.budgets import Budgets

PRICES = {
    "any": Price(input=0.0, output=1000.0),
    "cheap": Price(input=0.0, output=1.0),
}  # dollars a million tokens
ONE = Budget(cost=1.0, per="day")


def costing(tokens, text="Done."):
    """An answer of so many tenths of a cent."""
    return answer(text, usage=Usage(input_tokens=1, output_tokens=tokens))


def app_of(*answers, prices=PRICES, model="any", **options) -> App:
    options = {"max_tokens": 500, "name": "a"} | options
    return App(agents=[Agent(script(*answers), model, **options)], prices=prices)


async def run(client, session="s", **options):
    return await (await client.submit(session, "Hello", agent="a", **options)).result(20)


@pytest.mark.one_server
async def test_each_cell_has_all_budgets_so_that_one_that_is_away_stops_no_turn_without_any(
    redis_url, server_kind
):
    port = free_port()
    cells = open_cells([redis_url, f"redis://127.0.0.1:{port}/0"], retries=0)

    async def known():
        budgets = Budgets(cells)
        await budgets.look()
        return budgets._stored

    assert await known() == set()
    with RedisServer(server_kind, port=port):
        async with AsyncClient([redis_url, f"redis://127.0.0.1:{port}/0"]) as client:
            await client.budgets("agent", "a").set([Budget(tokens=1)])
        assert await known() == {"agent"}
    assert await known() == {"agent"}
    with pytest.raises(StoreUnavailable, match="cannot be read from any cell"):
        await Budgets(open_cells(f"redis://127.0.0.1:{port}/0", retries=0)).look()


async def ledger_of(cell, name):
    return {
        key.decode(): value.decode()
        for key, value in (await cell.redis.hgetall(cell.keys.spent(name))).items()
    }


async def test_a_budget_of_an_agent_holds_for_all_its_sessions(redis_url):
    app = app_of(costing(400), costing(700), budgets=[ONE])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await run(client, "s1")
        await run(client, "s2")
        with pytest.raises(BudgetReached, match=r"\$1 of the agent for the day is used up") as caught:
            await run(client, "s3")
        assert caught.value.limit == "agent_cost_per_day"
        ledger = await ledger_of(cell, "agent:day:a")
        assert (ledger["cost"], ledger["tokens"]) == ("1100000000", "1102")
        assert ledger["held_cost"] == ledger["held_tokens"] == "0"


@pytest.mark.parametrize(
    ("scope", "name", "submitted"),
    [
        ("tenant", "acme", {"tenant": "acme"}),
        ("user", "alice", {"user": "alice"}),
        ("user", "alice", {"user": "alice", "tenant": "acme"}),
        ("session", "s", {}),
        ("agent", "a", {}),
    ],
)
@pytest.mark.parametrize("own", [True, False])
async def test_a_stored_budget_holds_for_its_scope(redis_url, scope, name, submitted, own):
    app = app_of(costing(1000), costing(10))
    tenant = {"tenant": submitted["tenant"]} if scope == "user" and "tenant" in submitted else {}
    async with AsyncClient(redis_url) as client:
        await client.budgets(scope, name if own else None, **tenant if own else {}).set(
            [Budget(cost=1, per="month")]
        )
        async with running_worker(redis_url, app):
            await run(client, **submitted)
            with pytest.raises(BudgetReached) as caught:
                await run(client, **submitted)
            assert caught.value.limit == f"{scope}_cost_per_month"
            [state] = await client.budgets(scope, name, **tenant).read()
            assert (state.used, state.held, state.estimated, state.ends is not None) == (1.0, 0, 0, True)
            await client.budgets(scope, name, **tenant).set([Budget(cost=2, per="month")])
            assert (await run(client, **submitted)).text == "Done."


async def test_users_of_two_tenants_are_two_users(redis_url):
    app = app_of(costing(1000), costing(10))
    async with AsyncClient(redis_url) as client:
        await client.budgets("user", None).set([ONE])
        async with running_worker(redis_url, app):
            await run(client, "s1", tenant="acme", user="alice")
            await run(client, "s2", tenant="other", user="alice")
            with pytest.raises(BudgetReached):
                await run(client, "s1", user="alice")


@pytest.mark.parametrize("per", ["turn", "session"])
async def test_a_budget_of_each_turn_or_session(redis_url, per):
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    dear = answer(tool_call("look"), usage=Usage(1, 1000))
    app = app_of(dear, costing(1), costing(1), tools=[look], budgets=[Budget(tokens=1000, per=per)])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        turn = await client.submit("s1", "Hello", agent="a")
        with pytest.raises(BudgetReached, match="1,000 tokens of "):
            await turn.result(20)
        assert (await turn.info()).usage.tokens == 1001
        if per == "turn":
            assert (await run(client, "s1")).text == "Done."
        else:
            with pytest.raises(BudgetReached):
                await run(client, "s1")
        assert (await run(client, "s2")).text == "Done."


async def test_readers_see_which_budget_is_reached_and_not_whose(redis_url):
    app = app_of(costing(1000), costing(1))
    async with AsyncClient(redis_url) as client:
        await client.budgets("tenant", "acme").set([ONE])
        async with running_worker(redis_url, app):
            await run(client, tenant="acme")
            turn = await client.submit("s", "Again", agent="a")
            events = [event async for event in turn.stream()]
        [event] = [event for event in events if isinstance(event, BudgetReachedEvent)]
        assert (event.scope, event.per, event.unit, event.action) == ("tenant", "day", "cost", "reject")
        assert (event.limit, event.used) == (1.0, 1.0)
        assert "acme" not in (await turn.info()).error


async def test_a_model_without_a_price_cannot_be_charged(redis_url):
    app = app_of(costing(1), model="unknown", budgets=[ONE])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        with pytest.raises(UnknownPrice, match="cannot be charged to a budget"):
            await run(client)


async def test_a_model_without_a_price_is_charged_in_tokens(redis_url):
    app = app_of(costing(1), model="unknown", budgets=[Budget(tokens=1, per="day")])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        assert (await run(client)).text == "Done."
        with pytest.raises(BudgetReached):
            await run(client, "s2")


async def test_a_cheaper_model_answers_when_the_budget_is_reached(redis_url):
    agent = Agent(
        script(costing(1000), costing(1)), "any", name="a", max_tokens=500, fallback=["scripted/cheap"],
        budgets=[Budget(cost=1, per="day", reached="fallback")],
    )  # fmt: skip
    async with (
        running_worker(redis_url, App(agents=[agent], prices=PRICES)),
        AsyncClient(redis_url) as client,
    ):
        await run(client, "s1")
        turn = await client.submit("s2", "Hello", agent="a")
        events = [event async for event in turn.stream()]
        assert (await turn.result(20)).text == "You said: Hello"
        assert [event.action for event in events if isinstance(event, BudgetReachedEvent)] == ["fallback"]
        [changed] = [event for event in events if isinstance(event, ModelChanged)]
        assert (changed.target, changed.code) == ("scripted/cheap", "budget_reached")


async def test_without_a_fallback_the_turn_is_rejected(redis_url):
    app = app_of(costing(1000), costing(1), budgets=[Budget(cost=1, per="day", reached="fallback")])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        await run(client, "s1")
        with pytest.raises(BudgetReached):
            await run(client, "s2")


async def test_a_call_waits_while_others_hold_the_rest(redis_url, monkeypatch):
    """Two calls of half a dollar each do not fit beside each other: the second waits until the first is settled."""
    monkeypatch.setattr(module, "PAUSES", (0.01,) * 3)
    monkeypatch.setattr(module, "BACK_SECONDS", (0.05, 0.1))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait():
        begun.set()
        await go_on.wait()

    app = app_of(
        answer(wait, "Done.", usage=Usage(1, 200)), costing(100), budgets=[Budget(cost=0.8, per="day")]
    )
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client:
        first = await client.submit("s1", "Hello", agent="a")
        await begun.wait()
        second = await client.submit("s2", "Hello", agent="a")
        async for event in second.stream():
            if isinstance(event, TurnRetrying):
                assert event.code == "budget_held"
                go_on.set()
        assert (await first.result(20)).text == (await second.result(20)).text == "Done."


@pytest.mark.parametrize("raised", ["own", "of all", "removed"])
async def test_a_suspended_turn_continues_at_once_when_its_budget_is_raised(redis_url, raised):
    app = app_of(costing(1000), costing(1))
    used_up, more = Budget(cost=1, per="month", reached="suspend"), Budget(cost=2, per="month")
    async with AsyncClient(redis_url) as client:
        own, all_ = client.budgets("tenant", "acme"), client.budgets("tenant", None)
        await (all_ if raised == "of all" else own).set([used_up])
        async with running_worker(redis_url, app):
            await run(client, "s1", tenant="acme")
            turn = await client.submit("s2", "Hello", agent="a", tenant="acme")
            async for event in turn.stream():
                if isinstance(event, TurnRetrying):
                    assert event.code == "budget_reached"
                    await client.budgets("tenant", "other").set([more])
                    assert (await turn.info()).status == "retrying"
                    changed = all_ if raised == "of all" else own
                    await changed.set(None if raised == "removed" else [more])
            assert (await turn.result(20)).text == "Done."


async def test_a_budget_that_is_raised_while_the_turn_asks_suspends_nothing(redis_url, monkeypatch):
    app, note = app_of(costing(1000), costing(1)), module.note_waiting
    async with AsyncClient(redis_url) as client:
        budgets = client.budgets("tenant", "acme")
        await budgets.set([Budget(cost=1, reached="suspend")])

        async def raised_before(*asked):
            await budgets.set([Budget(cost=2, reached="suspend")])
            return await note(*asked)

        monkeypatch.setattr(module, "note_waiting", raised_before)
        async with running_worker(redis_url, app):
            await run(client, "s1", tenant="acme")
            turn = await client.submit("s2", "Hello", agent="a", tenant="acme")
            events = [event async for event in turn.stream()]
            assert (await turn.result(20)).text == "Done."
            assert not [event for event in events if isinstance(event, TurnRetrying | BudgetReachedEvent)]


async def test_a_call_that_failed_before_its_answer_costs_nothing(redis_url):
    app = app_of(ProviderRejected("No."), costing(10), budgets=[ONE])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        with pytest.raises(ProviderRejected):
            await run(client, "s1")
        assert (await ledger_of(cell, "agent:day:a"))["cost"] == "0"


async def test_what_a_dead_worker_holds_is_estimated_when_the_turn_is_tried_again(redis_url):
    app = app_of(costing(10), budgets=[Budget(cost=2, per="day")])
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        turn = await client.submit("s", "Hello", agent="a")
        claimed = await cell.take_one()
        await cell.run(
            "budgets/reserve", turn.id, "s", claimed.fence, 1, 500_000_000, 510, 60_000, "", "agent", "a", "all",
            b'[{"cost":2,"per":"day"}]', "", "",
        )  # fmt: skip
        await cell.reap(holder="w1")
        async with running_worker(redis_url, app):
            await turn.result(20)
        ledger = await ledger_of(cell, "agent:day:a")
        assert (ledger["cost"], ledger["estimated_cost"], ledger["held_cost"]) == (
            "510000000",
            "500000000",
            "0",
        )


@pytest.mark.parametrize("held", [False, True])
async def test_a_stopped_call_counts_as_estimated(redis_url, held):
    begun = asyncio.Event()

    @hook(hold=held)
    def agree(answer: ModelEnd):
        return None

    async def hang():
        begun.set()
        await asyncio.Event().wait()

    app = app_of(answer("Some words of an answer. " * 4, hang, "More."), budgets=[ONE], hooks=[agree])
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        turn = await client.submit("s", "Hello", agent="a")
        await begun.wait()
        await turn.cancel()
        with pytest.raises(TurnCancelled):
            await turn.result(20)
        ledger = await ledger_of(cell, "agent:day:a")
        assert int(ledger["estimated_cost"]) == int(ledger["cost"]) > 0
        assert ledger["held_cost"] == "0"


async def test_turns_without_budgets_ask_nothing(redis_url):
    async with running_worker(redis_url, app_of(costing(1))), AsyncClient(redis_url) as client:
        await run(client)
        async with open_cell(redis_url) as cell:
            assert [key async for key in cell.redis.scan_iter(f"{cell.keys.prefix}:spent:*")] == []


def test_an_agent_with_budgets_cannot_travel():
    with pytest.raises(UsageError, match="budgets= cannot be sent"):
        Agent("scripted", "any", budgets=[ONE]).spec()


def test_budgets_hold_in_this_process():
    agent = Agent(
        script(costing(10), costing(10)), "any", name="a", budgets=[Budget(tokens=1, per="session")]
    )
    session = agent.session()
    assert session.run("Hello").text == "Done."
    with pytest.raises(BudgetReached):
        session.run("Again")
    assert agent.session().run("Hello").text == "Done."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs cost= or tokens="),
        ({"cost": 1, "tokens": 1}, "not both"),
        ({"cost": 0}, "a number above 0"),
        ({"tokens": 1.5}, "a whole number"),
        ({"cost": 1, "per": "year"}, "per=…"),
        ({"cost": 1, "reached": "panic"}, "reached=…"),
    ],
)
def test_wrong_budgets_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        Agent("scripted", "any", budgets=[Budget(**options)])


async def test_wrong_scopes_are_refused(redis_url):
    async with AsyncClient(redis_url) as client:
        with pytest.raises(UsageError, match="scope of a budget"):
            client.budgets("planet", "x")
        with pytest.raises(UsageError, match="tenant= is the tenant of a user"):
            client.budgets("session", "x", tenant="acme")


@pytest.mark.parametrize(
    ("erased", "stays"),
    [
        ({"user": "alice", "tenant": "acme"}, {"tenant:day:acme", "user:day:acme\x1fbob", "user:day:alice"}),
        ({"user": "alice"}, {"tenant:day:acme", "user:day:acme\x1fbob"}),
        ({"tenant": "acme"}, {"user:day:alice"}),
        (
            {"session": "s1"},
            {"tenant:day:acme", "user:day:acme\x1fbob", "user:day:acme\x1falice", "user:day:alice"},
        ),
    ],
)
async def test_what_was_used_is_erased_with_its_user_or_tenant(redis_url, erased, stays):
    answers = [costing(1) for _ in range(3)]
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        for scope in ("tenant", "user", "session"):
            await client.budgets(scope, None).set([ONE])
        await client.budgets("tenant", "acme").set([ONE])
        await client.budgets("user", "alice", tenant="acme").set([ONE])
        async with running_worker(redis_url, app_of(*answers)):
            await run(client, "s1", tenant="acme", user="alice")
            await run(client, "s2", tenant="acme", user="bob")
            await run(client, "s3", user="alice")
        found = await client.forget(**erased)
        assert found.left == []
        kept = {key.decode().removeprefix("ant:spent:") async for key in cell.redis.scan_iter("ant:spent:*")}
        assert {name for name in kept if not name.startswith(("session", "turn"))} == stays
        names = {
            scope: {name.decode() for name in await cell.redis.hkeys(cell.keys.budgets(scope))}
            for scope in ("tenant", "user")
        }
        assert ("acme" in names["tenant"]) == ("tenant:day:acme" in stays)
        assert ("acme\x1falice" in names["user"]) == ("session" in erased)
        assert all("" in known for known in names.values())


async def test_a_thousand_parallel_turns_exceed_one_dollar_by_one_call(redis_url, monkeypatch):
    """On three workers, each of which runs a hundred turns at once. A call costs up to five cents."""
    monkeypatch.setattr(module, "PAUSES", (0.01,) * 3)
    monkeypatch.setattr(module, "BACK_SECONDS", (0.05, 0.2))
    billed = []

    async def bill():
        billed.append(49)

    agent = Agent(
        script(answer(bill, "Done.", usage=Usage(0, 49)), repeat=True), "any", name="a", max_tokens=50
    )
    app = App(agents=[agent], prices=PRICES)
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell, AsyncExitStack() as workers:
        await client.budgets("tenant", "acme").set([ONE])
        for _ in range(3):
            await workers.enter_async_context(running_worker(redis_url, app))
        turns = [await client.submit(f"s{n}", "Hello", agent="a", tenant="acme") for n in range(1000)]
        ends = Counter()
        for turn in turns:
            try:
                ends[(await turn.result(60)).text] += 1
            except BudgetReached as exc:
                ends[exc.limit] += 1
        ledger = await ledger_of(cell, "tenant:day:acme")
    assert ends == {"Done.": len(billed), "tenant_cost_per_day": 1000 - len(billed)}
    assert 1000 <= sum(billed) < 1000 + 50
    assert (int(ledger["cost"]), ledger["held_cost"]) == (sum(billed) * 1_000_000, "0")
