"""A turn names its user: it is shown, exported and erased by that name, and turns of others stay."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest
from redis import Redis
from support.eventually import wait_until_async
from support.here import running_worker
from support.leaks import MARKER, dumped, holds
from support.memories import FailingStore, app_with, passages_in

from antiphon import Agent, AsyncClient, Client
from antiphon.cli.main import main
from antiphon.encryption import KEYS_VARIABLE, new_key
from antiphon.errors import InvalidId, LimitReached, TurnDeleted, UsageError
from antiphon.input.limits import LIMITS
from antiphon.memory import Memory
from antiphon.model import Message, Text
from antiphon.session.saved import SavedSession
from antiphon.stores.base import MemoryStore
from antiphon.wire.archiving import begin_archiving

pytestmark = pytest.mark.one_server
AGENT = Agent("scripted", "any")
NAME = "Qz7Marker-user"


def leaks(url):
    """The keys with the marker, and those that still have it in what Redis would write to a file."""
    with Redis.from_url(url) as redis:
        redis.config_set("rdbcompression", "no")
        return [key for key, data in dumped(redis).items() if holds(data + (redis.dump(key) or b""))]


async def say(client, session, text, user, **options):
    turn = await client.submit(session, text, agent=AGENT, user=user, **options)
    await turn.result(20)
    return turn


@asynccontextmanager
async def open_working(redis_url):
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        yield client


@pytest.fixture
def client(redis_url):
    with Client(redis_url) as found:
        yield found


async def test_a_turn_has_its_user_and_so_have_the_messages_that_it_brought(redis_url):
    async with open_working(redis_url) as working:
        turn = await say(working, "s", "Hello", "ann")
        other = await say(working, "s", "Hi", None)
        assert ((await turn.info()).user, (await other.info()).user) == ("ann", None)
        messages = await working.session("s").messages()
        assert [message.by for message in messages] == ["ann", None, None, None]
        assert (await working.session("s").to_dict())["users"] == ["ann"]


def test_a_turn_without_a_user_has_no_field_for_one(client, redis_url):
    turn = client.submit("s", "Hello", agent=AGENT)
    with Redis.from_url(redis_url) as redis:
        assert not redis.hexists(f"ant:turn:{turn.id}", "user")
        assert not redis.hexists("ant:session:s", "users")
        assert b'user":null' not in redis.hget(f"ant:turn:{turn.id}", "request")
    turn.cancel()


def test_names_of_users_are_checked_and_limited(client, monkeypatch):
    with pytest.raises(InvalidId, match="user"):
        client.submit("s", "Hello", agent=AGENT, user="a\nb")
    monkeypatch.setattr("antiphon.wire.cell.LIMITS", type(LIMITS)(session_users=2))
    turns = [client.submit("s", "Hello", agent=AGENT, user=user) for user in ("a", "b", "a")]
    with pytest.raises(LimitReached, match="session_users"):
        client.submit("s", "Hello", agent=AGENT, user="c")
    for turn in reversed(turns):
        turn.cancel()


@pytest.mark.parametrize("keys", ["", new_key("k1")], ids=["in the clear", "with keys"])
async def test_a_session_of_one_user_is_erased_whole(redis_url, keys, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, keys)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        await say(client, "s", MARKER, NAME, key=MARKER, metadata={"about": MARKER})
        await say(client, "s", MARKER, None)
        await client.schedules("s").set("daily", MARKER, every=3600, agent=AGENT, user=NAME)
        await client.schedules("other").set("daily", MARKER, every=3600, agent=AGENT, user=NAME)
        found = await client.forget(user=NAME)
        assert (found.sessions, found.schedules, found.left) == (["s"], 2, [])
        assert leaks(redis_url) == []
        assert (await client.forget(user=NAME)).sessions == []


@pytest.mark.parametrize("keys", ["", new_key("k1")], ids=["in the clear", "with keys"])
async def test_of_a_session_of_several_only_the_turns_of_the_user_are_erased(redis_url, keys, monkeypatch):
    monkeypatch.setenv(KEYS_VARIABLE, keys)
    async with AsyncClient(redis_url) as client, running_worker(redis_url):
        first = await say(client, "s", "Hello from Bob", "bob")
        gone = await say(client, "s", MARKER, NAME, metadata={"about": MARKER})
        await say(client, "s", "Hello from nobody", None)
        last = await say(client, "s", "Bob again", "bob")
        waits = await client.submit("s", MARKER, agent=AGENT, user=NAME, delay=3600)
        found = await client.forget(user=NAME)
        assert (found.sessions, found.turns, found.left) == ([], 2, [])
        assert leaks(redis_url) == []
        texts = [message.text for message in await client.session("s").messages() if message.role == "user"]
        assert texts == ["Hello from Bob", "Hello from nobody", "Bob again"]
        assert (await client.session("s").to_dict())["users"] == ["bob"]
        assert [turn.id async for turn in client.turns("s")][::-1][0] == first.id
        for turn in (gone, waits):
            with pytest.raises(TurnDeleted):
                await turn.info()
        assert (await last.result()).text
        await say(client, "s", "It goes on", "bob")


async def test_events_of_turns_whose_records_have_expired_are_erased_too(redis_url):
    async with open_working(redis_url) as client:
        for user, text in (
            ("bob", "Bob"),
            (NAME, MARKER),
            ("bob", "Bob"),
            (NAME, MARKER),
            ("bob", "Bob again"),
        ):
            turn = await say(client, "s", text, user)
            if user == NAME:
                await client.connections.cell_of_session("s").redis.delete(
                    f"ant:turn:{turn.id}", f"rq:job:{turn.id}"
                )
        assert b"ant:events:s" in leaks(redis_url)
        assert (await client.forget(user=NAME)).left == []
        assert leaks(redis_url) == []
        types = [event.type async for event in turn.stream()]
        assert (types[0], types[-1]) == ("turn_queued", "turn_finished")
        redis = client.connections.cell_of_session("s").redis
        assert 0 < await redis.ttl("ant:events:s") <= await redis.ttl("ant:session:s")


async def test_what_steered_the_turn_of_another_is_erased_with_it(redis_url):
    async with open_working(redis_url) as working:
        agent = Agent("scripted", "any", tools=[])
        head = await working.submit("s", "Hello", agent=agent, user="bob", delay=3600)
        with Redis.from_url(redis_url) as redis:
            redis.hset(
                f"ant:turn:{head.id}", "steered", json.dumps({"request": {"messages": []}, "text": MARKER})
            )
            turn = await working.submit("s", MARKER, agent=agent, user=NAME, delay=3600)
            redis.hset(f"ant:turn:{turn.id}", "steered_into", head.id)
        await head.cancel()
        await working.forget(user=NAME)
        assert leaks(redis_url) == []
        with pytest.raises(TurnDeleted):
            await head.info()


async def test_a_fork_is_found_and_another_tenant_is_spared(redis_url):
    async with open_working(redis_url) as working:
        await say(working, "s", MARKER, NAME, tenant="a")
        await working.session("s", tenant="a").fork("fork")
        other = await say(working, "theirs", "Hello", NAME, tenant="b")
        found = await working.forget(user=NAME, tenant="a")
        assert sorted(found.sessions) == ["fork", "s"]
        assert found.left == []
        assert (await other.info()).user == NAME
        assert [
            one for one in leaks(redis_url) if b"theirs" not in one and other.id.encode() not in one
        ] == []
        await working.forget(user=NAME)
        assert leaks(redis_url) == []


async def test_a_turn_whose_session_has_expired_is_erased_and_a_later_one_is_not(redis_url):
    async with open_working(redis_url) as working:
        turn = await say(working, "s", MARKER, NAME)
        with Redis.from_url(redis_url) as redis:
            redis.delete(*(f"ant:{kind}:s" for kind in ("session", "history", "events", "turns")))
        kept = await say(working, "s", "Hello", None)
        found = await working.forget(user=NAME)
        assert (found.sessions, found.turns, found.left) == ([], 1, [])
        with pytest.raises(TurnDeleted):
            await turn.info()
        assert (await kept.info()).status == "finished"
        assert len(await working.session("s").messages()) == 2


def test_a_user_is_exported_and_forgotten_by_the_command_line(client, redis_url, capsys):
    alone = client.submit("alone", MARKER, agent=AGENT, user="ann")
    mine = client.submit("shared", MARKER, agent=AGENT, user="ann", delay=3600)
    theirs = client.submit("shared", "of Bob", agent=AGENT, user="bob", delay=3600)
    for turn in (alone, mine, theirs):
        turn.cancel()
    assert main(["export", "--user", "ann", "--redis-url", redis_url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["turn_id"] for line in lines if line["type"] == "turn"} == {alone.id, mine.id}
    assert "of Bob" not in json.dumps(lines)
    assert main(["forget", "--user", "ann", "--redis-url", redis_url]) == 0
    assert "none has any content of them" in capsys.readouterr().out
    assert leaks(redis_url) == []
    assert theirs.info().user == "bob"
    with pytest.raises(UsageError):
        client.forget(session="s", user="ann")


async def test_a_closed_session_of_several_is_reported_and_the_others_are_erased(redis_url):
    async with open_working(redis_url) as client:
        for session in ("closed", "open"):
            await say(client, session, "Hello", "bob")
            await say(client, session, MARKER, NAME)
        await client.session("closed").close()
        found = await client.forget(user=NAME)
        assert (found.turns, "ant:session:closed" in found.left) == (1, True)
        assert not [key for key in found.left if "open" in key]
        assert (await client.forget(session="closed")).left == []
        assert (await client.forget(user=NAME)).left == []
        assert leaks(redis_url) == []


@pytest.mark.parametrize("users", [[NAME], ["bob", NAME]], ids=["alone", "with others"])
async def test_archived_sessions_of_a_user_are_erased_and_their_copies_removed(redis_url, users):
    archive = MemoryStore()
    messages = [
        message
        for number, user in enumerate(users)
        for message in (
            Message("user", [Text(f"{MARKER if user == NAME else 'of Bob'}")], turn_id=f"t{number}", by=user),
            Message("assistant", [Text("Yes")], turn_id=f"t{number}"),
        )
    ]
    archive.save("old", SavedSession("old", messages, users=users, created=1).to_dict())
    async with AsyncClient(redis_url, archive=archive) as client:
        cell = client.connections.cell_of_session("old")
        await begin_archiving(cell)
        soon = time.time() * 1000 + 100_000
        await cell.redis.zadd("ant:forget", {"old\x1f1": soon + 10_000_000})  # of before it was shortened
        found = await client.forget(user=NAME)
        assert (found.sessions, found.left) == (["old"] if users == [NAME] else [], [])
        assert await cell.redis.zrange("ant:forget", 0, -1) == [b"old", b"old\x1f1"]
        assert leaks(redis_url) == []
        assert found.pending == ["archive:old", "archive:old\x1f1"]
        assert max(score for _, score in await cell.redis.zrange("ant:forget", 0, -1, withscores=True)) < soon
        if users != [NAME]:
            assert [one.text for one in await client.session("old").messages()] == ["of Bob", "Yes"]
        await cell.redis.delete("ant:forget", "ant:ending")


@pytest.mark.parametrize("whom", [{"user": NAME}, {"tenant": "acme"}], ids=["user", "tenant"])
async def test_an_archive_that_is_not_passed_is_reported_as_not_searched(redis_url, whom, capsys):
    archive = MemoryStore()
    messages = [Message("user", [Text(MARKER)], turn_id="t", by=NAME)]
    saved = SavedSession("old", messages, users=[NAME], tenant="acme", created=1)
    archive.save("old", saved.to_dict())
    named = [word for name, value in whom.items() for word in (f"--{name}", value)]
    async with AsyncClient(redis_url) as client:
        assert (await client.forget(**whom)).unsearched == []
        cell = client.connections.cell_of_session("old")
        await begin_archiving(cell)
        assert (await client.forget(**whom)).unsearched == ["archive"]
        assert await asyncio.to_thread(main, ["forget", *named, "--redis-url", redis_url]) == 1
        told = capsys.readouterr()
        assert "pass --archive" in told.err
        assert "none has any content of them" not in told.out
        async with AsyncClient(redis_url, archive=archive) as whole:
            found = await whole.forget(**whom)
        assert (found.sessions, found.unsearched) == (["old"], [])
        await cell.redis.delete("ant:forget", "ant:ending", "ant:seq_floor")


async def test_a_memory_that_still_has_words_of_a_user_of_a_shared_session_is_listed(redis_url, tmp_path):
    memory = Memory(FailingStore(tmp_path / "memory"))
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_with(memory)):
        for user, text in (("bob", "Green tea"), (NAME, MARKER)):
            turn = await client.submit("s", text, agent="host", user=user)
            await turn.result(20)
        await wait_until_async(lambda: len(passages_in(memory)) == 2, description="both are indexed")
    async with AsyncClient(redis_url) as client:
        found = await client.forget(user=NAME)
        assert (found.sessions, found.left, found.pending) == ([], [], ["memory:s"])
        assert any(MARKER in text for text in passages_in(memory))
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_with(memory)):
        await wait_until_async(lambda: len(passages_in(memory)) == 1, description="it is forgotten")
        assert MARKER not in passages_in(memory)[0]
