"""`files/*`: a file is whole or not there, and stored once, in Redis or with its content in a byte store."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext

import pytest
from support.byte_stores import used

from antiphon.bytestores import FolderStore
from antiphon.errors import LimitReached, StoreUnavailable, TenantLimit, UsageError, WrongTenant
from antiphon.input.limits import LIMITS
from antiphon.redis.deployment import TenantLimits, set_tenant_limits
from antiphon.wire.editing import Change, FieldChange, change_session, delete_session
from antiphon.wire.files import CHUNK_BYTES, MOST_NAME, add_file, drop_files, list_files, read_file

DATA = b"0123456789abcdef" * (CHUNK_BYTES // 16 * 2 + 1)  # three chunks


pytestmark = pytest.mark.lasting_keys("ant:byte_root")


@pytest.fixture(params=["chunks", "placed"])
def anywhere(request, tmp_path):
    """Whether the contents of files are in Redis or in a byte store."""
    with used(FolderStore(tmp_path)) if request.param == "placed" else nullcontext():
        yield request.param


class Dies(Exception):
    """The process has died."""


def dying(cell, monkeypatch, after):
    """Let the process die after so many chunks."""
    run, left = cell.run, [after]

    async def chunk(name, *arguments):
        if name == "files/add_chunk":
            if not left[0]:
                raise Dies
            left[0] -= 1
        return await run(name, *arguments)

    monkeypatch.setattr(cell, "run", chunk)


@pytest.mark.usefixtures("anywhere")
async def test_a_file_comes_back_as_it_was(cell):
    entry = await add_file(cell, "s", DATA, "text/plain", "a.txt")
    found = await read_file(cell, "s", entry.id)
    assert (found.data, found.size, found.media_type, found.name) == (DATA, len(DATA), "text/plain", "a.txt")
    assert await list_files(cell, "s") == [entry]
    assert await cell.redis.hget("ant:session:s", "media") == f"1 {len(DATA)}".encode()
    assert await read_file(cell, "other", entry.id) is None


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_a_call_after_a_crash_continues_at_every_chunk(cell, monkeypatch, after):
    with monkeypatch.context() as crash:
        dying(cell, crash, after)
        with pytest.raises(Dies):
            await add_file(cell, "s", DATA)
    assert await list_files(cell, "s") == []
    entry = await add_file(cell, "s", DATA)
    assert (await read_file(cell, "s", entry.id)).data == DATA
    assert await cell.redis.hget("ant:session:s", "media") == f"1 {len(DATA)}".encode()


@pytest.mark.usefixtures("anywhere")
async def test_a_repeated_call_changes_nothing(cell):
    await add_file(cell, "s", DATA)
    keys = ("ant:session:s", "ant:media:s")
    before = [await cell.redis.hgetall(key) for key in keys]
    await add_file(cell, "s", DATA, "text/plain", "another name")
    assert [await cell.redis.hgetall(key) for key in keys] == before


async def test_a_session_that_is_deleted_meanwhile_gets_the_file_whole(cell, monkeypatch):
    run, deleted = cell.run, []

    async def chunk(name, *arguments):
        if name == "files/add_chunk" and arguments[3] == 1 and not deleted:
            deleted.append(await delete_session(cell, "s"))
        return await run(name, *arguments)

    monkeypatch.setattr(cell, "run", chunk)
    entry = await add_file(cell, "s", DATA)
    assert deleted == [True]
    assert (await read_file(cell, "s", entry.id)).data == DATA


async def test_a_session_that_is_deleted_again_and_again_ends_the_call(cell, monkeypatch):
    run = cell.run

    async def chunk(name, *arguments):
        if name == "files/add_chunk" and arguments[3] == 1:
            await delete_session(cell, "s")
        return await run(name, *arguments)

    monkeypatch.setattr(cell, "run", chunk)
    with pytest.raises(StoreUnavailable, match="keep deleting"):
        await add_file(cell, "s", DATA)


@pytest.mark.usefixtures("anywhere")
async def test_files_live_as_long_as_their_session(cell):
    await add_file(cell, "s", DATA, ttl_ms=100_000)
    assert 0 < await cell.redis.pttl("ant:media:s") <= 100_000
    turn = await cell.started(ttl_ms=100_000)
    assert await cell.redis.ttl("ant:media:s") == -1
    await add_file(cell, "s", b"more")
    assert await cell.redis.ttl("ant:media:s") == -1
    await cell.end(turn)
    assert 0 < await cell.redis.pttl("ant:media:s") <= 100_000


@pytest.mark.usefixtures("anywhere")
async def test_a_file_under_the_id_of_a_session_that_has_expired_begins_another(cell):
    await cell.end(await cell.started())
    await cell.redis.hset("ant:session:s", "system", "of the former life")
    await cell.redis.pexpire("ant:session:s", 3600_000)  # all else of it has expired
    await add_file(cell, "s", DATA)
    assert not await cell.redis.hexists("ant:session:s", "system")


async def test_a_content_that_takes_long_to_store_is_kept_from_its_end_on(cell, monkeypatch, tmp_path):
    run = cell.run

    async def late(name, *arguments):
        if name == "files/place_file" and arguments[4]:  # its entry
            await cell.redis.pexpire("ant:media:s", 5000)
        return await run(name, *arguments)

    monkeypatch.setattr(cell, "run", late)
    with used(FolderStore(tmp_path)):
        await add_file(cell, "s", DATA, ttl_ms=100_000)
    assert await cell.redis.pttl("ant:media:s") > 5000


async def test_a_turn_that_runs_again_keeps_the_files(cell):
    await add_file(cell, "s", DATA, ttl_ms=100_000)
    await cell.end(await cell.started(ttl_ms=100_000), "failed")
    assert 0 < await cell.redis.pttl("ant:media:s") <= 100_000
    await cell.requeue("t1")
    assert await cell.redis.ttl("ant:media:s") == -1


async def test_a_turn_that_waits_outside_keeps_the_files(cell):
    await add_file(cell, "s", DATA, ttl_ms=1000)
    await cell.put(due_in_ms=500_000, ttl_ms=1000)
    assert await cell.redis.pttl("ant:media:s") > 400_000
    await cell.reap_after(500_001)
    assert await cell.redis.ttl("ant:media:s") == -1


async def test_deleted_files_make_room(cell, anywhere):
    first, second = await add_file(cell, "s", DATA), await add_file(cell, "s", b"1")
    assert await drop_files(cell, "s", first.id, "0" * 64) == 1
    assert await list_files(cell, "s") == [second]
    assert await cell.redis.hget("ant:session:s", "media") == b"1 1"
    assert await cell.redis.hlen("ant:media:s") == (2 if anywhere == "chunks" else 1)


@pytest.mark.usefixtures("anywhere")
async def test_what_a_session_refuses_leaves_nothing(cell, monkeypatch):
    await change_session(
        cell, "s", "op", Change([FieldChange("tenant", b"", b"acme")]), when="any", ttl_ms=None
    )
    with pytest.raises(WrongTenant):
        await add_file(cell, "s", DATA, tenant="other")
    monkeypatch.setattr("antiphon.wire.files.LIMITS", type(LIMITS)(session_files=0))
    with pytest.raises(LimitReached):
        await add_file(cell, "s", DATA, tenant="acme")
    monkeypatch.undo()
    monkeypatch.setattr("antiphon.wire.files.LIMITS", type(LIMITS)(sessions=1))
    with pytest.raises(LimitReached, match="sessions"):
        await add_file(cell, "t", DATA)
    await change_session(
        cell, "s", "op2", Change([FieldChange("closed", b"", b"1")]), when="any", ttl_ms=None
    )
    with pytest.raises(UsageError, match="closed"):
        await add_file(cell, "s", DATA, tenant="acme")
    assert await cell.redis.exists("ant:media:s", "ant:media:t") == 0


@pytest.mark.usefixtures("anywhere")
async def test_turns_of_a_session_with_files_are_for_workers_that_know_them(cell):
    async def request(turn):
        return await cell.redis.hget(f"ant:turn:{turn}", "request")

    plain = b'{"messages":[]}'
    await cell.end(await cell.started("ended", text=plain))
    running = await cell.started("running", text=plain)
    await cell.put("waiting", text=plain)
    await cell.put("delayed", text=b'{"messages":[],"version":"2"}', due_in_ms=1000)
    await add_file(cell, "s", b"1")
    await cell.put("later", text=b'{"messages":[],"trace":"00"}')
    assert await request("ended") == plain
    for turn in ("running", "waiting"):
        assert await request(turn) == b'{"messages":[],"version":"5"}'
    assert await request("delayed") == b'{"messages":[],"version":"2","version":"5"}'
    assert await request("later") == b'{"messages":[],"trace":"00","version":"5"}'
    await cell.put("later", text=b'{"messages":[],"trace":"00"}')  # a repetition
    await cell.end(running)


async def test_a_fork_keeps_the_files(cell):
    entry = await add_file(cell, "s", DATA)
    assert await cell.fork("s", "t")
    await delete_session(cell, "s")
    assert (await read_file(cell, "t", entry.id)).data == DATA
    assert await cell.redis.ttl("ant:media:t") > 0


async def test_a_file_that_was_begun_is_removed_and_no_longer_counted(cell, monkeypatch):
    with monkeypatch.context() as crash:
        dying(cell, crash, 2)
        with pytest.raises(Dies):
            await add_file(cell, "s", DATA)
    file_id = hashlib.sha256(DATA).hexdigest()
    assert await drop_files(cell, "s", f"{file_id}~") == 0
    assert await cell.redis.hget("ant:session:s", "media") == f"1 {len(DATA)}".encode()
    assert await drop_files(cell, "s", file_id) == 1
    assert await cell.redis.hget("ant:session:s", "media") == b"0 0"
    assert await cell.redis.hgetall("ant:media:s") == {}
    assert await drop_files(cell, "s", file_id) == 0


async def test_chunks_that_calls_which_met_have_left_are_removed_too(cell, monkeypatch):
    with monkeypatch.context() as crash:
        dying(cell, crash, 2)
        with pytest.raises(Dies):
            await add_file(cell, "s", DATA)
    file_id = hashlib.sha256(DATA).hexdigest()
    await cell.redis.hdel("ant:media:s", f"{file_id}:0")
    other = await add_file(cell, "s", b"other")
    assert await drop_files(cell, "s", file_id) == 1
    assert sorted(await cell.redis.hkeys("ant:media:s")) == [other.id.encode(), f"{other.id}:0".encode()]


@pytest.mark.usefixtures("anywhere")
async def test_a_turn_stores_files_only_while_it_is_held(cell):
    with pytest.raises(StoreUnavailable, match="no longer held"):
        await add_file(cell, "s", DATA, fence="1-a")
    assert await cell.redis.keys("ant:*:s") == []
    await cell.redis.hset("ant:session:s", mapping={"created": 1, "fence": "2-b", "closed": 1})
    with pytest.raises(StoreUnavailable, match="no longer held"):
        await add_file(cell, "s", DATA, fence="1-a")
    assert await cell.redis.exists("ant:media:s") == 0
    entry = await add_file(cell, "s", DATA, fence="2-b")
    assert (await read_file(cell, "s", entry.id)).data == DATA


async def test_a_name_takes_no_more_memory_than_the_session_may_have(cell):
    entry = await add_file(cell, "s", b"small", "m" * 100_000, "n" * 100_000 + "\ud800")
    assert (len(entry.name), len(entry.media_type)) == (MOST_NAME, MOST_NAME)
    assert (await add_file(cell, "s", b"other", None, "half\ud800")).name == "half?"
    assert len(await list_files(cell, "s")) == 2
    assert await cell.redis.memory_usage("ant:media:s") < 10_000


@pytest.mark.usefixtures("anywhere")
async def test_a_tenant_stores_no_more_bytes_than_it_may(cell):
    await set_tenant_limits([cell], "a", TenantLimits(stored_bytes=10))
    await add_file(cell, "s", b"12345678", tenant="a")
    with pytest.raises(TenantLimit):
        await add_file(cell, "t", b"12345678", tenant="a")
    assert await cell.redis.exists("ant:media:t", "ant:session:t") == 0
    await delete_session(cell, "s")
    await add_file(cell, "t", b"12345678", tenant="a")


async def test_a_fork_counts_the_bytes_of_its_files(cell):
    await set_tenant_limits([cell], "a", TenantLimits(stored_bytes=20))
    await add_file(cell, "s", b"12345678", tenant="a")
    assert await cell.fork("s", "t")
    with pytest.raises(TenantLimit):
        await cell.fork("s", "u")
    assert await cell.redis.exists("ant:media:u", "ant:session:u") == 0


async def test_a_fork_that_is_kept_keeps_its_history_and_its_files(cell):
    await cell.end(await cell.started(ttl_ms=100_000))
    await add_file(cell, "s", DATA)
    assert await cell.redis.pttl("ant:history:s") > 0
    assert await cell.fork("s", "t", ttl_ms=0)
    assert await cell.redis.ttl("ant:history:t") == await cell.redis.ttl("ant:media:t") == -1
    await delete_session(cell, "t")


async def test_a_fork_is_refused_while_a_content_is_in_a_byte_store(cell, tmp_path):
    """Two sessions would have one content, and the first that is deleted would remove it."""
    with used(FolderStore(tmp_path)):
        await add_file(cell, "s", DATA)
    assert not await cell.fork("s", "t")
    assert await cell.redis.exists("ant:media:t", "ant:session:t") == 0
