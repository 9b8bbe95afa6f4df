"""Many turns at once: each is accepted or refused by itself, and one log tells of all ends."""

import asyncio

import pytest
from redis.asyncio import Redis
from support.cells import open_cell
from support.eventually import patience, wait_until_async
from support.here import running_worker
from support.network import free_port

from antiphon.client import AsyncClient, Client, Submission
from antiphon.errors import (
    AgentError,
    KeyReused,
    StoreUnavailable,
    TurnNotFound,
    UnknownAgent,
    UsageError,
)
from antiphon.input.request import AgentSpec
from antiphon.redis import results
from antiphon.redis.turn import AsyncTurn

AGENT = AgentSpec(provider="scripted", model="m")


def batch(count, **options):
    return [Submission(f"s{n}", f"text {n}", agent=AGENT, key="1", **options) for n in range(count)]


async def test_each_turn_is_accepted_or_refused_by_itself(client):
    await client.submit("s1", "another text", agent=AGENT, key="1", queue="nowhere")
    told = await client.submit_many(batch(450, queue="nowhere"))
    assert len(told) == 450
    assert [n for n, one in enumerate(told) if not isinstance(one, AsyncTurn)] == [1]
    assert isinstance(told[1], KeyReused)
    again = await client.submit_many(batch(450, queue="nowhere"))
    assert [one.id for one in again if isinstance(one, AsyncTurn)] == [
        one.id for one in told if isinstance(one, AsyncTurn)
    ]
    for one in told:
        if isinstance(one, AsyncTurn):
            await one.cancel()
    await (await client.turn((await client.submit("s1", "another text", agent=AGENT, key="1")).id)).cancel()


@pytest.mark.one_server
async def test_turns_of_one_session_keep_their_order(client, redis_url):
    async with running_worker(redis_url):
        turns = await client.submit_many(Submission("s", f"text {n}", agent=AGENT) for n in range(30))
        assert [r.text async for r in client.results(turns)] == [f"You said: text {n}" for n in range(30)]
        assert [m.text for m in (await client.snapshot("s")).messages][::2] == [
            f"text {n}" for n in range(30)
        ]


@pytest.mark.one_server
async def test_what_is_no_redis_refuses_all_and_is_not_asked_ten_thousand_times(monkeypatch):
    async with AsyncClient(f"redis://127.0.0.1:{free_port()}/0", retries=0) as client:
        told = await asyncio.wait_for(client.submit_many(batch(1000)), patience(10))
    assert len(told) == 1000
    assert all(isinstance(one, StoreUnavailable) for one in told)


async def test_results_come_in_order_with_their_errors_as_values(client, redis_url):
    async with running_worker(redis_url):
        turns = await client.submit_many(batch(20))
        unknown = await client.submit("u", "x", agent="nobody")
        refused = UsageError("It was refused.")
        mixed = [refused, *turns, unknown, turns[3].id, turns[3]]
        found = [one async for one in client.results(mixed)]
        assert found[0] is refused
        assert [one.text for one in found[1:21]] == [f"You said: text {n}" for n in range(20)]
        assert isinstance(found[21], UnknownAgent)
        assert [one.text for one in found[22:]] == ["You said: text 3"] * 2


async def test_turns_come_as_they_end_and_bring_their_outcome(cell, client):
    for n in range(3):
        await cell.put(f"t{n}", f"s{n}")
    turns = [await client.turn(f"t{n}") for n in range(3)]
    done = client.as_completed([turns[0], turns[1], "t2", UsageError()])
    claimed = {turn.turn_id: turn for turn in (await cell.take()).turns}
    await cell.end(claimed["t1"], response=b'{"text":"one"}')
    assert await asyncio.wait_for(anext(done), patience(10)) is turns[1]
    await cell.end(claimed["t2"], "failed", error_code="provider", error="no")
    second = await asyncio.wait_for(anext(done), patience(10))
    assert second.id == "t2"
    await cell.end(claimed["t0"])
    assert await asyncio.wait_for(anext(done), patience(10)) is turns[0]
    with pytest.raises(StopAsyncIteration):
        await anext(done)
    await cell.redis.delete("ant:turn:t1")
    assert (await turns[1].result()).text == "one"
    await second.requeue()
    assert await second.status() == "queued"


