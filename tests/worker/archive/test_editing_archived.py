"""An edit whose outcome depends on what a session has finds its archived past, as the session's next turn would."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from redis import Redis
from support.archives import OwnStore, end_life, is_archived
from support.ensemble import open_ensemble
from support.eventually import wait_until_async
from support.stage import FIRST_WORDS

from antiphon.client import AsyncClient
from antiphon.errors import (
    MessageNotFound,
    SessionExists,
    StoreUnavailable,
    WrongTenant,
)
from antiphon.model import Message
from antiphon.redis import archived as restoring
from antiphon.session.async_session import AsyncSession
from antiphon.session.runtime import Edit, Opening

pytestmark = [pytest.mark.one_server, pytest.mark.usefixtures("quick")]
SOON = 600.0


@pytest.fixture
def gone(redis_url, tmp_path, own):
    """A session `s` of two turns that lives in the archive alone, and a client that reads it. No worker looks."""

    @asynccontextmanager
    async def begin():
        async with (
            open_ensemble(redis_url, tmp_path / "stage") as ensemble,
            AsyncClient(redis_url, archive=own) as client,
        ):
            async with ensemble.worker(store=own):
                await client.session("s", tenant="acme").set_variables({"a": 1, "b": 2})
                for text in ("one", "two"):
                    await (await ensemble.submit("s", text, ttl=SOON, tenant="acme")).result(60)
                with Redis.from_url(redis_url) as redis:
                    await wait_until_async(lambda: is_archived(redis, "s"))
            end_life(redis_url, "s")
            yield ensemble, client

    return begin


async def ids(session):
    return [message.id for message in await session.messages()]


async def edit(client, edit, session="s"):
    await client.session(session)._edit(edit)


async def test_it_is_rewound_and_stays_so_for_its_next_turn(gone, own):
    async with gone() as (ensemble, client):
        session = client.session("s")
        before = await ids(session)
        await session.rewind(to=before[1])
        assert await ids(session) == before[:2]
        async with ensemble.worker(store=own):
            answer = await (await ensemble.submit("s", "three", tenant="acme")).result(60)
        assert "I was shown 3 messages" in answer.text
        assert (await ids(session))[:2] == before[:2]
        assert own.texts, "the store has what it had, until the session is saved again"


async def test_it_is_forked_at_a_message(gone):
    async with gone() as (_, client):
        session = client.session("s")
        before = await ids(session)
        fork = await session.fork("f", at=before[1])
        assert len(await fork.messages()) == 2
        assert await ids(session) == before


async def test_an_unknown_message_changes_nothing(gone):
    async with gone() as (_, client):
        session = client.session("s")
        before = await ids(session)
        for call in (session.rewind(to="x.1"), session.fork("f", at="x.1")):
            with pytest.raises(MessageNotFound):
                await call
        assert await ids(session) == before


async def test_its_last_message_is_replaced(gone):
    async with gone() as (_, client):
        session, seen = client.session("s"), []

        def shortened(last):
            seen.append(last.text)
            return []

        before = await ids(session)
        await edit(client, Edit(ends_with=shortened))
        assert seen[-1].startswith(FIRST_WORDS)
        assert await ids(session) == before[:-1]


async def test_its_history_becomes_another_one(gone):
    async with gone() as (_, client):
        session = client.session("s")
        new = Message.user("again")
        await edit(client, Edit(becomes=lambda old: [*old[:1], new]))
        assert [message.text for message in await session.messages()] == ["one", "again"]


async def test_a_variable_that_is_removed_does_not_come_back(gone):
    async with gone() as (_, client):
        await client.session("s").set_variables({}, remove=["a"])
        assert await client.session("s").variables() == {"b": 2}


async def test_messages_of_an_opening_are_refused_as_for_any_session_with_a_history(gone):
    async with gone() as (_, client):
        session = client.session("s")
        opened = AsyncSession(
            None, session._ref, Opening(messages=[Message.user("zero")]), session._given_runtime
        )
        with pytest.raises(SessionExists):
            await opened.set_metadata({"plan": "free"})


async def test_another_tenant_restores_nothing(gone):
    async with gone() as (_, client):
        own = client.session("s", tenant="acme")
        before = await ids(own)
        with pytest.raises(WrongTenant):
            await client.session("s", tenant="other").rewind(to=before[1])
        assert await ids(own) == before


async def test_a_session_that_stands_nowhere_does_not_begin_by_that(gone, redis_url):
    async with gone() as (_, client):
        with pytest.raises(MessageNotFound):
            await client.session("none").rewind(to="x.1")
        with Redis.from_url(redis_url) as redis:
            assert not redis.exists("ant:session:none")


async def test_a_deleted_session_does_not_come_back(gone, redis_url):
    async with gone() as (_, client):
        before = await ids(client.session("s"))
        await client.session("s").delete()
        with pytest.raises(MessageNotFound):
            await client.session("s").rewind(to=before[1])
        with Redis.from_url(redis_url) as redis:
            assert not redis.exists("ant:session:s")


async def test_while_the_archive_fails_nothing_is_edited(gone, own, redis_url):
    async with gone() as (_, client):
        own.failing = True
        with pytest.raises(StoreUnavailable):
            await client.session("s").rewind(to="x.1")
        with Redis.from_url(redis_url) as redis:
            assert not redis.exists("ant:session:s")


async def test_a_turn_that_waits_for_a_worker_finds_what_was_rewound(gone, own):
    async with gone() as (ensemble, client):
        session = client.session("s")
        before = await ids(session)
        turn = await ensemble.submit("s", "three", tenant="acme")
        rewinding = asyncio.create_task(session.rewind(to=before[1]))
        async with ensemble.worker(store=own):
            await turn.result(60)
            await rewinding
        assert await ids(session) == before[:2], "it waited for the turn before it"


async def test_where_a_worker_restores_it_first_the_edit_goes_on_from_there(
    gone, own, monkeypatch, redis_url
):
    async with gone() as (ensemble, client):
        session = client.session("s")
        before = await ids(session)
        turn = await ensemble.submit("s", "three", tenant="acme")
        own.held.add("load")
        async with ensemble.worker(store=own):
            await wait_until_async(own.begun["load"].is_set)
            answers, restore_session = [], restoring.restore_session

            async def asked(*args, **options):
                answers.append(await restore_session(*args, **options))
                own.let_go()
                return answers[-1]

            monkeypatch.setattr(restoring, "restore_session", asked)
            client.connections.archive._store = OwnStore()
            client.connections.archive._store.texts = own.texts
            await session.rewind(to=before[1])
            assert answers[0] == "SUPERSEDED"
            await turn.result(60)
        assert (await ids(session))[:2] == before[:2]
        assert len(await ids(session)) == 2


async def test_it_stands_once_where_the_process_stops_after_its_beginning(gone, own, monkeypatch):
    async with gone() as (_, client):
        session = client.session("s")
        before = await ids(session)

        async def stopped(*args):
            raise asyncio.CancelledError

        with monkeypatch.context() as stopping:
            stopping.setattr(restoring, "restore", stopped)
            with pytest.raises(asyncio.CancelledError):
                await session.rewind(to=before[1])
        assert await ids(session) == before
        await session.rewind(to=before[1])
        assert await ids(session) == before[:2]


async def test_a_restored_session_is_not_looked_for_again(gone, own):
    async with gone() as (_, client):
        session = client.session("s")
        before = await ids(session)
        await session.rewind(to=before[2])
        own.failing = True
        await session.rewind(to=before[1])
        assert await ids(session) == before[:2]
