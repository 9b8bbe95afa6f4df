"""The scripts of memories: what is to be indexed is taken by one worker at a time, and settled by its holder alone."""

import pytest
from support.cells import START_MS

from antiphon.input.ids import SessionId
from antiphon.wire.editing import Change, change_session, delete_session
from antiphon.wire.lists.memories import (
    Held,
    Remembered,
    StoredFact,
    Wording,
    announce_turns,
    put_off,
    read_facts,
    settle_session,
    take_sessions,
    which_known,
    write_facts,
)

LEASE_MS = 1000


async def ended(cell, *turns, session="s", memories="m"):
    for turn in turns:
        await cell.end(await cell.started(turn, session), memories=memories)


async def take(cell, memory="m"):
    return await take_sessions(cell, memory, LEASE_MS, 10)


async def late_and_holder(cell):
    """A session as a worker took it whose lease is over, and as the next one took it."""
    (late,) = await take(cell)
    await cell.wait(LEASE_MS + 1)
    (holder,) = await take(cell)
    return late, holder


async def known(cell, *turns, session="s", memory="m"):
    return await which_known(cell, memory, [Remembered(session, turn) for turn in turns])


async def test_a_session_is_taken_by_one_worker_until_it_is_settled(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1", "t2")
    (one,) = await take(cell)
    assert (one.new.split(), one.cut) == (["t1", "t2"], "")
    assert await take(cell) == []
    await ended(cell, "t3")
    assert await take(cell) == [], "a turn that ends meanwhile waits"
    assert await known(cell, "t1") == [False]
    assert await settle_session(cell, "m", one, {"t1": "1:a", "t2": ""}) == []
    assert await known(cell, "t1", "t2", "t3") == [True, False, False]
    (again,) = await take(cell)
    assert again.new.split() == ["t3"]


async def test_whoever_lost_the_session_settles_nothing_and_hears_what_is_unknown(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1", "t2")
    late, holder = await late_and_holder(cell)
    await settle_session(cell, "m", holder, {"t1": "1:a", "t2": ""})
    before = await cell.contents()
    assert await settle_session(cell, "m", late, {"t1": "1:b", "t2": "1:b"}) == ["t2"]
    await put_off(cell, "m", late, 5)
    assert await cell.contents() == before


@pytest.mark.parametrize("names", [("m", "other"), ("+m", "m"), ("another", "other")])
async def test_a_deleted_session_is_unknown_at_once_and_taken_again(cell, names):
    await cell.set_clock(START_MS)
    await ended(cell, "t1", memories=" ".join(names))
    for memory in names:
        (one,) = await take(cell, memory)
        await settle_session(cell, memory, one, {"t1": "1:a"})
    await delete_session(cell, SessionId("s"))
    assert [await known(cell, "t1", memory=memory) for memory in names] == [[False], [False]]
    for memory in names:
        (one,) = await take(cell, memory)
        assert (one.known, one.cut) == ({"t1": "1:a"}, "1")
        await settle_session(cell, memory, one, {"t1": ""})
    assert not await cell.redis.exists(cell.keys.remembered("s"))


async def test_a_session_that_is_cut_is_unknown_at_once_and_taken_again(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1")
    (one,) = await take(cell)
    await settle_session(cell, "m", one, {"t1": "1:a"})
    assert await change_session(cell, "s", "op", Change(keep=0), when="idle", ttl_ms=100_000)
    assert await known(cell, "t1") == [False]
    (again,) = await take(cell)
    assert (again.known, again.cut) == ({"t1": "1:a"}, "1")


async def test_what_is_put_off_waits(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1")
    (one,) = await take(cell)
    await put_off(cell, "m", one, 5000)
    await cell.wait(4999)
    assert await take(cell) == []
    await cell.wait(1)
    assert len(await take(cell)) == 1


async def test_whoever_lost_the_session_asks_again_while_the_holder_may_have_written_the_same(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1")
    late, holder = await late_and_holder(cell)
    assert await settle_session(cell, "m", late, {"t1": "1:a"}) is None
    assert await settle_session(cell, "m", holder, {"t1": "1:a"}) == []
    assert await settle_session(cell, "m", late, {"t1": "1:a"}) == [], "it is remembered: nothing must go"


async def test_facts_are_changed_as_they_were_read(cell):
    fact = StoredFact("f", 1, [Wording("Likes tea.", 1, "person")])
    empty = await read_facts(cell, "scope")
    assert await write_facts(cell, "scope", empty, {"f": fact}) == "OK"
    assert await write_facts(cell, "scope", empty, {"g": fact}) == "CHANGED", "others have changed them"
    book = await read_facts(cell, "scope")
    assert book.facts == {"f": fact}
    assert await write_facts(cell, "scope", book, {"f": None}) == "OK"
    assert await write_facts(cell, "scope", book, {"f": fact}) == "CHANGED"
    assert not await cell.redis.exists(cell.keys.facts("scope")), "nothing stays of a scope without facts"
    anew = await read_facts(cell, "scope")
    assert await write_facts(cell, "scope", anew, {"f": fact}) == "OK"
    assert await write_facts(cell, "scope", book, {"f": None}) == "CHANGED", "a version is never used twice"


async def test_only_the_holder_announces_what_it_writes_and_changes_nothing_that_stands(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1", "t2")
    (late,) = await take(cell)
    assert await announce_turns(cell, "m", late, {"t1": "1:"})
    await cell.wait(LEASE_MS + 1)
    (holder,) = await take(cell)
    assert await announce_turns(cell, "m", late, {"t2": "1:"}) is False
    assert await known(cell, "t1", "t2") == [True, False]
    await settle_session(cell, "m", holder, {"t1": "1:a", "t2": ""})
    await ended(cell, "t3")
    (holder,) = await take(cell)
    assert await announce_turns(cell, "m", holder, {"t1": "2:", "t3": "2:"})
    await delete_session(cell, SessionId("s"))
    await cell.wait(LEASE_MS + 1)
    (cut,) = await take(cell)
    assert cut.known == {"t1": "1:a", "t3": "2:"}


async def test_a_late_worker_writes_no_facts(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1")
    late, holder = await late_and_holder(cell)
    fact, empty = StoredFact("f", 1, [Wording("Likes tea.", 1)]), await read_facts(cell, "scope")
    before = await cell.contents()
    assert await write_facts(cell, "scope", empty, {"f": fact}, Held("s", "m", late.fence)) == "SUPERSEDED"
    assert await cell.contents() == before
    assert await write_facts(cell, "scope", empty, {"f": fact}, Held("s", "m", holder.fence)) == "OK"


async def test_a_session_whose_key_is_damaged_is_told_and_holds_up_no_other_one(cell):
    await cell.set_clock(START_MS)
    await ended(cell, "t1", session="whole")
    await cell.redis.zadd(cell.keys.unindexed("m"), {"damaged": 0})
    await cell.redis.set(cell.keys.remembered("damaged"), "junk", ex=60)
    damaged, whole = await take(cell)
    assert (damaged.session_id, "WRONGTYPE" in damaged.damage) == ("damaged", True)
    assert (whole.session_id, whole.new.split()) == ("whole", ["t1"])
