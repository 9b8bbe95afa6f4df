"""Saves sessions to the archive before they expire in Redis, and loads them from it.

Archived sessions have the saved form (``antiphon.session.saved``) that ``Session.from_dict`` reads, with the
additional key ``archived`` for fields that only Redis has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import timeout
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord, SettingsError, StoreError, StoreUnavailable
from antiphon.model import Message
from antiphon.model.files import StoredFile
from antiphon.redis.archived import ONLY_IN_REDIS, noted_ends, restore
from antiphon.redis.edits import Found
from antiphon.redis.files import SessionFiles
from antiphon.session.saved import read_saved, same_messages
from antiphon.stores.base import SessionStore
from antiphon.stores.encrypted import SealedStore
from antiphon.stores.turns import IndexedTurn, TurnIndex
from antiphon.tools.threads import Threads
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
from antiphon.wire.ends import FIELD
from antiphon_worker.loop.toolbox import is_stop, text_of


class NewCopy(Struct):
    """The new copy of a session for the store.

    ``lost`` counts messages that Redis has lost and the copy keeps. ``replaced`` is the earlier copy, if it has
    messages that the new one lacks because the history was shortened on purpose, or if it cannot be read.
    """

    data: dict[str, Any]
    lost: int = 0
    replaced: Mapping[str, Any] | None = None

    def put_files(self, files: Sequence[StoredFile]) -> None:
        """Add the session's stored files to those kept for messages that only the earlier copy has."""
        kept = {one["id"]: one for one in self.data.get("media", [])}
        new: list[dict[str, Any]] = msgspec.to_builtins(files)
        self.data["media"] = [*(kept | {one["id"]: one for one in new}).values()]


def new_copy(ending: Ending, former: Mapping[str, Any] | None) -> NewCopy:
    """Return the copy of an ending session. It keeps the messages of the earlier copy, unless it was shortened.

    Raises ``CorruptRecord`` if the session cannot be read. An earlier copy that cannot be read is replaced.
    """
    data = archived_form(ending)
    if former is None:
        return NewCopy(data)
    try:
        before = read_saved(former).messages
    except CorruptRecord:
        return NewCopy(data, replaced=former)
    now = read_saved(data).messages
    if same_messages(now[: len(before)], before):
        return NewCopy(data)
    if "shortened" in ending.fields:
        return NewCopy(data, replaced=former)
    return _completed(data, now, former, before)


def _completed(
    data: dict[str, Any], now: list[Message], former: Mapping[str, Any], before: list[Message]
) -> NewCopy:
    """Return a copy with all messages of the earlier one, and those that the session has received since."""
    common = 0
    while common < min(len(before), len(now)) and same_messages(
        before[common : common + 1], now[common : common + 1]
    ):
        common += 1
    new = now[common:]
    saved = next(  # how many of these the earlier copy has already
        count
        for count in range(min(len(before), len(new)), -1, -1)
        if same_messages(before[len(before) - count :], new[:count])
    )
    data["messages"] = [*former["messages"], *data["messages"][common + saved :]]
    if former.get("media"):
        data["media"] = former["media"]
    for name in ("window", FIELD):  # they refer to other messages, like the summary
        data["archived"].pop(name, None)
    data.pop("summary", None)
    if former.get("summary"):
        data["summary"] = former["summary"]
    return NewCopy(data, lost=len(before) - common - saved)


def archived_form(ending: Ending) -> dict[str, Any]:
    """Return a session's saved form with the fields that only Redis has. Raises ``CorruptRecord``."""
    found = Found(ending.fields, ending.history, len(ending.history), [])
    more = {name: found.text(name) for name in ONLY_IN_REDIS if name in found.fields}
    if noted := noted_ends(found):
        more[FIELD] = noted
    return {**found.saved(ending.session_id).to_dict(), "archived": more}


archive_log = logging.getLogger("antiphon.archive")

STORE_SECONDS = 20.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0


