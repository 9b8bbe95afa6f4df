"""`submit` with `if_busy`: what a second message does to the turn that runs."""

from __future__ import annotations

import json

import pytest
from support.cells import body

from antiphon.errors import SessionBusy
from antiphon.input.ids import TurnId


async def running(cell, *waiting: str):
    """A turn that runs, with others behind it."""
    turn = await cell.started("t1")
    for name in waiting:
        await cell.put(name)
    return turn


async def fields(cell, turn: str):
    return (await cell.turn(TurnId(turn))).fields


@pytest.mark.parametrize(("mode", "keep"), [("interrupt", "partial"), ("rollback", "nothing")])
async def test_a_turn_that_stops_the_running_one_stands_directly_behind_it(cell, mode, keep):
    async with cell.redis.pubsub() as heard:
        turn = await running(cell, "t2")
        await heard.subscribe("ant:control:w1")
        await heard.get_message(timeout=5)
        assert await cell.put("t3", if_busy=mode) == 1
        assert await cell.inbox() == ["t1", "t3", "t2"]
        assert await cell.status("t3") == "waiting"
        reason = f"{'interrupted by' if mode == 'interrupt' else 'rolled back for'} turn t3"
        assert json.loads((await heard.get_message(timeout=5))["data"]) == {
            "command": "cancel", "session_id": "s", "turn_id": "t1", "reason": reason, "keep": keep,
        }  # fmt: skip
        assert await cell.say(turn, 1, body()) == reason
        assert await cell.keep_of(TurnId("t1")) == keep
        assert await cell.put("t3", if_busy=mode) == 1, "a repetition changes nothing"
        assert await cell.inbox() == ["t1", "t3", "t2"]
        await cell.end(turn, "cancelled")
        assert await cell.queue() == ["t3"]


async def test_a_turn_that_has_not_begun_is_interrupted_by_a_worker_so_that_its_question_stays(cell):
    await cell.put("t1")
    await cell.put("t2", if_busy="interrupt")
    assert (await cell.inbox(), await cell.queue()) == (["t1", "t2"], ["t1"])
    turn = await cell.take_one()
    assert (turn.turn_id, turn.stop) == ("t1", "interrupted by turn t2")
    assert await cell.keep_of(TurnId("t1")) == "partial"


async def test_a_turn_that_has_not_begun_is_rolled_back_at_once(cell):
    await cell.put("t1")
    await cell.put("t2", if_busy="rollback")
    assert (await cell.inbox(), await cell.queue()) == (["t2"], ["t2"])
    assert await cell.event_types() == ["turn_queued", "turn_queued", "turn_cancelled"]
    assert await cell.status("t1") == "cancelled"


async def test_a_turn_that_is_to_be_tried_again_is_stopped_at_once(cell):
    await cell.give_back(await running(cell), "error", delay_ms=60_000)
    await cell.put("t2", if_busy="interrupt")
    assert await cell.queue() == ["t1"]
    assert (await cell.take_one()).stop == "interrupted by turn t2"


async def test_the_next_turn_is_stopped_where_the_running_one_is_being_stopped_already(cell):
    turn = await running(cell, "t2")
    await cell.put("t3", if_busy="interrupt")
    await cell.put("t4", if_busy="interrupt")
    assert await cell.inbox() == ["t1", "t3", "t4", "t2"]
    assert (await fields(cell, "t3"))["cancel"] == b"interrupted by turn t4"
    assert (await fields(cell, "t1"))["cancel"] == b"interrupted by turn t3"
    await cell.put("t5", if_busy="rollback")
    assert await cell.inbox() == ["t1", "t3", "t5", "t2"]
    assert await cell.status("t4") == "cancelled"
    await cell.end(turn, "cancelled")
    assert (await cell.take_one()).stop == "interrupted by turn t4"


async def test_where_all_are_being_stopped_a_turn_goes_to_the_end(cell):
    await running(cell)
    await cell.cancel("t1", "enough")
    assert await cell.put("t2", if_busy="interrupt") == 1
    assert (await fields(cell, "t1"))["cancel"] == b"enough"


async def test_a_failed_turn_that_runs_again_interrupts(cell):
    await cell.end(await cell.started("t0"), "failed")
    await running(cell, "t2")
    assert await cell.put("t0", again="a", if_busy="interrupt") == 1
    assert await cell.inbox() == ["t1", "t0", "t2"]
    assert (await fields(cell, "t1"))["keep"] == b"partial"


async def test_a_refusal_names_the_running_turn(cell):
    await running(cell, "t2")
    with pytest.raises(SessionBusy) as caught:
        await cell.put("t3", if_busy="reject")
    assert caught.value.turn_id == "t1"
    await cell.put("t4", "other")
    await cell.end((await cell.take("w2")).turns[0], "failed")
    await cell.put("t5", "other")
    with pytest.raises(SessionBusy) as caught:
        await cell.put("t4", "other", again="a", if_busy="reject")
    assert caught.value.turn_id == "t5"
