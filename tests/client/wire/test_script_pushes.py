"""`pushes/*`: what is told of a single turn, once for each state, and what becomes of it."""

import pytest
from support.cells import open_cell

from antiphon.encryption.keyring import Keyring
from antiphon.errors import LimitReached, TurnNotFound
from antiphon.model import OpenCall
from antiphon.wire.editing import delete_session
from antiphon.wire.lists.notices import follow
from antiphon.wire.lists.webhooks import take_webhook
from antiphon.wire.pushes import (
    MOST_PUSHES,
    Push,
    delete_push,
    pushes_of,
    set_push,
    settle_push,
    take_pushes,
)

LEASE_MS = 30_000
KINDS = ["turn_finished", "turn_failed", "turn_cancelled", "turn_suspended"]
pytestmark = pytest.mark.lasting_keys("ant:pushes")


def push(name="p", by="me", **more):
    return Push(name, by, "https://example.com/", KINDS, **more)


async def given(cell, turn, *pushes):
    for one in pushes or [push()]:
        await set_push(cell, turn, f"s-{turn}", one)


async def due(cell):
    """What is to be sent now, as kind and turn; it is acknowledged."""
    taken, _, _ = await take_pushes(cell, LEASE_MS)
    for one in taken:
        await settle_push(cell, one)
    return [(one.kind, one.turn_id) for one in taken]


async def test_a_turn_with_a_push_is_told_of_and_others_are_not(cell):
    one, other = await cell.started("t1", "s-t1"), await cell.started("t2", "s-t2")
    await given(cell, "t1", push(token="secret"))
    assert await due(cell) == []
    for turn in (one, other):
        await cell.end(turn)
    (found,), _, more = await take_pushes(cell, LEASE_MS)
    assert not more
    assert (found.kind, found.turn_id, found.session_id) == ("turn_finished", "t1", "s-t1")
    assert found.push == push(token="secret")
    assert (await take_pushes(cell, LEASE_MS))[0] == [], "it is held"
    await settle_push(cell, found)
    await cell.wait(LEASE_MS)
    assert await due(cell) == []


@pytest.mark.parametrize("status", ["finished", "failed", "cancelled"])
async def test_a_push_that_comes_after_the_end_is_told_once(cell, status):
    await follow(cell, 60_000)
    await cell.end(await cell.started("t1", "s-t1"), status)
    await given(cell, "t1")
    assert await due(cell) == [(f"turn_{status}", "t1")]
    await given(cell, "t1", push(token="another"))
    assert await due(cell) == [], "it is the same one"


async def test_a_push_that_comes_before_the_end_is_handed_out_is_told_once(cell):
    turn = await cell.started("t1", "s-t1")
    await given(cell, "t1", push("first"))
    await cell.end(turn)
    await given(cell, "t1", push("second"))
    assert await due(cell) == [("turn_finished", "t1")] * 2
    assert await due(cell) == []


async def test_a_turn_that_waits_for_a_decision_is_told_of_and_one_that_sleeps_is_not(cell):
    turn = await cell.started("t1", "s-t1")
    await given(cell, "t1", push("before"))
    await cell.hold(turn, OpenCall("c", "pay", {}, "approval"))
    await given(cell, "t1", push("after"))
    assert await due(cell) == [("turn_suspended", "t1")] * 2
    other = await cell.started("t2", "s-t2")
    await cell.hold(other, OpenCall("c", "nap", {}, "sleep"))
    await given(cell, "t2")
    assert await due(cell) == []


async def test_what_is_not_acknowledged_is_due_again(cell):
    await cell.end(await cell.started("t1", "s-t1"))
    await given(cell, "t1")
    (first,), now, _ = await take_pushes(cell, LEASE_MS)
    await settle_push(cell, first, 5_000)
    await cell.wait(4_999)
    assert await due(cell) == []
    await cell.wait(1)
    (again,), later, _ = await take_pushes(cell, LEASE_MS)
    assert (again, later - now) == (first, 5_000)
    await cell.wait(LEASE_MS)
    (lost,), _, _ = await take_pushes(cell, LEASE_MS)
    assert lost == first, "the worker was lost that held it"
    await settle_push(cell, lost)
    await settle_push(cell, again, 5_000)
    await cell.wait(LEASE_MS)
    assert await due(cell) == [], "what was acknowledged stays so"


async def test_pushes_are_of_those_who_asked_for_them(cell):
    await cell.started("t1", "s-t1")
    await given(cell, "t1", push("a"), push("b"), push("a", by="another"))
    assert [one.id for one in await pushes_of(cell, "t1", "s-t1", "me")] == ["a", "b"]
    await delete_push(cell, "t1", "another", "b")
    await delete_push(cell, "t1", "me", "a")
    await delete_push(cell, "t1", "me", "a")
    assert [one.id for one in await pushes_of(cell, "t1", "s-t1", "me")] == ["b"]
    assert [one.id for one in await pushes_of(cell, "t1", "s-t1", "another")] == ["a"]