class ArchiveUnavailable(StoreUnavailable):
    """The archive's store cannot be used now; try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Archive:
    """Calls a store in threads of its own. Its errors, except ``CorruptRecord``, become ``ArchiveUnavailable``.

    It logs once that the store fails, and once that it works again.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = SealedStore(store)
        self._threads = Threads(limit=16)
        self._failing_since = 0.0

    async def save(self, session_id: str, make: Callable[[], dict[str, Any]]) -> None:
        """Replace the store's copy of a session with what ``make`` returns. A long session may take a while."""
        await self._call(lambda: self._store.save(session_id, make()))

    async def load(self, session_id: str) -> dict[str, Any] | None:
        """Return the store's copy of a session."""
        return await self._call(partial(self._store.load, session_id))

    async def delete(self, session_id: str) -> None:
        """Remove the store's copy of a session."""
        await self._call(partial(self._store.delete, session_id))

    @property
    def searchable(self) -> bool:
        """Whether the store's database supports a full-text index of turns."""
        return self._store.turn_index() is not None

    async def prepare_index(self) -> None:
        """Create the index of turns if it does not exist."""
        await self._call(lambda: self._index().prepare())

    async def index(self, gone: Sequence[tuple[str, str]], new: Sequence[IndexedTurn]) -> None:
        """Remove turns from the index, named by session and id, and write others."""

        def write() -> None:
            index = self._index()
            if gone:
                index.remove(gone)
            if new:
                index.put(new)

        await self._call(write)

    def _index(self) -> TurnIndex:
        index = self._store.turn_index()
        if index is None:
            raise SettingsError("The store of the archive has no full-text index.")
        return index

    def close(self) -> None:
        """Close the store's connections, if it has any."""
        self._store.close()

    async def _call(self, call: Callable[[], Any]) -> Any:
        try:
            async with timeout(STORE_SECONDS):
                answer = await self._threads.run(call)
        except CorruptRecord:
            raise
        except TimeoutError as exc:
            raise self._failed(f"no answer within {STORE_SECONDS:g} s") from exc
        except BaseException as exc:
            if is_stop(exc):
                raise
            archive_log.debug("the archive fails", exc_info=exc)
            raise self._failed(text_of(exc) or type(exc).__name__, type(exc).__name__) from exc
        self._works()
        return answer

    def _failed(self, why: str, kind: str = "") -> ArchiveUnavailable:
        if not self._failing_since:
            self._failing_since = monotonic()
            archive_log.error(
                "the archive fails: %s. Turns of sessions that it may hold wait until it works again",
                kind or why,
                extra={"action": "archive_fails"},
            )  # fmt: skip
        retry_after = max(FIRST_RETRY_SECONDS, monotonic() - self._failing_since)
        return ArchiveUnavailable(
            f"The archive of sessions fails: {why}", retry_after=min(retry_after, LONGEST_RETRY_SECONDS)
        )

    def _works(self) -> None:
        if self._failing_since:
            archive_log.info(
                "the archive works again after %.1f s", monotonic() - self._failing_since,
                extra={"action": "archive_works"},
            )  # fmt: skip
            self._failing_since = 0.0


log = logging.getLogger("antiphon.archiver")

PAUSE_SECONDS = 1.0
OUTAGE_PAUSE_SECONDS = 5.0
PUT_OFF_AT_ONCE = 200
SAVE_WITHIN_SECONDS = 20.0
KEEP_REPLACED_MS = 24 * 3600 * 1000


class Archiver:
    """Checks once a second for sessions that end soon. The archivers of several workers share the work.

    A session is read, saved, and only then marked, so that it is saved again after a crash in between. A session that
    was used in the meantime is not marked: it continues, and is saved again at its end. While the store fails, ending
    sessions get more time. The archiver has connections of its own, so that a long session does not delay other
    scripts.
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
                except StoreError as exc:
                    if not exc.retryable:
                        raise
                    await asyncio.sleep(OUTAGE_PAUSE_SECONDS)  # the consumer logs the error
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await self._cell.redis.aclose()

    async def _begin(self) -> None:
        while True:
            try:
                return await begin_archiving(self._cell)
            except StoreError as exc:
                if not exc.retryable:
                    raise
                await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    async def sweep(self) -> None:
        """Do all due tasks. Raises the ``StoreError`` of Redis."""
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
        """Save a session, unless this process was paused since reading it: another may have saved a later state."""
        ending = open_ending(self._cell, ending)
        former = await self._archive.load(ending.session_id)
        copy = await asyncio.to_thread(new_copy, ending, former)
        if "media" in ending.fields:
            copy.put_files(await SessionFiles(self._cell, ending.session_id).whole())
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
        """Keep a second copy of data that the store is about to lose, for a day. Log what Redis has lost."""
        if copy.lost:
            log.warning(
                "session %s has lost %d messages in Redis: its archived copy keeps them",
                ending.session_id, copy.lost,
                extra={"action": "archive_completed", "session": ending.session_id},
            )  # fmt: skip
        if copy.replaced is None:
            return
        beside, former = f"{ending.session_id[:80]}\x1f{time.time_ns() // 1_000_000}", dict(copy.replaced)
        await set_aside(self._cell, ending.session_id, beside, KEEP_REPLACED_MS)
        await self._archive.save(beside, lambda: former)
        log.info(
            "session %s was shortened: its earlier archived copy is kept for a day as %r", ending.session_id, beside,
            extra={"action": "archive_replaced", "session": ending.session_id, "copy": beside},
        )  # fmt: skip
