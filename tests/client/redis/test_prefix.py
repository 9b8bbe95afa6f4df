"""The prefix of all keys: agents and clients have the workers' own, by keyword or by the same variable."""

import asyncio
import threading

import pytest
from redis import Redis

from antiphon import Agent, AsyncClient, Client
from antiphon.errors import SettingsError, UsageError
from antiphon_worker.app import App
from antiphon_worker.process.worker import Worker
from antiphon_worker.settings import Settings


def agent(**options):
    return Agent("scripted", "any", **options)


@pytest.fixture
def worker(redis_url):
    """A worker with a prefix of its own, on a thread with a loop of its own."""
    loops, begun = [], threading.Event()

    async def work():
        one = Worker(Settings(redis_url=redis_url, prefix="foo"), App(), url=redis_url)
        loops.append((asyncio.get_running_loop(), one))
        begun.set()
        await one.run()

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    begun.wait(20)
    yield redis_url
    loop, one = loops[0]
    loop.call_soon_threadsafe(one.abort)
    thread.join(20)


def test_agents_and_clients_use_the_prefix_that_they_are_given(worker):
    assert agent(redis=worker, prefix="foo").session("s").run("hi", timeout=20).text == "You said: hi"
    with Client(worker, prefix="foo") as client:
        assert client.submit("s", "on", agent=agent()).result(60).text == "You said: on"
    with Redis.from_url(worker) as redis:
        assert list(redis.scan_iter("ant:*")) == []


def test_agents_and_clients_use_the_prefix_of_the_variable(worker, monkeypatch):
    monkeypatch.setenv("ANTIPHON_PREFIX", "foo")
    assert agent(redis=worker).session("s").run("hi", timeout=20).text == "You said: hi"
    with Client(worker) as client:
        assert client.submit("s", "on", agent=agent()).result(60).text == "You said: on"


def test_agents_with_the_same_url_and_another_prefix_are_strangers():
    url = "redis://localhost:1/0"
    one, same, other = (agent(redis=url, prefix=prefix).runtime for prefix in ("a", "a", "b"))
    assert one._connected.__self__ is same._connected.__self__
    assert one._connected.__self__ is not other._connected.__self__


@pytest.mark.parametrize("bad", ["a b:{c", "", "a:b", 5])
def test_a_prefix_that_would_break_keys_is_refused(bad):
    for make in (Client, AsyncClient):
        with pytest.raises(SettingsError, match="ANTIPHON_PREFIX"):
            make("redis://localhost:1/0", prefix=bad)
    with pytest.raises(SettingsError, match="ANTIPHON_PREFIX"):
        agent(redis="redis://localhost:1/0", prefix=bad)


def test_a_prefix_without_redis_is_refused():
    with pytest.raises(UsageError, match="redis="):
        agent(prefix="foo")
