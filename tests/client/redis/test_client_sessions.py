"""Sessions that are opened on a client, and the turns that it lists."""

import pytest

from antiphon import Agent, AsyncClient, Client, Message
from antiphon.errors import (
    ClientClosed,
    InvalidMessage,
    ProviderRejected,
    SessionBusy,
    SessionChanged,
    SessionExists,
    TurnCancelled,
    TurnDeleted,
    UnknownAgent,
    UsageError,
)
from antiphon.model import Image, Text
from antiphon.testing import script


@pytest.fixture
def client(workers_runtime):
    with Client(workers_runtime.url) as opened:
        yield opened


@pytest.fixture
def agent():
    """An agent that says nothing of Redis: on a client it runs where the client's turns run."""
    return Agent("scripted", "any", name="support")


def texts(messages):
    return [message.text for message in messages]


def test_a_session_of_a_client_is_that_of_every_agent(client, agent, workers_runtime):
    session = client.session("s", agent=agent, system="Be brief.", variables={"a": 1}, tenant="acme")
    assert session.run("1").text == "You said: 1"
    elsewhere = workers_runtime.agent().session("s")
    assert texts(elsewhere.messages) == ["1", "You said: 1"]
    assert (elsewhere.system, dict(elsewhere.variables), elsewhere.tenant) == ("Be brief.", {"a": 1}, "acme")
    assert (session.session_id, session.agent) == ("s", agent)


def test_a_session_without_an_agent_goes_on_with_the_one_that_it_began_with(client, agent, workers_runtime):
    client.session("s", agent=agent).run("1")
    session = client.session("s")
    assert session.agent is None
    session.run("2")
    assert [message.agent for message in session.messages[1::2]] == ["support", "support"]
    workers_runtime.use(lines := script("yes"))
    session.run("3", model="another")
    assert lines.requests[0].model == "another"
    with pytest.raises(UnknownAgent):
        client.session("nobody's").run("1")


def test_the_agent_of_a_session_may_be_a_name_of_the_workers(client):
    session = client.session("s", agent="no such agent")
    assert session.agent == "no such agent"
    with pytest.raises(UnknownAgent, match="no such agent"):
        session.run("1")
    assert session.child().agent == "no such agent"


def test_everything_that_a_session_can_do_it_can_do_on_a_client(client, agent, workers_runtime):
    workers_runtime.use(script("one", {"key": "two"}, "three", "four"))
    session = client.session(agent=agent, messages=[Message.user("zero")])
    assert "".join(event.text for event in session.stream("1") if event.type == "text_delta") == "one"
    schema = {"type": "object", "properties": {"key": {"type": "string"}}}
    assert session.json("2", schema=schema).output == {"key": "two"}
    fork = session.fork("f")
    assert fork.submit("3").result(60).text == "three"
    child = session.child(session_id="c")
    child.run("4")
    child.report()
    assert session.children() == ["c"]
    assert texts(session.messages)[-1] == "four"
    with pytest.raises(SessionExists):
        client.session("f", agent=agent, messages=[Message.user("x")]).run("1")
    assert fork.delete() is True


async def test_a_session_of_an_asynchronous_client_is_awaited(workers_runtime, agent):
    async with AsyncClient(workers_runtime.url) as client:
        session = client.session("s", agent=agent)
        assert (await session.run("1")).text == "You said: 1"
        assert [event.type async for event in session.stream("2")][-1] == "turn_finished"
        assert len(await session.messages()) == 4
    with pytest.raises(ClientClosed):
        await session.run("3")


async def test_a_session_of_a_client_that_waits_is_not_awaited(client, agent):
    session = client.session("s", agent=agent)
    with pytest.raises(UsageError, match="_async methods"):
        await session.run_async("1")


def test_a_session_ends_with_its_client(workers_runtime, agent):
    client = Client(workers_runtime.url)
    session = client.session("s", agent=agent)
    client.close()
    with pytest.raises(ClientClosed):
        session.run("1")


@pytest.mark.parametrize("wrong", [7, {"provider": "scripted"}, object()])
def test_what_is_no_agent_is_refused_at_once(client, wrong):
    with pytest.raises(UsageError, match="agent="):
        client.session("s", agent=wrong)


def test_the_turns_of_a_session_are_listed_the_last_one_first(client, agent, workers_runtime):
    workers_runtime.use(script("one", "two", ProviderRejected("No."), "four", "other"))
    session = client.session("s", agent=agent)
    turns = [session.submit(f"{number}") for number in range(4)]
    turns[3].result(60)
    client.submit("other", "1", agent=agent).result(60)
    assert [turn.id for turn in client.turns("s")] == [turn.id for turn in reversed(turns)]
    assert [turn.id for turn in client.turns("s", status="failed")] == [turns[2].id]
    assert [turn.result(1).text for turn in client.turns("s", status="finished")] == ["four", "two", "one"]
    assert list(client.turns("s", status="running")) == []
    assert list(client.turns("no such session")) == []


def test_turns_that_wait_are_listed_and_can_be_cancelled(client, agent):
    first = client.submit("s", "1", agent=agent, queue="nobody")
    later = client.submit("s", "2")
    delayed = client.submit("s", "3", delay=3600)
    assert [turn.id for turn in client.turns("s")] == [delayed.id, later.id, first.id]
    assert [turn.id for turn in client.turns("s", status="waiting")] == [later.id]
    assert {turn.session_id for turn in client.turns("s")} == {"s"}
    for turn in client.turns("s"):
        assert turn.cancel() == "cancelled"
    assert len(list(client.turns("s", status="cancelled"))) == 3


