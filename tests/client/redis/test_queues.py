"""Which queue a turn goes to, what of it a session keeps, and what is said where no worker serves it."""

import asyncio
import logging

import pytest
from redis import Redis
from support.eventually import patience, wait_until, wait_until_async

from antiphon import Agent, Client, Session
from antiphon.client import AsyncClient
from antiphon.errors import CorruptRecord, UsageError
from antiphon.redis import unserved
from antiphon.session.runtime import local_runtime


@pytest.fixture
def client(workers_runtime):
    with Client(workers_runtime.url) as opened:
        yield opened


@pytest.fixture
def queue_of(workers_runtime):
    """The queue that a turn was put into. Nobody serves it, so the turn is cancelled."""
    with Redis.from_url(workers_runtime.url) as redis:

        def read(turn):
            turn.cancel()
            return redis.hget(f"ant:turn:{turn.id}", "queue").decode()

        yield read


def test_a_turn_goes_to_its_own_queue_then_the_sessions_then_its_agents(workers_runtime, queue_of):
    agent = workers_runtime.agent(queue="agents")
    assert queue_of(agent.session("a").submit("1")) == "agents"
    session = agent.session("b", queue="sessions")
    assert queue_of(session.submit("1")) == "sessions"
    assert queue_of(session.submit("2", queue="turns")) == "turns"
    assert queue_of(session.submit("3")) == "sessions"
    assert session.queue == "sessions"


def test_a_turn_from_elsewhere_goes_where_its_session_goes(workers_runtime, client, queue_of):
    workers_runtime.agent(queue="agents").session("a").submit("1")
    workers_runtime.agent().session("b", queue="sessions").submit("1")
    client.submit("c", "1", agent="x", queue="turns")
    for session, queue in {"a": "agents", "b": "sessions", "c": "turns"}.items():
        assert queue_of(client.submit(session, "2")) == queue
        assert queue_of(client.session(session).submit("3")) == queue
    assert queue_of(client.submit("d", "1", agent="x", queue="nobody")) == "nobody"


def test_an_agent_that_works_on_one_turn_brings_its_queue_unless_the_session_has_one(
    workers_runtime, queue_of
):
    of_session, of_turn = workers_runtime.agent(queue="first"), workers_runtime.agent(queue="second")
    session = of_session.session("a")
    queues = [queue_of(session.submit("1", agent=agent)) for agent in (None, of_turn, None)]
    assert queues == ["first", "second", "first"]
    session = of_session.session("b", queue="own")
    assert queue_of(session.submit("1", agent=of_turn)) == "own"


def test_a_turn_of_one_session_may_hurry_without_the_others(workers_runtime, queue_of):
    session = workers_runtime.agent(queue="usual").session("s")
    assert queue_of(session.submit("1", queue="urgent")) == "urgent"
    assert queue_of(session.submit("2")) == "usual"
    assert session.queue is None


def test_the_queue_of_a_client_is_only_its_default(workers_runtime, client, queue_of):
    with Client(workers_runtime.url, queue="clients") as other:
        assert queue_of(other.submit("s", "1", agent="x")) == "clients"
        assert queue_of(other.session("t", agent="x").submit("1")) == "clients"
    turn = client.submit("s", "2", agent=workers_runtime.agent())
    assert turn.result(60).text == "You said: 2"


def test_a_session_moves_to_the_queue_that_it_is_opened_with(runtime):
    agent = runtime.agent()
    agent.session("s", queue="before").messages  # noqa: B018 - the first use
    assert agent.session("s").queue == "before"
    assert agent.session("s", queue="antiphon").run("1").text
    assert agent.session("s").queue == "antiphon"


def test_forks_and_children_go_where_their_session_goes(runtime):
    agent = runtime.agent()
    session = agent.session("s", queue="antiphon")
    early = session.child()  # the session itself has not been used yet
    early.run("1")
    session.run("1")
    late, own = agent.session("s").child(session_id="late"), session.child(queue="own")
    late.run("1")
    assert [one.queue for one in (session.fork(), early, late, own)] == [
        "antiphon",
        "antiphon",
        "antiphon",
        "own",
    ]
    agent.session("late", queue="moved").status()
    assert session.child(session_id="late").queue == "moved"


