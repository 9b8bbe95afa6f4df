"""Budgets against submitters and services that try to get more out of them than they hold."""

import math

import pytest
from support.cells import open_cell
from support.here import running_worker

from antiphon import Agent, Message
from antiphon.client import AsyncClient
from antiphon.errors import BudgetReached, InvalidId, ProviderRejected
from antiphon.model import Budget
from antiphon.model.usage import Usage
from antiphon.testing import answer, script
from antiphon_worker import Allow, App
from antiphon_worker.loop.call_limits import MOST_OUTPUT, most_of, with_an_end
from antiphon_worker.loop.costs import Price
from antiphon_worker.providers.base import ModelRequest
from antiphon_worker.providers.stream.decoder import UsageNames, usage_of

PRICES = {"any": Price(input=0.0, output=1000.0)}
LEDGER = "agent:day:a"


def app_of(*answers, budget):
    agent = Agent(script(*answers, repeat=True), "any", name="a", max_tokens=500, budgets=[budget])
    return App(agents=[agent], prices=PRICES, travelling=Allow(parameters="any"))


def spending(tokens, **more):
    return answer("Done.", usage=Usage(input_tokens=1, output_tokens=tokens, **more))


async def ledger_of(cell):
    found = await cell.redis.hmget(cell.keys.spent(LEDGER), "cost", "tokens", "held_cost", "held_tokens")
    return [int(one or 0) for one in found]


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": -(10**9)},
        {"max_tokens": 0},
        {"max_tokens": 10**30},
        {"max_tokens": 100_000.0},
        {"max_completion_tokens": "100000"},
        {"max_output_tokens": True},
        {"n": -3},
        {"best_of": 1.5},
        {"extra_body": {"max_tokens": -5}},
        {"extra_body": {"n": [3]}},
    ],
    ids=repr,
)
async def test_a_parameter_that_cannot_be_reserved_is_refused(redis_url, params):
    """A negative one would make room in the budget for any number of calls, and a number as text would hold nothing."""
    [name] = params.get("extra_body", params)
    app = app_of(spending(400), budget=Budget(cost=1.0))
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        turn = await client.submit("s", "Hello", agent="a", params=params)
        with pytest.raises(ProviderRejected, match=f"{name}= must be a whole number from 1 to"):
            await turn.result(20)
        assert await ledger_of(cell) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("params", "most"),
    [
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "extra_body": {"max_tokens": 70}}, 70),
        ({"max_tokens": 10, "extra_body": {"max_completion_tokens": 70}}, 70),
        ({"max_tokens": 10, "n": 5}, 50),
        ({"max_tokens": 10, "n": 5, "extra_body": {"n": 7, "best_of": 9}}, 90),
        ({"n": 2}, 2 * MOST_OUTPUT),
        ({"reasoning": 1_000}, MOST_OUTPUT + 1_000),
        ({"thinking": {"type": "enabled", "budget_tokens": 1_000}}, MOST_OUTPUT + 1_000),
        ({"thinking": {"type": "enabled", "budget_tokens": -(10**9)}}, MOST_OUTPUT),
        ({"reasoning": -(10**9)}, MOST_OUTPUT),
        ({"extra_body": {"max_tokens": 70}}, 70),
    ],
    ids=repr,
)
def test_all_that_a_request_may_make_is_reserved(params, most):
    request = with_an_end(ModelRequest("any", [Message.user("Hello")], params=params))
    assert most_of(request)[1] == most


@pytest.mark.parametrize("cost", [-5.0, math.nan, math.inf, -math.inf])
async def test_a_cost_that_is_none_fills_no_budget_up(redis_url, cost):
    """It counts as much as was held for the call."""
    app = app_of(spending(100, cost=cost), budget=Budget(cost=1.0))
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        for session in ("s1", "s2"):
            await (await client.submit(session, "Hello", agent="a")).result(20)
        assert await ledger_of(cell) == [1_000_000_000, 202, 0, 0]
        with pytest.raises(BudgetReached):
            await (await client.submit("s3", "Hello", agent="a")).result(20)


async def test_negative_tokens_fill_no_budget_up(redis_url):
    app = app_of(spending(-1_000), budget=Budget(tokens=10_000))
    async with running_worker(redis_url, app), AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await (await client.submit("s", "Hello", agent="a")).result(20)
        assert (await ledger_of(cell))[1] >= 0


@pytest.mark.parametrize("cost", [-1, -0.5, {"total_cost": -3}, math.nan, math.inf, True, "5"])
def test_a_service_reports_no_negative_usage(cost):
    names = UsageNames(("prompt_tokens",), ("completion_tokens",), ("cached",), ("written",), ("thought",))
    given = {"prompt_tokens": -7, "completion_tokens": -9, "cached": -1, "written": -2, "thought": -3}
    assert usage_of({**given, "cost": cost}, names) == Usage()


@pytest.mark.parametrize("name", ["a\x1fb", "a\nb", "\x00", "a\u2028b", "\ud800", "", "x" * 201])
async def test_a_name_cannot_reach_the_ledger_of_another_user_or_tenant(redis_url, name):
    """Ledgers separate tenants from users by a control character."""
    async with AsyncClient(redis_url) as client:
        for options in ({"user": name}, {"tenant": name}):
            with pytest.raises(InvalidId):
                await client.submit("s", "Hello", agent="a", **options)
        with pytest.raises(InvalidId):
            client.budgets("user", name)
        with pytest.raises(InvalidId):
            client.budgets("user", "ann", tenant=name)
