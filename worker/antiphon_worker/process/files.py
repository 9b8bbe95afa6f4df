"""The stored files of the session whose turn a worker runs."""

from __future__ import annotations

from functools import partial

from antiphon.redis.files import SessionFiles
from antiphon.wire.cell import Cell
from antiphon_worker.loop.files import TurnFiles
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease


def files_of(cell: Cell, lease: Lease, user: str | None) -> TurnFiles:
    """Return the files of the session of a lease. They are added only while it is held, as those of the user."""
    return TurnFiles(
        partial(SessionFiles, cell, lease.session_id, fence=lease.fence, user=user), partial(patiently, lease)
    )
