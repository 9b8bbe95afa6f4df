"""Sessions go on after their life in Redis: workers with a store restore them before the model is called."""

import asyncio
import logging
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from support.archives import end_life, is_archived, session_keys
from support.ensemble import agent_spec, open_ensemble
from support.eventually import wait_until_async
from support.stage import FIRST_WORDS, reply

from antiphon import Agent, AsyncClient, Client, Session
from antiphon.errors import CorruptRecord, StreamGap, TurnCancelled, UsageError, WrongTenant
from antiphon.stores import RedisStore, SQLiteStore
from antiphon_worker import archive
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings

pytestmark = pytest.mark.one_server
SOON = 600.0  # seconds; so short a life that a session is archived as soon as nobody uses it
RQ = Path(sys.executable).parent / "rq"
PAGE = Path(__file__).parents[3] / "docs" / "storage.md"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(archive, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("antiphon_worker.archive.FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr("antiphon_worker.archive.LONGEST_RETRY_SECONDS", 0.05)


@pytest.fixture
def working(redis_url, tmp_path, own):
    """A worker with an archive on this loop, its stage and a client."""

    @asynccontextmanager
    async def start(store=own, **settings):
        async with (
            open_ensemble(redis_url, tmp_path / "stage") as ensemble,
            ensemble.worker(store=store, **settings),
        ):
            yield ensemble

    return start


@pytest.fixture
def archiving(working):
    """A worker with an archive, its stage and a client, without any other setting."""
    return working()


@pytest.fixture
def agent(redis_url):
    """An agent whose turns the worker runs."""

    @asynccontextmanager
    async def opened():
        agent = Agent(provider="stage", model="stage-1", redis=redis_url)
        yield agent
        await agent.runtime.aclose()

    return opened()


async def say(ensemble, text, session="s", **options):
    return await (await ensemble.submit(session, text, **{"ttl": SOON, **options})).result(60)


async def archived(ensemble, session="s"):
    with Redis.from_url(ensemble.url) as redis:
        await wait_until_async(lambda: is_archived(redis, session), description=f"{session} is archived")


async def ended(ensemble, session="s"):
    """The session is archived, and its life in Redis is over."""
    await archived(ensemble, session)
    end_life(ensemble.url, session)


async def whole(ensemble, session="s"):
    """Every answer was given to all that stands before it in the history."""
    messages = (await ensemble.client.snapshot(session)).messages
    for index, message in enumerate(messages):
        if message.role == "assistant":
            assert message.text == FIRST_WORDS + reply(messages[:index]), index
    return [message.text for message in messages if message.role == "user"]


@pytest.fixture(params=["own", "sqlite", "redis"])
def store(request, tmp_path, redis_url, own):
    match request.param:
        case "own":
            yield own
        case "sqlite":
            with SQLiteStore(tmp_path / "archive.db") as opened:
                yield opened
        case _:
            with RedisStore(redis_url) as opened:
                yield opened


async def test_a_session_goes_on_where_it_was(working, store):
    async with working(store) as ensemble:
        for round_number in range(3):
            await say(ensemble, f"hello {round_number}")
            await ended(ensemble)
        assert (await say(ensemble, "the last one")).text.startswith(
            "The first words. I was shown 7 messages"
        )
        assert await whole(ensemble) == ["hello 0", "hello 1", "hello 2", "the last one"]


async def test_sessions_run_as_usual_where_there_is_no_archive(ensemble, redis_url):
    async with ensemble.worker():
        await say(ensemble, "hello")
        await ensemble.whole("s")
        with Redis.from_url(redis_url) as redis:
            assert redis.hget("ant:session:s", "restored") is None
            assert redis.exists("ant:seq_floor", "ant:forget") == 0


async def test_turns_that_came_together_run_in_order_on_what_was_restored(archiving):
    await say(archiving, "hello")
    await ended(archiving)
    turns = [await archiving.submit("s", f"turn {number}", ttl=SOON) for number in range(4)]
    for turn in turns:
        await turn.result(60)
    assert await whole(archiving) == ["hello", "turn 0", "turn 1", "turn 2", "turn 3"]


async def test_all_that_a_session_keeps_comes_back_and_what_was_set_since_stays(agent, archiving):
    def session(**options):
        return agent.session("s", variables={"count": 0, "user": "Alice"}, ttl=SOON, **options)

    first = session(system="Be brief, {user}.", metadata={"plan": "free", "since": 2024})
    await first.run_async("hello")
    await first.set_variables_async({"count": 7})
    child = first.child(session_id="c")
    await child.run_async("a part of it")
    before = await first.to_dict_async()
    await ended(archiving)
    again = session(metadata={"plan": "paid"})
    await again.set_variables_async({"user": "Bob"})
    await again.run_async("and on")
    after = await again.to_dict_async()
    assert after["variables"] == {"count": 7, "user": "Bob"}
    assert after["metadata"] == {"plan": "paid", "since": 2024}
    for name in ("system", "agent", "created"):
        assert after[name] == before[name], name
    assert after["messages"][:2] == before["messages"]
    assert await again.children_async() == ["c"]
    assert after["updated"] >= before["updated"]


async def test_messages_that_were_added_since_stand_behind_what_is_restored(agent, archiving):
    session = agent.session("s", ttl=SOON)
    await session.run_async("hello")
    await ended(archiving)
    await session.add_message_async({"role": "user", "content": "by the way"})
    await session.run_async("and on")
    assert await whole(archiving) == ["hello", "by the way", "and on"]


@pytest.mark.parametrize("when", ["before it is restored", "after it was restored"])
async def test_a_cleared_session_keeps_its_system_prompt_and_variables_only(when, agent, archiving):
    session = agent.session("s", system="Be brief.", variables={"user": "Alice"}, ttl=SOON)
    await session.run_async("hello")
    await ended(archiving)
    session = agent.session("s", ttl=SOON)
    if when == "after it was restored":
        await session.run_async("and on")
    await session.clear_async()
    for text in ("anew", "and more"):
        await session.run_async(text)
        assert (await session.system_async(), await session.variables_async()) == (
            "Be brief.", {"user": "Alice"},
        )  # fmt: skip
        await ended(archiving)
    await session.run_async("and after that")
    assert await whole(archiving) == ["anew", "and more", "and after that"]


@pytest.mark.parametrize("when", ["before its source is restored", "after its source was restored"])
async def test_a_fork_has_its_sources_past(when, agent, archiving):
    session = agent.session("s", ttl=SOON)
    await session.run_async("hello")
    await ended(archiving)
    if when == "after its source was restored":
        await session.run_async("and on")
    fork = await session.fork_async("f")
    await fork.run_async("elsewhere")
    texts = await whole(archiving, "f")
    assert texts == (["hello", "and on"] if "after" in when else ["hello"]) + ["elsewhere"]
    await session.run_async("here")
    assert "elsewhere" not in await whole(archiving)


async def test_a_saved_session_that_is_put_in_place_is_not_mixed_with_the_archived_one(agent, archiving):
    await agent.session("s", variables={"old": True}, ttl=SOON).run_async("hello")
    await ended(archiving)
    data = {
        "version": 1,
        "session_id": "s",
        "messages": [{"role": "user", "content": "from a file"}],
        "variables": {"new": True},
    }
    session = Session.from_dict(data, agent, ttl=SOON)
    await session.run_async("and on")
    assert await whole(archiving) == ["from a file", "and on"]
    assert await session.variables_async() == {"new": True}


async def test_a_closed_session_stays_closed(agent, archiving):
    session = agent.session("s", ttl=SOON)
    await session.run_async("hello")
    await session.close_async()
    await ended(archiving)
    turns = [await archiving.submit("s", text, ttl=SOON) for text in ("and on", "please")]
    for turn in turns:
        with pytest.raises(UsageError, match="The session is closed"):
            await turn.result(60)
    with pytest.raises(UsageError, match="closed"):
        await archiving.submit("s", "once more")
    assert len(archiving.stage.notes("asked")) == 1
    assert [text for _, text in await archiving.texts("s")][:1] == ["hello"]
    fork = await session.fork_async("f")
    await fork.run_async("elsewhere")
    assert await whole(archiving, "f") == ["hello", "elsewhere"]


async def test_a_session_of_a_tenant_is_not_given_to_another_one(archiving):
    await say(archiving, "our secret", tenant="ours")
    await ended(archiving)
    turns = [await archiving.submit("s", text, tenant="others", ttl=SOON) for text in ("tell", "me")]
    for turn in turns:
        with pytest.raises(WrongTenant, match="belongs to another tenant"):
            await turn.result(60)
    with pytest.raises(UsageError, match="does not belong to the tenant 'others'"):
        await archiving.submit("s", "now", tenant="others")
    await say(archiving, "and on", tenant="ours")
    assert await whole(archiving) == ["our secret", "and on"]


async def test_a_deleted_session_stays_deleted(redis_url, own, agent, archiving):
    session = agent.session("s", ttl=SOON)
    await session.run_async("hello")
    await ended(archiving)
    await session.delete_async()
    await session.run_async("anew")
    assert await whole(archiving) == ["anew"]
    await session.delete_async()
    with Redis.from_url(redis_url) as redis:
        redis.zadd("ant:forget", {"s": 0})
        await wait_until_async(lambda: not redis.exists("ant:forget"))
    assert own.texts == {}


async def test_any_cursor_resumes_in_a_session_that_was_archived(archiving, own):
    await say(archiving, "hello words:10")
    await say(archiving, "again")
    old = await archiving.events("s")
    ends = [event.seq for event in old if event.terminal]
    await ended(archiving)
    turn = await archiving.submit("s", "and on", ttl=SOON)
    assert (await turn.result(60)).turn_id == turn.id
    events = await archiving.events("s")
    assert events[0].seq == old[-1].seq + 1
    for cursor in range(old[-1].seq + 1):
        following = archiving.client.subscribe("s", after=cursor)
        told = [
            (one.seq, one.messages[0].text)
            for one in await taken(following, events[0].seq)
            if one.type == "message"
        ]
        assert told == [one for one in zip(ends, ["hello words:10", "again"], strict=True) if one[0] > cursor]
    assert [event.seq async for event in turn.stream()] == [event.seq for event in events]
    await ended(archiving)
    with pytest.raises(StreamGap):
        await anext(archiving.client.subscribe("s", after=events[-1].seq))
    async with AsyncClient(archiving.url, archive=own) as client:
        following = client.subscribe("s", after=1)
        told = [(await anext(following)).messages[0].text for _ in range(3)]
        assert told == ["hello words:10", "again", "and on"]
        assert following._past._history._copy is None, "it has all of the copy"
        with pytest.raises(StreamGap):  # no event of the session has this number
            await anext(client.subscribe("s", after=events[-1].seq + 1))
        waiting = asyncio.create_task(anext(following))
        await say(archiving, "anew")
        assert (await waiting).type == "turn_queued"
        assert (await anext(client.subscribe("s", after=events[-1].seq))).type == "turn_queued"
        await client.session("s").delete()
        await say(archiving, "other")
        with pytest.raises(StreamGap):
            await anext(client.subscribe("s", after=1))


async def taken(events, until):
    found = []
    async for event in events:
        found.append(event)
        if event.seq >= until:
            break
    return found


@pytest.mark.parametrize("restored", [False, True])
async def test_messages_added_before_a_session_is_restored_follow_the_archived_ones(restored, archiving, own):
    await say(archiving, "hello")
    await ended(archiving)
    async with AsyncClient(archiving.url, archive=own) as client:
        await client.session("s").add_message({"role": "system", "content": "Noted."})
        if restored:
            await say(archiving, "and on")
        newest = (await archiving.events("s"))[-1].seq
        with Redis.from_url(archiving.url) as redis:
            redis.xtrim("ant:events:s", minid=f"{newest}-0", approximate=False)
        told = [one for one in await taken(client.subscribe("s", after=1), newest) if one.type == "message"]
        texts = [message.text for one in told for message in one.messages if message.role != "assistant"]
        assert texts == (["hello", "Noted."] if restored else ["hello"])


async def test_a_reader_from_the_beginning_sees_a_session_that_begins_above_one(archiving):
    await say(archiving, "hello", "other")
    await archived(archiving, "other")
    reading = asyncio.create_task(anext(archiving.client.subscribe("s", after=0)))
    await say(archiving, "hello")
    event = await reading
    assert event.type == "turn_queued"
    assert event.seq > 1
    assert (await archiving.client.snapshot("s")).cursor == (await archiving.events("s"))[-1].seq


@pytest.mark.parametrize("kind", [ConnectionError, KeyboardInterrupt])
async def test_while_the_store_fails_turns_wait_and_run_with_their_history_when_it_works(
    kind, working, own, caplog
):
    own.fails_with = kind
    async with working() as ensemble:
        await say(ensemble, "hello")
        await ended(ensemble)
        own.failing = True
        with caplog.at_level(logging.INFO, "antiphon.archive"):
            turn = await ensemble.submit("s", "and on", ttl=SOON)
            beside = await ensemble.submit("new", "is this new?", ttl=SOON)
            events = await ensemble.seen("s", "turn_retrying", 3)
            await ensemble.seen("new", "turn_retrying")
            assert len(ensemble.stage.notes("asked")) == 1
            retrying = next(event for event in events if event.type == "turn_retrying")
            assert retrying.code == "store_unavailable"
            assert retrying.reason == "The archive of sessions fails: the database is away"
            assert retrying.retry_at - retrying.at < 1000
            own.failing = False
            await turn.result(60)
            await beside.result(60)
        assert await whole(ensemble) == ["hello", "and on"]
        assert [await ensemble.field(turn, name) for name in ("errors", "crashes", "attempt")] == [
            "0", "0", "1",
        ]  # fmt: skip
        lines = [record.getMessage() for record in caplog.records if record.name == "antiphon.archive"]
        assert [line.split(":")[0].split(" after")[0] for line in lines] == [
            "the archive fails", "the archive works again",
        ]  # fmt: skip


async def test_a_turn_that_waits_for_the_store_can_be_cancelled(own, archiving):
    own.failing = True
    turn = await archiving.submit("s", "hello", ttl=SOON)
    await archiving.seen("s", "turn_retrying")
    await turn.cancel("enough")
    with pytest.raises(TurnCancelled):
        await turn.result(60)


async def test_a_cancelled_turn_ends_without_asking_a_store_that_fails(ensemble, own):
    async with ensemble.worker(retry_delay=30):
        turn = await ensemble.submit("s", "a step, then trouble tool:note fail:broken", ttl=SOON)
        await ensemble.seen("s", "turn_retrying")
    own.failing = True
    async with ensemble.worker(store=own):
        assert await turn.cancel() == "requested"
        with pytest.raises(TurnCancelled):
            await turn.result(60)
    assert len(await ensemble.texts("s")) == 3


async def test_what_changes_while_the_store_is_asked_is_not_lost(own, agent, archiving):
    await agent.session("s", metadata={"plan": "free"}, ttl=SOON).run_async("hello")
    await ended(archiving)
    own.held.add("load")
    turn = await archiving.submit("s", "and on", ttl=SOON)
    await wait_until_async(own.begun["load"].is_set)
    session = agent.session("s", metadata={"late": True}, ttl=SOON)
    await session.messages_async()
    own.let_go()
    await turn.result(60)
    assert await session.metadata_async() == {"plan": "free", "late": True}
    assert await whole(archiving) == ["hello", "and on"]


async def test_a_store_that_hangs_holds_up_nobody_else(working, own, monkeypatch):
    monkeypatch.setattr("antiphon_worker.archive.STORE_SECONDS", 0.5)
    async with working() as ensemble:
        await say(ensemble, "hello", "other")
        own.held.add("load")
        turn = await ensemble.submit("s", "hello", ttl=SOON)
        await wait_until_async(own.begun["load"].is_set)
        await say(ensemble, "and on", "other")
        events = await ensemble.seen("s", "turn_retrying")
        assert next(e for e in events if e.type == "turn_retrying").reason.endswith("no answer within 0.5 s")
        own.let_go()
        await turn.result(60)


async def test_a_damaged_copy_fails_the_turn_and_stays_as_it_is(own, archiving):
    await say(archiving, "hello")
    await ended(archiving)
    own.texts["s"] = damaged = own.texts["s"].replace('"version": 1', '"version": 99')
    turn = await archiving.submit("s", "and on", ttl=SOON)
    with pytest.raises(CorruptRecord, match="format version 99"):
        await turn.result(60)
    assert own.texts["s"] == damaged
    assert len(archiving.stage.notes("asked")) == 1
    own.texts["s"] = damaged.replace("99", "1")
    await say(archiving, "again")
    assert await whole(archiving) == ["hello", "again"]


async def test_a_session_that_a_local_runtime_has_saved_goes_on_on_workers(working, own):
    local = Agent(provider="scripted", model="any", store=own)
    await local.session("s", variables={"user": "Alice"}).run_async("hello")
    async with working() as ensemble:
        answer = await say(ensemble, "and on")
        assert answer.text.startswith("The first words. I was shown 3 messages")
        assert (await ensemble.texts("s"))[1] == ("assistant", "You said: hello")


async def test_a_window_is_restored_with_its_session(redis_url, archiving):
    windowed = {"agent": agent_spec(window=2)}
    for number in range(5):
        await say(archiving, f"hello {number}", **windowed)
    await ended(archiving)
    await say(archiving, "and on", **windowed)
    asked = [note["messages"] for note in archiving.stage.notes("asked")]
    assert max(asked) <= 5
    with Redis.from_url(redis_url) as redis:
        start = int(redis.hget("ant:session:s", "window").partition(b":")[0])
        assert start == 10 - (asked[-1] - 1) > 0
        assert redis.llen("ant:history:s") == 12


async def test_a_worker_that_dies_while_it_saves_is_followed_by_one_that_saves_again(
    redis_url, tmp_path, processes
):
    (tmp_path / "deadly.py").write_text(DEADLY)
    async with open_ensemble(redis_url, tmp_path / "stage", processes) as ensemble:
        path = tmp_path / "archive.db"
        env = {"ANTIPHON_APP": "deadly:app", "ARCHIVE": str(path)}
        env["PYTHONPATH"] = f"{tmp_path}:{ensemble.stage.env['PYTHONPATH']}"
        supervisor = ensemble.supervisor(env=env)
        await say(ensemble, "hello")
        await wait_until_async(lambda: "died (signal SIGKILL)" in supervisor.process.output, 20)
        with SQLiteStore(path) as opened, Redis.from_url(redis_url) as redis:
            assert opened.load("s")["archived"]
            assert not is_archived(redis, "s")
            opened.delete("s")
            redis.zadd("ant:ending", {"s": 0})
            await wait_until_async(lambda: is_archived(redis, "s"), 20)
            assert len(opened.load("s")["messages"]) == 2
        end_life(redis_url, "s")
        await say(ensemble, "and on")
        assert await whole(ensemble) == ["hello", "and on"]


DEADLY = """
import os, signal
from pathlib import Path
from support.stage import Stage, make_app
from antiphon.stores import SQLiteStore

class Deadly(SQLiteStore):
    def save(self, session_id, data):
        super().save(session_id, data)
        died = Path(self.path + ".died")
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

app = make_app(Stage(Path(os.environ["STAGE"])), Deadly(os.environ["ARCHIVE"]))
"""


async def test_a_stock_worker_restores_too_and_the_setting_names_the_store(
    redis_url, tmp_path, processes, ensemble
):
    path = tmp_path / "archive.db"
    with SQLiteStore(path) as opened:
        async with ensemble.worker(archive=f"sqlite://{path}"):
            await say(ensemble, "hello")
            await wait_until_async(lambda: opened.load("s") is not None)
            await ended(ensemble)
    turn = await ensemble.submit("s", "and on", ttl=SOON)
    env = {**ensemble.stage.env, "ANTIPHON_ARCHIVE": f"sqlite://{path}"}
    worker = processes.start(
        RQ, "worker", "-u", redis_url, "--serializer", "json", "--burst", "antiphon", env=env
    )
    assert await asyncio.to_thread(worker.wait, 40) == 0
    assert (await turn.result(1)).text.startswith("The first words. I was shown 3 messages")
    assert await whole(ensemble) == ["hello", "and on"]


async def test_the_example_of_the_page_archives_and_restores(redis_url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text().partition("## Archiving")[2].partition("\n## ")[0]
    making, reading = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    agent = Agent(provider="scripted", model="any", redis=redis_url)
    names = {"SQLiteStore": SQLiteStore}
    exec(making, names)
    worker = Worker(Settings(), names["app"], url=redis_url)
    running = asyncio.create_task(worker.run())
    session = agent.session("user-123", ttl=SOON)
    await session.run_async("My name is Alice")
    with Redis.from_url(redis_url) as redis:
        await wait_until_async(lambda: is_archived(redis, "user-123"))
    end_life(redis_url, "user-123")
    await session.run_async("What do you know about me?")
    assert [message.text for message in await session.messages_async()][::2] == [
        "My name is Alice", "What do you know about me?",
    ]  # fmt: skip
    with Redis.from_url(redis_url) as redis:
        await wait_until_async(lambda: is_archived(redis, "user-123"))
    worker.abort()
    await running
    end_life(redis_url, "user-123")
    names["Client"] = lambda url, **more: Client(redis_url, **more)
    exec(reading, names)
    assert capsys.readouterr().out == "4\n['user-123']\n"
    await agent.runtime.aclose()
    names["archive"].close()


async def test_what_has_ended_leaves_nothing_in_redis(redis_url, archiving):
    await say(archiving, "hello")
    await ended(archiving)
    with Redis.from_url(redis_url) as redis:
        assert redis.exists(*session_keys("s")) == 0
        assert redis.exists("ant:ending") == 0
        redis.zadd("ant:sessions", {"s": 0})  # it stays in the list until an hour after its end
        await wait_until_async(lambda: redis.zscore("ant:sessions", "s") is None)
