"""Contents of files in a folder and in S3: what happens to them with their session, and where a process dies."""

from __future__ import annotations

import os
from base64 import b64encode
from contextlib import nullcontext

import pytest
from redis import Redis
from support.archives import end_life, is_archived
from support.byte_stores import KINDS, byte_store, used
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds

from antiphon import Agent, AsyncClient
from antiphon.bytestores import ByteStore, FolderStore, S3Store, use_byte_store
from antiphon.bytestores.of_process import FILES_VARIABLE, bytes_of_process
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import (
    CorruptRecord,
    LimitReached,
    NotFound,
    SettingsError,
    StoreUnavailable,
    TenantLimit,
)
from antiphon.input.limits import LIMITS
from antiphon.model import Image, Message, Text
from antiphon.redis import forks
from antiphon.stores import SQLiteStore
from antiphon.testing import script, tool_call
from antiphon.tools import tool
from antiphon.wire.editing import delete_session
from antiphon.wire.files import add_file, drop_files, list_files, read_file
from antiphon.wire.placed import clear, name_of, places_of, sweep
from antiphon_worker import App, archive, eraser

pytestmark = [pytest.mark.one_server, pytest.mark.lasting_keys("ant:byte_root")]
AGENT = Agent("scripted", "any")
DATA = os.urandom(300_000)
SECRET = MARKER.encode() * 10_000


class Dies(Exception):
    """The process has died."""


@pytest.fixture(params=KINDS)
def store(request, tmp_path, monkeypatch):
    with byte_store(request.param, tmp_path, monkeypatch) as found:
        yield found


async def contents(store, cell):
    root = (await cell.redis.get("ant:byte_root") or b"").decode()
    return list(store.names(f"{root}/")) if root else []


async def test_a_content_is_in_the_store_and_its_entry_in_redis(store, cell):
    for data in (DATA, b""):
        entry = await add_file(cell, "s", data, "text/plain", "a.txt")
        found = await read_file(cell, "s", entry.id)
        assert (found.data, found.media_type, found.name) == (data, "text/plain", "a.txt")
    assert await cell.redis.hget("ant:session:s", "media") == b"2 300000"
    assert await cell.redis.hlen("ant:media:s") == 2
    assert all(len(value) < 1000 for value in await cell.redis.hvals("ant:media:s"))
    assert len(await contents(store, cell)) == 2
    await add_file(cell, "s", DATA)
    assert len(await contents(store, cell)) == 2
    assert await read_file(cell, "other", entry.id) is None


async def test_a_removed_file_and_a_deleted_session_leave_nothing(store, cell):
    first, second = await add_file(cell, "s", DATA), await add_file(cell, "s", b"2")
    assert await drop_files(cell, "s", first.id) == 1
    assert [one.id for one in await list_files(cell, "s")] == [second.id]
    assert len(await contents(store, cell)) == 1
    assert await delete_session(cell, "s")
    assert await contents(store, cell) == []


@pytest.mark.parametrize("session", ["..", "a/../b", "Ä" * 100, "User", "%2e"])
async def test_any_session_has_a_name_in_the_store(store, cell, session):
    await add_file(cell, "user", b"another")
    entry = await add_file(cell, session, DATA)
    assert (await read_file(cell, session, entry.id)).data == DATA
    assert await sweep(cell) == await clear(cell, "user") == 0
    await delete_session(cell, session)
    assert len(await contents(store, cell)) == 1


@pytest.mark.parametrize("after", ["begin", "save", "end"])
async def test_a_call_that_dies_is_repeated_and_leaves_nothing_behind(store, cell, monkeypatch, after):
    """After each of its steps: noted, stored, and before its answer has arrived."""
    save, run, calls = StoredBytesOf(store).save, cell.run, []

    async def dying_save(name, data):
        if after == "begin":
            raise Dies
        await save(name, data)
        if after == "save":
            raise Dies

    async def dying_run(name, *arguments):
        answer = await run(name, *arguments)
        calls.append(name)
        if after == "end" and calls.count("files/place_file") == 2:
            raise Dies
        return answer

    with monkeypatch.context() as crash:
        crash.setattr(StoredBytesOf(store), "save", dying_save)
        crash.setattr(cell, "run", dying_run)
        with pytest.raises(Dies):
            await add_file(cell, "s", DATA)
    assert len(await list_files(cell, "s")) == (after == "end")
    assert await sweep(cell) == 0
    entry = await add_file(cell, "s", DATA)
    assert (await read_file(cell, "s", entry.id)).data == DATA
    assert await cell.redis.hget("ant:session:s", "media") == b"1 300000"
    assert len(await contents(store, cell)) == 1
    assert await sweep(cell) == 0


def StoredBytesOf(store):  # noqa: N802 - what the process calls the store through
    found = bytes_of_process()
    assert found.store is store
    return found


