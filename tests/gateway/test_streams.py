"""An open stream as its ASGI server sees it: what an event costs, silence, and a reader that takes nothing."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

from redis import Redis
from support.eventually import patience, wait_until_async

from antiphon.client import AsyncClient
from antiphon_gateway import gateway
from antiphon_gateway.http import streams

NUMBER = 20
PUBLISH = """
for seq = ARGV[1], ARGV[2] do
  local event = '{"seq":' .. seq .. ',"at":' .. seq .. ',"type":"text_delta","text":"word"}'
  redis.call('XADD', KEYS[2], seq .. '-0', 'e', event)
  redis.call('HSET', KEYS[1], 'seq', seq, 'created', 1)
  redis.call('PUBLISH', ARGV[3], event)
end
redis.call('EXPIRE', KEYS[1], 60)
redis.call('EXPIRE', KEYS[2], 60)
"""


class Server:
    """Stands in for an ASGI server with one request. ``bodies`` are what it was given to send."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.sent = asyncio.Event()
        self.room = asyncio.Event()  # cleared, it takes no more: its reader reads nothing
        self.room.set()
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.room.wait()
        self.bodies.append(message.get("body", b""))
        self.sent.set()

    async def sends(self, work: Callable[[], Any]) -> None:
        """Return when something was sent after this work. Nothing here makes a timer."""
        self.sent.clear()
        work()
        await self.sent.wait()


class Session:
    """A session that speaks as if workers ran."""

    def __init__(self, client: AsyncClient, redis_url: str) -> None:
        (cell,) = client.connections.cells
        self._redis, self._seq = Redis.from_url(redis_url), 0
        self._keys = cell.keys.session("s"), cell.keys.events("s")
        self._channel = cell.keys.live(cell.database, "s")

    def say(self, number: int = 1) -> None:
        """Publish so many events at once."""
        first, self._seq = self._seq + 1, self._seq + number
        self._redis.eval(PUBLISH, 2, *self._keys, first, self._seq, self._channel)

    def close(self) -> None:
        self._redis.close()


@asynccontextmanager
async def stream(redis_url: str):
    """A stream of a session that has begun, the session, and the task that serves it."""
    async with AsyncClient(redis_url) as client:
        app, server, session = gateway(client), Server(), Session(client, redis_url)
        scope = {
            "type": "http", "method": "GET", "path": "/sessions/s/events", "raw_path": b"/sessions/s/events",
            "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80), "scheme": "http",
        }  # fmt: skip
        serving = asyncio.create_task(app(scope, server.receive, server.send))
        try:
            await wait_until_async(lambda: len(server.bodies) == 2 or serving.done())
            await server.sends(session.say)
            yield server, session, serving
        finally:
            server.gone.set()
            server.room.set()
            await serving
            session.close()


async def test_an_event_begins_no_task_and_sets_no_timer(redis_url, monkeypatch):
    loop, timers, tasks = asyncio.get_running_loop(), [], []
    async with stream(redis_url) as (server, session, _):
        at = loop.call_at

        def noted(*given: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(given)
            return at(*given, **more)

        def begun(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
            tasks.append(work)
            return asyncio.Task(work, loop=loop, **more)

        monkeypatch.setattr(loop, "call_at", noted)
        loop.set_task_factory(begun)
        before = len(server.bodies)
        for _ in range(NUMBER):
            await server.sends(session.say)
        assert len(server.bodies) - before == NUMBER
        assert len(timers) <= 3  # those that look at streams and at silence, whatever comes
        assert tasks == []
        loop.set_task_factory(None)


async def test_events_that_are_ready_together_are_sent_together_and_each_whole(redis_url):
    async with stream(redis_url) as (server, session, _):
        before = len(server.bodies)
        await server.sends(lambda: session.say(NUMBER))
        (found,) = server.bodies[before:]
        assert found.count(b"\n\n") == NUMBER
        assert found.startswith(b'id: 2\ndata: {"seq":2,')
        assert found.endswith(b'"word"}\n\n')


async def test_a_silence_is_broken_by_a_comment_once_in_a_while(redis_url, monkeypatch):
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(streams, "HEARTBEAT_SECONDS", 0.1)
    async with stream(redis_url) as (server, session, _):
        await wait_until_async(lambda: server.bodies.count(b": heartbeat\n\n") >= 2)
        await server.sends(session.say)
        assert any(body.startswith(b"id: 2\n") for body in server.bodies)


async def test_a_reader_that_takes_nothing_is_left(redis_url, monkeypatch):
    monkeypatch.setattr(streams, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(streams, "STALL_SECONDS", 0.1)
    monkeypatch.setattr(streams, "LAST_WORD_SECONDS", 0.1)
    async with stream(redis_url) as (server, session, serving):
        server.room.clear()
        before = list(server.bodies)
        session.say()
        await asyncio.wait_for(asyncio.shield(serving), patience(10))
        assert server.bodies == before


async def test_a_reader_that_leaves_while_nothing_can_be_sent_is_let_go(redis_url, monkeypatch):
    async with stream(redis_url) as (server, session, serving):
        server.room.clear()
        session.say()
        server.gone.set()
        await asyncio.wait_for(asyncio.shield(serving), patience(10))