async def test_a_text_that_steered_has_the_answer_of_the_turn_that_took_it(cell, client):
    running = await cell.started("t1")
    steering = [await client.submit("s", text, if_busy="steer", agent=AGENT) for text in ("2", "3")]
    await cell.put("t4", "other")
    await cell.steer(running, length=0, step=1)
    assert [await one.status() for one in steering] == ["finished"] * 2
    outcomes = client.results([steering[0], "t4", steering[1].id])
    done = client.as_completed(["t4", steering[0]])
    first, ended = asyncio.create_task(anext(outcomes)), asyncio.create_task(anext(done))
    (other,) = (await cell.take()).turns
    await cell.end(other, response=b'{"text":"four"}')
    assert (await asyncio.wait_for(ended, patience(10))).id == "t4"
    assert not first.done()
    await cell.end(running, response=b'{"text":"one","turn_id":"t1"}')
    assert (await asyncio.wait_for(first, patience(10))).text == "one"
    assert [one.text async for one in outcomes] == ["four", "one"]
    last = await asyncio.wait_for(anext(done), patience(10))
    assert last is steering[0]
    assert (await last.result()).turn_id == "t1"
    assert (await last.info()).steered_into == "t1"
    with pytest.raises(StopAsyncIteration):
        await anext(done)


async def test_a_text_that_steered_shares_the_failure_of_the_turn_that_took_it(cell, client):
    running = await cell.started("t1")
    steering = await client.submit("s", "2", if_busy="steer", agent=AGENT)
    await cell.steer(running, length=0, step=1)
    await cell.end(running, "failed", error_code="provider_rejected", error="no")
    (outcome,) = [one async for one in client.results([steering])]
    assert (type(outcome).__name__, outcome.turn_id) == ("ProviderRejected", "t1")


async def test_an_end_that_no_notice_tells_is_found_at_the_next_look(redis_url, monkeypatch):
    """As of a worker of an older release."""
    monkeypatch.setattr(results, "LOOK_AGAIN_SECONDS", 0.2)
    async with open_cell(redis_url) as cell, AsyncClient(redis_url) as client:
        await cell.put("t1")
        found = asyncio.create_task(anext(client.results(["t1"])))
        await wait_until_async(lambda: cell.redis.exists("ant:notices"), 10)
        turn = await cell.take_one()
        held = await cell.redis.dump("ant:notices")
        await cell.redis.delete("ant:notices")
        await cell.end(turn, response=b'{"text":"done"}')
        await cell.redis.restore("ant:notices", 60_000, held, replace=True)
        assert (await asyncio.wait_for(found, patience(10))).text == "done"


async def test_a_log_of_notices_that_is_gone_hides_no_end(cell, client):
    await cell.put("t1")
    await cell.put("t2", "s2")
    done = client.as_completed(["t1", "t2"])
    first = asyncio.create_task(anext(done))
    await wait_until_async(lambda: cell.redis.exists("ant:notices"), 10)
    turns = {turn.turn_id: turn for turn in (await cell.take()).turns}
    await cell.end(turns["t1"])
    assert (await asyncio.wait_for(first, patience(10))).id == "t1"
    await cell.redis.delete("ant:notices")
    await cell.end(turns["t2"])
    await cell.redis.xadd("ant:notices", {"kind": "began"})
    await cell.redis.publish("ant:live:0:", "99999999999999-0")
    await cell.redis.expire("ant:notices", 60)
    assert (await asyncio.wait_for(anext(done), patience(10))).id == "t2"


async def test_a_turn_that_is_gone_is_told(client):
    assert isinstance(await anext(client.results(["none"])), TurnNotFound)
    with pytest.raises(TurnNotFound):
        await anext(client.as_completed(["none"]))


@pytest.mark.one_server
async def test_waiting_for_many_turns_takes_one_connection_and_few_commands(redis_url, client):
    async with running_worker(redis_url), Redis.from_url(redis_url) as redis:
        turns = await client.submit_many(batch(300))
        before = (await redis.info("commandstats")).get("cmdstat_subscribe", {}).get("calls", 0)
        assert len([one async for one in client.as_completed(turns)]) == 300
        stats = await redis.info("commandstats")
        assert stats["cmdstat_subscribe"]["calls"] - before == 1


def test_the_synchronous_twins_give_synchronous_turns(redis_url):
    with Client(redis_url) as client:
        told = client.submit_many(
            [Submission("s", "x", agent=AGENT, queue="nowhere"), Submission("s", "y", if_busy="reject")]
        )
        assert type(told[0]).__name__ == "Turn"
        assert isinstance(told[1], AgentError)
        told[0].cancel()
        assert [done.id for done in client.as_completed(told)] == [told[0].id]
        assert [type(one).__name__ for one in client.results(told)] == ["TurnCancelled", "SessionBusy"]