@pytest.mark.parametrize("what", ["delete", "drop", "sweep"])
async def test_what_happens_between_the_content_and_its_entry(store, cell, monkeypatch, what):
    """The session is deleted, the begun file is removed, or another worker sweeps: the file is whole or refused."""
    save, done = StoredBytesOf(store).save, []

    async def meanwhile(name, data):
        await save(name, data)
        if not done:
            done.append(name)
            if what == "delete":
                await delete_session(cell, "s")
            elif what == "drop":
                await drop_files(cell, "s", (await _ids(cell))[0])
            else:
                assert await sweep(cell) == 0

    async def _ids(cell):
        return [name.decode().rstrip("~") for name in await cell.redis.hkeys("ant:media:s")]

    monkeypatch.setattr(StoredBytesOf(store), "save", meanwhile)
    entry = await add_file(cell, "s", DATA)
    assert (await read_file(cell, "s", entry.id)).data == DATA
    assert await cell.redis.hget("ant:session:s", "media") == b"1 300000"
    assert len(await contents(store, cell)) == 1


async def test_two_that_store_the_same_content_at_once_store_it_once(store, cell, monkeypatch):
    save, nested = StoredBytesOf(store).save, []

    async def meanwhile(name, data):
        if not nested:
            nested.append(name)
            await add_file(cell, "s", DATA)
        await save(name, data)

    monkeypatch.setattr(StoredBytesOf(store), "save", meanwhile)
    entry = await add_file(cell, "s", DATA)
    assert (await read_file(cell, "s", entry.id)).data == DATA
    assert await cell.redis.hget("ant:session:s", "media") == b"1 300000"
    assert len(await contents(store, cell)) == 1


async def test_a_sweep_removes_what_expired_sessions_have_left_and_nothing_else(store, cell):
    kept = await add_file(cell, "kept", DATA)
    await add_file(cell, "gone", DATA)
    await cell.redis.delete("ant:media:gone", "ant:session:gone")
    store.save("of/another/deployment", b"stays")
    assert await sweep(cell) == 1
    assert await sweep(cell) == 0
    assert (await read_file(cell, "kept", kept.id)).data == DATA
    assert store.load("of/another/deployment") == b"stays"


async def test_workers_sweep_by_themselves(store, redis_url, monkeypatch):
    monkeypatch.setattr(eraser, "PAUSE_SECONDS", 0.02)
    async with AsyncClient(redis_url) as client:
        await client.session("gone").add_file(DATA)
        with Redis.from_url(redis_url) as redis:
            redis.delete("ant:media:gone", "ant:session:gone")
            redis.zrem("ant:sessions", "gone")
            root = redis.get("ant:byte_root").decode()
            assert len(list(store.names(f"{root}/"))) == 1
            async with running_worker(redis_url):
                await wait_until_async(lambda: _empty(store, root), description="the store is swept")
            assert 0 < redis.ttl("ant:swept") <= eraser.SWEEP_SECONDS


async def _empty(store, root):
    return not list(store.names(f"{root}/"))


async def test_messages_tools_and_forks_use_the_store(store, redis_url):
    @tool
    def draw() -> Image:
        """Draw."""
        return Image(data=b64encode(DATA[::-1]).decode(), media_type="image/png")

    lines = script(tool_call("draw"), "Here it is.", repeat=True)
    agent = Agent(provider=lines, model="any", name="a", tools=[draw])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[agent])):
        photo = Image(data=b64encode(DATA).decode(), media_type="image/png")
        turn = await client.submit("s", [Text("Draw one like this."), photo], agent="a")
        assert (await turn.result(30)).text == "Here it is."
        session = client.session("s")
        assert len(await session.stored_files()) == 2
        with Redis.from_url(redis_url) as redis:
            assert redis.memory_usage("ant:media:s") < 5_000
            root = redis.get("ant:byte_root").decode()
        fork = await session.fork("t")
        assert len(list(store.names(f"{root}/"))) == 4
        await session.delete()
        assert len(list(store.names(f"{root}/"))) == 2
        [message] = await fork.load_files((await fork.messages())[:1])
        assert message.parts[1].data == photo.data


async def test_the_store_has_no_content_in_the_clear_with_encryption(store, redis_url, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, new_key("a"))
    async with AsyncClient(redis_url) as client:
        session = client.session("s")
        note = await session.add_file(SECRET, name=f"{MARKER}.txt")
        assert (await session.read_file(note)).data == SECRET
        with Redis.from_url(redis_url) as redis:
            root = redis.get("ant:byte_root").decode()
            assert [
                key for key, data in dumped(redis).items() if holds(data) or note.id.encode() in data
            ] == []
        [name] = store.names(f"{root}/")
        assert not holds(store.load(name))
        assert note.id not in name
        *kept, last = store.load(name)
        store.save(name, bytes([*kept, last ^ 1]))
        with pytest.raises(CorruptRecord):
            await session.read_file(note)


