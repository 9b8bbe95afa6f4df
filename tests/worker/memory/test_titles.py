"""A session is named after its first finished turn, by a model or a function, unless it has a title already."""

from __future__ import annotations

import asyncio

import pytest
from support.eventually import patience, wait_until_async
from support.here import running_worker

from antiphon import Agent
from antiphon.client import AsyncClient
from antiphon.errors import ProviderOverloaded, ProviderRejected, SettingsError, UsageError
from antiphon.testing import script
from antiphon_worker import App, TitleModel
from antiphon_worker.loop.costs import Price
from antiphon_worker.memory import indexer
from antiphon_worker.memory.titles import title_in

HOST = Agent(provider="scripted", model="any", name="host")


class Namer:
    """A function for ``App(titles=…)``: ``gate`` holds it up, and ``error`` is what it raises."""

    def __init__(self):
        self.asked = []
        self.error = None
        self.gate = None
        self.reached = asyncio.Event()
        self.answers = None

    async def __call__(self, messages):
        self.asked.append([one.text for one in messages])
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.answers.pop(0) if self.answers else f"About {messages[0].text}"


@pytest.fixture
def namer():
    return Namer()


@pytest.fixture
def client(redis_url):
    return AsyncClient(redis_url)


async def say(client, session, text, **options):
    turn = await client.submit(session, text, agent="host", **options)
    await turn.result(timeout=20)
    return turn


async def title(client, session):
    return (await client.session(session).metadata()).get("title")


async def settled(client):
    """No session waits for a title any more."""
    keys = client.connections.cell_of_session("s")

    async def none():
        return not await keys.redis.keys("ant:unindexed:*")

    await wait_until_async(none, 20)


async def named(client, session, expected):
    async def so():
        return await title(client, session) == expected

    await wait_until_async(so, 20)


async def test_the_first_finished_turn_names_the_session_and_later_ones_ask_for_nothing(
    redis_url, client, namer
):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "tea")
        await named(client, "s", "About tea")
        await say(client, "s", "coffee")
        await settled(client)
        assert namer.asked == [["tea", "You said: tea"]]
        assert [one.metadata["title"] async for one in client.sessions(search="about tea")] == ["About tea"]
        cell = client.connections.cell_of_session("s")
        assert await cell.redis.keys("ant:remembered:*") == []


async def test_a_child_session_gets_no_title(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await client.session("s", agent="host").child(session_id="child").run("coffee")
        await settled(client)
        assert (namer.asked, await title(client, "child")) == ([], None)


async def test_readers_of_the_session_get_an_event(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        turn = await client.submit("s", "tea", agent="host")
        async with asyncio.timeout(patience(20)):
            async for event in client.subscribe("s", 0):
                if event.type == "session_titled":
                    break
        assert (event.title, event.turn_id, event.usage.tokens) == ("About tea", "", 0)
        assert (await client.session("s").to_dict())["titled"] == {"title": "About tea", "turn_id": turn.id}


async def test_a_model_names_the_session_and_its_use_is_counted_apart_from_that_of_turns(redis_url, client):
    asked = []

    def answer(request):
        asked.append(request)
        return ' "Tea in\n the morning" \nMore.'

    app = App(
        agents=[HOST],
        providers={"names": script(answer, repeat=True)},
        titles=TitleModel("names", "small", instructions="Use no articles.", params={"temperature": 0}),
        prices={"small": Price(input=1000.0, output=1000.0)},
    )
    async with client, running_worker(redis_url, app):
        turn = await say(client, "s", "tea? " * 1000)
        await named(client, "s", "Tea in")
        (request,) = asked
        assert request.model == "small"
        assert request.params == {"temperature": 0}
        assert request.system.endswith("Use no articles.")
        assert len(request.messages[0].text) < 4100
        session = client.session("s")
        used = await session.title_usage()
        assert used.tokens > 0
        assert used.cost > 0
        assert await session.usage() == (await turn.result()).usage


async def test_a_title_that_the_user_gave_is_left_alone(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await client.session("s").set_metadata({"title": "Mine", "plan": "free"})
        await say(client, "s", "tea")
        await settled(client)
        assert await title(client, "s") == "Mine"
        assert namer.asked == []


async def test_a_title_that_the_user_gives_in_the_meantime_stays(redis_url, client, namer):
    namer.gate = asyncio.Event()
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "tea")
        await namer.reached.wait()
        await client.session("s").set_metadata({"title": "Mine"})
        namer.gate.set()
        await settled(client)
        assert await title(client, "s") == "Mine"
        assert "titled" not in await client.session("s").to_dict()


async def test_other_metadata_written_in_the_meantime_stays_and_asks_for_no_second_title(
    redis_url, client, namer
):
    namer.gate = asyncio.Event()
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "tea")
        await namer.reached.wait()
        await client.session("s").set_metadata({"plan": "free"})
        await say(client, "s", "coffee")
        namer.gate.set()
        await settled(client)
        assert await client.session("s").metadata() == {"plan": "free", "title": "About tea"}
        assert len(namer.asked) == 1


async def test_a_session_that_is_deleted_and_begun_again_never_gets_the_title_of_the_earlier_one(
    redis_url, client, namer
):
    namer.gate = asyncio.Event()
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "secret")
        await namer.reached.wait()
        session = client.session("s")
        await session.delete()
        await session.set_metadata({"plan": "new"})
        namer.gate.set()
        await settled(client)
        assert await session.metadata() == {"plan": "new"}
        await say(client, "s", "tea")
        await named(client, "s", "About tea")
        assert [asked[0] for asked in namer.asked] == ["secret", "tea"]


