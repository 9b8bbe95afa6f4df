"""Finished turns are found by their words, in SQLite and PostgreSQL, and deleted or edited ones are not."""

from __future__ import annotations

import asyncio

import pytest
from support.eventually import wait_until_async
from support.gateway import Api, keys, programs
from support.here import running_worker
from support.serving import serving

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import SettingsError, UsageError
from antiphon.redis.search import SEARCH_CURSOR
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.wire.lists.memories import waiting_sessions
from antiphon_gateway import gateway
from antiphon_gateway.access.access import Access
from antiphon_worker.app import App
from antiphon_worker.archive import Archive
from antiphon_worker.memory.search import check_search

HOST = Agent(provider="scripted", model="any", name="host")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/archive.db"
    return request.getfixturevalue("postgres").new_database()


async def found(client, text, **options):
    return {one.session_id for one in (await client.search(text, **options)).hits}


async def finds(client, text, *sessions, **options):
    async def so():
        try:
            return await found(client, text, **options) == {*sessions}
        except UsageError:  # the worker still makes the index
            return False

    await wait_until_async(so, 20)


async def say(client, session, text, **options):
    turn = await client.submit(session, text, agent="host", **options)
    await turn.result(timeout=20)
    return turn


async def test_a_turn_is_found_soon_after_its_end_by_what_was_asked_and_answered(redis_url, url):
    app = App(agents=[HOST], search=True)
    async with AsyncClient(redis_url, archive=url) as client:
        with pytest.raises(UsageError, match=r"no index of turns yet: start workers with App\(search=True\)"):
            await client.search("tea")
        async with running_worker(redis_url, app, archive=url):
            turn = await say(client, "s", "Is there green tea?", tenant="acme")
            await say(client, "other", "Is there coffee?", tenant="rival")
            await finds(client, "tea", "s")
            (hit,) = (await client.search('"you said" GREEN te')).hits
            assert (hit.session_id, hit.turn_id, hit.tenant, hit.agent) == ("s", turn.id, "acme", "host")
            assert [part.text for part in hit.excerpt if part.match][:2] == ["green", "te" + "a"]
            assert hit.created > 0
            await finds(client, "said", "s", "other")
            assert await found(client, "said", tenant="acme") == {"s"}
            assert await found(client, "said", session="other") == {"other"}


async def test_child_sessions_are_not_found(redis_url, url):
    app = App(agents=[HOST], search=True)
    async with AsyncClient(redis_url, archive=url) as client, running_worker(redis_url, app, archive=url):
        parent = client.session("s", agent="host")
        await parent.run("secretword")
        await parent.child(session_id="child").run("secretword of the child")
        cell = client.connections.cell_of_session("s")
        await wait_until_async(lambda: none_wait(cell), 20, "both are indexed")
        assert await found(client, "secretword") == {"s"}
        assert await found(client, "secretword", session="child") == set()


async def none_wait(cell):
    return not await waiting_sessions(cell, SEARCH_CURSOR)


async def test_what_is_deleted_forgotten_or_edited_is_not_found_from_that_moment_on(redis_url, url):
    app = App(agents=[HOST], search=True)
    async with AsyncClient(redis_url, archive=url) as client:
        async with running_worker(redis_url, app, archive=url):
            for session in ("gone", "forgotten", "edited", "left"):
                await say(client, session, f"secretword in {session}", tenant="acme")
            await finds(client, "secretword", "gone", "forgotten", "edited", "left")
        # without a worker, nothing follows in the index: Redis knows
        await client.session("gone").delete()
        await client.forget(session="forgotten", tenant="acme")
        await client.session("edited").clear()
        assert await found(client, "secretword") == {"left"}
        async with running_worker(redis_url, app, archive=url):
            index = client.connections.archive._opened().turn_index()

            async def removed():
                rows = await asyncio.to_thread(
                    index.find, query("secretword"), tenant=None, session=None, start=0, count=10
                )
                return [one.session_id for one in rows] == ["left"]

            await wait_until_async(removed, 20)
            assert (await client.forget(tenant="acme")).left == []
            await finds(client, "secretword")


def query(text):
    from antiphon.stores.words import query_of

    return query_of(text)


async def test_pages_have_each_turn_once_and_leave_out_what_is_gone(redis_url, url):
    async with AsyncClient(redis_url, archive=url) as client:
        async with running_worker(redis_url, App(agents=[HOST], search=True), archive=url):
            for number in range(7):
                await say(client, f"s{number}", "needle")
            await finds(client, "needle", *(f"s{number}" for number in range(7)))
        await client.session("s3").delete()
        seen, cursor = [], None
        while True:
            page = await client.search("needle", limit=2, cursor=cursor)
            seen += [one.session_id for one in page.hits]
            cursor = page.cursor
            if cursor is None:
                break
        assert sorted(seen) == [f"s{number}" for number in (0, 1, 2, 4, 5, 6)]


