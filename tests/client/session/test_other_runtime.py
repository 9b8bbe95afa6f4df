"""What one runtime saved, the other restores; and how sessions end on each."""

import asyncio
import os
import signal
import threading

import pytest
from redis import Redis

from antiphon import Agent, Message, Session
from antiphon.client import AsyncClient
from antiphon.errors import UsageError
from antiphon.input.values import now_ms
from antiphon.model import File, Image, Text, ToolCall, ToolResult
from antiphon.session.runtime import local_runtime
from antiphon.stores import MemoryStore
from antiphon.testing import script

MESSAGES = [
    Message.user([Text("Look: "), Image(url="https://example.com/a.png")]),
    Message.assistant([Text("I look."), ToolCall("c1", "look", {"at": []})]),
    Message.tool([ToolResult("c1", "a cat", "look")]),
    Message.assistant("A cat. 🐈"),
]


def rich(agent):
    session = agent.session(
        "rich",
        system="Be {mood}.",
        messages=MESSAGES,
        variables={"mood": "kind", "x": []},
        metadata={"m": {}},
    )
    session.add_file(File(url="https://example.com/a.pdf", name="a.pdf"))
    return session


def later(monkeypatch, seconds):
    """Move the clock of the sessions of this process, and of nothing else."""
    monkeypatch.setattr(local_runtime().cell().transitions, "clock", lambda: now_ms() + int(seconds * 1000))


def same(data, other):
    return {**data, "updated": 0, "agent": 0} == {**other, "updated": 0, "agent": 0}


def test_a_session_of_this_process_goes_on_on_workers(workers_runtime):
    data = rich(Agent("scripted", "any")).to_dict()
    restored = Session.from_dict(data, workers_runtime.agent())
    assert same(restored.to_dict(), data)
    workers_runtime.use(lines := script("Of course."))
    restored.run("Go on")
    assert lines.requests[0].system == "Be kind."
    assert lines.requests[0].messages[:4] == restored.messages[:4]


def test_a_session_of_the_workers_goes_on_in_this_process(workers_runtime):
    workers_runtime.use(script("one"))
    session = rich(workers_runtime.agent())
    session.run("1")
    data = session.to_dict()
    local_runtime().forget()
    restored = Session.from_dict(data, Agent(script("two"), "any"))
    assert same(restored.to_dict(), data)
    restored.run("2")
    assert [message.text for message in restored.messages][-4:] == ["1", "one", "2", "two"]


def test_a_session_of_this_process_expires(monkeypatch):
    agent = Agent("scripted", "any")
    kept, lost = agent.session("kept", ttl=None), agent.session("lost", ttl=100)
    kept.run("1")
    lost.run("1")
    later(monkeypatch, 99)
    assert len(lost.messages) == 2
    later(monkeypatch, 250)
    assert len(kept.messages) == 2
    assert local_runtime().cell().session("lost") is None
    assert lost.messages == []


def test_the_last_ttl_given_to_a_session_of_this_process_counts(monkeypatch):
    agent = Agent("scripted", "any")
    agent.session("s", ttl=1000).run("1")
    agent.session("s").run("2")
    later(monkeypatch, 900)
    assert len(agent.session("s").messages) == 4
    agent.session("s", ttl=100).run("3")
    fork = agent.session("s").fork("f")
    later(monkeypatch, 950)
    assert (len(agent.session("s").messages), len(fork.messages)) == (6, 6)
    later(monkeypatch, 1100)
    assert (agent.session("s").messages, fork.messages) == ([], [])


def test_sessions_that_were_only_looked_at_are_not_kept(monkeypatch):
    agent = Agent("scripted", "any")
    agent.session("looked at").status()
    agent.session("used").run("1")
    later(monkeypatch, 100)
    agent.session("another").status()
    assert set(local_runtime().cell().transitions.sessions) == {"used"}


def test_a_session_on_workers_lives_as_long_as_its_ttl_says(workers_runtime):
    session = workers_runtime.agent().session("s", ttl=100)
    session.run("1")
    with Redis.from_url(workers_runtime.url) as redis:
        assert 90 < redis.ttl("ant:history:s") <= 100


def test_a_session_on_workers_may_be_kept_for_good(workers_runtime):
    session = workers_runtime.agent().session("s", ttl=None)
    session.run("1")
    with Redis.from_url(workers_runtime.url) as redis:
        assert redis.ttl("ant:history:s") == -1
    session.delete()


def test_editing_a_session_tells_those_who_watch_it(workers_runtime):
    session = workers_runtime.agent().session("s")
    session.add_message(Message.user("1"))
    session.set_variables({"a": 1})
    session.clear()
    session.fork()
    session.close()

    async def events():
        async with AsyncClient(workers_runtime.url) as client:
            seen = []
            async for event in client.subscribe("s", after=0):
                seen.append(event.type)
                if event.type == "session_closed":
                    break
            return seen

    assert asyncio.run(events()) == [
        "message_added", "variables_changed", "history_cleared", "session_forked", "session_closed",
    ]  # fmt: skip


def test_an_agent_with_a_script_cannot_travel(workers_runtime):
    agent = Agent(script("a"), "any", redis=workers_runtime.url)
    with pytest.raises(UsageError, match="cannot be sent to a worker"):
        agent.session().run("Hi")


def test_a_store_belongs_to_agents_of_this_process(workers_runtime):
    with pytest.raises(UsageError, match="store="):
        workers_runtime.agent(store=MemoryStore()).session()


def test_agents_on_one_url_share_their_connections(workers_runtime):
    one, two = workers_runtime.agent(), workers_runtime.agent()
    assert one.runtime._connected.__self__ is two.runtime._connected.__self__


async def test_a_turn_cancelled_while_it_is_handed_in_is_rolled_back(workers_runtime):
    workers_runtime.use(script("one", repeat=True))
    session = workers_runtime.agent().session("s")
    await session.run_async("1")
    for steps in range(12):
        task = asyncio.create_task(session.run_async("never"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [message.text for message in await session.messages_async()] == ["1", "one"]
    assert (await session.status_async()).state == "idle"
    await workers_runtime.aclose()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own(workers_runtime):
    workers_runtime.use(script("one", "two", "three"))
    session = workers_runtime.agent().session("s")
    session.run("1")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if session.run("2").text == "two" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.run("3").text == "three"
    assert len(session.messages) == 6


def test_an_interrupted_run_on_workers_leaves_nothing(workers_runtime):
    async def interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    workers_runtime.use(script(["half ", interrupt], "whole"))
    session = workers_runtime.agent().session("s")
    with pytest.raises(KeyboardInterrupt):
        session.run("1")
    session.run("2")
    assert [message.text for message in session.messages] == ["2", "whole"]


def test_a_session_is_shared_by_several_threads_and_loops(runtime):
    runtime.use(script(lambda request: f"{len(request.messages)}", repeat=True))
    session = runtime.agent().session("s", system="S", variables={"a": 1})

    async def several():
        await asyncio.gather(*(session.run_async("x") for _ in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    session.run("x")
    for thread in threads:
        thread.join()
    assert [message.text for message in session.messages[1::2]] == [f"{n}" for n in range(1, 33, 2)]