async def test_a_first_question_that_is_edited_in_the_meantime_is_named_again(redis_url, client, namer):
    namer.gate = asyncio.Event()
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "secret")
        await namer.reached.wait()
        session = client.session("s", agent="host")
        (first, *_) = await session.messages()
        turn = await session.edit(first.id, "tea")
        await turn.result(timeout=20)
        namer.gate.set()
        await named(client, "s", "About tea")


async def test_erasing_the_user_of_the_first_turn_takes_the_title_with_its_event(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "adasword", user="ada")
        await named(client, "s", "About adasword")
        await say(client, "s", "bobsword", user="bob")
        await client.session("s").set_metadata({"plan": "free"})
        assert (await client.forget(user="ada")).left == []
        assert await client.session("s").metadata() == {"plan": "free"}
        cell = client.connections.cell_of_session("s")
        assert b"adasword" not in str(await cell.redis.xrange(cell.keys.events("s"))).encode()
        assert b"adasword" not in str(await cell.redis.hgetall(cell.keys.session("s"))).encode()


async def test_erasing_the_user_of_another_turn_keeps_the_title(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "adasword", user="ada")
        await named(client, "s", "About adasword")
        await say(client, "s", "bobsword", user="bob")
        await client.forget(user="bob")
        assert await title(client, "s") == "About adasword"


async def test_a_user_erased_while_the_session_is_named_leaves_no_title(redis_url, client, namer):
    namer.gate = asyncio.Event()
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "adasword", user="ada")
        await namer.reached.wait()
        await say(client, "s", "bobsword", user="bob")
        await client.forget(user="ada")
        namer.gate.set()
        await named(client, "s", "About bobsword")


@pytest.mark.parametrize("error", [ValueError("no"), ProviderRejected("no")])
async def test_a_title_that_fails_leaves_the_session_as_it_is(redis_url, client, namer, error, caplog):
    namer.error = error
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        turn = await say(client, "s", "tea")
        await settled(client)
        assert (await turn.info()).status == "finished"
        assert await title(client, "s") is None
        await say(client, "s", "coffee")
    assert [one.action for one in caplog.records if one.name == "antiphon.titles"] == ["title_failed"]


async def test_a_call_that_may_succeed_later_is_repeated(redis_url, client, namer, monkeypatch):
    monkeypatch.setattr(indexer, "FIRST_RETRY_SECONDS", 0.01)
    namer.error = ProviderOverloaded("try later")
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "tea")

        async def asked_again():
            return len(namer.asked) > 1

        await wait_until_async(asked_again, 20)
        namer.error = None
        await named(client, "s", "About tea")


async def test_a_first_turn_that_fails_leaves_the_name_to_the_next_one(redis_url, client, namer):
    fails = Agent(provider=script(ProviderRejected("no"), "Yes.", repeat=True), model="any", name="host")
    async with client, running_worker(redis_url, App(agents=[fails], titles=namer)):
        with pytest.raises(ProviderRejected):
            await say(client, "s", "one")
        await say(client, "s", "two")
        await named(client, "s", "About two")


async def test_an_app_without_titles_notes_nothing(redis_url, client):
    async with client, running_worker(redis_url, App(agents=[HOST])):
        await say(client, "s", "tea")
        cell = client.connections.cell_of_session("s")
        assert await cell.redis.keys("ant:unindexed:*") == []


async def test_a_fork_keeps_the_title(redis_url, client, namer):
    async with client, running_worker(redis_url, App(agents=[HOST], titles=namer)):
        await say(client, "s", "tea")
        await named(client, "s", "About tea")
        fork = await client.session("s").fork("f")
        assert (await fork.metadata())["title"] == "About tea"
        assert (await fork.to_dict())["titled"]["title"] == "About tea"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Tea", "Tea"), ("", ""), (None, ""), ("\n  'Green  tea'\nrest", "Green tea"), ("**Tea**", "Tea"),
        ("word " * 30, "word " * 14 + "word…"), ("x" * 200, "x" * 79 + "…"),
    ],
)  # fmt: skip
def test_a_title_is_one_short_line(said, title):
    assert title_in(said) == title
    assert len(title_in(said)) <= 80


def test_titles_that_are_neither_a_model_nor_a_function_are_refused():
    for wrong in ("gpt-4o", True, TitleModel):
        with pytest.raises(
            SettingsError, match=r"titles= must be a TitleModel\(provider, model\), or a function"
        ):
            App(titles=wrong)
    with pytest.raises(UsageError, match="model= must be a name"):
        TitleModel("openai", "")
    with pytest.raises(UsageError, match="instructions= must be text"):
        TitleModel("openai", "x", instructions=5)
