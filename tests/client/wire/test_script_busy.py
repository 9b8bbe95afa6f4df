"""`submit` with `if_busy`: what a second message does to the turn that runs. The simulation plays further cases."""

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
