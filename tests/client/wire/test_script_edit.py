"""`edit`, `fork` and `delete`: a session changed outside its turns, whole or not at all, and once."""

from __future__ import annotations

import msgspec
import pytest
from support.cells import body

from antiphon.errors import SessionExists, StoreFull, UsageError
from antiphon.wire.editing import Busy, Change, FieldChange, change_session, delete_session

TTL_MS = 100_000


async def edit(cell, op="op1", *, when="any", ttl_ms=TTL_MS, **change):
    return await change_session(cell, "s", op, Change(**change), when=when, ttl_ms=ttl_ms)


def message(text: bytes, length: int | None = None) -> dict:
    return {"messages": [text], "bodies": [body("message_added", "")], "length": length}


async def test_a_message_is_added_and_published(cell):
    assert await edit(cell, **message(b"m1", 0)) is True
    assert await cell.history() == [b"m1"]
    assert await cell.event_types() == ["message_added"]
    assert 0 < await cell.redis.ttl("ant:history:s") <= 100


async def test_a_repeated_change_is_done_once_whatever_came_between(cell):
    ops = [f"{number:016x}" for number in range(10)]
    for op in ops:
        await edit(cell, op, **message(op.encode()))
    before = await cell.contents()
    for op in ops:
        assert await edit(cell, op, **message(op.encode())) is True
    assert await cell.contents() == before
    assert await cell.history() == [op.encode() for op in ops]


async def test_the_calls_that_are_remembered_do_not_grow_for_ever(cell):
    for number in range(40):
        await edit(cell, f"{number:016x}", fields=[FieldChange("system", b"", b"")])
    assert len(await cell.redis.hget("ant:session:s", "ops")) <= 16 * 17


async def test_a_change_of_something_else_than_was_read_is_refused_whole(cell):
    await edit(cell, "op1", fields=[FieldChange("system", b"", b"be brief")], **message(b"m1"))
    before = await cell.contents()
    assert await edit(cell, "op2", **message(b"m2", 5)) is False
    assert (
        await edit(cell, "op3", fields=[FieldChange("system", b"be kind", b"x")], **message(b"m2")) is False
    )
    assert await cell.contents() == before


async def test_a_field_that_becomes_empty_is_gone(cell):
    await edit(cell, fields=[FieldChange("system", b"", b"be brief")])
    assert await cell.redis.hget("ant:session:s", "system") == b"be brief"
    await edit(cell, "op2", fields=[FieldChange("system", b"be brief", b"")])
    assert not await cell.redis.hexists("ant:session:s", "system")


async def test_a_change_waits_for_the_turns_that_it_must_not_meet(cell):
    await cell.put_each("t1", "t2")
    assert await edit(cell, when="idle", **message(b"m")) == Busy("t2")
    assert await edit(cell, "op2", when="between", **message(b"m")) is True
    turn = await cell.take_one()
    assert await edit(cell, "op3", when="between", **message(b"m")) == Busy("t1")
    assert await edit(cell, "op4", when="any", bodies=[body()]) is True
    assert await cell.redis.ttl("ant:session:s") == -1
    await cell.end(turn)


async def test_the_end_of_the_history_can_be_taken_away(cell):
    await edit(cell, messages=[b"1", b"2", b"3"])
    assert await cell.redis.hget("ant:session:s", "shortened") is None
    await edit(cell, "op2", keep=1, length=3, messages=[b"4"])
    assert await cell.history() == [b"1", b"4"]
    assert await cell.redis.hget("ant:session:s", "shortened") == b"1"  # for the archiver
    await edit(cell, "op3", keep=0, length=2)
    assert await cell.history() == []


async def test_an_edit_that_waits_for_a_turn_goes_before_the_next_one(cell):
    await cell.put_each("t1", "t2")
    first = await cell.take_one()
    assert await edit(cell, when="between", **message(b"m")) == Busy("t1")
    await cell.end(first)
    assert (await cell.queue(), await cell.status("t2")) == ([], "waiting")
    assert await cell.look_at() == await cell.now() + 1000
    assert (await cell.take()).turns == []
    for _ in range(2):
        assert await edit(cell, when="between", **message(b"m")) is True
    assert (await cell.queue(), await cell.status("t2")) == (["t2"], "queued")
    await cell.end(await cell.take_one())
    assert await cell.history() == [b'"t1"', b"m", b'"t2"']


async def test_several_edits_that_wait_each_have_their_turn(cell):
    for number in range(4):
        await cell.put(f"t{number}")
    turn = await cell.take_one()
    for op in ("op1", "op2"):
        assert isinstance(await edit(cell, op, when="between", **message(op.encode())), Busy)
    for op in ("op1", "op2"):
        await cell.end(turn)
        assert await edit(cell, op, when="between", **message(op.encode())) is True
        turn = await cell.take_one()
        assert isinstance(await edit(cell, "later", when="between", **message(b"later")), Busy)
    await cell.end(turn)
    assert await cell.history() == [b'"t0"', b"op1", b'"t1"', b"op2", b'"t2"']


