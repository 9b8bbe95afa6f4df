"""`edit`, `fork` and `delete`: a session changed outside its turns, whole or not at all, and once."""

from __future__ import annotations

import pytest
from support.cells import body, open_cell

from antiphon.errors import SessionExists, StoreFull, UsageError
from antiphon.redis.fields import FORKED_FIELDS
from antiphon.wire.editing import Busy, Change, FieldChange, change_session, delete_session, fork_session

TTL_MS = 100_000


async def edit(cell, op="op1", *, when="any", **change):
    return await change_session(cell, "s", op, Change(**change), when=when, ttl_ms=TTL_MS)


def message(text: bytes, length: int | None = None) -> dict:
    return {"messages": [text], "bodies": [body("message_added", "")], "length": length}


async def test_a_message_is_added_and_published(redis_url):
    async with open_cell(redis_url) as cell:
        assert await edit(cell, **message(b"m1", 0)) is True
        assert await cell.history() == [b"m1"]
        assert await cell.event_types() == ["message_added"]
        assert 0 < await cell.redis.ttl("ant:history:s") <= 100


async def test_a_repeated_change_is_done_once_whatever_came_between(redis_url):
    async with open_cell(redis_url) as cell:
        ops = [f"{number:016x}" for number in range(10)]
        for op in ops:
            await edit(cell, op, **message(op.encode()))
        before = await cell.contents()
        for op in ops:
            assert await edit(cell, op, **message(op.encode())) is True
        assert await cell.contents() == before
        assert await cell.history() == [op.encode() for op in ops]


async def test_the_calls_that_are_remembered_do_not_grow_for_ever(redis_url):
    async with open_cell(redis_url) as cell:
        for number in range(40):
            await edit(cell, f"{number:016x}", fields=[FieldChange("system", b"", b"")])
        assert len(await cell.redis.hget("ant:session:s", "ops")) <= 16 * 17


async def test_a_change_of_something_else_than_was_read_is_refused_whole(redis_url):
    async with open_cell(redis_url) as cell:
        await edit(cell, "op1", fields=[FieldChange("system", b"", b"be brief")], **message(b"m1"))
        before = await cell.contents()
        assert await edit(cell, "op2", **message(b"m2", 5)) is False
        assert (
            await edit(cell, "op3", fields=[FieldChange("system", b"be kind", b"x")], **message(b"m2"))
            is False
        )
        assert await cell.contents() == before