def test_a_session_is_saved_and_restored_with_its_queue(runtime):
    agent = runtime.agent()
    session = agent.session("s", queue="antiphon")
    session.run("1")
    data = session.to_dict()
    assert data["queue"] == "antiphon"
    session.delete()
    assert Session.from_dict(data, agent).queue == "antiphon"
    assert "queue" not in agent.session("plain").to_dict()
    with pytest.raises(CorruptRecord, match="queue"):
        Session.from_dict({**data, "queue": "a b"}, agent)


def test_a_saved_session_knows_the_queue_of_its_agent(workers_runtime, client, queue_of):
    session = Agent("scripted", "any", queue="agents").session("s")
    session.run("1")
    data = session.to_dict()
    local_runtime().forget()
    Session.from_dict(data, workers_runtime.agent()).status()
    assert queue_of(client.submit("s", "2")) == "agents"


@pytest.mark.parametrize("bad", ["", "a b", "a:b", "x" * 101, 7])
def test_what_cannot_be_a_queue_is_refused_where_it_is_given(runtime, bad):
    session = runtime.agent().session("s")
    for give in (
        lambda: runtime.agent(queue=bad),
        lambda: runtime.agent().session(queue=bad),
        lambda: session.run("1", queue=bad),
        lambda: session.submit("1", queue=bad),
        lambda: session.child(queue=bad),
    ):
        with pytest.raises(UsageError, match="A queue name"):
            give()


def test_who_waits_for_a_queue_that_nobody_serves_is_told_so(workers_runtime, monkeypatch, caplog):
    monkeypatch.setattr(unserved, "FIRST_LOOK_SECONDS", 0.01)
    session = workers_runtime.agent().session("s", queue="nobody")
    caplog.set_level(logging.WARNING, "antiphon.unserved")
    with session.stream("1") as events:
        assert next(events).type == "turn_queued"
        wait_until(lambda: caplog.messages, description="the warning")
    assert caplog.messages == [
        "No worker serves the queue nobody now: the turn waits. Start one with `antiphon worker --queues nobody`."
    ]
    assert session.status().state == "idle"


async def test_who_waits_for_the_result_of_such_a_turn_is_told_so(redis_url, monkeypatch, caplog):
    monkeypatch.setattr(unserved, "FIRST_LOOK_SECONDS", 0.01)
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hi", agent="a", queue="nobody")
        waiting = asyncio.create_task(turn.result())
        await wait_until_async(lambda: caplog.messages, description="the warning")
        assert "antiphon worker --queues nobody" in caplog.text
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await turn.cancel()


async def test_nothing_is_looked_at_for_a_turn_that_has_begun(redis_url, cell):
    async with AsyncClient(redis_url) as client:
        turn = await client.submit("s", "Hi", agent="a")
        (claimed,) = (await cell.claim("w", "t", lease_ms=60_000, limit=1, queues=["antiphon"])).turns
        await asyncio.wait_for(unserved.warn_if_unserved(cell, turn.id), patience(10))
        await cell.finish(claimed, "cancelled", bodies=[])


def test_who_waits_behind_another_turn_is_not_told_so(workers_runtime, monkeypatch, caplog):
    monkeypatch.setattr(unserved, "FIRST_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(unserved, "LOOK_SECONDS", 0.01)
    agent = workers_runtime.agent()
    looks = []
    ask = unserved.inspection.unserved

    async def asked(*arguments):
        looks.append(await ask(*arguments))
        return looks[-1]

    monkeypatch.setattr(unserved.inspection, "unserved", asked)
    first = agent.session("s").submit("1", queue="nobody")
    with agent.session("s").stream("2", queue="nobody") as events:
        assert next(events).type == "turn_queued"
        wait_until(lambda: len(looks) > 2, description="several looks")
        assert set(looks) == {""}
        first.cancel()
        wait_until(lambda: caplog.messages, description="it is its turn, and nobody comes")
