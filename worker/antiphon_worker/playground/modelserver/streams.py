"""Streams an answer at its pace to a client that may read slowly or disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice

from antiphon_worker.playground.modelserver.http import Connection
from antiphon_worker.playground.modelserver.pacing import Wheel

# How many pieces to send at once without a pace, before other streams continue.
_BATCH = 32


class AnswerStream:
    """Sends ``frames``, each as one HTTP chunk, and calls ``finish`` after the last one.

    ``sent`` is called with the number of chunks sent. The first frame is the opening. The first piece is due
    ``first_piece_seconds`` after it, and each further one ``1 / pace`` seconds later, even if earlier ones were late.
    """

    def __init__(
        self,
        connection: Connection,
        frames: Iterator[bytes],
        *,
        wheel: Wheel,
        pace: float,
        first_piece_seconds: float,
        sent: Callable[[int], None],
        finish: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._frames = frames
        self._wheel = wheel
        self._interval = 1 / pace if pace > 0 else 0.0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + first_piece_seconds
        self._sent = sent
        self._finish = finish
        self._stopped = False
        self._parked = False

    def start(self) -> None:
        self._connection.on_writable = self._resume
        self._send(1)
        self._wheel.at(self._due, self._step)

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def _resume(self) -> None:
        if self._parked:
            self._parked = False
            self._step()

    def _step(self) -> None:
        if self._stopped:
            return
        if not self._connection.writable:
            self._parked = True
            return
        if not self._interval:
            if self._send(_BATCH):
                self._loop.call_soon(self._step)
            return
        due = 0
        now = self._loop.time()
        while self._due <= now:
            self._due += self._interval
            due += 1
        if not due or self._send(due):
            self._wheel.at(self._due, self._step)

    def _send(self, count: int) -> bool:
        """Return whether there may be more."""
        frames = list(islice(self._frames, count))
        if frames:
            self._connection.write(b"".join([b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames]))
            self._sent(len(frames))
        if len(frames) == count:
            return True
        self._stopped = True
        self._finish()
        return False
