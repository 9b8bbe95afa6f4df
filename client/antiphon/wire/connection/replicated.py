"""Answers scripts when a replica has what they wrote, so that a failover to it does not lose their writes.

One ``WAIT`` follows all scripts that were sent at the same moment. Scripts that arrive while it waits are sent
immediately, run after it, and share the next one. ``WAIT`` blocks its connection, so these scripts have their own. It
waits only for the writes of its connection, but a script may find that a script on another connection has done its
work. So a write that changes nothing precedes each ``WAIT``.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from antiphon.wire.connection.pipeline import Line, Wire

REPLICATED = "replicated"
"""The value of ``durability`` in a URL."""

REPLICAS = 1
PATIENCE = 0.4
"""How much of a command's timeout a replica has: it may wait for the ``WAIT`` before it, and then for its own."""
PATIENCE_SECONDS = 2.0
"""The same for connections without a timeout."""

Answer = asyncio.Future[Any]


class NotReplicatedError(RedisError):
    """No replica has confirmed a write in time."""


class ReplicatedLine(Line):
    """Sends scripts whose answers wait for a replica."""

    counter = ""
    """The key of a counter in the cell, which is incremented by 0 before each ``WAIT``."""

    async def _make(self) -> Wire:
        wire = await _ReplicatedWire.open(self._pool, self._timeout)
        wire.counter = self.counter
        return wire


class _ReplicatedWire(Wire):
    """One connection whose answers wait for a replica."""

    counter = ""

    def __init__(self, timeout: float | None) -> None:
        super().__init__(timeout)
        self._patience = PATIENCE_SECONDS if timeout is None else timeout * PATIENCE
        self._unconfirmed: list[
            tuple[Answer, Answer]
        ] = []  # what Redis answers, and what the caller waits for
        self._confirming = False

    def ask(self, command: tuple[Any, ...]) -> Answer:
        """Send a command and return the future of its answer, which comes when a replica has what was written.

        Raises ``ConnectionError``, ``DataError``.
        """
        answer = super().ask(command)
        confirmed: Answer = self._loop.create_future()
        self._unconfirmed.append((answer, confirmed))
        if not self._confirming:
            self._confirming = True
            self._loop.call_soon(self._confirm)
        return confirmed

    def _confirm(self) -> None:
        """Request the confirmation of everything sent so far."""
        batch, self._unconfirmed = self._unconfirmed, []
        self._confirming = bool(batch)
        if not batch:
            return
        try:
            last = super().ask(("INCRBY", self.counter, 0))
            replicas = super().ask(("WAIT", REPLICAS, round(self._patience * 1000)))
        except RedisConnectionError as exc:
            self._settle(batch, exc)
        else:
            replicas.add_done_callback(partial(self._confirmed, batch, last))

    def _confirmed(self, batch: list[tuple[Answer, Answer]], last: Answer, replicas: Answer) -> None:
        error = last.exception() or replicas.exception()
        if isinstance(replicas.exception(), ResponseError):  # the server has become a replica
            error = RedisConnectionError(f"The connection was lost: {replicas.exception()}")
            self.close(error)
        elif error is None and replicas.result() < REPLICAS:
            error = NotReplicatedError(f"no replica has confirmed the write within {self._patience:g} s")
        self._settle(batch, error)

    def _settle(self, batch: list[tuple[Answer, Answer]], error: BaseException | None) -> None:
        """Give each caller its answer, or the reason why it cannot be relied on; then confirm the next ones."""
        for answer, confirmed in batch:
            wrong = answer.exception() or error
            if confirmed.done():  # cancelled
                continue
            if wrong is None:
                confirmed.set_result(answer.result())
            else:
                confirmed.set_exception(type(wrong)(str(wrong)))
        self._confirm()
