"""Clients with the workers' archive read a session before its next turn, and restore and write nothing by that."""

import asyncio
import threading

import pytest
from redis import Redis
from support.archives import OwnStore, end_life, is_archived
from support.eventually import wait_until_async
from support.fresh_python import printed_by
from support.gateway import open_gateway

from antiphon.client import AsyncClient, Client
from antiphon.errors import SettingsError, StoreUnavailable, UsageError, WrongTenant
from antiphon.input.ids import SessionId
from antiphon.redis.archived import ArchiveReader
from antiphon.stores import SQLiteStore
from antiphon.wire.lists import inspection
from antiphon.wire.lists.reading import places
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Key, Keys, hash_of, new_key

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("quick")]
SOON = 600.0


async def archived(ensemble, store, session, *texts, **options):
    """A session with these turns that is in the store alone: its life in Redis is over."""
    async with ensemble.worker(store=store):
        for text in texts:
            await (await ensemble.submit(session, text, **{"ttl": SOON, **options})).result(60)
        with Redis.from_url(ensemble.url) as redis:
            await wait_until_async(lambda: is_archived(redis, session))
    end_life(ensemble.url, session)


def keys(url):
    """All that Redis has, as it is."""
    with Redis.from_url(url) as redis:
        return {key: redis.dump(key) for key in redis.scan_iter("ant:*") if b"worker" not in key}


async def asked(messages):
    return [message.text for message in await messages if message.role == "user"]


