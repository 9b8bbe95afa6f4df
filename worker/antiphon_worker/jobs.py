"""What a stock ``rq worker --serializer json`` runs: one turn, with a loop, a lease and a keeper of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from antiphon.errors import AgentError
from antiphon.input.ids import TurnId
from antiphon.redis.cells import open_cells
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_like
from antiphon_worker.app import load_app
from antiphon_worker.process.isolated_turn import run_one_turn
from antiphon_worker.process.worker import worker_name
from antiphon_worker.rq.submission import submit_job
from antiphon_worker.settings import Settings
from antiphon_worker.supervisor.pulse import beating_in_stock_worker

__all__ = ["run_turn"]


def run_turn(*arguments: Any, **options: Any) -> dict[str, Any] | None:
    """Run the turn whose id the job carries, or the one it describes: ``(session_id, text, options)``.

    Gives the response; raises ``TurnFailed`` where the turn failed, so that RQ shows the job as failed. Gives None
    where the turn is not this worker's to run now: its record is left to the session.
    """
    from rq import get_current_job

    job = get_current_job()
    if job is None:
        raise AgentError("run_turn runs inside an RQ worker; elsewhere use Client.submit().")
    settings = Settings.load()

    def open_cell() -> Cell:
        return Cell(open_like(job.connection), prefix=settings.prefix)

    async def run() -> dict[str, Any] | None:
        cell = open_cell()
        try:
            if len(arguments) != 1:
                cells = open_cells(settings.cell_urls, prefix=settings.prefix)
                await submit_job(cell, cells, job.id, job.origin, list(arguments), options)
        finally:
            await cell.redis.aclose()
        worker = job.worker_name or worker_name()
        app = load_app(settings.app)
        try:
            async with beating_in_stock_worker(settings.stall_timeout):
                record = await run_one_turn(TurnId(job.id), settings, app, open_cell, worker)
        finally:
            await app.aclose()
        if record is None:
            return None
        return {"turn_id": record.turn_id, "session_id": record.session_id, "status": record.status}

    return asyncio.run(run())
