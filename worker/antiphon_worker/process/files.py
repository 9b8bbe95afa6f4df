"""The stored files of the session whose turn a worker runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TypeVar

from antiphon.redis.files import SessionFiles
from antiphon.wire.cell import Cell
from antiphon_worker.loop.files import TurnFiles
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease

T = TypeVar("T")


class LeasedFiles(TurnFiles):
    """The files of the session of a lease. They are added only while it is held, and belong to the user."""

    def __init__(self, cell: Cell, lease: Lease, user: str | None) -> None:
        self._cell, self._lease, self._user = cell, lease, user

    @cached_property
    def _files(self) -> SessionFiles:
        lease = self._lease
        return SessionFiles(self._cell, lease.session_id, fence=lease.fence, user=self._user)

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        return await patiently(self._lease, work)
