"""The fixture ``runtime``: every test that uses it runs in this process, and again on a worker."""

import asyncio
import threading

import pytest
from redis import Redis
from support.eventually import patience
from support.leaks import leaked_keys
from support.servers import RedisServer

from antiphon import Agent
from antiphon.hooks import hooks_of
from antiphon.model.usage import stop_name
from antiphon.session.runtime import local_runtime
from antiphon.tools import Tool
from antiphon_worker.app import App
from antiphon_worker.loop.costs import Price
from antiphon_worker.process.worker import Worker
from antiphon_worker.providers.scripted import ScriptedProvider
from antiphon_worker.settings import Settings

PRICES = {"priced": Price(input=1.0, output=2.0, cached_input=0.5)}


class Local:
    """Turns run in this process."""

    name = "local"

    def __init__(self):
        self.model = "scripted"

    def use(self, model):
        """Have this ``antiphon.testing`` script answer for every agent."""
        self.model = model

    def agent(self, model="any", **options):
        return Agent(self.model, model, **options)

    async def aclose(self):
        await local_runtime().aclose()


class TestApp(App):
    """Has the script in use, and every tool that the test gave to an agent."""

    __test__ = False

    def __init__(self):
        super().__init__(prices=PRICES)
        self.script = ScriptedProvider()
        self.known = {}
        self.known_stops = self._stops

    def use_hooks(self, hooks):
        self._hooks = hooks_of(hooks)

    async def provider(self, name):
        return self.script

    def tools(self, names):
        return [self.known[name] for name in names]


class Workers:
    """Turns run on a worker, in a thread with its own loop."""

    name = "redis"

    def __init__(self, url):
        self.url = url
        self.app = TestApp()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="worker of the tests", daemon=True)

    def use(self, model):
        self.app.script = ScriptedProvider(model)

    def agent(self, model="any", **options):
        tools = [one if isinstance(one, Tool) else Tool(one) for one in options.pop("tools", ())]
        self.app.known |= {tool.name: tool for tool in tools}
        self.app.use_hooks(options.pop("hooks", ()))
        limits = options.get("limits")
        self.app.known_stops |= {stop_name(one): one for one in (limits.stop if limits else ())}
        return Agent("scripted", model, redis=self.url, tools=tools, **options)

    async def aclose(self):
        await self.agent().runtime.aclose()

    def start(self):
        self._thread.start()

    def restart(self):
        """Restart the worker with the present state of its App."""
        self.stop()
        self._thread = threading.Thread(target=self._run, name="worker of the tests", daemon=True)
        self.start()

    def stop(self):
        assert self._begun.wait(patience(20))
        self._begun.clear()
        self._loop.call_soon_threadsafe(self._worker.abort)
        self._thread.join(patience(20))

    def _run(self):
        asyncio.run(self._work())

    async def _work(self):
        self._loop = asyncio.get_running_loop()
        settings = Settings(redis_url=self.url, retry_seconds=0)
        self._worker = Worker(settings, self.app, url=self.url)
        self._begun.set()
        await self._worker.run()


@pytest.fixture(scope="session")
def workers():
    """A worker on its own server: on another, it would take the turns of other tests."""
    with RedisServer() as server:
        started = Workers(server.url)
        started.start()
        yield started
        started.stop()


@pytest.fixture(autouse=True)
def _no_sessions_of_other_tests():
    local_runtime().forget()


@pytest.fixture(params=["local", "redis"])
def runtime(request):
    if request.param == "local":
        yield Local()
        return
    workers = request.getfixturevalue("workers")
    workers.app.known.clear()
    workers.use(None)
    workers.app.use_hooks(())
    with Redis.from_url(workers.url) as redis:
        redis.flushall()
    yield workers
    assert leaked_keys(workers.url, ()) == []


@pytest.fixture
def workers_runtime(workers):
    """The runtime on workers only, for features that local turns lack."""
    workers.app.known.clear()
    workers.use(None)
    workers.app.use_hooks(())
    with Redis.from_url(workers.url) as redis:
        redis.flushall()
    return workers