async def test_a_turn_has_few_of_them(cell):
    await cell.started("t1", "s-t1")
    await given(cell, "t1", *(push(f"{n}") for n in range(MOST_PUSHES)))
    with pytest.raises(LimitReached):
        await given(cell, "t1", push("more"))
    await given(cell, "t1", push("0", token="new"))
    await delete_push(cell, "t1", "me", "1")
    await given(cell, "t1", push("more"))


async def test_they_go_with_the_turn_and_what_was_due_with_them(cell):
    with pytest.raises(TurnNotFound):
        await given(cell, "none")
    await cell.end(await cell.started("t1", "s-t1"))
    await given(cell, "t1", push("kept"), push("deleted"))
    await delete_push(cell, "t1", "me", "deleted")
    assert await cell.redis.pttl("ant:turn:t1") > 0
    await delete_session(cell, "s-t1")
    assert await due(cell) == []
    assert not await cell.redis.exists("ant:pushes")
    with pytest.raises(TurnNotFound):
        await given(cell, "t1")
    assert await pushes_of(cell, "t1", "s-t1", "me") == []


async def test_a_damaged_turn_holds_up_no_other(cell):
    for name in ("t1", "t2"):
        await cell.end(await cell.started(name, f"s-{name}"))
        await given(cell, name)
    await cell.redis.rename("ant:turn:t1", "ant:elsewhere")
    await cell.redis.set("ant:turn:t1", "no hash", ex=60)
    await cell.redis.expire("ant:elsewhere", 60)
    assert await due(cell) == [("turn_finished", "t2")]
    await cell.redis.rename("ant:elsewhere", "ant:turn:t1")
    assert await due(cell) == [], "it is left alone for a minute"
    await cell.wait(60_000)
    assert await due(cell) == [("turn_finished", "t1")]


@pytest.mark.parametrize("others", [0, 1])
async def test_a_turn_that_is_damaged_when_it_ends_is_told_of_once_it_is_mended(cell, others):
    """Its state was handed out while nobody could read who had asked for it."""
    turns = [await cell.started(f"t{n}", f"s-t{n}") for n in range(1 + others)]
    for one in turns:
        await given(cell, one.turn_id, push("first"), push("second"))
        await cell.end(one)
    await given(cell, "t0", push("after the end"))
    await cell.redis.rename("ant:turn:t0", "ant:elsewhere")
    await cell.redis.set("ant:turn:t0", "no hash", ex=600)
    await cell.redis.expire("ant:elsewhere", 600)
    for _ in range(2):
        assert await due(cell) == [("turn_finished", "t1")] * 2 * others
        others = 0
        await cell.wait(60_000)
    await cell.redis.rename("ant:elsewhere", "ant:turn:t0")
    for _ in range(2):
        await cell.wait(60_000)
        others += len(await due(cell))
    assert others == 3, "each push once"
    assert not await cell.redis.exists("ant:pushes")


async def test_what_stays_damaged_is_given_up_after_a_day(cell):
    turn = await cell.started("t1", "s-t1")
    await given(cell, "t1")
    await cell.end(turn)
    await cell.redis.set("ant:turn:t1", "no hash", ex=600)
    for waited_ms in (0, 80_000_000, 7_000_000):
        await cell.wait(waited_ms)
        assert await due(cell) == []
    assert not await cell.redis.exists("ant:pushes")
    await cell.redis.delete("ant:turn:t1")


async def test_more_are_handed_out_page_by_page(cell):
    for n in range(130):
        await cell.end(await cell.started(f"t{n}", f"s-t{n}"))
        await given(cell, f"t{n}")
    first, _, more = await take_pushes(cell, LEASE_MS)
    rest, _, _ = await take_pushes(cell, LEASE_MS)
    assert (len(first), more, len(rest)) == (100, True, 30)


async def test_a_look_names_them_while_there_are_some(cell):
    assert not (await take_webhook(cell, 20_000, 0))[1].pushes
    await cell.started("t1", "s-t1")
    await given(cell, "t1")
    assert (await take_webhook(cell, 20_000, 0))[1].pushes


async def test_encrypted_they_show_no_secret(redis_url):
    async with open_cell(redis_url, keys=Keyring([("k1", bytes(range(32)))])) as cell:
        await cell.started("t1", "s-t1")
        await given(cell, "t1", push(token="t0ken", credentials="s3cret"))
        stored = b"".join((await cell.redis.hgetall("ant:turn:t1")).values())
        assert b"t0ken" not in stored
        assert b"s3cret" not in stored
        assert b"example.com" not in stored
        assert [one.token for one in await pushes_of(cell, "t1", "s-t1", "me")] == ["t0ken"]


async def test_a_worker_without_the_key_leaves_them_to_others(redis_url):
    old, new = ("k1", bytes(range(32))), ("k2", bytes(range(32, 64)))
    async with open_cell(redis_url, keys=Keyring([old])) as cell:
        turn = await cell.started("t1", "s-t1")
        await given(cell, "t1", push())
        await cell.end(turn)
    async with open_cell(redis_url, keys=Keyring([new])) as cell:
        [found], _, _ = await take_pushes(cell, LEASE_MS)
        assert (found.push, found.locked) == (None, True)
        await settle_push(cell, found, 0)
    async with open_cell(redis_url, keys=Keyring([new, old])) as cell:
        assert await due(cell) == [("turn_finished", "t1")]
