"""Runs the demo once: the conversations, their display and the killed worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec import Struct

from antiphon.client import AsyncClient
from antiphon_worker.playground.demo.accident import Accident, kill_a_worker
from antiphon_worker.playground.demo.play import play, raise_when_silent
from antiphon_worker.playground.demo.record import SessionRecord
from antiphon_worker.playground.demo.screen import Screen
from antiphon_worker.playground.demo.stage import Stage

SILENCE_SECONDS = 120.0


class Performance(Struct):
    """The results to check. ``accident`` is None if no worker was killed."""

    records: Sequence[SessionRecord]
    accident: Accident | None
    seconds: float


async def perform(
    records: Sequence[SessionRecord], stage: Stage, screen: Screen, *, kill: bool
) -> Performance:
    """Run all sessions to their end. Raises ``AgentError`` if that is not possible."""
    began = time.monotonic()
    async with AsyncClient(stage.redis_url) as speaker, AsyncClient(stage.redis_url) as watcher:
        accident = await _until_first(
            _play(records, stage, screen, speaker, watcher, kill=kill),
            screen.run(records),
            raise_when_silent(records, SILENCE_SECONDS),
            stage.watch(),
        )
    return Performance(records, accident, time.monotonic() - began)


async def _play(
    records: Sequence[SessionRecord],
    stage: Stage,
    screen: Screen,
    speaker: AsyncClient,
    watcher: AsyncClient,
    *,
    kill: bool,
) -> Accident | None:
    killing = asyncio.create_task(_kill(records, stage, screen)) if kill else None
    try:
        await play(records, speaker, watcher)
        return await killing if killing else None
    finally:
        if killing:
            killing.cancel()


async def _kill(records: Sequence[SessionRecord], stage: Stage, screen: Screen) -> Accident | None:
    accident = await kill_a_worker(stage.cell, records, screen.note)
    if accident is not None:
        screen.note(f"its turns continue elsewhere after at most {max(accident.recovery_ms):,.0f} ms")
    return accident


async def _until_first(work: Coroutine[Any, Any, Any], *beside: Coroutine[Any, Any, None]) -> Any:
    """Return the result of the work. Tasks beside it may only raise, and end with it."""
    tasks = [asyncio.ensure_future(one) for one in (work, *beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