async def test_an_archived_session_reads_whole_before_its_next_turn(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one", "two", tenant="acme")
    before = keys(redis_url)
    async with AsyncClient(redis_url, archive=own) as client:
        session = client.session("s")
        assert await asked(session.messages()) == ["one", "two"]
        assert [one.text for one in await session.history(0, 1)] == ["one"]
        assert len(await session.history(-1)) == 1
        assert await asked(session.history(pending=True, failed=True)) == ["one", "two"]
        saved = await session.to_dict()
        assert (saved["tenant"], len(saved["messages"])) == ("acme", 4)
        assert saved["updated"] == own.load("s")["updated"]
        status = await session.status()
        assert (status.messages, status.state) == (4, "idle")
        assert len((await client.snapshot("s", last=3)).messages) == 3
        (listed,) = [one async for one in client.sessions(tenant="acme")]
        assert (listed.session_id, listed.messages, listed.status) == ("s", 4, "done")
        assert [one async for one in client.sessions(tenant="rival")] == []
        assert [one async for one in client.turns("s")] == []
    assert keys(redis_url) == before, "reading restores nothing and writes nothing"


async def test_without_the_archive_it_still_reads_as_empty(ensemble, own):
    await archived(ensemble, own, "s", "one")
    assert await ensemble.client.session("s").messages() == []


async def test_what_was_said_since_follows_what_is_archived(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one", tenant="acme")
    async with AsyncClient(redis_url, archive=own) as client:
        session = client.session("s")
        await session.set_metadata({"new": 1})
        await session.add_message({"role": "user", "content": "by hand"})
        waiting = await ensemble.submit("s", "two")
        assert await asked(session.messages()) == ["one", "by hand"]
        assert await asked(session.history(pending=True)) == ["one", "by hand", "two"]
        (listed,) = [one async for one in client.sessions()]
        assert (listed.tenant, listed.messages, listed.status) == ("acme", 3, "waiting")
        assert listed.metadata == {"new": 1}
        async with ensemble.worker(store=own):
            await waiting.result(60)
        assert await asked(session.messages()) == ["one", "by hand", "two"], "as a worker restored it"


async def test_a_cleared_history_does_not_come_back_by_reading(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one", tenant="acme")
    async with AsyncClient(redis_url, archive=own) as client:
        await client.session("s").clear()
        assert await client.session("s").messages() == []
        assert (await client.session("s").to_dict())["tenant"] == "acme"


async def test_a_deleted_session_is_gone_while_its_copy_still_stands(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one")
    async with AsyncClient(redis_url, archive=own) as client:
        await client.session("s").delete()
        assert own.load("s") is not None
        assert await client.session("s").messages() == []
        assert [one async for one in client.sessions()] == []
        await client.session("s").add_message({"role": "user", "content": "anew"})
        assert await asked(client.session("s").messages()) == ["anew"]


async def test_one_that_is_deleted_while_its_copy_is_loaded_is_gone(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one")
    own.held.add("load")
    async with AsyncClient(redis_url, archive=own) as client:
        reading = asyncio.create_task(client.session("s").messages())
        await wait_until_async(own.begun["load"].is_set)
        await ensemble.client.session("s").delete()
        own.let_go()
        assert await reading == []


async def test_one_that_is_restored_while_its_copy_is_loaded_is_read_once(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one")
    slow = OwnStore()
    slow.texts = own.texts
    slow.held.add("load")
    async with AsyncClient(redis_url, archive=slow) as client:
        reading = asyncio.create_task(client.session("s").messages())
        await wait_until_async(slow.begun["load"].is_set)
        async with ensemble.worker(store=own):
            await (await ensemble.submit("s", "two", ttl=SOON)).result(60)
        slow.let_go()
        assert await asked(reading) == ["one", "two"]


async def test_a_fork_reads_with_the_past_of_its_source(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one")
    async with AsyncClient(redis_url, archive=own) as client:
        await client.session("s").fork("copy")
        assert await asked(client.session("copy").messages()) == ["one"]


async def test_an_archived_session_keeps_its_owner(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one", tenant="acme")
    async with AsyncClient(redis_url, archive=own) as client:
        rival = client.session("s", tenant="rival")
        reads = {
            "messages": rival.messages, "save": rival.to_dict, "status": rival.status,
            "delete": rival.delete, "snapshot": lambda: client.snapshot("s", tenant="rival"),
            "page": lambda: rival.history(pending=True),
        }  # fmt: skip
        for read in reads.values():
            with pytest.raises(WrongTenant):
                await read()
    key = new_key()
    known = Keys({"rival": Key(hash=hash_of(key), tenant="rival", rights=["read", "write", "admin"])})
    async with open_gateway(redis_url, archive=own, key=key, access=Access(known)) as (api, _):
        for path in ("", "/messages", "/snapshot"):
            assert (await api.get(f"/sessions/s{path}", 403))["code"] == "wrong_tenant"
        assert (await api.get("/sessions"))["sessions"] == []
        await api.call("DELETE", "/sessions/s", 403)
    assert own.load("s") is not None


async def test_a_list_goes_on_among_archived_sessions(ensemble, redis_url, own):
    for name in ("a", "b", "c"):
        await archived(ensemble, own, name, "one")
    async with ensemble.worker(store=own):
        await (await ensemble.submit("live", "one")).result(60)
    own.texts["b\x1f123"] = own.texts["b"]  # one that the archiver keeps beside it
    own.texts["bad"] = '{"version": 1}'
    own.texts["live"] = own.texts["a"]  # which cannot be opened in Redis, as where a key is missing
    with Redis.from_url(redis_url) as redis:
        redis.hset("ant:session:live", "system", b"\x7f1:system:k.00000000:AAAA")
    async with AsyncClient(redis_url, archive=own) as client:
        found, cursor = [], None
        while True:
            page = client.sessions(limit=1, cursor=cursor)
            found += [one.session_id async for one in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == ["live", "a", "b", "c"]


async def test_an_archive_that_fails_is_an_error_and_no_empty_session(ensemble, redis_url, own):
    await archived(ensemble, own, "s", "one")
    async with ensemble.worker(store=own):
        await (await ensemble.submit("live", "one")).result(60)
    own.failing = True
    async with AsyncClient(redis_url, archive=own) as client:
        with pytest.raises(StoreUnavailable, match="archive is unavailable"):
            await client.session("s").messages()
        assert len(await client.session("live").messages()) == 2, "Redis has all of it"


async def test_a_restored_session_costs_what_it_costs_without_an_archive(
    ensemble, redis_url, own, monkeypatch
):
    async with ensemble.worker(store=own):
        await (await ensemble.submit("s", "one")).result(60)
    own.failing = True
    async with AsyncClient(redis_url, archive=own) as client:
        cell, calls = client.connections.cell_of_session(SessionId("s")), []
        snapshot = cell.snapshot

        async def counted(*arguments):
            calls.append(arguments)
            return await snapshot(*arguments)

        monkeypatch.setattr(cell, "snapshot", counted)
        assert len(await client.session("s").messages()) == 2
        assert len(calls) == 1
        found = await places(cell, cell.keys.sessions, None, 10)
        assert [row.restored for row in await inspection.session_rows(cell, found, []) if row] == [True]


async def test_readers_at_once_open_a_store_once(redis_url, monkeypatch, own):
    opened, may_open = [], threading.Event()

    def slow(url, setting):
        opened.append(url)
        assert may_open.wait(20)
        return own

    monkeypatch.setattr("antiphon.redis.archived.store_at", slow)
    reader = ArchiveReader("sqlite:///any")
    loading = [asyncio.create_task(reader.load(name)) for name in ("a", "b")]
    await wait_until_async(
        lambda: len([one for one in threading.enumerate() if one.name == "antiphon tool"]) >= 2
    )
    may_open.set()
    assert await asyncio.gather(*loading) == [None, None]
    assert len(opened) == 1


@pytest.mark.parametrize("raised", [StopIteration, SystemExit, GeneratorExit, KeyError])
async def test_whatever_a_store_raises_says_that_the_archive_cannot_be_read(own, monkeypatch, raised):
    def load(session):
        raise raised

    monkeypatch.setattr(own, "load", load)
    with pytest.raises(StoreUnavailable, match=f"archive is unavailable: {raised.__name__}"):
        await ArchiveReader(own).load("s")


def test_a_store_that_never_answers_keeps_no_process_from_ending():
    code = (
        "import asyncio, threading\n"
        "from antiphon.errors import StoreUnavailable\n"
        "from antiphon.redis import archived as reading\n"
        "from antiphon.stores import MemoryStore\n"
        "class Hanging(MemoryStore):\n"
        "    def load(self, session_id):\n"
        "        threading.Event().wait()\n"
        "async def main():\n"
        "    reading.STORE_SECONDS = 0.05\n"
        "    reader = reading.ArchiveReader(Hanging())\n"
        "    found = await asyncio.gather(*(reader.load('s') for _ in range(40)), return_exceptions=True)\n"
        "    assert {type(one) for one in found} == {StoreUnavailable}, found\n"
        "    print(await reader.page('', 10))\n"
        "asyncio.run(main())\n"
    )
    assert printed_by(code) == "[]\n"


def test_the_archive_may_be_a_url(redis_url, tmp_path):
    with SQLiteStore(tmp_path / "archive.db") as store:
        saved = {"version": 1, "session_id": "s", "messages": [{"role": "user", "content": "one"}]}
        store.save("s", saved)
    with Client(redis_url, archive=f"sqlite://{tmp_path}/archive.db") as client:
        assert [message.text for message in client.session("s").messages] == ["one"]
        assert [one.session_id for one in client.sessions()] == ["s"]
    with Client(redis_url, archive="mysql://any") as client, pytest.raises(SettingsError, match="archive="):
        _ = client.session("s").messages
    with pytest.raises(UsageError, match="archive="):
        Client(redis_url, archive=7)
