"""Kills a worker process (``kill -9``) in the middle of an answer, and measures how long the recovery takes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from antiphon.wire.cell import Cell
from antiphon.wire.lists.inspection import workers
from antiphon_demo.record import PlayedTurn, SessionRecord

MID_ANSWER_CHARACTERS = 60
LOOK_SECONDS = 0.01
TRIES = 5


class Accident(Struct):
    """The killed process, the time, and the interrupted turns with the ms until each one continued."""

    pid: int
    at: float
    cut: list[PlayedTurn] = field(default_factory=list[PlayedTurn])
    recovery_ms: list[float] = field(default_factory=list[float])


async def kill_a_worker(
    cell: Cell, records: Sequence[SessionRecord], note: Callable[[str], None]
) -> Accident | None:
    """Kill the process that holds the most sessions while it answers. Return when all interrupted turns have continued.

    Returns None if every answer ended before a process could be killed.
    """
    for _ in range(TRIES):
        victim = await _victim(cell, records)
        if victim is None:
            return None
        pid, held = victim
        cut = {record: record.turns[-1].attempt for record in held if record.answering(0)}
        accident = Accident(pid, time.monotonic())
        os.kill(pid, signal.SIGKILL)
        answers = "one answer" if len(cut) == 1 else f"{len(cut)} answers"
        note(f"kill -9 of worker process {pid}, in the middle of {answers}")
        for record, attempt in cut.items():
            turn = record.turns[-1]
            await record.live.until(lambda turn=turn, attempt=attempt: turn.ended or turn.attempt > attempt)
            if turn.attempt > attempt:
                accident.cut.append(turn)
                accident.recovery_ms.append((turn.attempts[attempt + 1] - accident.at) * 1000)
        if accident.cut:
            return accident
    return None


async def _victim(cell: Cell, records: Sequence[SessionRecord]) -> tuple[int, list[SessionRecord]] | None:
    """Return the process that holds the most sessions, one of them in the middle of an answer, or None at the end."""
    while not all(record.done for record in records):
        halfway = [record for record in records if record.halfway]
        answering = {record.session_id for record in halfway if record.answering(MID_ANSWER_CHARACTERS)}
        found = await _holders(cell, records) if answering else []
        for pid, held in sorted(found, key=lambda one: -len(one[1])):
            if any(record.session_id in answering for record in held):
                return pid, held
        await asyncio.sleep(LOOK_SECONDS)
    return None


async def _holders(cell: Cell, records: Sequence[SessionRecord]) -> list[tuple[int, list[SessionRecord]]]:
    """Return the sessions that each worker process holds, by process id."""
    found: list[tuple[int, list[SessionRecord]]] = []
    for name, pid in (await workers(cell)).items():
        held: list[bytes] = await cell.redis.hkeys(cell.keys.held(name))  # pyright: ignore[reportGeneralTypeIssues, reportAssignmentType]
        found.append((pid, [record for record in records if record.session_id.encode() in held]))
    return found
