"""Workers advertise the revisions of their agents, and turns note the App on which they begin."""

import asyncio
import json

import pytest
from support.eventually import patience, wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.testing import script
from antiphon.wire.keys import rq_key
from antiphon_worker.app import App


def support(*answers: str, **options) -> Agent:
    return Agent(script(*answers or ("Hello.",), repeat=True), "any", name="support", **options)


async def listed(client) -> list[tuple]:
    return [(one.agent, one.revision, one.label, len(one.workers), one.running, one.turns)
            async for one in client.agents()]  # fmt: skip


@pytest.mark.one_server
async def test_agents_are_listed_by_revision_with_their_workers(redis_url):
    old, new = support(system="Be kind.", label="v1"), support(system="Be brief.", label="v2")
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, App(agents=[old])), running_worker(redis_url, App(agents=[new])):
            await wait_until_async(lambda: _workers(client, 2))
            both = sorted(
                [("support", old.revision, "v1", 1, 0, 0), ("support", new.revision, "v2", 1, 0, 0)]
            )
            assert await listed(client) == both
        assert await listed(client) == []


async def _workers(client, number: int) -> bool:
    return sum(row[3] for row in await listed(client)) == number


@pytest.mark.one_server
async def test_a_turn_under_way_is_counted_on_the_revision_it_began_with(redis, redis_url):
    asked = asyncio.Event()

    class Waiting:
        name = "waiting"

        async def stream(self, *_, **__):
            asked.set()
            await asyncio.Event().wait()
            yield

        async def aclose(self):
            pass

    agent = Agent(Waiting(), "any", name="support")
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url, App(agents=[agent])) as worker:
            turn = await client.submit("s", "Hello", agent="support")
            await asyncio.wait_for(asked.wait(), patience(30))
            assert await listed(client) == [("support", agent.revision, None, 1, 1, 1)]
            worker.abort()
        assert (await listed(client)) == [("support", agent.revision, None, 0, 0, 1)], "it goes on there"
        app = redis.hget(f"ant:turn:{turn.id}", "app").decode()
        assert json.loads(redis.get(f"ant:app:{app}")) == {"support": {"id": agent.revision}}
        assert redis.ttl(f"ant:app:{app}") > 30 * 86400
        await turn.cancel()
        async with running_worker(redis_url, App(agents=[support()])):
            await turn.wait(30) if hasattr(turn, "wait") else None


@pytest.mark.one_server
async def test_a_worker_takes_no_turn_before_redis_has_its_revisions(redis, redis_url):
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hello", agent="support")
        async with running_worker(redis_url, App(agents=[support()])):
            await turn.result(30)
        app = redis.hget(f"ant:turn:{turn.id}", "app").decode()
        assert redis.exists(f"ant:app:{app}")
        assert not redis.smembers(rq_key("rq_workers"))


async def test_a_claim_notes_the_app_once_and_an_app_that_lacks_the_agent_is_forgotten(cell):
    await cell.put("t1")
    first = await cell.take_one(app="a1")
    assert first.app == "a1"
    await cell.give_back(first, "drain", reason="stopping")
    again = await cell.take_one("w2", app="a2")
    assert again.app == "a1", "it has begun there"
    await cell.give_back(again, "drain", reason="no agent", code="unknown_agent", lacking="a2")
    again = await cell.take_one("w3", app="a3")
    assert again.app == "a1", "another App lacks what it needs"
    await cell.give_back(again, "drain", reason="no agent", code="unknown_agent", lacking="a1 a3")
    assert (await cell.take_one("w4", app="a4")).app == "a4"


async def test_a_new_run_begins_on_any_app(cell):
    await cell.put("t1")
    await cell.end(await cell.take_one(app="a1"), "failed")
    await cell.requeue("t1")
    assert (await cell.take_one(app="a2")).app == "a2"