async def test_an_edit_whose_caller_has_gone_keeps_the_next_turn_for_a_second_at_the_most(cell):
    for number in range(3):
        await cell.put(f"t{number}")
    turn = await cell.take_one()
    await edit(cell, when="between", **message(b"m"))
    await cell.end(turn)
    assert await cell.reap_after(999) == []
    assert [done.what for done in await cell.reap_after(1)] == ["repaired"]
    await cell.end(await cell.take_one())
    assert await cell.queue() == ["t2"]


async def test_an_edit_that_has_been_made_keeps_no_later_turn_back(cell):
    turn = await cell.started("t1")
    assert await edit(cell, when="between", **message(b"m")) == Busy("t1")
    await cell.end(turn)
    assert await edit(cell, when="between", **message(b"m")) is True
    for number in (2, 3):
        await cell.put(f"t{number}")
    await cell.end(await cell.take_one())
    assert await cell.queue() == ["t3"]


async def test_a_turn_that_begins_again_is_not_kept_back_for_an_edit(cell):
    await cell.put_each("t1", "t2")
    await edit(cell, when="between", **message(b"early"))
    turn = await cell.take_one()
    assert await edit(cell, "op2", when="between", **message(b"m")) == Busy("t1")
    await cell.give_back(turn, "drain")
    assert await cell.queue() == ["t1"]
    assert await edit(cell, "op2", when="between", **message(b"m")) == Busy("t1")
    assert await edit(cell, "op4", when="any", fields=[FieldChange("system", b"", b"S")]) is True
    await cell.end(await cell.take_one())
    assert await cell.queue() == []
    assert await edit(cell, "op3", when="any", **message(b"any")) is True
    assert await cell.queue() == []
    assert await edit(cell, "op2", when="between", **message(b"m")) is True
    assert await cell.queue() == ["t2"]
    assert await cell.history() == [b"early", b'"t1"', b"any", b"m"]


async def test_a_turn_that_is_kept_back_may_be_cancelled(cell):
    for number in range(3):
        await cell.put(f"t{number}")
    turn = await cell.take_one()
    await edit(cell, when="between", **message(b"m"))
    await cell.end(turn)
    assert await cell.cancel("t1", "no longer") == "cancelled"
    assert await cell.queue() == ["t2"]


async def test_a_closed_session_is_not_changed(cell):
    await edit(cell, fields=[FieldChange("closed", b"", b"1")])
    with pytest.raises(UsageError):
        await edit(cell, "op2", **message(b"m"))


async def test_a_fork_has_the_finished_turns_and_is_made_once(cell):
    await cell.end(await cell.started("t1"), messages=[b"1", b"2"])
    for _ in range(2):
        await cell.fork("s", "f", "op1", ttl_ms=TTL_MS)
    assert await cell.history("f") == [b"1", b"2"]
    assert (await cell.event_types()).count("session_forked") == 1
    assert 0 < await cell.redis.ttl("ant:history:f") <= 100
    with pytest.raises(SessionExists):
        await cell.fork("s", "f", "op2", ttl_ms=TTL_MS)


async def test_a_fork_has_a_part_of_the_history_and_what_fits_that(cell):
    await edit(cell, messages=[b"1", b"2", b"3"])
    await cell.redis.hset("ant:session:s", mapping={"window": "2:50", "summary": "2:They met."})
    known = ("window", "summary", "fork_of", "fork_at", "ends")
    assert await cell.fork(target="whole") is True
    found = await cell.redis.hmget("ant:session:whole", *known)
    assert found == [b"2:50", b"2:They met.", b"s", b"m3", b"0:3 "]
    assert await cell.fork(target="two", keep=2) is True
    assert await cell.history("two") == [b"1", b"2"]
    assert await cell.redis.hmget("ant:session:two", *known) == [None, b"2:They met.", b"s", b"m2", b"0:2 "]
    assert await cell.fork(target="one", keep=1) is True
    assert await cell.history("one") == [b"1"]
    assert await cell.redis.hmget("ant:session:one", *known) == [None, None, b"s", b"m1", b"0:1 "]
    assert await cell.fork(target="none", keep=0) is True
    assert await cell.redis.exists("ant:history:none") == 0
    assert await cell.redis.hmget("ant:session:none", *known) == [None, None, b"s", None, None]
    branches = msgspec.json.decode(await cell.redis.hget("ant:session:s", "branches"))
    assert list(branches.items()) == [("whole", "m3"), ("two", "m2"), ("one", "m1"), ("none", "")]
    assert await cell.redis.hget("ant:session:s", "summary") == b"2:They met."


async def test_a_fork_of_something_else_than_was_read_is_refused_whole(cell):
    await edit(cell, messages=[b"1", b"2"])
    before = await cell.contents()
    assert await cell.fork(keep=2, last=b"another") is False
    assert await cell.fork(keep=3, last=b"3") is False
    assert await cell.contents() == before


