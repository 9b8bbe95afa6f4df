"""A child process, and the socket that connects it to the process that started it.

A child of the supervisor (or of a worker without one, for a single turn) waits for a line on its lifeline with its
purpose. The lifeline ends when its parent ends. Over the same socket, a worker requests a process for isolated turns.
The supervisor answers with lines: ``given NAME`` with the socket of that process, ``none`` if it could not start one,
and ``ended NAME TURNS`` when that process has ended and its turns are requeued.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.errors import StoreError
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import close_in_forks
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.watchdog import (
    STALL_SIGNAL,
    Page,
    Patience,
    State,
    standing_still,
    waited_for_processor,
)

log = logging.getLogger("antiphon.supervisor")

WORK, ALONE = "work", "alone"
ASKS = b"spare\n"
LONGEST_REPLY, MOST_SOCKETS = 4096, 4
KILL_SECONDS = 2.0
WORKER_DIED = ("worker_died", "The worker died.")
LOOP_STALLED = ("loop_stalled", "The event loop of its worker stood still.")


@dataclass(slots=True, eq=False)
class Started:
    """A child process, our end of its lifeline, and its page for the watchdog."""

    name: str
    process: asyncio.subprocess.Process
    line: socket.socket
    page: Page
    stalled: bool = False
    state: State = State.LOADING  # when it ended

    @property
    def loading(self) -> bool:
        """Whether it runs but has not loaded its App yet."""
        return self.process.returncode is None and self.page.state is State.LOADING

    def tell(self, what: str, name: str, url: str) -> None:
        """Send the process its purpose (``WORK`` or ``ALONE``), its name and its Redis."""
        tell(self.line, f"{what} {name} {url}")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it still runs."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self, patience: Patience) -> int:
        """Wait for its end and return its exit code. If it is blocked, kill it and log what it was doing."""
        watching = asyncio.create_task(self._end_when_still(patience))
        try:
            code = await self.process.wait()
        finally:
            watching.cancel()
        if code == -STALL_SIGNAL or self.stalled:
            self.stalled = True
            log.error(
                "process %s was ended: its event loop stood still. Tool calls under way: %s",
                self.name, self.page.calls or "none", extra={"action": "loop_stalled"},
            )  # fmt: skip
        self.state = self.page.state
        self.page.close()
        return code

    async def _end_when_still(self, patience: Patience) -> None:
        seconds = await standing_still(self.page, patience, lambda: waited_for_processor(self.process.pid))
        self.stalled = True
        log.error(
            "process %s has stood still for %.1f s and is ended",
            self.name,
            seconds,
            extra={"action": "loop_stalled"},
        )
        self.signal(STALL_SIGNAL)
        await asyncio.sleep(KILL_SECONDS)
        self.signal(signal.SIGKILL)


async def start_process(name: str, environ: dict[str, str]) -> Started:
    """Start a process, which loads its App and then waits for its purpose. Raises ``OSError``."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    close_in_forks(ours)
    page = -1
    try:
        page = Page.new_descriptor()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "antiphon_worker", stdin=theirs.fileno(), pass_fds=[page],
            env={
                **os.environ, **environ, "ANTIPHON_WORKER_NAME": name, "ANTIPHON_SUPERVISED": "1",
                "ANTIPHON_PULSE": str(page),
            },
        )  # fmt: skip
        return Started(name, process, ours, Page(page))
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        if page >= 0:
            os.close(page)


async def hand_back(cell: Cell, name: str, settings: Settings, cause: tuple[str, str]) -> int:
    """Requeue all turns of the dead process of this name, and close the cell.

    ``cause`` is how the process ended, as a code and a sentence. Returns the number of turns, or 0 if Redis is
    unreachable; their leases must then expire.
    """
    code, reason = cause
    try:
        acts = await cell.reap(
            holder=name, crash_limit=settings.crash_limit, queues=settings.queues, code=code, reason=reason
        )
    except StoreError as exc:
        log.warning(
            "the turns of worker %s wait for their leases to expire: %s",
            name,
            exc,
            extra={"action": "outage"},
        )
        return 0
    finally:
        await cell.redis.aclose()
    turns = f" ({', '.join(act.turn_id for act in acts)})" if acts else ""
    log.info("turns of worker %s requeued: %d%s", name, len(acts), turns, extra={"action": "handed_back"})
    return len(acts)


def tell(line: socket.socket, text: str, *descriptors: int) -> bool:
    """Send a line with descriptors. Returns False if the process has closed its end, which is handled elsewhere."""
    try:
        socket.send_fds(line, [f"{text}\n".encode()], list(descriptors))
    except OSError:
        return False
    return True


@dataclass(slots=True, eq=False)
class Given:
    """A process for isolated turns, and its socket.

    ``ended`` completes when the process has ended, with the number of its turns that were requeued, or None if
    unknown.
    """

    name: str
    line: socket.socket
    ended: asyncio.Future[int | None]


class Lifeline:
    """The child's end of the socket. Processes that the child starts do not inherit it."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        own.setblocking(False)
        close_in_forks(own)
        self._ended = asyncio.Event()
        self._asking = asyncio.Lock()
        self._reply: asyncio.Future[Given | None] | None = None
        self._given: dict[str, asyncio.Future[int | None]] = {}
        self._unread, self._sockets = b"", list[socket.socket]()

    @classmethod
    def of_standard_input(cls) -> Lifeline:
        """Take over the socket from standard input, which is empty afterwards."""
        own = socket.socket(fileno=os.dup(0))
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        return cls(own)

    async def purpose(self) -> list[str]:
        """Return this process's purpose, its name and the URL of its Redis, or [] if it is no longer needed."""
        loop, line = asyncio.get_running_loop(), b""
        while not line.endswith(b"\n"):
            try:
                read = await loop.sock_recv(self.socket, 1)  # read no further: the rest is for other readers
            except ConnectionError:
                read = b""
            if not read:
                return []
            line += read
        return line.decode().rstrip("\n").split(" ", 2)

    def watch(self, ended: Callable[[], None]) -> None:
        """Start reading replies; ``ended`` is called when the other end is closed."""
        asyncio.get_running_loop().add_reader(self.socket, self._read, ended)

    def close(self) -> None:
        """Close the socket."""
        asyncio.get_running_loop().remove_reader(self.socket)
        self.socket.close()

    async def spare(self) -> Given | None:
        """Request a process for isolated turns. Returns None if there is none, or no supervisor."""
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
            read, descriptors, _, _ = socket.recv_fds(self.socket, LONGEST_REPLY, MOST_SOCKETS)
        except BlockingIOError:
            return
        except ConnectionError:
            read, descriptors = b"", []
        self._sockets += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            self._take(line.decode().split(" "))
        if not read:
            asyncio.get_running_loop().remove_reader(self.socket)
            self._ended.set()
            self._answer(None)
            for one in self._given.values():
                _resolve(one, None)
            ended()

    def _take(self, words: list[str]) -> None:
        match words:
            case ["given", name]:
                line, future = self._sockets.pop(0), asyncio.get_running_loop().create_future()
                close_in_forks(line)
                self._given[name] = future
                self._answer(Given(name, line, future))
            case ["ended", name, turns]:
                _resolve(self._given.pop(name, None), int(turns))
            case _:
                self._answer(None)

    def _answer(self, given: Given | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(given)
        elif given is not None:
            given.line.close()  # the request was cancelled: the process ends


def _resolve(future: asyncio.Future[int | None] | None, turns: int | None) -> None:
    if future is not None and not future.done():
        future.set_result(turns)
