"""An accepted cancel is the end: a turn neither finishes nor fails after it."""

from __future__ import annotations

import pytest

from antiphon.input.ids import TurnId
from antiphon.wire.errors import CancelledFirst


async def running(cell, *waiting: str):
    """A turn that runs, with others behind it."""
    turn = await cell.started("t1")
    for name in waiting:
        await cell.put(name)
    return turn


async def test_a_cancelled_turn_neither_finishes_nor_fails_nor_is_tried_again(cell):
    turn = await running(cell)
    await cell.cancel("t1", "enough")
    before = await cell.contents()
    for status in ("finished", "failed"):
        with pytest.raises(CancelledFirst) as caught:
            await cell.end(turn, status)
        assert caught.value.reason == "enough"
    for cause in ("drain", "error"):
        with pytest.raises(CancelledFirst):
            await cell.give_back(turn, cause, delay_ms=5_000)
    assert await cell.contents() == before
    assert await cell.end(turn, "cancelled")
    assert await cell.end(turn, "cancelled"), "a repetition"


async def test_a_cancelled_turn_whose_workers_die_ends_as_cancelled(cell):
    await running(cell)
    await cell.cancel("t1", "enough", "partial")
    await cell.wait(20_000)
    await cell.reap(crash_limit=1)
    record = await cell.turn(TurnId("t1"))
    assert (record.status, record.error, record.error_code) == ("cancelled", "enough", "")
    event = (await cell.events())[-1]
    assert (event["type"], event["reason"], event["keep"]) == ("turn_cancelled", "enough", "partial")
    assert await cell.redis.zscore("rq:canceled:antiphon", "t1")
