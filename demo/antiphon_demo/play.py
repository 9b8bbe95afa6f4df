"""Runs the demo once: the turns of all sessions with three subscribers each, their display and the killed worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon_demo.accident import Accident, kill_a_worker
from antiphon_demo.record import Follower, SessionRecord
from antiphon_demo.screen import Screen
from antiphon_demo.stage import Stage

FEW_CHARACTERS = 10
AWAY_EVENTS = 8


async def play(records: Sequence[SessionRecord], speaker: AsyncClient, watcher: AsyncClient) -> None:
    """Run all sessions in parallel. Return when each has ended and every subscriber has received all events.

    The late and the reconnected subscribers use connections of their own, those of ``watcher``.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for record in records:
                group.create_task(_play_one(record, speaker, watcher), name=record.session_id)
    except* AgentError as errors:
        raise errors.exceptions[0] from None


async def _play_one(record: SessionRecord, speaker: AsyncClient, watcher: AsyncClient) -> None:
    session = record.session_id
    following = [
        asyncio.create_task(_follow(record.live, speaker, session)),
        asyncio.create_task(_join_late(record, watcher)),
        asyncio.create_task(_reconnect(record, watcher)),
    ]
    speaking = asyncio.create_task(_speak_to_the_end(record, speaker))
    every = [speaking, *following]
    try:
        await asyncio.wait(every, return_when=asyncio.FIRST_COMPLETED)
        for task in every:
            if task.done():
                task.result()  # a subscriber only ends with an error: raise it
    finally:
        for task in every:
            task.cancel()
        await asyncio.gather(*every, return_exceptions=True)
    record.messages = (await speaker.snapshot(session)).messages


async def _speak_to_the_end(record: SessionRecord, client: AsyncClient) -> None:
    """Submit all turns, and return when every subscriber has received the last event."""
    await _speak(record, client)
    last = record.live.cursor
    for follower in (record.live, record.late, record.reconnected):
        await follower.until(lambda follower=follower: follower.cursor >= last)


async def _speak(record: SessionRecord, client: AsyncClient) -> None:
    """Submit the turns one after the other, and stop if one fails."""
    for text in record.conversation.turns:
        turn = record.submitting(text)
        await client.submit(record.session_id, text, agent=record.agent)
        await record.live.until(lambda turn=turn: turn.ended is not None)
        if record.failed:
            return


async def _follow(follower: Follower, client: AsyncClient, session: str) -> None:
    async for event in client.subscribe(session, after=follower.cursor):
        follower.take(event)


async def _join_late(record: SessionRecord, client: AsyncClient) -> None:
    """Subscribe in the middle of the conversation, from its first event on."""
    await record.live.until(lambda: _under_way(record))
    await _follow(record.late, client, record.session_id)


async def _reconnect(record: SessionRecord, client: AsyncClient) -> None:
    """Subscribe from the beginning, leave in the middle, and later continue from the cursor."""
    first = asyncio.create_task(_follow(record.reconnected, client, record.session_id))
    try:
        await record.live.until(lambda: _under_way(record))
    finally:
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
    left_at = record.live.cursor
    await record.live.until(lambda: record.done or record.live.cursor >= left_at + AWAY_EVENTS)
    await _follow(record.reconnected, client, record.session_id)


def _under_way(record: SessionRecord) -> bool:
    return record.done or (record.halfway and record.answering(FEW_CHARACTERS))


async def raise_when_silent(records: Sequence[SessionRecord], seconds: float) -> None:
    """Raise ``AgentError`` if no session has had an event for too long."""
    count, since = 0, time.monotonic()
    while True:
        await asyncio.sleep(1)
        now = sum(len(record.live.events) for record in records)
        if now != count:
            count, since = now, time.monotonic()
        elif time.monotonic() - since > seconds:
            raise AgentError(f"Nothing has happened for {seconds:.0f} s.")


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
    """Return the result of the work. The other tasks may only raise, and are cancelled when it ends."""
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
