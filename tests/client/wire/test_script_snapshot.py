"""`snapshot`: a session at one moment, and from where to read on."""

import pytest
from support.cells import body

from antiphon.errors import SessionNotFound


async def test_the_cursor_is_before_the_running_turns_first_event(cell):
    await cell.end(await cell.started("t1"), messages=[b"m1", b"m2"])
    turn = await cell.started("t2")
    await cell.say(turn, 1, body(), body())
    await cell.put("t3")
    found = await cell.snapshot("s")
    assert (found.cursor, found.turn_id, found.inbox) == (4, "t2", ["t2", "t3"])
    assert (found.history, found.history_length) == ([b"m1", b"m2"], 2)
    events = await cell.events()
    assert events[found.cursor]["type"] == "turn_started"
    assert events[found.cursor]["turn_id"] == "t2"


async def test_a_second_attempt_is_read_from_the_first_ones_start(cell):
    turn = await cell.started("t1")
    await cell.give_back(turn, "drain")
    assert (await cell.snapshot("s")).cursor == 1
    assert (await cell.snapshot("s")).turn_id == "t1"
    await cell.take_one()
    assert (await cell.snapshot("s")).cursor == 1


async def test_a_turn_that_has_not_started_is_not_the_running_one(cell):
    await cell.put("t1")
    found = await cell.snapshot("s")
    assert (found.cursor, found.turn_id, found.inbox) == (1, None, ["t1"])


@pytest.mark.parametrize(
    ("start", "stop", "expected"), [(0, -1, 5), (0, 1, 2), (-2, -1, 2), (9, 9, 0), (1, 0, 0)]
)
async def test_the_history_comes_in_pages(cell, start, stop, expected):
    await cell.end(await cell.started("t1"), messages=[b"%d" % number for number in range(5)])
    found = await cell.snapshot("s", start, stop)
    assert (len(found.history), found.history_length) == (expected, 5)


async def test_the_fields_of_the_session_come_with_it(cell):
    await cell.put("t1", agent=b"support", ttl_ms=5000)
    fields = (await cell.snapshot("s")).fields
    assert (fields["agent"], fields["ttl"], fields["seq"]) == (b"support", b"5000", b"1")


async def test_reading_changes_nothing(cell):
    await cell.put("t1")
    before = await cell.contents()
    await cell.snapshot("s")
    assert await cell.contents() == before


async def test_an_unknown_session_is_not_found(cell):
    with pytest.raises(SessionNotFound):
        await cell.snapshot("nowhere")


async def named(cell, start=0, stop=-1, turns="pending failed"):
    return [str(one.turn_id) for one in (await cell.snapshot("s", start, stop, turns)).turns]


async def test_the_turns_that_have_not_ended_are_shown_in_the_order_in_which_they_run(cell):
    for turn_id, due_in_ms in (("later", 9000), ("t1", 0), ("t2", 0), ("t3", 0), ("soon", 1000)):
        await cell.put(turn_id, due_in_ms=due_in_ms)
    await cell.end(await cell.take_one())
    await cell.take_one()
    assert await named(cell, turns="pending") == ["t2", "t3", "later", "soon"]
    assert await named(cell, turns="failed") == await named(cell, turns="") == []
    statuses = [one.status for one in (await cell.snapshot("s", turns="pending")).turns]
    assert statuses == ["running", "waiting", "queued", "queued"]
    await cell.wait(5000)
    assert await named(cell, turns="pending") == ["t2", "t3", "later", "soon"], "no reaper came by yet"


async def test_what_left_nothing_stands_on_one_page_of_the_history(cell):
    for number, status in enumerate(["failed", "finished", "failed", "finished", "cancelled"]):
        await cell.put(f"t{number}")
        messages = [b"q", b"a"] if status == "finished" else []
        await cell.end(await cell.take_one(), status, messages=messages)
    assert await named(cell) == ["t0", "t2", "t4"]
    assert (await cell.snapshot("s", turns="failed")).order == ["t0", "t1", "t2", "t3", "t4"]
    assert await named(cell, 0, 1) == ["t0"]
    assert await named(cell, 2, 3) == await named(cell, -2) == ["t2", "t4"]
    assert await named(cell, 0, -3) == ["t0"]
    assert await named(cell, 1, 2) == ["t2"]
    assert await named(cell, 3, 3) == await named(cell, 3, 900) == ["t4"]
    assert await named(cell, turns="pending") == []


async def test_what_failed_in_a_session_without_a_message_is_shown(cell):
    await cell.end(await cell.started("t1"), "failed")
    assert await named(cell) == ["t1"]
    await cell.requeue("t1")
    assert await named(cell, turns="failed") == []
    assert await named(cell, turns="pending") == ["t1"]
