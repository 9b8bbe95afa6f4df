"""`keep_answered`: what a message has answered first is what it answers, as long as its turn is kept."""

import pytest

from antiphon.errors import CorruptRecord, TurnNotFound
from antiphon.wire.answered import Answered, answered_by, keep_answered
from antiphon.wire.editing import delete_session

ONE, TWO = Answered(frozenset({"one"})), Answered(frozenset({"two"}))


async def test_a_message_answers_what_it_answered_first(cell):
    await cell.started("t1")
    assert await answered_by(cell, "t1", "m") is None
    assert await keep_answered(cell, "t1", "m", ONE) == ONE
    assert await keep_answered(cell, "t1", "m", TWO) == ONE
    assert await keep_answered(cell, "t1", "other", TWO) == TWO
    assert await answered_by(cell, "t1", "m") == ONE


async def test_what_is_done_stays_done(cell):
    await cell.started("t1")
    done = Answered(ONE.names, True)
    await keep_answered(cell, "t1", "m", ONE)
    assert await keep_answered(cell, "t1", "m", done) == done
    assert await keep_answered(cell, "t1", "m", ONE) == done
    assert await answered_by(cell, "t1", "m") == done


async def test_nothing_is_kept_of_a_turn_that_has_gone(cell):
    with pytest.raises(TurnNotFound):
        await keep_answered(cell, "none", "m", ONE)
    await cell.end(await cell.started("t1"))
    await keep_answered(cell, "t1", "m", ONE)
    assert await cell.redis.pttl("ant:turn:t1") > 0
    await delete_session(cell, "s")
    with pytest.raises(TurnNotFound):
        await keep_answered(cell, "t1", "m", ONE)
    assert await answered_by(cell, "t1", "m") is None


async def test_a_damaged_mark_is_an_error_that_names_the_turn(cell):
    await cell.started("t1")
    await keep_answered(cell, "t1", "m", ONE)
    [field] = [name for name in await cell.redis.hkeys("ant:turn:t1") if name.startswith(b"answered:")]
    await cell.redis.hset("ant:turn:t1", field, "0 no JSON")
    with pytest.raises(CorruptRecord) as raised:
        await answered_by(cell, "t1", "m")
    assert raised.value.turn_id == "t1"