async def test_a_changed_content_is_not_returned_and_a_lost_one_is_missing(store, cell, redis_url):
    entry = await add_file(cell, "s", DATA)
    [name] = await contents(store, cell)
    store.save(name, b"changed")
    with pytest.raises(CorruptRecord, match="was changed"):
        await read_file(cell, "s", entry.id)
    store.delete([name])
    async with AsyncClient(redis_url) as client:
        with pytest.raises(NotFound):
            await client.session("s").read_file(entry.id)


async def test_a_process_without_the_store_says_what_to_set(store, cell):
    entry = await add_file(cell, "s", DATA)
    use_byte_store(None)
    with pytest.raises(SettingsError, match=FILES_VARIABLE):
        await read_file(cell, "s", entry.id)
    assert await drop_files(cell, "s", entry.id) == 1
    use_byte_store(store)
    assert await sweep(cell) == 1


async def test_files_that_redis_has_stay_there(cell, tmp_path):
    inside = await add_file(cell, "s", DATA)
    with used(FolderStore(tmp_path)) as store:
        outside = await add_file(cell, "s", b"outside")
        assert (await read_file(cell, "s", inside.id)).data == DATA
        assert (await read_file(cell, "s", outside.id)).data == b"outside"
        await add_file(cell, "s", DATA)
        assert len(await contents(store, cell)) == 1


async def test_chunks_that_another_call_has_begun_make_way(cell, tmp_path, monkeypatch):
    run = cell.run

    async def dying(name, *arguments):
        if name == "files/add_chunk" and arguments[3] == 1:
            raise Dies
        return await run(name, *arguments)

    with monkeypatch.context() as crash:
        crash.setattr(cell, "run", dying)
        with pytest.raises(Dies):
            await add_file(cell, "s", DATA)
    with used(FolderStore(tmp_path)):
        entry = await add_file(cell, "s", DATA)
        assert (await read_file(cell, "s", entry.id)).data == DATA
    assert await cell.redis.hlen("ant:media:s") == 1
    assert await cell.redis.hget("ant:session:s", "media") == b"1 300000"


async def test_limits_hold_before_anything_is_stored(store, cell, monkeypatch):
    monkeypatch.setattr("antiphon.wire.files.LIMITS", type(LIMITS)(session_file_bytes=10))
    with pytest.raises(LimitReached):
        await add_file(cell, "s", DATA)
    with pytest.raises(StoreUnavailable, match="no longer held"):
        await add_file(cell, "s", b"1", fence="1-a")
    assert await contents(store, cell) == []
    assert await cell.redis.exists("ant:media:s") == 0


async def test_forgetting_clears_the_store_and_says_where_it_cannot(store, redis_url):
    async with AsyncClient(redis_url) as client:
        await client.session("s", tenant="acme").add_file(SECRET)
        await client.session("other").add_file(SECRET)
        with Redis.from_url(redis_url) as redis:
            root = redis.get("ant:byte_root").decode()
        store.save(name_of("s", f"{root}/0123"), SECRET)  # a call has died before it noted a file
        assert (await client.forget(session="s")).unsearched == []
        assert len(list(store.names(f"{root}/"))) == 1
        use_byte_store(None)
        assert (await client.forget(session="other")).unsearched == ["files"]
        use_byte_store(store)
        assert (await client.forget(session="other")).unsearched == []
        assert list(store.names(f"{root}/")) == []


async def test_an_archived_session_gives_its_files_back(store, redis_url, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "PAUSE_SECONDS", 0.01)
    with SQLiteStore(tmp_path / "archive.db") as database, Redis.from_url(redis_url) as redis:
        async with (
            AsyncClient(redis_url, archive=database) as client,
            running_worker(redis_url, App(store=database)),
        ):
            photo = Image(data=b64encode(DATA).decode(), media_type="image/png")
            turn = await client.submit("s", [Text("Look."), photo], agent=AGENT, ttl=600)
            await turn.result(30)
            await wait_until_async(lambda: is_archived(redis, "s"), description="it is archived")
            end_life(redis_url, "s")
            session = client.session("s")
            [file] = await session.stored_files()
            assert (await session.read_file(file.id)).data == DATA
            await (await client.submit("s", "Again.", agent=AGENT)).result(30)
            assert redis.hlen("ant:media:s") == 1
            assert (await session.read_file(file.id)).data == DATA


