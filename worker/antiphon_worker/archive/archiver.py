"""Saves sessions to the archive before their life in Redis ends, and removes the copies of deleted ones."""

from __future__ import annotations

import asyncio
import logging
import time

from antiphon.errors import CorruptRecord, StoreError
from antiphon.redis.copies.restore import restore
from antiphon.wire.archiving import (
    Ending,
    Forget,
    Late,
    Unasked,
    begin_archiving,
    forgotten,
    mark_archived,
    open_ending,
    put_off,
    set_aside,
    take_work,
)
from antiphon.wire.cell import Cell
from antiphon_worker.archive.form import NewCopy, new_copy
from antiphon_worker.archive.store import Archive, ArchiveUnavailable

__all__ = ["Archiver"]

log = logging.getLogger("antiphon.archiver")

PAUSE_SECONDS = 1.0
OUTAGE_PAUSE_SECONDS = 5.0
PUT_OFF_AT_ONCE = 200
SAVE_WITHIN_SECONDS = 20.0
KEEP_REPLACED_MS = 24 * 3600 * 1000


class Archiver:
    """Looks once a second for sessions that end soon. The archivers of several workers share the work.

    A session is read, saved, and only then marked, so that a crash meanwhile saves it again. A session that was used
    meanwhile is not marked: it continues, and is saved again at its end. While the store fails, ending sessions get
    more time. The archiver has connections of its own, so that a long session does not delay other scripts.
    """

    def __init__(self, cell: Cell, archive: Archive) -> None:
        self._cell = cell
        self._archive = archive
        self._try_again_at = 0.0

    async def run(self) -> None:
        """Archive until cancelled, and close the cell's connections."""
        try:
            await self._begin()
            while True:
                try:
                    await self.sweep()
                except StoreError:
                    await asyncio.sleep(OUTAGE_PAUSE_SECONDS)  # the consumer logs the error
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await self._cell.redis.aclose()

    async def _begin(self) -> None:
        while True:
            try:
                return await begin_archiving(self._cell)
            except StoreError:
                await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    async def sweep(self) -> None:
        """Do all tasks that are due. Raises Redis' ``StoreError``."""
        try:
            while time.monotonic() >= self._try_again_at:
                if not await self._work():
                    return
        except ArchiveUnavailable as exc:
            self._try_again_at = time.monotonic() + exc.retry_after
        await put_off(self._cell, PUT_OFF_AT_ONCE)

    async def _work(self) -> bool:
        """Do one task. Returns False if there is none."""
        asked = time.monotonic()
        work = await take_work(self._cell)
        if work is None:
            return False
        try:
            match work:
                case Ending():
                    await self._save(work, asked)
                case Unasked(session_id):
                    await restore(self._cell, self._archive.load, session_id)
                case Forget(session_id):
                    await self._archive.delete(session_id)
                    await forgotten(self._cell, session_id)
                case Late(session_id):
                    log.warning(
                        "session %s ended before a worker could archive it", session_id,
                        extra={"action": "archived_late", "session": session_id},
                    )  # fmt: skip
        except CorruptRecord as exc:
            log.error(
                "session %s cannot be archived: a stored record cannot be read", work.session_id,
                extra={"action": "archive_corrupt", "session": work.session_id},
            )  # fmt: skip
            log.debug("session %s cannot be archived: %s", work.session_id, exc)
        return True

    async def _save(self, ending: Ending, asked: float) -> None:
        """Save a session, unless this process stood still since the read: another may have saved a later state."""
        ending = open_ending(self._cell, ending)
        former = await self._archive.load(ending.session_id)
        copy = await asyncio.to_thread(new_copy, ending, former)
        await self._keep_replaced(ending, copy)
        if time.monotonic() - asked > SAVE_WITHIN_SECONDS:
            return
        await self._archive.save(ending.session_id, lambda: copy.data)
        if await mark_archived(self._cell, ending):
            log.info(
                "session %s is archived", ending.session_id,
                extra={"action": "archived", "session": ending.session_id},
            )  # fmt: skip

    async def _keep_replaced(self, ending: Ending, copy: NewCopy) -> None:
        """Save a second copy, for a day, of what the store is about to lose. Log what Redis has lost."""
        if copy.lost:
            log.warning(
                "session %s has lost %d messages in Redis: its archived copy keeps them",
                ending.session_id, copy.lost,
                extra={"action": "archive_completed", "session": ending.session_id},
            )  # fmt: skip
        if copy.replaced is None:
            return
        beside, former = f"{ending.session_id[:80]}\x1f{time.time_ns() // 1_000_000}", dict(copy.replaced)
        await set_aside(self._cell, beside, KEEP_REPLACED_MS)
        await self._archive.save(beside, lambda: former)
        log.info(
            "session %s was shortened: its earlier archived copy is kept for a day as %r", ending.session_id, beside,
            extra={"action": "archive_replaced", "session": ending.session_id, "copy": beside},
        )  # fmt: skip
