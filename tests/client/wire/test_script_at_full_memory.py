"""At full memory nothing new is accepted, and all that ends or frees something still works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.cells import LEASE_MS, TestCell, body, load_scripts, open_cell

from antiphon.errors import StoreFull
from antiphon.model import OpenCall
from antiphon.wire.budgets import Call, note_waiting, wake_waiting
from antiphon.wire.records import ForeignJob, NewTurn
from antiphon.wire.suspension import suspend


@asynccontextmanager
async def full_memory(cell: TestCell) -> AsyncIterator[None]:
    """As if every byte were used."""
    await cell.redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        await cell.redis.config_set("maxmemory", 0)


@pytest.fixture(params=["known scripts", "forgotten scripts"])
def forgotten(request) -> bool:
    """A server that has lost its scripts must take their text at full memory as well."""
    return request.param == "forgotten scripts"


@asynccontextmanager
async def running(url: str, *, forgotten: bool):
    async with open_cell(url) as cell:
        await cell.put_each("t1", "t2")
        turn = await cell.take_one()
        await load_scripts(cell)
        if forgotten:
            await cell.redis.script_flush()
        yield cell, turn


@pytest.mark.parametrize("due_in_ms", [0, 1000])
async def test_submit_is_refused_and_leaves_nothing(redis_url, forgotten, due_in_ms):
    async with running(redis_url, forgotten=forgotten) as (cell, _):
        before = await cell.contents()
        async with full_memory(cell):
            for session in ("s", "new"):
                with pytest.raises(StoreFull):
                    await cell.put("t3", session, due_in_ms=due_in_ms)
        assert await cell.contents() == before
        await cell.put("t3")


async def test_submit_many_is_refused_and_leaves_nothing(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, _):
        before = await cell.contents()
        turns = [
            NewTurn("s", "t3", b"{}", "t3"),
            NewTurn("s", "t2", b"{}", "t2"),
            NewTurn("new", "t4", b"{}", "t4"),
        ]
        async with full_memory(cell):
            first, known, third = await cell.submit_many(turns)
        assert isinstance(first, StoreFull)
        assert known == 1, "a repetition is answered"
        assert isinstance(third, StoreFull)
        assert await cell.contents() == before


async def test_a_repeated_submit_is_answered(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, _), full_memory(cell):
        assert await cell.put("t2") == 1


async def test_events_are_refused_and_can_be_sent_again(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        before = await cell.contents()
        async with full_memory(cell):
            assert isinstance(await cell.say(turn, 1, body(), body()), StoreFull)
        assert await cell.contents() == before
        assert await cell.say(turn, 1, body(), body()) == ""
        assert len(await cell.events()) == 5


async def test_steps_are_refused_and_can_be_sent_again(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        before = await cell.contents()
        async with full_memory(cell):
            with pytest.raises(StoreFull):
                await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body()])
        assert await cell.contents() == before
        assert await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[body()]) == ""


async def test_leases_are_renewed(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        await cell.wait(LEASE_MS - 1)
        async with full_memory(cell):
            assert await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=LEASE_MS) == [""]
        assert await cell.look_at() == await cell.now() + LEASE_MS


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
async def test_a_turn_ends_and_the_next_one_is_claimed(redis_url, forgotten, status):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        async with full_memory(cell):
            assert await cell.end(turn, status, messages=[b"m"])
            assert await cell.end(turn, status, messages=[b"m"])
            second = await cell.take_one()
        assert await cell.history() == [b"m"]
        assert await cell.status("t1") == status
        assert second.turn_id == "t2"


@pytest.mark.parametrize(("cause", "delay_ms"), [("drain", 0), ("error", 5000)])
async def test_a_turn_is_given_back(redis_url, forgotten, cause, delay_ms):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        async with full_memory(cell):
            assert await cell.give_back(turn, cause, delay_ms=delay_ms)
        assert await cell.status() == ("retrying" if delay_ms else "queued")


async def test_a_turn_waits_for_its_budget_and_is_woken(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        call = Call(turn.turn_id, turn.session_id, turn.fence, 1, 0, 0, 60_000)
        async with full_memory(cell):
            assert await note_waiting(cell, call, "tenant", "acme")
            await cell.give_back(turn, "limit", delay_ms=600_000, code="budget_reached")
            assert await cell.status() == "retrying"
            await wake_waiting(cell, "tenant", "acme")
        assert await cell.status() == "queued"


@pytest.mark.parametrize("aside", [False, True])
async def test_a_turn_is_suspended_and_decisions_are_refused(redis_url, forgotten, aside):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[])
        async with full_memory(cell):
            assert await suspend(cell, turn, [OpenCall("c1", "pay")], bodies=[], aside=aside) == ""
            before = await cell.contents()
            with pytest.raises(StoreFull):
                await cell.decide()
            assert await cell.contents() == before
        await cell.decide()
        assert "t1" in await cell.inbox()


@pytest.mark.parametrize("turn_id", ["t1", "t2", "due", "kept"])
async def test_a_turn_is_cancelled(redis_url, forgotten, turn_id):
    async with running(redis_url, forgotten=forgotten) as (cell, _):
        await cell.put("due", due_in_ms=60_000)
        await cell.put("kept", "s2")
        kept = await cell.take_one()
        await cell.append_step(kept, length=0, step=2, entries=[b"one"], bodies=[])
        await cell.give_back(kept, "error", delay_ms=5000)
        async with full_memory(cell):
            answer = await cell.cancel(turn_id, "enough")
        assert answer == ("requested" if turn_id in ("t1", "kept") else "cancelled")


@pytest.mark.parametrize("holder", ["", "w1"])
async def test_the_dead_are_recovered(redis_url, forgotten, holder):
    async with running(redis_url, forgotten=forgotten) as (cell, _):
        await cell.wait(LEASE_MS)
        async with full_memory(cell):
            assert [done.what for done in await cell.reap(holder=holder)] == ["recovered"]


async def test_the_reaper_looks_at_everything(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, turn):
        await cell.put("later", "s2", due_in_ms=1000)
        await cell.put("waits", "s3")
        await cell.give_back(await cell.take_one(), "error", delay_ms=80_000)
        await cell.put("queued", "s4")
        await cell.renew("w1", [(turn.session_id, turn.fence)], lease_ms=10**6)
        await cell.wait(70_000)
        await cell.redis.zadd("ant:active", {"s": 1, "s3": 2})
        async with full_memory(cell):
            assert [done.what for done in await cell.reap()] == ["due"]
        await cell.wait(40_000)
        async with full_memory(cell):
            assert [done.what for done in await cell.reap()] == ["retried"]


async def test_a_job_that_is_no_turn_fails(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, _):
        await cell.redis.hset("rq:job:odd", "data", "x")
        async with full_memory(cell):
            await cell.fail_job(ForeignJob("odd", "antiphon", b"x"), "w1", "no turn")
        assert await cell.redis.hget("rq:job:odd", "status") == b"failed"


async def test_reading_goes_on(redis_url, forgotten):
    async with running(redis_url, forgotten=forgotten) as (cell, _), full_memory(cell):
        assert (await cell.snapshot("s")).inbox == ["t1", "t2"]
