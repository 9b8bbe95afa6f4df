"""`give_back`: an unfinished turn goes on elsewhere, and only a failure counts."""

import json

import pytest
from support.cells import START_MS, body, stranger


async def test_a_drained_turn_is_offered_at_once_and_burns_no_attempt(cell):
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


async def test_an_error_counts_and_waits(cell):
    turn = await cell.started("t1")
    assert await cell.give_back(
        turn,
        "error",
        delay_ms=5_000,
        reason="busy",
        code="provider_overloaded",
        service=b'{"status":503}',
    )
    assert await cell.status() == "retrying"
    assert (await cell.turn("t1")).fields["retry_service"] == b'{"status":503}'
    assert await cell.queue() == []
    assert await cell.look_at() == START_MS + 5_000
    event = (await cell.events())[-1]
    assert (event["type"], event["reason"], event["code"], event["retry_at"], event["step"]) == (
        "turn_retrying", "busy", "provider_overloaded", START_MS + 5_000, 1,
    )  # fmt: skip
    assert event["service"] == {"status": 503}
    assert [done.what for done in await cell.reap_after(5_000)] == ["retried"]
    again = await cell.take_one()
    assert (again.attempt, again.errors) == (2, 1)


async def test_a_turn_knows_for_how_long_its_model_service_has_failed_in_this_step(cell):
    await cell.put("t1")
    failing = []

    async def attempt(cause):
        turn = await cell.take_one()
        failing.append(turn.failing_ms)
        await cell.give_back(turn, cause, code="provider_overloaded")
        await cell.wait(1_000)
        return turn

    for cause in ("drain", "error", "drain", "error"):
        await attempt(cause)
    turn = await cell.take_one()
    await cell.append_step(turn, length=0, step=2, entries=[b"{}"], bodies=[body()])
    await cell.give_back(turn, "error")
    await cell.wait(500)
    await attempt("drain")
    assert failing == [None, None, 1_000, 2_000, 500], "from the first error of the step on"


@pytest.mark.parametrize(("cause", "delay_ms"), [("drain", 0), ("error", 0), ("error", 5_000)])
async def test_a_repeated_give_back_changes_nothing(cell, cause, delay_ms):
    turn = await cell.started("t1")
    await cell.give_back(turn, cause, delay_ms=delay_ms)
    before = await cell.contents()
    assert await cell.give_back(turn, cause, delay_ms=delay_ms)
    assert await cell.contents() == before


async def test_a_repetition_after_the_next_claim_changes_nothing(cell):
    turn = await cell.started("t1")
    await cell.give_back(turn, "drain")
    await cell.take_one("w2")
    before = await cell.contents()
    assert await cell.give_back(turn, "drain")
    assert await cell.contents() == before


async def test_who_does_not_hold_the_lease_gives_nothing_back(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    for fence in ("", "1", turn.fence + "x"):
        assert not await cell.give_back(stranger(turn, fence), "error")
    assert await cell.contents() == before


async def test_the_worker_that_gave_back_can_write_no_more(cell):
    turn = await cell.started("t1")
    await cell.give_back(turn, "drain")
    before = await cell.contents()
    assert not await cell.end(turn)
    assert await cell.say(turn, 1, body()) == "SUPERSEDED"
    assert await cell.contents() == before


async def test_finished_steps_are_kept_and_named(cell):
    turn = await cell.started("t1")
    await cell.append_step(turn, length=0, step=2, entries=[b"one"], bodies=[])
    await cell.give_back(turn, "error")
    assert (await cell.events())[-1]["step"] == 2
    again = await cell.take_one()
    assert (again.journal, again.step) == ([b"one"], 2)


async def test_a_wish_to_stop_outlives_the_worker_that_heard_it(cell):
    await cell.started("t1")
    await cell.cancel("t1", "enough")
    await cell.reap_after(20_000)
    assert (await cell.take_one("w2")).stop == "enough"


async def test_a_reason_may_be_any_text(cell):
    await cell.put("t1")
    reason = 'Error: "x"\n\tat \\ line\r\x00\x1b ☃'
    await cell.give_back(await cell.take_one(), "error", reason=reason)
    [(_, fields)] = await cell.redis.xrevrange("ant:events:s", count=1)
    assert json.loads(fields[b"e"])["reason"] == reason


async def test_a_turn_that_an_app_lacks_keeps_its_place_for_others_and_their_bells_ring(cell):
    turn = await cell.started("t1", "s1")
    await cell.put("t2", "s2")
    given = {"lacking": "a1 b2", "workers": ["w7", "w8"]}
    assert await cell.give_back(turn, "drain", reason="no tool", code="unknown_tool", **given)
    assert [await cell.redis.llen(cell.keys.bell(name)) for name in ("w7", "w8")] == [1, 1]
    assert [one.turn_id for one in (await cell.take(app="b2", limit=8)).turns] == ["t2"]
    assert (await cell.take(app="b2", limit=8)).turns == []
    (again,) = (await cell.take(app="c3", limit=8)).turns
    assert (again.turn_id, again.lacking) == ("t1", "a1 b2")


async def test_after_a_while_each_app_may_look_at_such_a_turn_again(cell):
    await cell.give_back(await cell.started("t1", "s1"), "drain", lacking="a1")
    assert (await cell.take(app="a1")).turns == []
    await cell.reap()
    assert (await cell.take(app="a1")).turns == []
    await cell.reap_after(30_000)
    assert [one.turn_id for one in (await cell.take(app="a1")).turns] == ["t1"]


async def test_a_turn_that_is_claimed_by_its_id_is_taken_whatever_it_needs(cell):
    await cell.give_back(await cell.started("t1", "s1"), "drain", lacking="a1")
    assert [one.turn_id for one in (await cell.take(app="a1", only="t1")).turns] == ["t1"]


@pytest.mark.parametrize("code", ["provider_overloaded", "budget_reached"])
async def test_a_turn_that_was_cancelled_in_rq_waits_for_no_retry(code, cell):
    """Its worker has not heard of it yet: the cancellation came after it last renewed its lease."""
    turn = await cell.started("t1")
    await cell.redis.hset("rq:job:t1", "status", "canceled")
    for _ in range(2):
        assert await cell.give_back(turn, "error", delay_ms=5_000, code=code)
    assert [done.what for done in await cell.reap()] == ["cancelled"]
    assert await cell.status() == "cancelled"