async def test_a_change_waits_for_the_turns_that_it_must_not_meet(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        await cell.put("t2")
        assert await edit(cell, when="idle", **message(b"m")) == Busy("t2")
        assert await edit(cell, "op2", when="between", **message(b"m")) is True
        turn = await cell.take_one()
        assert await edit(cell, "op3", when="between", **message(b"m")) == Busy("t1")
        assert await edit(cell, "op4", when="any", bodies=[body()]) is True
        assert await cell.redis.ttl("ant:session:s") == -1
        await cell.end(turn)


async def test_the_end_of_the_history_can_be_taken_away(redis_url):
    async with open_cell(redis_url) as cell:
        await edit(cell, messages=[b"1", b"2", b"3"])
        await edit(cell, "op2", keep=1, length=3, messages=[b"4"])
        assert await cell.history() == [b"1", b"4"]
        await edit(cell, "op3", keep=0, length=2)
        assert await cell.history() == []


async def test_an_edit_that_waits_for_a_turn_goes_before_the_next_one(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        await cell.put("t2")
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


async def test_several_edits_that_wait_each_have_their_turn(redis_url):
    async with open_cell(redis_url) as cell:
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


async def test_an_edit_whose_caller_has_gone_keeps_the_next_turn_for_a_second_at_the_most(redis_url):
    async with open_cell(redis_url) as cell:
        for number in range(3):
            await cell.put(f"t{number}")
        turn = await cell.take_one()
        await edit(cell, when="between", **message(b"m"))
        await cell.end(turn)
        await cell.wait(999)
        assert await cell.reap() == []
        await cell.wait(1)
        assert [done.what for done in await cell.reap()] == ["repaired"]
        await cell.end(await cell.take_one())
        assert await cell.queue() == ["t2"]


async def test_an_edit_that_has_been_made_keeps_no_later_turn_back(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        turn = await cell.take_one()
        assert await edit(cell, when="between", **message(b"m")) == Busy("t1")
        await cell.end(turn)
        assert await edit(cell, when="between", **message(b"m")) is True
        for number in (2, 3):
            await cell.put(f"t{number}")
        await cell.end(await cell.take_one())
        assert await cell.queue() == ["t3"]


async def test_a_turn_that_begins_again_is_not_kept_back_for_an_edit(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        await cell.put("t2")
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


async def test_a_turn_that_is_kept_back_may_be_cancelled(redis_url):
    async with open_cell(redis_url) as cell:
        for number in range(3):
            await cell.put(f"t{number}")
        turn = await cell.take_one()
        await edit(cell, when="between", **message(b"m"))
        await cell.end(turn)
        assert await cell.cancel("t1", "no longer") == "cancelled"
        assert await cell.queue() == ["t2"]


async def test_a_closed_session_is_not_changed(redis_url):
    async with open_cell(redis_url) as cell:
        await edit(cell, fields=[FieldChange("closed", b"", b"1")])
        with pytest.raises(UsageError):
            await edit(cell, "op2", **message(b"m"))


async def test_a_fork_has_the_finished_turns_and_is_made_once(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        await cell.end(await cell.take_one(), messages=[b"1", b"2"])
        for _ in range(2):
            await fork_session(
                cell, "s", "f", "op1", ttl_ms=TTL_MS, body=body("session_forked", ""), fields=FORKED_FIELDS
            )
        assert await cell.history("f") == [b"1", b"2"]
        assert (await cell.event_types()).count("session_forked") == 1
        assert 0 < await cell.redis.ttl("ant:history:f") <= 100
        with pytest.raises(SessionExists):
            await fork_session(cell, "s", "f", "op2", ttl_ms=TTL_MS, body=body(), fields=FORKED_FIELDS)


async def test_a_fork_belongs_to_the_same_tenant_and_goes_to_the_same_queue(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1", queue="", agent=b'"a"', agent_queue="of-a", tenant="acme")
        await cell.end(await cell.take_one(queues=["of-a"]))
        await cell.redis.hset("ant:session:s", "queue", "of-s")
        await fork_session(
            cell, "s", "f", "op1", ttl_ms=TTL_MS, body=body("session_forked", ""), fields=FORKED_FIELDS
        )
        names = ("tenant", "queue", "agent_queue")
        assert await cell.redis.hmget("ant:session:f", *names) == [b"acme", b"of-s", b"of-a"]


async def test_a_deleted_session_is_gone_and_its_id_free(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        assert await delete_session(cell, "s") == Busy("t1")
        await cell.end(await cell.take_one())
        assert await delete_session(cell, "s") is True
        assert await delete_session(cell, "s") is False
        assert await cell.redis.zscore("ant:sessions", "s") is None
        await cell.put("t2")
        assert await cell.event_types() == ["turn_queued"]
        assert await cell.redis.lrange("ant:turns:s", 0, -1) == [b"t2"]


async def test_at_full_memory_a_change_is_refused_whole_and_a_deletion_works(redis_url):
    async with open_cell(redis_url) as cell:
        await edit(cell, **message(b"m"))
        before = await cell.contents()
        await cell.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await edit(cell, "op2", **message(b"m"))
            with pytest.raises(StoreFull):
                await fork_session(cell, "s", "f", "op3", ttl_ms=TTL_MS, body=body(), fields=FORKED_FIELDS)
            assert await cell.contents() == before
            assert await delete_session(cell, "s") is True
        finally:
            await cell.redis.config_set("maxmemory", 0)


async def test_a_deleted_sessions_delayed_turns_are_cancelled_and_none_begins_it_anew(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("now")
        await cell.end(await cell.take_one())
        for turn in ("soon", "later"):
            await cell.put(turn, due_in_ms=1000)
        await cell.put("other", "another", due_in_ms=1000)
        assert await delete_session(cell, "s") is True
        assert [await cell.status(turn) for turn in ("soon", "later", "other")] == ["cancelled"] * 2 + [
            "queued"
        ]
        assert await cell.redis.zrange("ant:due", 0, -1) == [b"other"]
        await cell.wait(1000)
        assert [act.turn_id for act in await cell.reap()] == ["other"]
        assert not await cell.redis.exists("ant:session:s", "ant:inbox:s", "ant:events:s", "ant:turns:s")
        assert await cell.redis.zscore("ant:sessions", "s") is None
