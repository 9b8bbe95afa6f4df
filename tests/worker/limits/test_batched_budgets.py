"""Budgets of turns with service="batch": a call holds its part until its answer is there."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from support.batched import SOON, adding, lose, service
from support.cells import open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.services.batch_server import BatchServer

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import TurnCancelled
from antiphon.model import Budget
from antiphon.redis.budgets import home_of
from antiphon.redis.cells import open_cells
from antiphon.wire.cell import Cell
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price

pytestmark = pytest.mark.one_server


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr("antiphon_worker.batches.IDLE_SECONDS", 0.05)


BUDGET = Budget(cost=1.0, per="day")
DEAR = {"m": Price(input=0.0, output=1000.0)}  # an answer of 100 tokens costs 5 cents in a batch


@asynccontextmanager
async def with_a_budget(redis_url, answer=None, *, most=900, budget=BUDGET, **options):
    async with BatchServer(answer or adding("openai"), quick=False) as server:
        agent = Agent("openai", "m", name="a", max_tokens=most, budgets=[budget])
        async with AsyncExitStack() as stack:
            for url in redis_url.split(","):
                app = App([agent], providers={"openai": service("openai", server.url)}, prices=DEAR)
                settings = {**SOON, "cells": redis_url, **options}
                await stack.enter_async_context(running_worker(url, app, **settings))
            yield await stack.enter_async_context(AsyncClient(redis_url)), server


async def agent_ledger(cell):
    found = await cell.redis.hgetall(cell.keys.spent("agent:day:a"))
    return {key.decode(): int(value) / 1e9 for key, value in found.items() if key in (b"cost", b"held_cost")}


async def test_a_batched_call_holds_half_of_its_worst_case_until_its_answer_is_there(redis_url):
    async with with_a_budget(redis_url) as (client, server), open_cell(redis_url) as cell:
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        assert await agent_ledger(cell) == {"held_cost": 0.45}
        server.finish()
        await turn.result(20)
        assert await agent_ledger(cell) == {"held_cost": 0.0, "cost": 0.05}


async def test_waiting_batches_leave_no_room_for_calls_that_would_exceed_the_budget(redis_url):
    async with with_a_budget(redis_url) as (client, server), open_cell(redis_url) as cell:
        batched = [await client.submit(f"s{n}", "Hello", agent="a", service="batch") for n in range(2)]
        await wait_until_async(lambda: sum(map(len, server.requests.values())) == 2)
        third = await client.submit("s3", "Hello", agent="a")
        await wait_until_async(lambda: is_retrying(third))
        assert server.usual == [], "0.9 of 1 dollar is held"
        assert await agent_ledger(cell) == {"held_cost": 0.9}
        server.finish()
        for turn in batched:
            await turn.result(20)
        await third.result(20)
        assert await agent_ledger(cell) == {"held_cost": 0.0, "cost": 0.2}


async def is_retrying(turn):
    return await turn.status() == "retrying"


@pytest.mark.parametrize("ends", ["cancelled", "late", "error"])
async def test_what_a_batched_call_holds_is_counted_or_let_go_when_it_has_no_answer(redis_url, ends):
    deadline = 0.3 if ends == "late" else 60.0
    async with (
        with_a_budget(redis_url, batch_deadline=deadline) as (client, server),
        open_cell(redis_url) as cell,
    ):
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        if ends == "cancelled":
            await turn.cancel()
            with pytest.raises(TurnCancelled):
                await turn.result(20)
        else:
            server.failing["*"] = "wrong"
            if ends == "error":
                server.finish()
            await turn.result(20)
        other = await client.submit("other", "Hello", agent="a")
        await other.result(20)
        spent = (await agent_ledger(cell)).get("cost", 0.0)
        held = (await agent_ledger(cell)).get("held_cost", 0.0)
        usual = 0.1 * (1 if ends == "cancelled" else 2)
        assert round(spent + held, 3) == round(usual + (0.0 if ends == "error" else 0.45), 3)


async def test_a_fallback_that_answers_because_of_a_budget_is_asked_once_in_a_batch(redis_url):
    async with BatchServer(adding("openai")) as dear, BatchServer(adding("anthropic")) as cheap:
        budget = Budget(cost=0.04, per="day", reached="fallback")
        agent = Agent("openai", "m", name="a", max_tokens=900, budgets=[budget], fallback=["anthropic/n"])
        providers = {"openai": service("openai", dear.url), "anthropic": service("anthropic", cheap.url)}
        prices = {**DEAR, "n": Price(input=0.0, output=1.0)}
        app = App([agent], providers=providers, prices=prices)
        async with running_worker(redis_url, app, **SOON), AsyncClient(redis_url) as client:
            for session in ("s1", "s2"):
                turn = await client.submit(session, "Hello", agent="a", service="batch")
                assert (await turn.result(20)).text == "Hello."
    assert (len(dear.orders), len(cheap.orders)) == (1, 1)
    assert dear.usual + cheap.usual == []


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_is_charged_once_though_its_worker_dies_after_it(
    redis_url, redis, monkeypatch, fails
):
    """The next attempt reads the same answer: what it has cost is counted already."""
    real, captured, over = Cell.run, 0, asyncio.Event()

    async def deadly(self, name, *arguments):
        nonlocal captured
        found = await real(self, name, *arguments)
        if name == "budgets/capture":
            captured += 1
            if captured == 1:
                fence = redis.hget("ant:session:s", "fence")
                await wait_until_async(lambda: redis.hget("ant:session:s", "fence") != fence or lose(redis))
                await over.wait()
        return found

    async with with_a_budget(redis_url) as (client, server), open_cell(redis_url) as cell:
        monkeypatch.setattr(Cell, "run", deadly)
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        if fails:
            server.failing["*"] = "wrong"
        server.finish()
        assert (await turn.result(20)).text == "Hello."
        assert captured == (3 if fails else 2)
        assert await agent_ledger(cell) == {"held_cost": 0.0, "cost": 0.1 if fails else 0.05}
        over.set()


async def test_an_answer_whose_budget_is_full_by_now_is_charged_once(redis_url, redis, monkeypatch):
    """There is no room to hold it again, and nothing waits for room."""
    async with with_a_budget(redis_url) as (client, server), open_cell(redis_url) as cell:
        turn = await client.submit("s", "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        redis.hincrby(cell.keys.spent("agent:day:a"), "cost", 2 * 10**9)
        server.finish()
        assert (await turn.result(20)).text == "Hello."
        assert await agent_ledger(cell) == {"held_cost": 0.0, "cost": 2.05}


@pytest.mark.parametrize("ends", ["cancelled", "deleted"])
async def test_a_budget_in_another_cell_counts_what_an_ended_turn_holds_when_another_call_needs_it(
    redis_url, ends
):
    """The ledger's cell does not have the turn: the worker of the other call looks for it."""
    urls = [redis_url, redis_url.removesuffix("/0") + "/1"]
    cells = open_cells(urls)
    ledgers = home_of(cells, "agent", "a")
    there, here = split(cells, ledgers)
    async with with_a_budget(",".join(urls)) as (client, server):
        batched = await client.submit(there, "Hello", agent="a", service="batch")
        await wait_until_async(lambda: server.orders)
        other = await client.submit(here, "Hello", agent="a")
        await wait_until_async(lambda: is_retrying(other))
        assert await agent_ledger(ledgers) == {"held_cost": 0.45}
        await (batched.cancel() if ends == "cancelled" else client.session(there).delete())
        assert (await other.result(20)).text == "Hello."
        assert await agent_ledger(ledgers) == {"held_cost": 0.0, "cost": 0.55}
    for cell in cells:
        await cell.redis.aclose()


def split(cells, ledgers):
    """A session of another cell than the ledgers, and one of theirs."""
    names = [f"s{number}" for number in range(100)]
    there = next(name for name in names if cells.of_session(name) is not ledgers)
    return there, next(name for name in names if cells.of_session(name) is ledgers)
