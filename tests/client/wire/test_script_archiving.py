"""`take`, `mark`, `restore`, `forgotten`: sessions that end are saved, come back whole, are forgotten when deleted."""

from contextlib import asynccontextmanager

import pytest
from bench.gauges import redis_counters
from redis import Redis
from support.cells import START_MS, body, load_scripts, open_cell

from antiphon.errors import SessionNotFound, StoreError, StoreFull
from antiphon.wire.archiving import (
    Ending,
    Forget,
    Late,
    Unasked,
    begin_archiving,
    forgotten,
    mark_archived,
    put_off,
    restore_session,
    set_aside,
    take_work,
)
from antiphon.wire.editing import Change, FieldChange, change_session, delete_session

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
KEYS = [f"ant:{kind}:s" for kind in ("session", "history", "events", "turns")]
SOON = 600_000  # so short a life that its session is saved as soon as nobody uses it


@asynccontextmanager
async def archiving_cell(url):
    """A cell whose workers have an archive."""
    async with open_cell(url) as cell:
        await begin_archiving(cell)
        yield cell


@pytest.fixture
def cell(redis_url):
    return archiving_cell(redis_url)


async def talk(cell, turn="t1", session="s", *, ttl_ms=SOON, asked=True):
    """A session with one more finished turn; ``asked`` is what a worker with an archive leaves behind."""
    claimed = await cell.started(turn, session, ttl_ms=ttl_ms)
    if asked:
        await restore(cell, session, claimed.fence)
    assert await cell.end(claimed)


async def restore(cell, session="s", fence="", *, messages=(), refuse="", **fields):
    changes = [FieldChange(name, *values) for name, values in fields.items()]
    return await restore_session(cell, session, fence, fields=changes, messages=messages, refuse=refuse)


async def lives(cell):
    """How long each of a session's keys has to live, at one moment."""
    pipe = cell.redis.pipeline(transaction=True)
    for key in KEYS:
        pipe.pttl(key)
    return await pipe.execute()


async def end_in(cell, ms):
    """As if so much of the session's life were left."""
    for key in KEYS:
        await cell.redis.pexpire(key, ms + (HOUR if "session" in key else 0))
    await cell.redis.zadd("ant:ending", {"s": 0})


async def test_looking_costs_three_commands_where_nothing_ends(cell, redis_url):
    for number in range(5):
        await talk(cell, f"t{number}", f"s{number}", ttl_ms=30 * DAY)
    await load_scripts(cell)
    assert await take_work(cell) is None
    with Redis.from_url(redis_url) as redis:
        before = redis_counters(redis)
        assert await take_work(cell) is None
        since = redis_counters(redis).since(before)
    assert sum(since.commands.values()) - since.scripts <= 3


async def test_a_session_that_ends_soon_is_read_whole_and_by_one_archiver_a_minute(cell):
    await talk(cell)
    found = await take_work(cell)
    assert isinstance(found, Ending)
    assert (found.session_id, found.history, found.fields["seq"]) == ("s", [b'"t1"'], b"3")
    assert 0 < found.left_ms <= SOON
    assert await take_work(cell) is None
    await cell.wait(MINUTE + 1)
    again = await take_work(cell)
    assert isinstance(again, Ending)
    assert (again.version, again.fields, again.history) == (found.version, found.fields, found.history)


