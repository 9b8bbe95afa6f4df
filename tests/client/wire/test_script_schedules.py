"""`schedules/*`: a schedule is due once at each time, whoever writes, pauses or removes it meanwhile."""

import pytest

from antiphon.wire.editing import delete_session
from antiphon.wire.lists.schedules import (
    PAUSED,
    advance,
    due_schedules,
    schedule_ids,
    stored,
    write_schedule,
)

pytestmark = pytest.mark.lasting_keys("ant:schedule*")
DAILY = {"session": "s", "plan": "daily", "text": "Hello"}


async def fields(cell, name="k:s"):
    return {k.decode(): v.decode() for k, v in (await cell.redis.hgetall(f"ant:schedule:{name}")).items()}


async def test_a_schedule_is_written_changed_and_removed(cell):
    assert not await write_schedule(cell, "s", "k", "5000", {}), "there is none to change"
    assert await cell.redis.keys("ant:schedule*") == []
    assert await write_schedule(cell, "s", "k", "5000", DAILY)
    assert await fields(cell) == DAILY
    assert await schedule_ids(cell) == await schedule_ids(cell, "s") == ["k:s"]
    assert (await due_schedules(cell, 4_999, 9), await due_schedules(cell, 5_000, 9)) == ([], ["k:s"])
    assert await write_schedule(cell, "s", "k", PAUSED, {})
    assert await due_schedules(cell, 10**15, 9) == []
    assert await fields(cell) == DAILY
    assert await write_schedule(cell, "s", "k", "6000", {"text": "Bye"})
    assert await fields(cell) == {**DAILY, "text": "Bye"}
    assert [one.due for one in await stored(cell, ["k:s"])] == [6_000]
    assert await write_schedule(cell, "s", "k", "", {})
    assert await cell.redis.keys("ant:schedule*") == []


async def test_a_schedule_counts_for_its_present_tenant_alone(cell):
    for tenant in ("a", "a", "b"):
        await write_schedule(cell, "s", "k", "5000", DAILY | {"tenant": tenant})
        counted = [key.decode() for key in await cell.redis.keys("ant:tenant_schedules:*")]
        assert counted == [f"ant:tenant_schedules:{tenant}"]
    await write_schedule(cell, "s", "k", "5000", DAILY | {"tenant": ""})
    assert await cell.redis.keys("ant:tenant_schedules:*") == []
    await write_schedule(cell, "s", "k", "", {})


@pytest.mark.parametrize("tenant", ["", "a"])
async def test_an_event_has_the_schedules_that_wait_for_it_until_they_are_removed(tenant, cell):
    on_event = DAILY | {"tenant": tenant, "on": "paid"}
    waiting = f"ant:event_schedules:{tenant}"
    for due in (PAUSED, "", PAUSED):
        await write_schedule(cell, "s", "k", due, on_event if due else {})
        assert await cell.redis.zrange(waiting, 0, -1) == ([b"paid k:s"] if due else [])
    await delete_session(cell, "s")
    assert await cell.redis.keys("ant:*schedule*") == []


async def test_it_moves_on_once_from_each_time_and_says_what_it_has_submitted(cell):
    await write_schedule(cell, "s", "k", "5000", DAILY)
    assert await advance(cell, "k:s", 5_000, 6_000, "t1", "")
    assert await fields(cell) == {**DAILY, "turn": "t1", "error": ""}
    assert not await advance(cell, "k:s", 5_000, 7_000, "t2", ""), "another one was faster"
    assert (await fields(cell))["turn"] == "t1"
    assert await due_schedules(cell, 6_000, 9) == ["k:s"]
    assert await advance(cell, "k:s", 6_000, 7_000, "", "session_busy")
    assert (await fields(cell))["error"] == "session_busy"


@pytest.mark.parametrize("due", [PAUSED, "9000", ""])
async def test_what_was_changed_meanwhile_stays_so(due, cell):
    await write_schedule(cell, "s", "k", "5000", DAILY)
    await write_schedule(cell, "s", "k", due, {})
    assert not await advance(cell, "k:s", 5_000, 6_000, "t1", "")
    assert await due_schedules(cell, 8_999, 9) == []
    assert bool(await fields(cell)) == bool(due)


async def test_it_goes_with_its_session(cell):
    await cell.end(await cell.started("t1"))
    for session, name in (("s", "k"), ("s", "l"), ("other", "k")):
        await write_schedule(cell, session, name, "5000", {**DAILY, "session": session})
    await delete_session(cell, "s")
    assert await schedule_ids(cell) == ["k:other"]
    assert sorted(await cell.redis.keys("ant:schedule*")) == [
        b"ant:schedule:k:other", b"ant:scheduled:other", b"ant:schedules",
    ]  # fmt: skip
