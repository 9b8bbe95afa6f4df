"""`finish`: a run ends once, its messages become history, and the session's next turn starts."""

import pytest
from support.cells import LEASE_MS, body, stranger

from antiphon.input.ids import TurnId

DAYS = 24 * 3600


async def test_the_messages_become_history_and_the_next_turn_starts(cell):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    await cell.append_step(turn, length=0, step=2, entries=[b"x"], bodies=[])
    assert await cell.end(turn, messages=[b"m1", b"m2"], response=b"answer", variables=b'{"a":1}')
    assert await cell.history() == [b"m1", b"m2"]
    assert await cell.inbox() == ["t2"]
    assert await cell.queue() == ["t2"]
    assert [await cell.status("t1"), await cell.status("t2")] == ["finished", "queued"]
    record = await cell.turn("t1")
    assert (record.response, record.last_seq) == (b"answer", 4)
    assert (await cell.event_types())[-1] == "turn_finished"
    assert await cell.redis.exists("ant:journal:t1") == 0
    assert await cell.redis.hkeys("ant:held:w1") == [b""]
    assert await cell.redis.hget("ant:session:s", "variables") == b'{"a":1}'
    assert await cell.redis.exists("ant:bell:antiphon") == 1
    await cell.end(await cell.take_one())
    assert await cell.history() == [b"m1", b"m2", b'"t2"']


async def test_a_repeated_finish_is_answered_alike_and_changes_nothing(cell):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    await cell.end(turn)
    before = await cell.contents()
    assert await cell.end(turn)
    assert await cell.contents() == before
    await cell.take_one()
    before = await cell.contents()
    assert await cell.end(turn)
    assert await cell.contents() == before


async def told_history(cell):
    """A session with four messages, and what it keeps about them."""
    await cell.end(
        await cell.started("t0"), messages=[b"1", b"2", b"3", b"4"], window="2:50", summary=b"2:They met."
    )
    return await cell.started("t1")


@pytest.mark.parametrize(
    ("kept", "history", "known"),
    [
        (4, [b"1", b"2", b"3", b"4", b"new"], [b"2:50", b"2:They met.", None]),
        (3, [b"1", b"2", b"3", b"new"], [None, b"2:They met.", b"1"]),
        (2, [b"1", b"2", b"new"], [None, b"2:They met.", b"1"]),
        (1, [b"1", b"new"], [None, None, b"1"]),
        (0, [b"new"], [None, None, b"1"]),
    ],
)
async def test_a_turn_takes_the_place_of_a_part_of_the_history(cell, kept, history, known):
    turn = await told_history(cell)
    assert await cell.end(turn, messages=[b"new"], kept=kept)
    assert await cell.history() == history
    assert await cell.redis.hmget("ant:session:s", "window", "summary", "shortened") == known
    before = await cell.contents()
    assert await cell.end(turn, messages=[b"new"], kept=kept)
    assert await cell.contents() == before


async def test_the_window_and_the_summary_of_such_a_turn_are_kept(cell):
    turn = await told_history(cell)
    await cell.end(turn, messages=[b"new"], kept=1, window="1:9", summary=b"1:They met again.")
    assert await cell.redis.hmget("ant:session:s", "window", "summary") == [b"1:9", b"1:They met again."]


async def test_who_does_not_hold_the_lease_ends_nothing(cell):
    turn = await cell.started("t1")
    before = await cell.contents()
    for fence in ("", "1", turn.fence + "x"):
        assert not await cell.end(stranger(turn, fence))
    assert await cell.contents() == before


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_worker_whose_turn_was_recovered_ends_nothing(cell, taken_over):
    await cell.put("t1")
    zombie = await cell.take_one("w1")
    await cell.reap_after(LEASE_MS)
    if taken_over:
        await cell.take_one("w2")
    before = await cell.contents()
    assert not await cell.end(zombie)
    assert await cell.contents() == before


