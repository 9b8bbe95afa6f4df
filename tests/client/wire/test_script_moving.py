"""`moving/leave`, `restore` and `arrive`: a cell is at one place at every moment, whoever moves it."""

import pytest

PLACE, PROOF = "redis://there:1/0", "salt.mac"


async def leave(cell, place=PLACE, proof=PROOF, *, run_id=None, changes=None, shared=()):
    info = await cell.redis.info()
    run_id = run_id or info["run_id"]
    changes = info["rdb_changes_since_last_save"] if changes is None else changes
    return await cell.run("moving/leave", place, proof, run_id, changes, *shared)


async def test_a_cell_leaves_once_and_a_repetition_gets_the_same_answer(cell):
    turn = await cell.started("t1")
    shared = [cell.keys.active, cell.keys.sessions]
    assert await leave(cell, shared=shared) == [b"LEFT"]
    assert await cell.redis.get(cell.keys.moved) == f"to {PLACE} {PROOF}".encode()
    assert not await cell.redis.exists(cell.keys.session(turn.session_id)), "its fence is gone"
    for key in shared:
        assert await cell.redis.get(key) == b"moved"
    assert await leave(cell, proof="another.proof", run_id="0", changes=0, shared=shared) == [b"LEFT"]
    assert await cell.redis.get(cell.keys.moved) == f"to {PLACE} {PROOF}".encode()
    await cell.redis.flushdb()  # it takes no call any more


async def test_a_cell_that_has_left_is_not_sent_elsewhere(cell):
    assert await leave(cell, proof="") == [b"LEFT"]
    marker = await cell.redis.get(cell.keys.moved)
    assert marker == f"to {PLACE}".encode()
    for place in ("redis://elsewhere:1/0", "redis://there:1", PLACE + "1"):
        assert await leave(cell, place) == [b"MOVED", marker]
    assert await cell.redis.get(cell.keys.moved) == marker


@pytest.mark.parametrize("wrong", [{"run_id": "0" * 40}, {"changes": 1_000_000}])
async def test_a_cell_in_which_something_was_written_stays(cell, wrong):
    await cell.started("t1")
    before = await cell.contents()
    assert await leave(cell, shared=[cell.keys.active], **wrong) == [b"WRITTEN"]
    assert await cell.contents() == before


async def test_only_the_mover_that_copies_writes_and_arrives(cell):
    redis, marker, key = cell.redis, "from a mover", cell.keys.limits
    await redis.hset(key, "name", "value")
    dump = await redis.execute_command("DUMP", key, NEVER_DECODE=True)
    await redis.delete(key)
    copy = f"{key}:copy"
    for found in (None, "from another mover"):
        if found:
            await redis.set(cell.keys.moved, found)
        assert await cell.run("moving/restore", marker, copy, 0, dump) == [b"SUPERSEDED"]
    assert await cell.run("moving/arrive", marker, key, copy) == [b"SUPERSEDED"]
    assert not await redis.exists(copy)
    await redis.set(cell.keys.moved, marker)
    await redis.set(key, "moved")
    await redis.set(cell.keys.active, "moved")
    later = (await cell.server_ms()) + 3_600_000
    for _ in range(2):
        written = (copy, later, dump, "other", 0, dump)
        assert await cell.run("moving/restore", marker, *written) == [b"RESTORED"]
    assert 3_500_000 < await redis.pttl(copy) <= 3_600_000
    assert await redis.pttl("other") == -1
    assert await cell.run("moving/restore", marker, "other", 0, "") == [b"RESTORED"]
    assert not await redis.exists("other")
    gone = f"{cell.keys.active}:copy"
    assert await cell.run("moving/arrive", marker, key, copy, cell.keys.active, gone) == [b"ARRIVED"]
    assert await redis.hgetall(key) == {b"name": b"value"}
    assert not await redis.exists(copy, cell.keys.active, cell.keys.moved)
    assert await cell.run("moving/arrive", marker, key, copy) == [b"ARRIVED"]
    assert await redis.hgetall(key) == {b"name": b"value"}