async def test_a_gateway_searches_the_sessions_of_the_key_alone(redis_url, tmp_path):
    url = f"sqlite:///{tmp_path}/archive.db"
    known, secrets = keys(
        root={"tenant": "*"}, acme={"tenant": "acme"}, one={"tenant": "acme", "sessions": ["b*"]}
    )
    async with AsyncClient(redis_url, archive=url) as client:
        async with running_worker(redis_url, App(agents=[HOST], search=True), archive=url):
            for session, tenant in (("a", "acme"), ("b", "acme"), ("c", "rival")):
                await say(client, session, "needle", tenant=tenant)
            await finds(client, "needle", "a", "b", "c")
        async with (
            serving(gateway(client, access=Access(known))) as port,
            programs(Api(f"http://127.0.0.1:{port}"), secrets) as by,
        ):

            async def sessions(name, question="text=needle"):
                return {one["session_id"] for one in (await by[name].get(f"/search?{question}"))["hits"]}

            assert (await by["root"].get("/counts"))["searchable"]
            assert (await by["one"].get("/counts"))["searchable"]
            assert await sessions("root") == {"a", "b", "c"}
            assert await sessions("acme") == {"a", "b"}
            assert await sessions("one") == {"b"}
            assert await sessions("root", "text=needle&tenant=rival") == {"c"}
            assert await sessions("acme", "text=needle&session=c") == set()
            assert (await by["acme"].get("/search?text=x&tenant=rival", 403))["code"] == "wrong_tenant"
            assert (await by["one"].get("/search?text=x&session=a", 403))["code"] == "forbidden"
            assert "has none" in (await by["root"].get("/search?text=!", 400))["detail"]


WRONG = [
    ("", {}, "must have a word"), ("x" * 1001, {}, "at most 1,000 characters"), (5, {}, "must be a string"),
    ("x", {"limit": 0}, "limit= must be"), ("x", {"cursor": "abc"}, "cursor= must be"),
    ("x", {"cursor": "9" * 30}, "cursor= must be"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "sentence"), WRONG)
async def test_a_wrong_search_says_what_is_wrong(redis_url, tmp_path, text, options, sentence):
    async with AsyncClient(redis_url, archive=SQLiteStore(tmp_path / "a.db")) as client:
        with pytest.raises(UsageError, match=sentence):
            await client.search(text, **options)


async def test_a_deployment_that_cannot_search_says_what_to_do(redis_url, tmp_path, monkeypatch):
    async with AsyncClient(redis_url) as client:
        with pytest.raises(UsageError, match=r"pass archive= to the client"):
            await client.search("x")
    async with AsyncClient(redis_url, archive=MemoryStore()) as client:
        with pytest.raises(UsageError, match=r"SQLite or PostgreSQL"):
            await client.search("x")
    with pytest.raises(SettingsError, match="set ANTIPHON_ARCHIVE"):
        check_search(None, sealed=False)
    with pytest.raises(SettingsError, match="SQLite or PostgreSQL"):
        check_search(Archive(MemoryStore()), sealed=False)
    with pytest.raises(SettingsError, match="cannot be encrypted"):
        check_search(Archive(SQLiteStore(tmp_path / "a.db")), sealed=True)
    with pytest.raises(SettingsError, match="search= must be True or False"):
        App(search="yes")


async def test_a_turn_of_an_app_without_search_is_noted_nowhere(redis_url, url):
    app = App(agents=[HOST])
    async with AsyncClient(redis_url, archive=url) as client, running_worker(redis_url, app, archive=url):
        await say(client, "s", "tea")
        cell = client.connections.cell_of_session("s")
        assert await cell.redis.keys("ant:unindexed:*") == []
        assert await cell.redis.keys("ant:remembered:*") == []


async def test_the_turns_of_an_erased_user_are_not_found_and_those_of_others_still_are(redis_url, url):
    app = App(agents=[HOST], search=True)
    async with AsyncClient(redis_url, archive=url) as client, running_worker(redis_url, app, archive=url):
        await say(client, "shared", "adasword", user="ada")
        await say(client, "shared", "bobsword", user="bob")
        await finds(client, "adasword", "shared")
        await finds(client, "bobsword", "shared")
        await client.forget(user="ada")
        assert await found(client, "adasword") == set()
        await finds(client, "bobsword", "shared")
        assert await found(client, "adasword") == set()