async def test_a_failed_turn_leaves_nothing_in_the_history(cell):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    assert await cell.end(turn, "failed", error_code="provider", error="It broke.")
    assert await cell.history() == []
    record = await cell.turn("t1")
    assert (record.status, record.error_code, record.error) == ("failed", "provider", "It broke.")
    assert await cell.queue() == ["t2"]


async def test_a_cancelled_turn_keeps_what_its_worker_hands_in(cell):
    turn = await cell.started("t1")
    await cell.cancel("t1", "enough")
    assert await cell.end(turn, "cancelled", messages=[b"kept"])
    assert await cell.history() == [b"kept"]
    assert await cell.status() == "cancelled"
    assert await cell.redis.hget("ant:session:s", "stop") == b""


async def test_the_last_turn_leaves_only_keys_with_a_life(cell):
    turn = await cell.started("t1", ttl_ms=100_000)
    for key in ("ant:session:s", "ant:events:s", "ant:turn:t1", "rq:job:t1"):
        assert await cell.redis.ttl(key) == -1, key
    await cell.wait(5_000)
    await cell.end(turn)
    assert await cell.look_at() is None
    assert 90 < await cell.redis.ttl("ant:history:s") <= 100
    assert 90 < await cell.redis.ttl("ant:events:s") <= 100
    assert 3690 < await cell.redis.ttl("ant:session:s") <= 3700
    assert 6 * DAYS < await cell.redis.ttl("ant:turn:t1") <= 7 * DAYS
    assert 3540 < await cell.redis.ttl("rq:job:t1") <= 3600
    assert 0 < await cell.redis.ttl("ant:held:w1") <= 3600
    assert await cell.redis.zscore("ant:sessions", "s") == await cell.now() + 100_000


async def test_a_session_does_not_expire_while_turns_wait(cell):
    await cell.put("t1", ttl_ms=1000)
    await cell.put("t2")
    await cell.end(await cell.take_one())
    for key in ("ant:session:s", "ant:events:s", "ant:history:s"):
        assert await cell.redis.ttl(key) == -1, key
    await cell.end(await cell.take_one())
    await cell.put("t3")
    for key in ("ant:session:s", "ant:events:s", "ant:history:s"):
        assert await cell.redis.ttl(key) == -1, key


async def test_a_session_without_a_ttl_stays(cell):
    await cell.end(await cell.started("t1", ttl_ms=0))
    assert await cell.redis.ttl("ant:session:s") == -1
    await cell.redis.delete("ant:session:s", "ant:history:s", "ant:events:s", "ant:turns:s")


async def test_events_are_trimmed_by_count_but_never_within_the_run_that_ends(cell):
    await cell.end(await cell.started("t1"))
    turn = await cell.started("t2")
    await cell.say(turn, 1, *[body(text=str(n)) for n in range(10)])
    await cell.end(turn, keep_events=5)
    seqs = [event["seq"] for event in await cell.events()]
    assert seqs == list(range(5, 17)), "from the start of the second run"
    await cell.end(await cell.started("t3"), keep_events=5)
    assert [event["seq"] for event in await cell.events()] == [15, 16, 17, 18, 19]


async def test_a_cancelled_neighbour_does_not_trim_the_running_turn(cell):
    await cell.put_each("t1", "t2")
    turn = await cell.take_one()
    await cell.say(turn, 1, *[body(text=str(n)) for n in range(10)])
    await cell.cancel("t2", "not needed", keep_events=5)
    seqs = [event["seq"] for event in await cell.events()]
    assert seqs == list(range(3, 15)), "from the start of the running turn"
    assert (await cell.snapshot("s")).cursor == 2


async def test_the_next_turn_may_ask_for_the_history_from_where_the_window_began(cell):
    turn = await cell.started("t1", tail=-2)
    assert (turn.window, turn.history) == ("", [])
    await cell.end(turn, messages=[b"1", b"2", b"3"], window="1:500")
    turn = await cell.started("t2", tail=-2)
    assert (turn.window, turn.history, turn.history_length) == ("1:500", [b"2", b"3"], 3)
    await cell.end(turn, messages=[b"4"])
    assert (await cell.started("t3", tail=-2)).history == [b"2", b"3", b"4"]


