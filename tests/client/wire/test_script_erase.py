"""A deletion is completed by whoever searches all keys next, whatever happened to the process that began it."""

from __future__ import annotations

import pytest

from antiphon.errors import TurnDeleted
from antiphon.wire.editing import delete_session, erase_turns

MINUTE, WEEK = 60_000, 7 * 24 * 3600


async def unlisted(cell, turn="t1", *, session="s", status="failed", **options):
    """A turn that has ended, and that its session no longer lists."""
    await cell.end(await cell.started(turn, session, **options), status)
    await cell.redis.lrem(f"ant:turns:{session}", 0, turn)
    await cell.wait(1)


async def over(cell, session="s"):
    """The session expires; an hour later nothing says that there was one."""
    await cell.redis.delete(*(f"ant:{kind}:{session}" for kind in ("session", "history", "events", "turns")))


async def begin_to_delete(cell, session="s", tenant=""):
    """Delete a session whose list is full, in a process that ends before it has searched."""
    await cell.redis.rpush(f"ant:turns:{session}", *(f"x{number}" for number in range(1000)))
    answer = await cell.run("editing/delete", session, tenant)
    assert answer == [b"DELETED", b"1", b"1"]


async def is_erased(cell, turn="t1"):
    fields = await cell.redis.hgetall(f"ant:turn:{turn}")
    assert (b"deleted" in fields) != (b"request" in fields)
    return b"deleted" in fields


async def test_a_repeated_deletion_continues_one_that_was_interrupted(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    assert not await is_erased(cell)
    await cell.wait(1)
    assert await delete_session(cell, "s") is False
    assert await is_erased(cell)
    await cell.wait(1)
    assert await delete_session(cell, "s") is False


async def test_a_worker_continues_one_after_a_minute(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(MINUTE - 1)
    assert await erase_turns(cell, if_due=True) is None
    await cell.wait(1)
    assert await erase_turns(cell, if_due=True) == 1
    assert await is_erased(cell)
    assert not await cell.redis.exists("ant:erasing")
    assert await erase_turns(cell, if_due=True) is None


async def test_a_search_that_dies_is_made_again_and_one_that_goes_on_is_not(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(MINUTE)
    assert (await cell.run("editing/erase", "", "", "", 1))[0] == b"ERASED"  # one page, then it dies
    await cell.wait(2 * MINUTE - 1)
    assert await erase_turns(cell, if_due=True) is None
    await cell.wait(1)
    await erase_turns(cell, if_due=True)
    assert await is_erased(cell)
    assert not await cell.redis.exists("ant:erasing")


async def test_a_session_that_was_deleted_during_a_search_is_searched_for_again(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(MINUTE)
    began = (await cell.run("editing/erase", "", "", "", 1))[3]
    await unlisted(cell, "t2", session="other")
    await begin_to_delete(cell, "other")
    await cell.run("editing/erase", "", began, "0", 1000)
    marks = await cell.redis.hgetall("ant:erasing")
    assert [*marks.keys() - {b""}] == [b"other\x1f"]
    await cell.wait(2 * MINUTE)
    await erase_turns(cell, if_due=True)
    assert await is_erased(cell, "t2")


@pytest.mark.parametrize("how", ["listed", "not listed"])
async def test_a_session_that_begins_again_under_the_id_keeps_its_turns(how, cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(1)
    await cell.end(await cell.started("t2"))
    if how == "not listed":
        await cell.redis.delete("ant:turns:s")
    await cell.wait(MINUTE)
    await erase_turns(cell, if_due=True)
    assert (await is_erased(cell, "t1"), await is_erased(cell, "t2")) == (True, False)


async def test_what_is_to_be_erased_does_not_run_again(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(1)
    with pytest.raises(TurnDeleted):
        await cell.requeue("t1")
    with pytest.raises(TurnDeleted):
        await cell.put("t1", again="once more")
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take()).turns == []
    assert await cell.inbox() == []


async def test_turns_of_a_session_that_expired_long_ago_are_erased_by_a_worker(cell):
    await unlisted(cell, tenant="a")
    await over(cell)
    await unlisted(cell, "t2", tenant="b")
    await over(cell)
    assert await delete_session(cell, "s", "a") is False
    await cell.wait(10 * MINUTE)
    assert await erase_turns(cell, if_due=True) == 1
    assert (await is_erased(cell, "t1"), await is_erased(cell, "t2")) == (True, False)
    assert await delete_session(cell, "s") is False  # of whatever tenant
    await cell.wait(10 * MINUTE)
    assert await erase_turns(cell, if_due=True) == 1
    assert await is_erased(cell, "t2")


async def test_an_earlier_session_of_another_tenant_is_not_erased_with_the_later_one(cell):
    await unlisted(cell, tenant="a")
    await over(cell)
    await unlisted(cell, "t2", tenant="b")
    assert await delete_session(cell, "s")
    await cell.wait(10 * MINUTE)
    await erase_turns(cell, if_due=True)
    assert (await is_erased(cell, "t1"), await is_erased(cell, "t2")) == (False, True)


async def test_a_delayed_turn_that_is_listed_no_more_does_not_begin(cell):
    await cell.put("t1", due_in_ms=WEEK * 1000, tenant="a")
    await cell.redis.delete("ant:turns:s")
    await cell.wait(1)
    await begin_to_delete(cell)
    await cell.wait(MINUTE)
    assert await erase_turns(cell, if_due=True) == 1
    assert await is_erased(cell)
    assert not await cell.redis.exists("ant:due", "ant:tenant:a")


async def test_a_suspended_turn_that_others_pass_by_is_erased_with_its_session(cell):
    await cell.hold(await cell.started("t1"), aside=True)
    assert await delete_session(cell, "s")
    assert await is_erased(cell)
    assert not await cell.redis.exists("ant:aside", "ant:suspended", "ant:journal:t1")


@pytest.mark.parametrize("how", ["expired", "restored", "archived"])
async def test_what_an_earlier_session_may_have_left_is_searched_for_at_once(how, cell):
    await unlisted(cell)
    if how == "expired":
        await cell.redis.delete("ant:events:s", "ant:history:s")
        await cell.redis.pexpire("ant:session:s", MINUTE)
    elif how == "restored":
        await cell.redis.hincrby("ant:session:s", "created", -1)
    else:
        await over(cell)
        await cell.redis.set("ant:seq_floor", 40)
    await cell.wait(1)
    await delete_session(cell, "s")
    assert await is_erased(cell)


async def test_a_suspended_turn_that_is_listed_no_more_does_not_continue(cell):
    await cell.hold(await cell.started("t1"), aside=True)
    await cell.redis.delete("ant:turns:s")
    await cell.wait(1)
    await begin_to_delete(cell)
    await cell.wait(MINUTE)
    assert await erase_turns(cell, if_due=True) == 1
    assert await is_erased(cell)
    assert not await cell.redis.exists("ant:aside", "ant:suspended", "ant:journal:t1")


async def test_nothing_is_left_of_the_list_if_no_worker_runs_for_a_week(cell):
    await delete_session(cell, "s")
    assert 0 < await cell.redis.ttl("ant:erasing") <= WEEK


async def test_at_full_memory_a_deletion_is_completed(cell):
    await unlisted(cell)
    await begin_to_delete(cell)
    await cell.wait(MINUTE)
    await cell.redis.config_set("maxmemory", 1)
    try:
        assert await erase_turns(cell, if_due=True) == 1
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert await is_erased(cell)
