"""The socket between a process and whoever started it: it says what the process is to be, and its end is an end.

A process that the supervisor starts (or a worker without one, for a single turn) waits until a line tells it what it is
for. A worker asks over the same socket for a process that can run a turn alone, and is sent the socket of one.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ALONE", "WORK", "Lifeline", "Started", "start_process"]

WORK, ALONE = "work", "alone"
ASKS = b"spare\n"
LONGEST_REPLY = 1024


@dataclass(slots=True, eq=False)
class Started:
    """A process that was started, and our end of its lifeline."""

    name: str
    process: asyncio.subprocess.Process
    line: socket.socket

    def tell(self, what: str, name: str, url: str) -> None:
        """Say what it is for: ``WORK`` or ``ALONE``, under which name, on which Redis."""
        try:
            self.line.send(f"{what} {name} {url}\n".encode())
        except OSError:
            return  # it has died: whoever waits for its end hears of that


async def start_process(name: str, environ: dict[str, str]) -> Started:
    """Start a process that loads all it needs, and then waits to be told what it is for."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon_worker", stdin=theirs.fileno(),
            env={**os.environ, **environ, "ANTIPHON_WORKER_NAME": name, "ANTIPHON_SUPERVISED": "1"},
        )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Started(name, process, ours)


class Lifeline:
    """The process's own end. Nothing that it starts inherits it."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        own.setblocking(False)
        self._ended = asyncio.Event()
        self._asking = asyncio.Lock()
        self._reply: asyncio.Future[tuple[str, socket.socket] | None] | None = None

    @classmethod
    def of_standard_input(cls) -> Lifeline:
        """Take it over from standard input, which is empty from then on."""
        own = socket.socket(fileno=os.dup(0))
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(own)

    async def purpose(self) -> list[str]:
        """What this process is for, its name and the URL of its Redis; nothing where it is not needed any more."""
        loop, line = asyncio.get_running_loop(), b""
        while not line.endswith(b"\n"):
            try:
                read = await loop.sock_recv(self.socket, 1)  # no further: what follows is not ours to read
            except ConnectionError:
                read = b""
            if not read:
                return []
            line += read
        return line.decode().rstrip("\n").split(" ", 2)

    def watch(self, ended: Callable[[], None]) -> None:
        """Read replies from now on; ``ended`` is called when the other end has gone."""
        asyncio.get_running_loop().add_reader(self.socket, self._read, ended)

    def close(self) -> None:
        """Let go of it."""
        asyncio.get_running_loop().remove_reader(self.socket)
        self.socket.close()

    async def spare(self) -> tuple[str, socket.socket] | None:
        """Ask for a process that can run turns alone: its name and its socket; None where nobody is there to ask."""
        async with self._asking:
            if self._ended.is_set():
                return None
            loop = asyncio.get_running_loop()
            self._reply = loop.create_future()
            try:
                await loop.sock_sendall(self.socket, ASKS)
                return await self._reply
            except ConnectionError:
                return None

    def _read(self, ended: Callable[[], None]) -> None:
        try:
            name, descriptors, _, _ = socket.recv_fds(self.socket, LONGEST_REPLY, 1)
        except BlockingIOError:
            return
        except ConnectionError:
            name, descriptors = b"", []
        taken = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for one in taken:
            one.set_inheritable(False)
        if not name:
            asyncio.get_running_loop().remove_reader(self.socket)
            self._ended.set()
            ended()
        reply = (name.decode().strip(), taken.pop()) if taken else None
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(reply)
        elif reply:
            reply[1].close()  # whoever asked has gone: the process ends