async def test_an_outage_of_the_store_is_an_outage(cell):
    class Away(ByteStore):
        def save(self, name, data):
            raise OSError("the share is away")

        load = delete = names = save

    with used(Away()), pytest.raises(StoreUnavailable, match="the share is away") as refused:
        await add_file(cell, "s", DATA)
    assert refused.value.retryable


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/files", "must be file:///path"),
        ("file://relative", "must be file:///path"),
        ("s3://", "must be file:///path"),
        ("s3://user:secret@bucket", "without a user"),
        ("s3://bucket?colour=red", "unknown option 'colour'"),
        ("file:///does/not/exist", "does not exist"),
    ],
)
def test_a_url_that_names_no_store_is_refused(monkeypatch, url, problem):
    monkeypatch.setenv(FILES_VARIABLE, url)
    with pytest.raises(SettingsError, match=problem):
        bytes_of_process()


def test_a_url_names_a_folder_or_a_bucket(monkeypatch, tmp_path):
    monkeypatch.setenv(FILES_VARIABLE, f"file://{tmp_path}")
    assert isinstance(bytes_of_process().store, FolderStore)
    monkeypatch.setenv(FILES_VARIABLE, "s3://bucket/below?endpoint=http://127.0.0.1:9&region=eu-central-1")
    assert isinstance(bytes_of_process().store, S3Store)


def test_what_a_dead_writer_has_left_in_a_folder_goes_a_day_later(tmp_path):
    store = FolderStore(tmp_path)
    store.save("a/1", b"1")
    for name, age in (("old", 25 * 3600), ("new", 3600)):
        left = tmp_path / ".new" / name
        left.write_bytes(b"cut off")
        os.utime(left, (left.stat().st_mtime - age,) * 2)
    assert list(store.names("a/")) == ["a/1"]
    assert [one.name for one in (tmp_path / ".new").iterdir()] == ["new"]


@pytest.mark.parametrize("kind", ["redis", *KINDS])
async def test_a_tenant_stores_no_more_bytes_than_its_limit(kind, cell, redis_url, tmp_path, monkeypatch):
    """Deleted files, deleted sessions and expired ones make room; a fork counts."""
    with byte_store(kind, tmp_path, monkeypatch) if kind != "redis" else nullcontext():
        async with AsyncClient(redis_url) as client:
            await client.set_tenant_limits("acme", stored_bytes=350_000)
            one, other = client.session("one", tenant="acme"), client.session("other", tenant="acme")
            big = await one.add_file(DATA)
            await one.add_file(DATA)
            with pytest.raises(TenantLimit, match="350000 bytes") as refused:
                await other.add_file(DATA[:-1])
            assert (refused.value.limit, refused.value.retryable) == ("stored_bytes", True)
            assert await cell.redis.exists("ant:media:other") == 0
            if kind == "redis":
                with pytest.raises(TenantLimit):
                    await one.fork("copy")
            await client.session("s", tenant="rival").add_file(DATA)
            await client.session("s2").add_file(DATA)
            small = await other.add_file(DATA[:50_000])
            await one.remove_file(big)
            await other.add_file(DATA)
            assert await cell.redis.hget("ant:stored:acme", "") == b"350000"
            await other.remove_file(small)
            with pytest.raises(TenantLimit):
                await one.add_file(DATA)
            await other.delete()
            await one.add_file(DATA)
            await cell.redis.delete("ant:media:one", "ant:session:one")
            await client.session("three", tenant="acme").add_file(DATA)
            assert await cell.redis.hgetall("ant:stored:acme") == {b"": b"300000", b"three": b"300000"}
            assert await cell.redis.ttl("ant:stored:acme") > 0
            await client.set_tenant_limits("acme")
            await client.session("four", tenant="acme").add_file(DATA)


async def test_a_fork_has_the_file_that_is_stored_while_it_begins(store, cell, redis_url, monkeypatch):
    looked = []

    async def places(cell, session):
        found = await places_of(cell, session)
        if not looked:
            looked.append(await add_file(cell, session, DATA))  # a moment later
        return found

    monkeypatch.setattr(forks, "places_of", places)
    async with AsyncClient(redis_url) as client:
        await client.session("s").add_message(Message.user("Hi"))
        await client.session("s").fork("copy")
    [entry] = looked
    assert (await read_file(cell, "copy", entry.id)).data == DATA


async def test_a_fork_counts_for_its_tenant(cell, redis_url):
    async with AsyncClient(redis_url) as client:
        await client.set_tenant_limits("acme", stored_bytes=650_000)
        session = client.session("one", tenant="acme")
        await session.add_file(DATA)
        await session.fork("copy")
        with pytest.raises(TenantLimit):
            await session.fork("another")
        assert await cell.redis.hget("ant:stored:acme", "") == b"600000"
        await client.set_tenant_limits("acme")


async def test_a_session_whose_list_of_files_is_damaged_can_be_deleted(store, cell, redis_url):
    async with AsyncClient(redis_url) as client:
        session = client.session("s")
        await session.add_file(DATA)
        await cell.redis.set("ant:media:s", "damaged")
        await session.delete()
    assert await cell.redis.exists("ant:media:s") == 0