@pytest.mark.lasting_keys("ant:session:*", "ant:history:*", "ant:events:*")
async def test_the_last_ttl_that_was_given_to_a_change_is_the_sessions(cell):
    for number, (given, ttl) in enumerate(
        [(None, 30 * 86400), (100_000, 100), (None, 100), (200_000, 200), (0, None)]
    ):
        await edit(cell, f"op{number}", ttl_ms=given, **message(b"m"))
        lives = [await cell.redis.ttl(f"ant:{name}:s") for name in ("history", "events", "session")]
        if ttl is None:
            assert lives == [-1, -1, -1]
        else:
            assert ttl - 20 < lives[0] <= ttl
            assert lives[1] == min(lives[0], 3600)
            assert ttl + 3580 < lives[2] <= ttl + 3600


@pytest.mark.lasting_keys("ant:session:*", "ant:history:*", "ant:events:*")
@pytest.mark.parametrize(
    ("source", "given", "left"),
    [(50_000, None, 50), (50_000, 200_000, 200), (50_000, 0, None), (0, None, None), (0, 100_000, 100)],
)
async def test_a_fork_lives_as_long_as_its_source_or_as_it_was_given(source, given, left, cell):
    await edit(cell, ttl_ms=source, **message(b"m"))
    await cell.fork(ttl_ms=given)
    life = await cell.redis.ttl("ant:history:f")
    assert life == -1 if left is None else left - 20 < life <= left


async def test_a_fork_belongs_to_the_same_tenant_and_goes_to_the_same_queue(cell):
    await cell.put("t1", queue="", agent=b'"a"', agent_queue="of-a", tenant="acme")
    await cell.end(await cell.take_one(queues=["of-a"]))
    await cell.redis.hset("ant:session:s", "queue", "of-s")
    await cell.fork("s", "f", "op1", ttl_ms=TTL_MS)
    names = ("tenant", "queue", "agent_queue")
    assert await cell.redis.hmget("ant:session:f", *names) == [b"acme", b"of-s", b"of-a"]


async def test_a_deleted_session_is_gone_and_its_id_free(cell):
    await cell.put("t1")
    assert await delete_session(cell, "s") == Busy("t1")
    await cell.end(await cell.take_one())
    assert await delete_session(cell, "s") is True
    assert await delete_session(cell, "s") is False
    assert await cell.redis.zscore("ant:sessions", "s") is None
    await cell.put("t2")
    assert await cell.event_types() == ["turn_queued"]
    assert await cell.redis.lrange("ant:turns:s", 0, -1) == [b"t2"]


async def test_at_full_memory_a_change_is_refused_whole_and_a_deletion_works(cell):
    await edit(cell, **message(b"m"))
    before = await cell.contents()
    await cell.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await edit(cell, "op2", **message(b"m"))
        with pytest.raises(StoreFull):
            await cell.fork("s", "f", "op3", ttl_ms=TTL_MS)
        assert await cell.contents() == before
        assert await delete_session(cell, "s") is True
    finally:
        await cell.redis.config_set("maxmemory", 0)


async def test_a_deleted_sessions_delayed_turns_are_cancelled_and_none_begins_it_anew(cell):
    await cell.end(await cell.started("now"))
    for turn in ("soon", "later"):
        await cell.put(turn, due_in_ms=1000)
    await cell.put("other", "another", due_in_ms=1000)
    assert await delete_session(cell, "s") is True
    for turn in ("now", "soon", "later"):
        assert await cell.redis.hexists(f"ant:turn:{turn}", "deleted")
    assert await cell.status("other") == "queued"
    assert await cell.redis.zrange("ant:due", 0, -1) == [b"other"]
    assert [act.turn_id for act in await cell.reap_after(1000)] == ["other"]
    assert not await cell.redis.exists("ant:inbox:s", "ant:events:s", "ant:turns:s")
    assert await cell.redis.zscore("ant:sessions", "s") is None


async def test_what_left_nothing_behind_the_cut_of_a_history_has_no_place_in_it_any_more(cell):
    for number, status in enumerate(["failed", "finished", "failed", "finished", "failed"]):
        await cell.put(f"t{number}")
        messages = [b"q", b"a"] if status == "finished" else []
        await cell.end(await cell.take_one(), status, messages=messages)
    await edit(cell, length=4, keep=2, messages=[b"n1", b"n2"])
    places = [(await cell.turn(f"t{number}")).fields.get("place") for number in (0, 2, 4)]
    assert places == [b"0", b"2", None]


async def test_a_turn_that_was_cancelled_in_rq_while_an_edit_went_first_does_not_run(cell):
    await cell.put_each("t1", "t2")
    first = await cell.take_one()
    assert await edit(cell, when="between", **message(b"m")) == Busy("t1")
    await cell.end(first)
    await cell.redis.hset("rq:job:t2", "status", "canceled")
    assert await edit(cell, when="between", **message(b"m")) is True
    assert await cell.queue() == []
    assert [done.what for done in await cell.reap()] == ["cancelled"]