def test_a_turn_that_is_no_longer_kept_is_not_listed(client, agent, workers_runtime):
    from redis import Redis

    first, second = (client.submit("s", text, agent=agent) for text in ("1", "2"))
    second.result(60)
    with Redis.from_url(workers_runtime.url) as redis:
        redis.delete(f"ant:turn:{first.id}")
    assert [turn.id for turn in client.turns("s")] == [second.id]


async def test_turns_are_iterated_without_await(workers_runtime, agent):
    async with AsyncClient(workers_runtime.url) as client:
        turn = await client.submit("s", "1", agent=agent)
        await turn.result(60)
        assert [one.id async for one in client.turns("s")] == [turn.id]
        with pytest.raises(UsageError, match="status= must be one of queued"):
            [one async for one in client.turns("s", status="asleep")]


SAID = [
    Text("a"),
    {"role": "user", "content": "a"},
    ["a", Text("b")],
    [{"type": "text", "text": "a"}, Image(url="https://example.com/a.png")],
]


@pytest.mark.parametrize("said", SAID, ids=str)
def test_a_client_reads_all_that_a_session_reads(said, client, agent):
    client.submit("by the client", said, agent=agent).result(60)
    session = client.session("by a session", agent=agent)
    session.run(said)
    by_client, by_session = (one.messages[0] for one in (client.snapshot("by the client"), session))
    assert by_client.parts == by_session.parts


@pytest.mark.parametrize("blank", ["", " \n", Text(""), {"role": "user", "content": " "}])
def test_a_turn_that_says_nothing_is_refused_by_a_client(blank, client, agent):
    with pytest.raises(InvalidMessage, match="input is empty"):
        client.submit("s", blank, agent=agent)


@pytest.mark.parametrize("blank", ["", " \n", Text(""), {"role": "user", "content": " "}])
def test_a_turn_that_says_nothing_is_refused_by_a_session(blank, runtime):
    session = runtime.agent().session("s")
    for say in (session.run, session.submit, lambda text: list(session.stream(text))):
        with pytest.raises(InvalidMessage, match="input is empty"):
            say(blank)
    assert session.messages == []


@pytest.mark.parametrize("key", [5, "", "\ud800"])
def test_a_key_that_names_nothing_is_refused_by_a_session(key, runtime):
    with pytest.raises(UsageError, match="key="):
        runtime.agent().session("s").submit("x", key=key)


def test_a_turn_that_is_cancelled_before_it_began_says_why(runtime):
    turn = runtime.agent().session("s").submit("x", delay=3600)
    turn.cancel("not wanted any more")
    with pytest.raises(TurnCancelled, match="not wanted any more"):
        turn.result(60)
    assert list(turn.stream())[-1].reason == "not wanted any more"


@pytest.mark.parametrize("anew", [False, True], ids=["it is gone", "it began anew"])
def test_a_turn_of_a_deleted_session_has_no_events(client, agent, anew):
    session = client.session("s", agent=agent)
    turn = session.submit("the first")
    turn.result(60)
    session.delete()
    if anew:
        for text in "abc":
            client.session("s", agent=agent).run(text)
    for after in (None, 0, 1):
        with pytest.raises(TurnDeleted):
            list(turn.stream(after=after))


def test_a_turn_with_a_cursor_is_accepted_only_if_nothing_has_happened_since(client, agent):
    seen = client.snapshot("s").cursor
    first = client.submit("s", "1", agent=agent, key="k", cursor=seen)
    first.result(10)
    with pytest.raises(SessionChanged) as told:
        client.submit("s", "2", agent=agent, cursor=seen)
    assert told.value.session_id == "s"
    assert client.submit("s", "1", agent=agent, key="k", cursor=seen).id == first.id, "the same call again"
    read = client.snapshot("s").cursor
    waits = client.submit("s", "3", agent=agent, delay=60, cursor=read)
    assert client.submit("s", "4", agent=agent, cursor=client.snapshot("s").cursor).result(10)
    with pytest.raises(SessionChanged):
        client.submit("s", "5", agent=agent, cursor=read)
    waits.cancel()
    assert texts(client.session("s").messages) == ["1", "You said: 1", "4", "You said: 4"]


def test_a_cursor_of_a_session_that_is_not_there_is_0(client, agent):
    client.submit("s", "1", agent=agent).result(10)
    client.session("s").delete()
    with pytest.raises(SessionChanged):
        client.submit("s", "2", agent=agent, cursor=5)
    assert (
        client.submit("s", "2", agent=agent, cursor=client.snapshot("s").cursor).result(10).text
        == "You said: 2"
    )


def test_a_turn_that_runs_has_gone_on_behind_the_cursor_of_a_snapshot(client, agent, workers_runtime):
    with pytest.raises(UsageError, match="cursor="):
        client.submit("s", "1", agent=agent, cursor=-1)
    client.submit("s", "1", agent=agent, delay=60)
    running = client.snapshot("s").cursor
    turn = client.submit("s", "2", agent=agent)
    with pytest.raises((SessionChanged, SessionBusy)):
        client.submit("s", "3", agent=agent, if_busy="reject", cursor=running)
    turn.result(10)