@pytest.mark.parametrize(
    ("ttl_ms", "lead"),
    [
        (SOON, SOON),
        (HOUR, HOUR // 2),
        (DAY, DAY // 2),
        (2 * DAY, DAY),
        (30 * DAY, DAY),
        (MINUTE, 10 * MINUTE),
    ],
)
async def test_a_session_is_saved_at_half_its_life_ten_minutes_to_a_day_before_its_end(cell, ttl_ms, lead):
    await talk(cell, ttl_ms=ttl_ms)
    assert await cell.redis.zscore("ant:ending", "s") == START_MS + ttl_ms - lead
    if lead < ttl_ms:
        await end_in(cell, lead + 10_000)
        assert await take_work(cell) is None
        await end_in(cell, lead - 10_000)
    assert isinstance(await take_work(cell), Ending)
    assert lead - 5000 < (await lives(cell))[1] <= lead


async def test_one_that_is_looked_at_too_early_is_looked_at_when_it_is_time(cell):
    await talk(cell, ttl_ms=HOUR)
    assert await take_work(cell) is None
    await cell.wait(HOUR // 2 - 10_000)
    assert await take_work(cell) is None
    await end_in_without_a_look(cell, HOUR // 2)
    await cell.wait(20_000)
    assert isinstance(await take_work(cell), Ending)


async def end_in_without_a_look(cell, ms):
    for key in KEYS:
        await cell.redis.pexpire(key, ms + (HOUR if "session" in key else 0))


@pytest.mark.lasting_keys("ant:*:kept")
async def test_sessions_that_there_were_before_the_archive_are_archived_too(redis_url):
    async with open_cell(redis_url) as cell:
        await talk(cell, asked=False)
        await talk(cell, "t2", "kept", ttl_ms=0)
        await talk(cell, "t3", "later", ttl_ms=30 * DAY, asked=False)
        assert await cell.redis.exists("ant:ending") == 0
        await begin_archiving(cell)
        assert await take_work(cell) == Unasked("s")
        assert await take_work(cell) is None
        await cell.wait(29 * DAY)
        await cell.redis.pexpire("ant:session:later", DAY + HOUR)
        assert {await take_work(cell), await take_work(cell)} == {Unasked("s"), Unasked("later")}
        await delete_session(cell, "kept")
        assert await cell.redis.zscore("ant:ending", "kept") is None


async def test_a_worker_that_starts_later_does_not_look_at_all_sessions_again(cell):
    await cell.redis.zadd("ant:sessions", {"s": await cell.now() + DAY})
    await begin_archiving(cell)
    assert await cell.redis.exists("ant:ending") == 0
    await cell.redis.delete("ant:sessions")


@pytest.mark.lasting_keys("ant:*:kept")
async def test_sessions_that_are_used_or_kept_for_ever_are_left_alone(cell):
    await talk(cell, session="kept", ttl_ms=0)
    await talk(cell, "t2")
    await cell.put("t3")
    await cell.redis.zadd("ant:ending", {"s": 0, "kept": 0})
    assert await take_work(cell) is None
    assert await cell.redis.pttl("ant:history:s") == -1
    assert await cell.redis.exists("ant:ending") == 0


async def test_many_that_need_nothing_do_not_hide_one_that_ends(cell):
    await talk(cell)
    await cell.redis.zadd("ant:ending", {f"gone{number}": number for number in range(250)})
    assert isinstance(await take_work(cell), Ending)
    assert await take_work(cell) is None
    assert await cell.redis.zrange("ant:ending", 0, -1) == [b"s"]


async def test_a_marked_session_ends_with_all_its_keys_at_once_and_is_not_read_again(cell):
    await talk(cell)
    found = await take_work(cell)
    await end_in(cell, HOUR)
    for _ in range(2):
        assert await mark_archived(cell, found) is True
    assert await cell.redis.exists("ant:ending") == 0
    times = await lives(cell)
    assert max(times) - min(times) <= 1
    assert found.left_ms - 5000 < max(times) <= found.left_ms
    await cell.redis.zadd("ant:ending", {"s": 0})
    assert await take_work(cell) is None
    assert max(await lives(cell)) <= found.left_ms
    assert await cell.redis.exists("ant:ending") == 0


@pytest.mark.parametrize("change", ["turn", "edit", "delayed turn", "deletion"])
async def test_a_session_that_changed_since_it_was_read_is_not_marked_and_is_read_again(cell, change):
    await talk(cell)
    found = await take_work(cell)
    match change:
        case "turn":
            await talk(cell, "t2")
        case "edit":
            await edit(cell, messages=[b"m"])
        case "delayed turn":
            await cell.put("t2", due_in_ms=SOON, ttl_ms=SOON)
        case _:
            await delete_session(cell, "s")
    before = await cell.contents()
    assert await mark_archived(cell, found) is False
    assert await cell.contents() == before
    if change in ("turn", "edit"):
        again = await take_work(cell)
        assert isinstance(again, Ending)
        assert len(again.history) == 2


async def edit(cell, op="op1", session="s", **change):
    change.setdefault("bodies", [body("message_added", "")])
    await change_session(cell, session, op, Change(**change), when="any", ttl_ms=SOON)


async def test_a_history_that_was_cut_on_purpose_replaces_the_copy_once(cell):
    await talk(cell)
    await edit(cell, length=1, keep=0)
    found = await take_work(cell)
    assert found.fields["shortened"] == b"1"
    assert await mark_archived(cell, found)
    assert await cell.redis.hget("ant:session:s", "shortened") is None


async def test_a_marked_session_that_is_used_again_lives_on_and_is_read_again(cell):
    await talk(cell)
    assert await mark_archived(cell, await take_work(cell))
    await talk(cell, "t2")
    session, *others = await lives(cell)
    assert max(others) <= SOON < session
    again = await take_work(cell)
    assert isinstance(again, Ending)
    assert again.history == [b'"t1"', b'"t2"']


async def test_a_session_that_began_anew_is_not_read_before_the_store_was_asked(cell):
    await talk(cell, asked=False)
    assert await take_work(cell) == Unasked("s")
    assert await take_work(cell) is None
    assert await restore(cell) == "RESTORED"
    assert isinstance(await take_work(cell), Ending)


async def test_a_session_whose_history_has_ended_is_named_once_and_asks_again_when_it_is_used(cell):
    await talk(cell)
    await cell.redis.delete(*KEYS[1:])
    await cell.redis.pexpire("ant:session:s", HOUR - 1)
    assert await take_work(cell) == Late("s")
    assert await take_work(cell) is None
    await cell.put("t2")
    assert await cell.redis.hget("ant:session:s", "restored") is None
    assert await cell.redis.get("ant:seq_floor") == b"3"


@pytest.mark.parametrize("archive", ["archive", "no archive"])
@pytest.mark.parametrize("how", ["submit", "edit", "requeue", "fork onto it"])
async def test_a_session_whose_life_is_over_begins_anew_however_it_is_used(redis_url, how, archive):
    async with open_cell(redis_url) as cell:
        if archive == "archive":
            await begin_archiving(cell)
        claimed = await cell.started("t1", ttl_ms=SOON, tenant="acme")
        fields = {"summary": (b"", b"2:what was said"), "system": (b"", b"be brief"), "closed": (b"", b"1")}
        await restore(cell, fence=claimed.fence, **fields)
        assert await cell.end(claimed, "failed", variables=b'{"a":1}', window="3:4")
        await end_in(cell, 0)
        assert await cell.redis.exists(*KEYS) == 1, "the hash alone is left"
        with pytest.raises(SessionNotFound):
            await cell.snapshot("s")
        await use(cell, how)
        fields = (await cell.snapshot("s")).fields
        assert not fields.keys() & {
            "summary",
            "system",
            "closed",
            "variables",
            "window",
            "restored",
        }
        assert fields.get("tenant") == (b"acme" if how == "requeue" else None), "as the turn that begins it"
        assert fields["first"] == b"4", "no event follows a cursor of the former life"
        assert fields.get("archived") == (b"" if archive == "archive" else None)
        assert await cell.history() == []
        assert [event["seq"] for event in await cell.events()] == [5, 6][: int(fields["seq"]) - 4]


async def test_what_outlives_the_end_of_a_life_is_not_of_the_new_one(redis_url):
    """A release that gives the keys other times, or a server that is late, leaves them there."""
    async with open_cell(redis_url) as cell:
        assert await cell.end(await cell.started("t1"))
        await cell.redis.pexpire("ant:session:s", HOUR)
        assert await cell.redis.exists(*KEYS) == len(KEYS)
        await cell.put("t2")
        assert await cell.history() == []
        assert [(event["seq"], event["turn_id"]) for event in await cell.events()] == [(5, "t2")]
        assert await cell.redis.lrange("ant:turns:s", 0, -1) == [b"t2"]


async def use(cell, how):
    match how:
        case "submit":
            await cell.put("t2")
        case "edit":
            change = Change(fields=[FieldChange("files", b"", b"{}")], length=0, bodies=[body("files", "")])
            assert await change_session(cell, "s", "op", change, when="any", ttl_ms=SOON) is True
        case "requeue":
            await cell.requeue("t1")
            await cell.take_one()
        case _:
            await cell.fork("other", "s", "op", ttl_ms=SOON)


async def test_a_fork_of_a_session_whose_life_is_over_has_nothing_of_it(cell):
    await talk(cell)
    await change_session(
        cell, "s", "op", Change(fields=[FieldChange("system", b"", b"x")]), when="any", ttl_ms=SOON
    )
    await end_in(cell, 0)
    before = await cell.redis.dump("ant:session:s")
    await cell.fork("s", "fork", "op", ttl_ms=SOON)
    fields = (await cell.snapshot("fork")).fields
    assert ("system" in fields, "restored" in fields, fields["origin"]) == (False, False, b"s")
    assert await cell.redis.dump("ant:session:s") == before


async def test_a_marked_session_in_its_last_hour_goes_on(cell):
    await talk(cell)
    found = await take_work(cell)
    assert await mark_archived(cell, found)
    assert (await cell.started("t2")).restored == "1"
    assert await cell.history() == [b'"t1"']


async def test_at_full_memory_no_session_begins_anew(cell):
    await talk(cell)
    await end_in(cell, 0)
    before = await cell.contents()
    await cell.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await cell.put("t2")
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert await cell.contents() == before


async def test_sessions_that_cannot_be_saved_now_are_given_more_time(cell):
    for number in range(3):
        await talk(cell, f"t{number}", f"s{number}")
        await cell.redis.pexpire(f"ant:history:s{number}", 5000)
        await cell.redis.pexpire(f"ant:session:s{number}", 5000 + HOUR)
    await put_off(cell, 2)
    left = [await cell.redis.pttl(f"ant:history:s{number}") for number in range(3)]
    assert sum(life > SOON - 5000 for life in left) == 2
    assert await cell.redis.get("ant:seq_floor") == b"0"
    await put_off(cell, 2)
    assert all([await cell.redis.pttl(f"ant:history:s{number}") > 5000 for number in range(3)])
    await cell.wait(MINUTE + 1)
    assert isinstance(await take_work(cell), Ending)


async def test_without_an_archive_sessions_begin_at_one(redis_url):
    async with open_cell(redis_url) as cell:
        await cell.put("t1")
        assert [event["seq"] for event in await cell.events()] == [1]
        assert await cell.redis.hget("ant:session:s", "first") is None
        assert await cell.redis.exists("ant:seq_floor", "ant:forget") == 0


async def test_every_session_that_begins_anew_goes_on_above_all_that_were_read(cell):
    await talk(cell, session="long")
    await talk(cell, "t2", session="long")
    await talk(cell, "t3", session="short")
    while await take_work(cell):
        pass
    await begin_archiving(cell)
    assert await cell.redis.get("ant:seq_floor") == b"6"
    await cell.put("t4", "by-turn")
    await edit(cell, session="by-edit", messages=[b"m"])
    await cell.put("t5", "by-delayed-turn", due_in_ms=5)
    await cell.reap_after(5)
    await cell.fork("long", "fork", "op2", ttl_ms=SOON)
    await cell.put("t6", "fork")
    for session in ("by-turn", "by-edit", "by-delayed-turn", "fork"):
        assert (await cell.events(session))[0]["seq"] == 7, session
        assert await cell.redis.hget(f"ant:session:{session}", "first") == b"6"


async def test_while_the_floor_is_damaged_a_session_that_would_begin_leaves_no_hash(cell):
    await begin_archiving(cell)
    await cell.redis.set("ant:seq_floor", "abc")
    with pytest.raises(StoreError, match="ant:seq_floor"):
        await cell.put("t1")
    assert not await cell.redis.exists("ant:session:s", "ant:turn:t1")
    await cell.redis.set("ant:seq_floor", 40)
    await cell.put("t1")
    assert [event["seq"] for event in await cell.events()] == [41]


async def test_a_failed_turn_that_is_run_again_after_its_session_has_ended_goes_on_above_as_well(cell):
    await cell.end(await cell.started("t1", ttl_ms=SOON), "failed")
    await cell.redis.set("ant:seq_floor", 40)
    await cell.redis.delete(*KEYS)
    await cell.redis.hset("rq:job:t1", "status", "queued")
    await cell.redis.rpush("rq:queue:antiphon", "t1")
    assert (await cell.take_one()).restored == ""
    assert [event["seq"] for event in await cell.events()] == [41, 42]


async def test_what_a_store_has_comes_in_front_and_once(cell):
    await edit(cell, messages=[b"new"], fields=[FieldChange("system", b"", b"now")])
    turn = await cell.started("t1")
    answer = {"messages": [b"1", b"2"], "system": (b"now", b"both"), "metadata": (b"", b"{}")}
    assert await restore(cell, fence=turn.fence, **answer) == "RESTORED"
    before = await cell.contents()
    assert await restore(cell, fence=turn.fence, **answer) == "RESTORED"
    assert await cell.contents() == before
    assert await cell.history() == [b"1", b"2", b"new"]
    found = (await cell.snapshot("s")).fields
    assert (found["system"], found["metadata"], found["restored"]) == (b"both", b"{}", b"1")
    assert await cell.redis.pttl("ant:history:s") == -1


async def test_nobody_but_the_holder_restores_and_nothing_that_has_changed_since_it_was_read(cell):
    assert await restore(cell, messages=[b"1"]) == "SUPERSEDED"
    turn = await cell.started("t1")
    before = await cell.contents()
    for fence in ("", "1-somebody", turn.fence[:-1]):
        assert await restore(cell, fence=fence, messages=[b"1"]) == "SUPERSEDED"
    assert await restore(cell, fence=turn.fence, system=(b"old", b"new"), messages=[b"1"]) == "CONFLICT"
    assert await cell.contents() == before
    await cell.end(turn)
    assert await restore(cell, fence=turn.fence, messages=[b"1"]) == "SUPERSEDED"


async def test_a_session_that_nobody_uses_keeps_its_time_to_live_when_it_is_restored(cell):
    await edit(cell, fields=[FieldChange("system", b"", b"x")])
    assert await restore(cell, messages=[b"1"], system=(b"x", b"")) == "RESTORED"
    assert SOON - 5000 < await cell.redis.pttl("ant:history:s") <= SOON
    assert "system" not in (await cell.snapshot("s")).fields


async def test_what_refuses_a_session_is_kept_with_the_seq_until_which_turns_were_accepted(cell):
    await edit(cell, messages=[b"of a stranger"])
    turn = await cell.started("t1")
    await restore(cell, fence=turn.fence, messages=[b"1"], refuse="tenant")
    assert await cell.history() == [b"1"]
    assert (await cell.snapshot("s")).fields["refused"] == b"3:tenant"
    await cell.give_back(turn, "drain")
    again = await cell.take_one()
    assert (again.refused, again.restored, again.queued_seq) == ("3:tenant", "1", 2)


async def test_a_deleted_session_is_remembered_for_a_minute_where_an_archive_is_in_use(redis_url):
    async with open_cell(redis_url) as cell:
        await talk(cell)
        await delete_session(cell, "s")
        assert await cell.redis.exists("ant:forget") == 0
        await begin_archiving(cell)
        await talk(cell, "t2")
        await delete_session(cell, "s")
        assert await take_work(cell) is None
        await cell.wait(MINUTE)
        assert await take_work(cell) == Forget("s")
        assert await take_work(cell) is None
        await cell.wait(MINUTE)
        assert await take_work(cell) == Forget("s")
        for _ in range(2):
            await forgotten(cell, "s")
        await cell.wait(MINUTE)
        assert await take_work(cell) is None
        assert await cell.redis.get("ant:seq_floor") == b"7", "it went on from the seq of the first one"


async def test_copies_beside_that_of_a_deleted_session_go_with_it(cell):
    await talk(cell)
    long = "s" * 100
    for session, copy in (("s", "s\x1f1"), ("other", "other\x1f1"), (long, f"{long[:80]}\x1f1")):
        await set_aside(cell, session, copy, DAY)
    await delete_session(cell, "s")
    await set_aside(cell, "s", "s\x1f2", DAY)
    await cell.wait(MINUTE)
    found = [await take_work(cell) for _ in range(3)]
    assert {work.session_id for work in found} == {"s", "s\x1f1", "s\x1f2"}
    assert await take_work(cell) is None


async def test_what_is_saved_long_after_its_session_was_deleted_is_deleted_again(cell):
    await talk(cell)
    found = await take_work(cell)
    await delete_session(cell, "s")
    await cell.wait(MINUTE)
    assert await take_work(cell) == Forget("s")
    await forgotten(cell, "s")
    assert not await mark_archived(cell, found)
    assert await take_work(cell) == Forget("s")


async def test_a_new_session_under_a_deleted_id_has_nothing_to_restore_and_waits_to_be_archived(cell):
    await talk(cell)
    await delete_session(cell, "s")
    turn = await cell.started("t2", ttl_ms=SOON)
    assert await restore(cell, fence=turn.fence, messages=[b"of old"], system=(b"", b"x")) == "FORGOTTEN"
    assert await cell.redis.hget("ant:session:s", "restored") == b"1"
    await cell.end(turn)
    assert await cell.history() == [b'"t2"']
    assert await take_work(cell) is None
    await cell.wait(MINUTE + 1)
    assert await take_work(cell) == Forget("s")
    await forgotten(cell, "s")
    await cell.wait(MINUTE + 1)
    assert isinstance(await take_work(cell), Ending)


async def test_a_copy_that_goes_after_a_new_session_has_begun_is_not_restored_either(cell):
    await delete_session(cell, "s")
    turn = await cell.started("t1")
    await forgotten(cell, "s")
    assert await restore(cell, fence=turn.fence, messages=[b"of old"]) == "RESTORED"
    assert await cell.history() == []


async def test_a_fork_knows_whether_its_source_was_asked_for(cell):
    await talk(cell, session="asked")
    await talk(cell, "t2", session="unasked", asked=False)
    await delete_session(cell, "deleted")
    for source in ("asked", "unasked", "nothing", "deleted", "fork of unasked"):
        target = f"fork of {source}"
        await cell.fork(source, target, "op", ttl_ms=SOON)
    assert await cell.redis.zscore("ant:ending", "fork of asked") is not None
    found = {
        one: await cell.redis.hmget(f"ant:session:fork of {one}", "restored", "origin")
        for one in ("asked", "unasked", "nothing", "deleted", "fork of unasked")
    }
    assert found == {
        "asked": [b"1", None], "unasked": [None, b"unasked"], "nothing": [None, b"nothing"],
        "deleted": [None, None], "fork of unasked": [None, b"unasked"],
    }  # fmt: skip


async def test_a_fork_without_an_archive_has_no_origin(redis_url):
    async with open_cell(redis_url) as cell:
        await talk(cell, asked=False)
        await cell.fork("s", "f", "op", ttl_ms=SOON)
        assert await cell.redis.hmget("ant:session:f", "restored", "origin") == [None, None]


async def test_at_full_memory_sessions_are_archived_and_forgotten_but_not_restored(cell):
    await talk(cell)
    await talk(cell, "t2", "unasked", asked=False)
    await talk(cell, "t3", "deleted")
    await delete_session(cell, "deleted")
    await cell.wait(MINUTE)
    await cell.redis.config_set("maxmemory", 1)
    try:
        assert await take_work(cell) == Forget("deleted")
        await forgotten(cell, "deleted")
        found = [await take_work(cell), await take_work(cell)]
        assert {type(one) for one in found} == {Ending, Unasked}
        with pytest.raises(StoreFull):
            await restore(cell, "unasked", messages=[b"1"])
        assert await mark_archived(cell, next(one for one in found if isinstance(one, Ending)))
    finally:
        await cell.redis.config_set("maxmemory", 0)
    assert await cell.history("unasked") == [b'"t2"']
