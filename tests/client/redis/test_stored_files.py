"""Stored files in Redis: what they cost, who may read them, and where they go with their session."""

from __future__ import annotations

import os
from base64 import b64encode

import pytest
from redis import Redis
from support.archives import end_life, is_archived, session_keys
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds
from support.servers import RedisServer

from antiphon import Agent, AsyncClient
from antiphon.client import Submission
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import AgentError, KeyMissing, NotFound, SealBroken, TurnNotFound, WrongTenant
from antiphon.input.request import KNOWN
from antiphon.model import Image, Message, Text
from antiphon.redis.files import stored_ids
from antiphon.stores import SQLiteStore
from antiphon.testing import script, tool_call
from antiphon.tools import tool
from antiphon.wire.files import CHUNK_BYTES
from antiphon_worker import App, archive

pytestmark = pytest.mark.one_server
AGENT = Agent("scripted", "any")
MIB = 1024 * 1024
SECRET = MARKER.encode() * (CHUNK_BYTES // len(MARKER) * 2)


def photo(data: bytes) -> Image:
    return Image(data=b64encode(data).decode(), media_type="image/png")


async def say(client, session, *parts, **options):
    turn = await client.submit(session, [Text("Look."), *parts], agent=AGENT, **options)
    await turn.result(30)
    return turn


def memory(url):
    with Redis.from_url(url) as redis:
        info = redis.info("memory")
    return info["used_memory"], info["used_memory_peak"]


async def test_a_message_of_7_mib_costs_redis_no_more_than_1_2_times_its_size():
    """At its peak: while it is stored, while the model is sent it, and while it is read again."""
    with RedisServer() as server:
        async with AsyncClient(server.url) as client, running_worker(server.url):
            await say(client, "before")
            await client.session("before").add_file(b"first")  # the scripts are known
            await client.session("before").stored_files()
            before, _ = memory(server.url)
            data = os.urandom(7 * MIB)
            turn = await say(client, "s", photo(data))
            assert (
                await client.session("s").read_file(stored_ids((await turn.info()).input)[0])
            ).data == data
            _, peak = memory(server.url)
            assert peak - before <= 1.2 * len(data), (peak - before) / len(data)


async def test_16_photos_in_ten_turns_cost_16_photos():
    with RedisServer() as server:
        async with AsyncClient(server.url) as client, running_worker(server.url):
            await say(client, "before")
            before, _ = memory(server.url)
            photos = [photo(os.urandom(MIB // 4)) for _ in range(16)]
            for _ in range(10):
                await say(client, "s", *photos)
            used, _ = memory(server.url)
            assert used - before <= 1.2 * 16 * MIB / 4, (used - before) / (16 * MIB / 4)


async def test_neither_history_nor_events_nor_requests_have_the_content(redis_url):
    data = b"Qz7Content" * 10_000
    with Redis.from_url(redis_url) as redis:
        redis.config_set("rdbcompression", "no")
        async with AsyncClient(redis_url) as client, running_worker(redis_url):
            await say(client, "s", photo(data))
            many = [Submission("s", [photo(data)], agent=AGENT), Submission("s", "Hello", agent=AGENT)]
            for turn in await client.submit_many(many):
                await turn.result(30)
            await client.session("s").add_message(Message.user([photo(data)]))
            await client.schedules("s").set("often", [photo(data)], every=1, agent=AGENT)
            await wait_until_async(
                lambda: _scheduled(client), description="the schedule has submitted a turn"
            )
            await client.schedules("s").delete("often")
            keys = [key.decode() for key in redis.scan_iter("*")]
            inline = b64encode(data)[1000:1100]
            with_content = [key for key in keys if inline in (redis.dump(key) or b"")]
            assert with_content == []
            assert redis.hget("ant:session:s", "media") == f"1 {len(data)}".encode()


async def _scheduled(client):
    return len([one async for one in client.turns("s")]) >= 4


async def test_a_worker_of_an_older_release_leaves_turns_of_a_session_with_files_to_others(
    redis_url, monkeypatch
):
    """Also those that were queued before the first file, and those that name none."""
    async with AsyncClient(redis_url) as client:
        session = client.session("s")
        turns = [await client.submit("s", "Hello", agent=AGENT)]
        await session.add_file(b"1", name="1.txt")
        turns.append(await client.submit("s", "Hello again", agent=AGENT))
        monkeypatch.setitem(KNOWN, "request", KNOWN["request"] - 1)
        async with running_worker(redis_url):
            await wait_until_async(lambda: _left(turns[0]), description="it is left to others")
            assert await turns[1].status() == "waiting"
        monkeypatch.undo()
        async with running_worker(redis_url):
            for turn in turns:
                assert (await turn.result(30)).text


async def _left(turn):
    return (await turn.info()).code == "newer_release"


async def test_files_of_another_tenant_are_not_read(redis_url):
    async with AsyncClient(redis_url) as client:
        mine = client.session("s", tenant="acme")
        note = await mine.add_file(b"secret", name="note.txt")
        other = client.session("s", tenant="other")
        for call in (
            other.read_file(note),
            other.stored_files(),
            other.remove_file(note),
            other.add_file(b"1"),
        ):
            with pytest.raises(WrongTenant):
                await call
        assert (await mine.read_file(note)).data == b"secret"


async def test_with_encryption_redis_has_neither_content_nor_name_nor_hash(redis_url, monkeypatch):
    first, second = new_key("a"), new_key("b")
    monkeypatch.setenv(KEYS_VARIABLE, first)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        session = client.session("s")
        note = await session.add_file(SECRET, name=f"{MARKER}.txt")
        await say(client, "s", note, photo(SECRET))
        fork = await session.fork("t")
        with Redis.from_url(redis_url) as redis:
            assert [
                key for key, data in dumped(redis).items() if holds(data) or note.id.encode() in data
            ] == []
            field, chunk = f"{_name(redis)}:0", redis.hget("ant:media:s", f"{_name(redis)}:0")
            redis.hset("ant:media:s", field, redis.hget("ant:media:s", f"{_name(redis)}:1"))
        with pytest.raises(SealBroken):
            await session.read_file(note)
        assert (await fork.read_file(note)).data == SECRET
        with Redis.from_url(redis_url) as redis:
            redis.hset("ant:media:s", field, chunk)
    monkeypatch.setenv(KEYS_VARIABLE, f"{second},{first}")
    async with AsyncClient(redis_url) as client:
        assert (await client.session("s").read_file(note)).data == SECRET
    monkeypatch.setenv(KEYS_VARIABLE, second)
    async with AsyncClient(redis_url) as client:
        with pytest.raises((KeyMissing, NotFound)):
            await client.session("s").read_file(note)


def _name(redis):
    return next(one.decode() for one in redis.hkeys("ant:media:s") if b":" not in one)


async def test_forgetting_a_session_leaves_no_file(redis_url):
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        await say(client, "s", photo(SECRET), tenant="acme")
        exported = [one async for one in client.export(session="s")]
        assert [one["size"] for one in exported[0]["media"]] == [len(SECRET)]
        assert (await client.forget(tenant="acme")).left == []
    with Redis.from_url(redis_url) as redis:
        assert redis.exists("ant:media:s") == 0


async def test_forgetting_a_user_removes_the_files_that_only_they_have_sent(redis_url):
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        both, own = os.urandom(50_000), os.urandom(50_000)
        await say(client, "s", photo(both), user="ann")
        await say(client, "s", photo(both), photo(own), user="bob")
        exported = [one async for one in client.export(user="bob")]
        assert len(exported[0]["media"]) == 2
        await client.forget(user="bob")
        session = client.session("s")
        [left] = await session.stored_files()
        assert (await session.read_file(left.id)).data == both


async def test_forgetting_a_user_removes_the_files_of_turns_that_left_no_messages(redis_url):
    async with AsyncClient(redis_url) as client:
        both, own = os.urandom(50_000), os.urandom(50_000)
        async with running_worker(redis_url):
            await say(client, "s", photo(both), user="ann")
        turn = await client.submit("s", [photo(both), photo(own)], agent=AGENT, user="bob")
        assert len(await client.session("s").stored_files()) == 2
        await client.forget(user="bob")
        with pytest.raises(TurnNotFound):
            await turn.info()
        [left] = await client.session("s").stored_files()
        assert (await client.session("s").read_file(left.id)).data == both


async def test_an_archived_session_gives_its_files_back(redis_url, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "PAUSE_SECONDS", 0.01)
    with SQLiteStore(tmp_path / "archive.db") as store, Redis.from_url(redis_url) as redis:
        async with (
            AsyncClient(redis_url, archive=store) as client,
            running_worker(redis_url, App(store=store)),
        ):
            turn = await say(client, "s", photo(SECRET), ttl=600)
            [file] = stored_ids((await turn.info()).input)
            await wait_until_async(lambda: is_archived(redis, "s"), description="it is archived")
            end_life(redis_url, "s")
            assert not redis.exists("ant:media:s")
            session = client.session("s")
            assert (await session.read_file(file)).data == SECRET
            assert [one.id for one in await session.stored_files()] == [file]
            assert len((await session.to_dict())["media"]) == 1
            assert redis.exists(*session_keys("s")) == 0
            await say(client, "s")
            assert redis.hget("ant:session:s", "media") == f"1 {len(SECRET)}".encode()
            assert (await session.read_file(file)).data == SECRET


async def test_forgetting_a_user_removes_the_files_of_tools_in_turns_that_left_no_messages(redis_url):
    """And only those of theirs: what a turn of another user has stored stays, whoever stored it first."""
    mine, both = os.urandom(50_000), os.urandom(50_000)
    contents = [mine, both]

    @tool
    def draw() -> list[Image]:
        """Draw."""
        return [photo(one) for one in contents]

    def fails(request):
        raise ValueError("no more")

    lines = script(tool_call("draw"), fails, tool_call("draw"), "Here it is.")
    agent = Agent(provider=lines, model="any", name="a", tools=[draw])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, App(agents=[agent])):
        with pytest.raises(AgentError):
            await (await client.submit("s", "Draw.", agent="a", user="bob")).result(30)
        assert [one.by for one in await client.session("s").stored_files()] == ["bob", "bob"]
        contents.remove(mine)
        await (await client.submit("s", "Draw.", agent="a", user="ann")).result(30)
        await client.forget(user="bob")
        [left] = await client.session("s").stored_files()
        assert (await client.session("s").read_file(left.id)).data == both


async def test_forgetting_a_user_keeps_the_files_that_an_unfinished_turn_of_another_names(redis_url):
    both, own = os.urandom(50_000), os.urandom(50_000)
    async with AsyncClient(redis_url) as client:
        async with running_worker(redis_url):
            await say(client, "s", photo(both), photo(own), user="bob")
        later = await client.submit("s", [photo(both)], agent=AGENT, user="ann", delay=3600)
        await client.forget(user="bob")
        [left] = await client.session("s").stored_files()
        assert (await client.session("s").read_file(left.id)).data == both
        assert await later.status() == "queued"
        assert await client.session("s").delete()
