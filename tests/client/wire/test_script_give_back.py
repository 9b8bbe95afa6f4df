"""`give_back`: an unfinished turn goes on elsewhere, and only a failure counts."""

from __future__ import annotations

import json

import pytest
from support.cells import START_MS, body, open_cell, stranger


async def test_a_drained_turn_is_offered_at_once_and_burns_no_attempt(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("other", "s2")
        await cell.put("t1")
        turn = await cell.take_one(only="t1")
        assert await cell.give_back(turn, "drain", reason="stopping")
        assert await cell.queue() == ["t1", "other"], "it goes on before what came later"
        event = (await cell.events())[-1]
        assert (event["type"], event["attempt"]) == ("turn_retrying", 1), "the attempt that was broken off"
        again = await cell.take_one("w2", limit=1)
        assert (again.turn_id, again.attempt, again.errors, again.crashes) == ("t1", 1, 0, 0)
        assert again.fence != turn.fence


async def test_an_error_counts_and_waits(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        assert await cell.give_back(turn, "error", delay_ms=5_000, reason="busy", code="provider_overloaded")
        assert await cell.status() == "retrying"
        assert await cell.queue() == []
        assert await cell.look_at() == START_MS + 5_000
        event = (await cell.events())[-1]
        assert (event["type"], event["reason"], event["code"], event["retry_at"], event["step"]) == (
            "turn_retrying", "busy", "provider_overloaded", START_MS + 5_000, 1,
        )  # fmt: skip
        await cell.wait(5_000)
        assert [done.what for done in await cell.reap()] == ["retried"]
        again = await cell.take_one()
        assert (again.attempt, again.errors) == (2, 1)


@pytest.mark.parametrize(("cause", "delay_ms"), [("drain", 0), ("error", 0), ("error", 5_000)])
async def test_a_repeated_give_back_changes_nothing(redis_url, cause, delay_ms):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.give_back(turn, cause, delay_ms=delay_ms)
        before = await cell.contents()
        assert await cell.give_back(turn, cause, delay_ms=delay_ms)
        assert await cell.contents() == before


async def test_a_repetition_after_the_next_claim_changes_nothing(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.give_back(turn, "drain")
        await cell.take_one("w2")
        before = await cell.contents()
        assert await cell.give_back(turn, "drain")
        assert await cell.contents() == before


async def test_who_does_not_hold_the_lease_gives_nothing_back(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        before = await cell.contents()
        for fence in ("", "1", turn.fence + "x"):
            assert not await cell.give_back(stranger(turn, fence), "error")
        assert await cell.contents() == before


async def test_the_worker_that_gave_back_can_write_no_more(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.give_back(turn, "drain")
        before = await cell.contents()
        assert not await cell.end(turn)
        assert await cell.say(turn, 1, body()) == "SUPERSEDED"
        assert await cell.contents() == before


async def test_finished_steps_are_kept_and_named(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
        await cell.give_back(turn, "error")
        assert (await cell.events())[-1]["step"] == 2
        again = await cell.take_one()
        assert (again.journal, again.step) == ([b"one"], 2)


async def test_a_wish_to_stop_outlives_the_worker_that_heard_it(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        await cell.cancel("t1", "enough")
        await cell.give_back(turn, "drain")
        assert (await cell.take_one("w2")).stop == "enough"


async def test_a_reason_may_be_any_text(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        reason = 'Error: "x"\n\tat \\ line\r\x00\x1b ☃'
        await cell.give_back(await cell.take_one(), "error", reason=reason)
        [(_, fields)] = await cell.redis.xrevrange("ant:events:s", count=1)
        assert json.loads(fields[b"e"])["reason"] == reason
