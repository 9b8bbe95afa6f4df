"""`rate`: the last feedback about a turn is kept, and each turn counts once for its revision."""

import pytest

from antiphon.errors import TurnNotFound
from antiphon.model.feedback import Feedback, Figures
from antiphon.wire.feedback import feedback_of, figures_of, rate, rated_turns
from antiphon.wire.lists.agents import revision_of

REVISION = ("support", "r1")


async def test_the_last_feedback_is_kept_and_counted_once(cell):
    await cell.put("t1")
    record = await cell.turn("t1")
    for score in (1.0, 1.0, -0.5):
        await rate(cell, record, Feedback(score, "a note", "ada"), REVISION)
    said = feedback_of(await cell.turn("t1"))
    assert (said.score, said.note, said.by) == (-0.5, "a note", "ada")
    assert said.at == int(await cell.redis.hget("ant:turn:t1", "rated_at"))
    assert await figures_of(cell, [REVISION, ("other", "r")]) == [Figures(rated=1, scores=-0.5), Figures()]
    assert [turn async for _, turn in rated_turns(cell, 0)] == ["t1"]
    assert await cell.redis.pttl("ant:rated") > 0
    assert await cell.redis.pttl("ant:figures:support@r1") > 0


async def test_of_a_turn_without_a_revision_only_the_feedback_is_kept(cell):
    await cell.put("t1")
    await rate(cell, await cell.turn("t1"), Feedback(1), ("support", ""))
    assert feedback_of(await cell.turn("t1")).score == 1
    assert not await cell.redis.keys("ant:figures:*")


async def test_a_turn_that_is_gone_has_no_feedback(cell):
    await cell.put("t1")
    record = await cell.turn("t1")
    await cell.redis.hset("ant:turn:t1", "deleted", 1)
    before = await cell.contents()
    with pytest.raises(TurnNotFound):
        await rate(cell, record, Feedback(1), REVISION)
    assert await cell.contents() == before


async def test_a_new_run_has_no_feedback_of_the_old_one(cell):
    await cell.end(await cell.started("t1"), "failed")
    await rate(cell, await cell.turn("t1"), Feedback(-1), REVISION)
    await cell.requeue("t1")
    assert feedback_of(await cell.turn("t1")) is None


async def test_figures_that_cannot_be_read_are_left_out(cell):
    await cell.redis.hset(
        "ant:figures:support@r1", mapping={"w1": '{"finished":2}', "w2": "no JSON", "scores": "x"}
    )
    await cell.redis.set("ant:figures:support@r2", "another type", ex=60)
    await cell.redis.expire("ant:figures:support@r1", 60)
    assert await figures_of(cell, [REVISION, ("support", "r2")]) == [Figures(finished=2), Figures()]


async def test_a_tenants_feedback_has_an_index_of_its_own(cell):
    await cell.put("t1", "s", tenant="a")
    await cell.put("t2", "r")
    for turn in ("t1", "t2"):
        await rate(cell, await cell.turn(turn), Feedback(1), REVISION)
    assert {turn async for _, turn in rated_turns(cell, 0)} == {"t1", "t2"}
    assert [turn async for _, turn in rated_turns(cell, 0, "a")] == ["t1"]
    assert await cell.redis.keys("ant:rated:*") == [b"ant:rated:a"]
    assert await cell.redis.pttl("ant:rated:a") > 7 * 86_400_000


async def test_the_indexes_drop_feedback_that_is_older_than_any_turn(cell):
    await cell.put("t1", "s", tenant="a")
    await cell.redis.zadd("ant:rated", {"gone": 1})
    await cell.redis.zadd("ant:rated:a", {"gone": 1})
    await rate(cell, await cell.turn("t1"), Feedback(1), REVISION)
    assert [turn async for _, turn in rated_turns(cell, 0)] == ["t1"]
    assert [turn async for _, turn in rated_turns(cell, 0, "a")] == ["t1"]


async def test_a_turn_that_never_began_ran_on_no_agent(cell):
    await cell.put("t1")
    await cell.redis.hset("ant:session:s", "agent", '"support"')
    assert await revision_of(cell, await cell.turn("t1")) == ("", "")