async def test_a_summary_is_kept_with_the_turn_that_changed_it(cell):
    turn = await cell.started("t1", tail=-2)
    assert not await cell.end(stranger(turn, "1-other"), summary=b"9:not ours")
    await cell.end(turn, messages=[b"1", b"2", b"3"], window="1:500", summary=b"1:It began.")
    turn = await cell.started("t2", tail=-2)
    assert (turn.summary, turn.history) == (b"1:It began.", [b"2", b"3"])
    await cell.end(turn)
    assert (await cell.started("t3", tail=-2)).summary == b"1:It began.", "a turn that wrote none keeps it"


async def test_without_a_window_the_history_comes_from_where_the_summary_ends(cell):
    await cell.end(await cell.started("t1", tail=-2), messages=[b"1", b"2", b"3"], summary=b"2:It began.")
    assert (await cell.started("t2", tail=-2)).history == [b"3"]


async def test_a_failed_turn_keeps_what_it_said_and_its_place(cell):
    for turn_id, status in (("t1", "finished"), ("t2", "failed"), ("t3", "cancelled")):
        await cell.put(turn_id)
        messages = [b"m1", b"m2"] if status == "finished" else []
        await cell.end(await cell.take_one(), status, messages=messages, response=status.encode())
    fields = [(await cell.turn(turn_id)).fields for turn_id in ("t1", "t2", "t3")]
    assert [one["response"] for one in fields] == [b"finished", b"failed", b"cancelled"]
    assert [one.get("place") for one in fields] == [None, b"2", b"2"]


async def test_a_turn_of_which_something_stays_has_no_place_of_its_own(cell):
    await cell.end(await cell.started("t1"), "cancelled", messages=[b"m1"])
    assert "place" not in (await cell.turn("t1")).fields


async def test_the_next_turn_learns_whose_calls_no_history_tells_until_one_was_told(cell):
    for turn_id, calls, known in [
        ("t1", "untold", ""), ("t2", "", "t1 "), ("t3", "untold", "t1 "), ("t4", "told", "t3 t1 "), ("t5", "", ""),
    ]:  # fmt: skip
        turn = await cell.started(turn_id)
        assert turn.untold == known
        await cell.end(turn, "finished" if calls == "told" else "failed", calls=calls)


async def test_the_turns_of_which_no_history_tells_do_not_grow_for_ever(cell):
    for number in range(4):
        await cell.put(f"t{number}")
        await cell.redis.hset("ant:session:s", "untold", "x" * 5000)
        await cell.end(await cell.take_one(), "failed", calls="untold")
        assert await cell.redis.hstrlen("ant:session:s", "untold") == 1300


@pytest.mark.parametrize(
    ("events_ttl", "seconds"), [(None, 3600), (600_000, 600), (0, 86400), (7 * 86400_000, 86400)]
)
async def test_events_stay_as_long_as_the_app_of_the_last_worker_says(cell, events_ttl, seconds):
    """An hour by default, and no longer than the session. A turn that no worker has run changes nothing of it."""
    await cell.end(await cell.started("t1", ttl_ms=86400_000), events_ttl=600_000)
    await cell.end(await cell.started("t2"), events_ttl=events_ttl)
    assert seconds - 20 < await cell.redis.ttl("ant:events:s") <= seconds
    await cell.put("t3")
    assert await cell.redis.ttl("ant:events:s") == -1
    assert await cell.cancel(TurnId("t3"), "no", "nothing") == "cancelled"
    assert seconds - 20 < await cell.redis.ttl("ant:events:s") <= seconds


async def test_how_long_events_stay_is_stored_only_where_it_is_not_the_default(cell):
    await cell.end(await cell.started("t1"))
    assert not await cell.redis.hexists("ant:session:s", "events_ttl")
