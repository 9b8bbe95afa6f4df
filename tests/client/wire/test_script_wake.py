"""`wake`: turns that wait for a revision are queued when a worker has it again."""

import pytest
from support.cells import START_MS

from antiphon.wire.revisions import wake_missing

CODE = "revision_unavailable"
HOUR = 3_600_000


async def waits(cell, turn="t1", session="s", missing="support@r1", code=CODE):
    started = await cell.started(turn, session=session)
    assert await cell.give_back(started, "limit", delay_ms=HOUR, code=code, missing=missing)


async def test_a_turn_that_waits_for_the_revision_is_claimed_at_once(cell):
    await waits(cell)
    assert await cell.look_at() == START_MS + HOUR
    assert await cell.redis.pttl("ant:missing:support@r1") > 6 * 86_400_000
    await wake_missing(cell, "support@r2")
    assert await cell.queue() == []
    await wake_missing(cell, "support@r1")
    assert await cell.queue() == ["t1"]
    assert (await cell.take_one()).turn_id == "t1"
    assert not await cell.redis.exists("ant:missing:support@r1")


async def test_all_are_woken_and_a_repetition_changes_nothing(cell, monkeypatch):
    monkeypatch.setattr("antiphon.wire.revisions.WOKEN_AT_ONCE", 2)
    for number in range(5):
        await waits(cell, f"t{number}", f"s{number}")
    await wake_missing(cell, "support@r1")
    assert sorted(await cell.queue()) == [f"t{number}" for number in range(5)]
    before = await cell.contents()
    await wake_missing(cell, "support@r1")
    assert await cell.contents() == before


@pytest.mark.parametrize("change", ["other reason", "cancelled", "running", "gone"])
async def test_a_turn_that_waits_for_nothing_or_for_something_else_stays_as_it_is(cell, change):
    await waits(cell, code="provider_overloaded" if change == "other reason" else CODE)
    match change:
        case "cancelled":
            await cell.cancel("t1", "enough")
        case "running":
            await cell.wait(HOUR)
            await cell.reap_after(0)
            await cell.take_one()
        case "gone":
            await cell.redis.delete("ant:turn:t1")
        case _:
            pass
    queue, status = await cell.queue(), await cell.redis.hget("ant:turn:t1", "status")
    await wake_missing(cell, "support@r1")
    assert (await cell.queue(), await cell.redis.hget("ant:turn:t1", "status")) == (queue, status)
