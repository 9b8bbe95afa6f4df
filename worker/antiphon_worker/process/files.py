"""The stored files of the session whose turn a worker runs."""

from __future__ import annotations

from functools import partial

from antiphon.input.ids import SessionId
from antiphon.redis.files import SessionFiles
from antiphon.wire.cell import Cell
from antiphon_worker.loop.files import TurnFiles
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease


def files_of(cell: Cell, session: SessionId, lease: Lease) -> TurnFiles:
    """Return the files of a session, for as long as its turn holds the lease."""
    return TurnFiles(partial(SessionFiles, cell, session), partial(patiently, lease))
