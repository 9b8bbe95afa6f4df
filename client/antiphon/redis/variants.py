"""Lets workers run an ended turn again on one of their revisions, and reads the results."""

from __future__ import annotations

import hashlib
import random
import uuid
from contextlib import suppress

from antiphon.errors import AgentError, TurnDeleted, UsageError
from antiphon.input.ids import TurnId
from antiphon.input.values import is_a, now_ms
from antiphon.model import TERMINAL
from antiphon.model.recording import VariantRun
from antiphon.redis.turn_records import turn_info
from antiphon.wire.cell import Cell
from antiphon.wire.lists.agents import advertised
from antiphon.wire.records import TurnRecord
from antiphon.wire.variants import keep_variant, variants_of

MOST_RUNS = 20
LONGEST_MS = 86_400_000
WORKERS_ONLY = "Only workers run variants: without Redis, use antiphon.testing.replay."


async def start_variants(
    cell: Cell, turn_id: TurnId, revision: str, *, runs: int, step: int, model: str | None, system: str | None,
    key: str | None,
) -> list[VariantRun]:  # fmt: skip
    """Let workers with a revision run the turn again. Raises as ``AsyncTurn.replay`` does."""
    if not is_a(runs, int) or not 1 <= runs <= MOST_RUNS:
        raise UsageError(f"runs= must be a number from 1 to {MOST_RUNS}, not {runs!r}.")
    if not is_a(step, int) or step < 1:
        raise UsageError(f"step= must be a number from 1, not {step!r}.")
    record = await _ended(cell, turn_id)
    agent, found, workers = await _workers_with(cell, revision)
    started: list[VariantRun] = []
    for number in range(runs):
        name = hashlib.sha256(f"{turn_id} {key} {number}".encode()).hexdigest() if key else uuid.uuid4().hex
        run = VariantRun(name[:32], agent, found, "", now_ms(), step=step, model=model, system=system)
        random.shuffle(workers)
        for run.worker in workers:
            if await keep_variant(cell, record, run, tell=True):
                started.append(run)
                break
        else:
            raise _unavailable(revision)
    ids = {run.id for run in started}
    return [run for run in await read_variants(cell, turn_id) if run.id in ids]


async def read_variants(cell: Cell, turn_id: TurnId) -> list[VariantRun]:
    """Return the variants of a turn. Raises ``TurnNotFound``, ``TurnDeleted``.

    A variant is lost if its worker is gone, or has not run it within a day. The commands for running variants are
    sent again, because one may have been lost.
    """
    if not cell.has_disk:
        return []
    record = await cell.turn(turn_id)
    runs = await variants_of(cell, record)
    running = [run for run in runs if run.status == "running"]
    alive = await advertised(cell) if running else {}
    for run in running:
        if run.worker not in alive or now_ms() - run.at > LONGEST_MS:
            run.status = "lost"
        else:
            with suppress(AgentError):  # this Redis user may only read
                await keep_variant(cell, record, run, tell=True)
    return runs


async def _ended(cell: Cell, turn_id: TurnId) -> TurnRecord:
    record = await cell.turn(turn_id)
    if not cell.has_disk:
        raise UsageError(WORKERS_ONLY)
    if "deleted" in record.fields:
        raise TurnDeleted(turn_id=turn_id)
    if (status := turn_info(record).status) not in TERMINAL:
        raise UsageError(f"Turn {turn_id} is {status}: only ended turns can be replayed.")
    return record


async def _workers_with(cell: Cell, revision: str) -> tuple[str, str, list[str]]:
    """Return the agent, its revision and the workers that have it. Raises ``UsageError``."""
    agent, at, wanted = revision.rpartition("@")
    if not (agent and at and wanted):
        raise UsageError(f'A revision must be named as "agent@revision" or "agent@label", not {revision!r}.')
    found: dict[str, list[str]] = {}
    for worker, agents in (await advertised(cell)).items():
        own = agents.get(agent)
        if own is not None and wanted in (own.id, own.label):
            found.setdefault(own.id, []).append(worker)
    if len(found) > 1:
        raise UsageError(f"Several revisions of {agent} have the label {wanted}: name one by its hash.")
    if not found:
        raise _unavailable(revision)
    [(revision_id, workers)] = found.items()
    return agent, revision_id, workers


def _unavailable(revision: str) -> UsageError:
    return UsageError(f"No worker has {revision} now: start one with this revision of the agent.")
