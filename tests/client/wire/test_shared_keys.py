"""Damage of a key that all sessions share is an outage: the error names the key, and it ends with the damage."""

import pytest
from support.cells import LEASE_MS

from antiphon.errors import CorruptRecord, StoreError
from antiphon.input.ids import TurnId
from antiphon.wire.keys import REDIS_TYPES, RQ_SHARED, SHARED, rq_key
from antiphon.wire.lists.inspection import not_turns
from antiphon.wire.shared_keys import damaged_keys

WANTED = {f"ant:{template}": kind for template, kind in SHARED.items()}
WANTED |= {rq_key(kind, "antiphon"): type_ for kind, type_ in RQ_SHARED.items()} | {
    rq_key("rq_queues"): "set"
}
NUMBERS = [key for key, kind in WANTED.items() if kind == "counter"]
DAMAGE = [*((key, "type") for key in WANTED), *((key, "abc") for key in NUMBERS)]


async def damage(redis, key, how):
    await redis.delete(key)
    if how == "type" and REDIS_TYPES.get(WANTED[key], WANTED[key]) == "hash":
        await redis.set(key, "x")
    elif how == "type":
        await redis.hset(key, "x", "y")
    else:
        await redis.set(key, how)


async def tried(call):
    """The error of a call during an outage, if it fails: never another one than ours."""
    try:
        await call
    except StoreError as exc:
        return exc
    return None


@pytest.mark.parametrize(("key", "how"), DAMAGE, ids=str)
async def test_a_damaged_shared_key_is_an_outage_that_ends_when_it_is_repaired(key, how, cell):
    for name in ("a", "b"):
        await cell.put(f"{name}1", name, tenant=name)
    await cell.put("b2", "b")
    (running, *_) = (await cell.take(limit=1)).turns
    before = await cell.redis.dump(key)
    await damage(cell.redis, key, how)
    errors = []
    for number in range(3):
        errors += [
            await tried(cell.take(f"w{number}")),
            await tried(cell.reap()),
            await tried(cell.put("c1", "c", tenant="c")),
            await tried(cell.renew("w1", [(running.session_id, running.fence)], lease_ms=LEASE_MS)),
        ]
        await cell.wait(1_000)
    ended = await tried(cell.end(running, messages=[b"{}"]))
    assert all(key in str(error) for error in errors if error is not None)
    said = await damaged_keys(cell.redis, cell.keys)
    assert key == "ant:clock" or (len(said) == 1 and key in said[0]), "a reaper writes the clock"
    assert key == "ant:quarantined" or not await cell.redis.exists("ant:quarantined")
    await cell.redis.delete(key)
    if before is not None:
        await cell.redis.restore(key, 0, before)
    assert await damaged_keys(cell.redis, cell.keys) == []
    await cell.put("c1", "c", tenant="c")
    assert ended is None or await cell.end(running, messages=[b"{}"]), "its holder has not lost it"
    assert await cell.redis.llen("ant:history:a") == 1
    await everything_ends(cell)


async def everything_ends(cell):
    """All turns run to their ends, within a lease and the time after which a lost entry of a queue is put back."""
    for _ in range(45):
        for turn in (await cell.take("w9")).turns:
            await cell.end(turn)
        await cell.reap_after(1_000)
        await cell.reap(holder="w0")
    statuses = [(await cell.turn(turn)).status for turn in ("a1", "b1", "b2", "c1")]
    assert statuses == ["finished"] * 4
    assert await not_turns(cell, 10) == []


async def test_damage_of_one_session_is_still_its_own(cell):
    await cell.put("b1", "bad")
    await cell.redis.set("ant:history:bad", "no list")
    (damaged,) = (await cell.take()).damaged
    assert damaged.session_id == "bad"
    with pytest.raises(CorruptRecord, match="not what was written"):
        await cell.snapshot("bad")
    await cell.redis.delete("ant:history:bad")
    await cell.cancel(TurnId("b1"), "enough")
