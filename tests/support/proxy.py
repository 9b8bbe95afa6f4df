"""A TCP proxy in front of a server, which causes network faults on demand.

It runs on a loop in its own thread, so that synchronous tests and blocked loops can also use it.
Every method returns when its effect is in force.

>>> with Proxy(redis_server.port) as proxy:
...     client = Redis.from_url(proxy.url)
...     proxy.cut()                        # every connection breaks; new ones are accepted
...     proxy.refuse()                     # … and new ones are closed at once, until heal()
...     proxy.blackhole()                  # connections stay, and nothing passes in either direction
...     proxy.delay(0.2)                   # every reply arrives 0.2 s later
...     proxy.drop_reply(b"EVALSHA")       # the next such request is done, its reply lost with the connection
...     proxy.heal()                       # everything passes again
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from support.eventually import patience

T = TypeVar("T")


class _Link:
    """One connection: a client, the server, and the fault requested for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.writers = (client, server)
        self.lose_reply = False

    async def cut(self) -> None:
        """Break both connections, and return when they are closed."""
        for writer in self.writers:
            writer.transport.abort()
        for writer in self.writers:
            with contextlib.suppress(OSError):  # whatever ended it before
                await writer.wait_closed()


class Proxy:
    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1") -> None:
        self._target = (target_host, target_port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        # The rest belongs to the loop's thread.
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = False
        self._delay_seconds = 0.0
        self._lose: list[bytes] = []
        self._lost = 0
        self.asked_at = 0.0  # when the last request with a lost reply was passed on
        self._accepted = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, "127.0.0.1", 0), self._loop
        ).result(patience(5))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience(5))
        self._loop.close()

    @property
    def url(self) -> str:
        """The URL of a Redis behind the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    @property
    def accepted(self) -> int:
        """The number of connections opened so far."""
        return self._accepted

    @property
    def lost_replies(self) -> int:
        """The number of replies lost by ``drop_reply`` so far."""
        return self._lost

    def cut(self) -> None:
        """Break every open connection; new ones are served."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Break every open connection, and close new ones immediately, until ``heal``."""

        async def act() -> None:
            self._refusing = True
            await self._cut()

        self._run(act())

    def blackhole(self) -> None:
        """Hold everything back in both directions until ``heal``; connections stay and can be made."""
        self._call(self._open.clear)

    def delay(self, seconds: float) -> None:
        """Let every later reply arrive ``seconds`` late, until ``heal``."""

        def act() -> None:
            self._delay_seconds = seconds

        self._call(act)

    def drop_reply(self, matching: bytes = b"", times: int = 1) -> None:
        """Let the next request that contains ``matching`` reach the server, and lose its reply.

        TCP cannot lose a single reply: the connection breaks instead.
        """
        self._call(lambda: self._lose.extend([matching] * times))

    def heal(self) -> None:
        """Let everything pass again, beginning with what was held back."""

        def act() -> None:
            self._refusing = False
            self._delay_seconds = 0.0
            self._lose.clear()
            self._open.set()

        self._call(act)

    def _call(self, action: Callable[[], T]) -> T:
        done: Future[T] = Future()

        self._loop.call_soon_threadsafe(lambda: done.set_result(action()))
        return done.result(patience(5))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(patience(5))

    async def _cut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shut(self) -> None:
        for listening in self._server.sockets:
            self._loop.remove_reader(listening)  # a closed server forgets the connections it is accepting
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await self._cut()
            await asyncio.wait(others)  # a connection being accepted has a link afterwards
        self._server.close()
        await asyncio.sleep(0)  # aborted connections are closed now

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._link(reader, writer))
        self._tasks.add(task)

        def ended(_: object) -> None:  # though it may never have begun
            self._tasks.discard(task)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        try:
            if self._refusing:
                return
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return  # no server there: the client sees its connection break
        await self._serve(_Link(writer, server_writer), reader, server_reader)

    async def _serve(self, link: _Link, client: asyncio.StreamReader, server: asyncio.StreamReader) -> None:
        """Serve a connection until one side closes it."""
        self._links.add(link)
        to_client, to_server = link.writers
        pumps = [
            asyncio.ensure_future(self._requests(link, client, to_server)),
            asyncio.ensure_future(self._replies(link, server, to_client)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await link.cut()
            self._links.discard(link)
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            if self._lose and self._lose[0] in data:
                self._lose.pop(0)
                link.lose_reply = True
                self.asked_at = time.monotonic()
            writer.write(data)
            await writer.drain()

    async def _replies(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.ensure_future(self._deliver(queue, writer))
        try:
            while data := await reader.read(65536):
                if link.lose_reply:
                    self._lost += 1
                    return
                queue.put_nowait((self._loop.time() + self._delay_seconds, data))
            queue.put_nowait((0.0, b""))
            await delivery
        finally:
            delivery.cancel()

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        """Deliver replies in order, each when it is due; an empty one marks the end."""
        while True:
            due, data = await queue.get()
            if not data:
                return
            await asyncio.sleep(due - self._loop.time())
            await self._open.wait()
            writer.write(data)
            await writer.drain()
