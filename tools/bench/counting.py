"""A proxy to a Redis that counts round trips: what is sent at once, up to its reply, is one."""

import asyncio
import threading
from typing import Any, Self


class CountingProxy:
    """Passes everything on. ``requests`` is the number of round trips: a reply separates each from the next.

    ``sent`` has the data sent in each of them, in order.
    """

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="counting proxy", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent: list[bytes] = []

    @property
    def requests(self) -> int:
        return len(self.sent)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def reset(self) -> None:
        """Start counting from 0."""
        self.sent = []

    def __enter__(self) -> Self:
        self._thread.start()
        start = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(5)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self)
        pumps = [
            asyncio.ensure_future(link.requests(reader, server_writer)),
            asyncio.ensure_future(link.replies(server_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            writer.transport.abort()
            server_writer.transport.abort()

    async def _shut(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Link:
    """One connection; ``_answered``: a reply has arrived since the last request."""

    def __init__(self, proxy: CountingProxy) -> None:
        self._proxy = proxy
        self._answered = True

    async def requests(self, reader: asyncio.StreamReader, writer: Any) -> None:
        while data := await reader.read(1 << 20):
            if self._answered or not self._proxy.sent:
                self._answered = False
                self._proxy.sent.append(data)
            else:
                self._proxy.sent[-1] += data
            writer.write(data)
            await writer.drain()

    async def replies(self, reader: asyncio.StreamReader, writer: Any) -> None:
        while data := await reader.read(1 << 20):
            self._answered = True
            writer.write(data)
            await writer.drain()
