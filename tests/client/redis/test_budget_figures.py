"""What is used of budgets, as `antiphon explain` and Prometheus show it."""

import asyncio
import json

import pytest
from support.here import running_worker

from antiphon import Agent
from antiphon.cli.main import main
from antiphon.client import AsyncClient
from antiphon.metrics import families
from antiphon.model import Budget
from antiphon.model.usage import Usage
from antiphon.redis.deployment import cell_states
from antiphon.testing import answer, script
from antiphon.wire import budgets as module
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:budgets:*")]
DAY = Budget(cost=2, per="day", reached="suspend")


async def samples(redis_url):
    [state] = await cell_states([redis_url], "ant")
    return {
        one.name: {tuple(list(sample.labels.values())[1:]): sample.value for sample in one.samples}
        for one in families([state])
        if one.name.startswith("antiphon_budget_")
    }


async def answered(redis_url, client):
    agent = Agent(script(answer("Done.", usage=Usage(1, 300))), "any", name="a", max_tokens=500)
    app = App(agents=[agent], prices={"any": Price(input=0.0, output=1000.0)})
    async with running_worker(redis_url, app):
        turn = await client.submit("s", "Hello", agent="a", tenant="acme", user="alice")
        await turn.result(20)
    return turn


async def test_metrics_have_what_tenants_and_agents_have_used(redis_url):
    async with AsyncClient(redis_url) as client:
        await client.budgets("tenant", "acme").set(
            [DAY, Budget(cost=3, per="day"), Budget(cost=9, per="turn")]
        )
        await client.budgets("tenant", None).set([Budget(tokens=5, per="day")])
        await client.budgets("user", "alice", tenant="acme").set([DAY])
        await client.budgets("agent", "a").set([Budget(tokens=1_000, per="month")])
        await answered(redis_url, client)
    acme, agent = ("tenant", "acme", "day", "cost"), ("agent", "a", "month", "tokens")
    assert await samples(redis_url) == {
        "antiphon_budget_limit": {acme: 2.0, agent: 1000.0},
        "antiphon_budget_used": {acme: 0.3, agent: 301.0},
        "antiphon_budget_held": {acme: 0.0, agent: 0.0},
    }


async def test_many_budgets_are_few_series(redis_url, monkeypatch):
    monkeypatch.setattr(module, "MOST_NAMES", 5)
    async with AsyncClient(redis_url) as client:
        for number in range(12):
            await client.budgets("tenant", f"t{number}").set([DAY])
        assert len((await samples(redis_url))["antiphon_budget_used"]) == 5


async def test_a_damaged_budget_hides_no_other_state(redis_url):
    async with AsyncClient(redis_url) as client:
        [cell] = client.connections.cells
        await cell.redis.hset(cell.keys.budgets("tenant"), "acme", "damaged")
        [state] = await cell_states([redis_url], "ant")
    assert (state.up, state.writable, state.sessions, state.budgets) == (True, True, 0, [])


async def test_explain_shows_the_budgets_on_which_a_turn_draws(redis_url, capsys):
    async with AsyncClient(redis_url) as client:
        await client.budgets("tenant", "acme").set([DAY, Budget(cost=9, per="turn")])
        await client.budgets("user", None).set([Budget(tokens=1_000, per="month")])
        turn = await answered(redis_url, client)
    await asyncio.to_thread(main, ["explain", turn.id, "--redis-url", redis_url])
    said = capsys.readouterr().out
    assert "The tenant acme has a budget of $2 per day: $0.3 used, $0 held." in said
    assert "The user alice has a budget of 1,000 tokens per month: 301 tokens used, 0 tokens held." in said
    await asyncio.to_thread(main, ["explain", turn.id, "--json", "--redis-url", redis_url])
    [first, second] = json.loads(capsys.readouterr().out)["budgets"]
    assert (first["scope"], first["state"]["used"], second["name"]) == ("tenant", 0.3, "alice")
