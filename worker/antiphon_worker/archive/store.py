"""The archive: the store that keeps sessions after their life in Redis, called without blocking the event loop."""

from __future__ import annotations

import logging
from asyncio import timeout
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from antiphon.errors import CorruptRecord, SettingsError, StoreUnavailable
from antiphon.stores.base import SessionStore
from antiphon_worker.loop.threads import Threads

__all__ = ["Archive", "ArchiveUnavailable", "store_at"]

log = logging.getLogger("antiphon.archive")

STORE_SECONDS = 20.0
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 30.0


class ArchiveUnavailable(StoreUnavailable):
    """The archive's store cannot be used now; try again after ``retry_after`` seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Archive:
    """Calls a store in threads of its own. Whatever a store raises is ``ArchiveUnavailable``, but ``CorruptRecord``.

    The log says once that the store fails, and once that it works again.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._threads = Threads(limit=16)
        self._failing_since = 0.0

    async def save(self, session_id: str, make: Callable[[], dict[str, Any]]) -> None:
        """Keep what ``make`` makes of a session, in place of what the store had of it. A long one takes its time."""
        await self._call(lambda: self._store.save(session_id, make()))

    async def load(self, session_id: str) -> dict[str, Any] | None:
        """What the store has of a session."""
        return await self._call(partial(self._store.load, session_id))

    async def delete(self, session_id: str) -> None:
        """Remove what the store has of a session."""
        await self._call(partial(self._store.delete, session_id))

    def close(self) -> None:
        """Close the store's connections, where it has such a thing."""
        close = getattr(self._store, "close", None)
        if close is not None:
            close()

    async def _call(self, call: Callable[[], Any]) -> Any:
        try:
            async with timeout(STORE_SECONDS):
                answer = await self._threads.run(call)
        except CorruptRecord:
            raise
        except TimeoutError as exc:
            raise self._failed(f"no answer within {STORE_SECONDS:g} s") from exc
        except Exception as exc:
            log.debug("the archive fails", exc_info=exc)
            raise self._failed(str(exc) or type(exc).__name__, type(exc).__name__) from exc
        self._works()
        return answer

    def _failed(self, why: str, kind: str = "") -> ArchiveUnavailable:
        if not self._failing_since:
            self._failing_since = monotonic()
            log.error(
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
            log.info(
                "the archive works again after %.1f s", monotonic() - self._failing_since,
                extra={"action": "archive_works"},
            )  # fmt: skip
            self._failing_since = 0.0


def store_at(url: str) -> SessionStore:
    """The store that ``sqlite:///path`` or ``redis://host/0`` names. Raises ``SettingsError``."""
    scheme, _, path = url.partition("://")
    if scheme == "sqlite" and path:
        from antiphon.stores.sqlite import SQLiteStore

        if not Path(path).parent.is_dir():
            raise SettingsError(
                f"ANTIPHON_ARCHIVE (--archive) names {path!r}, whose directory does not exist: make it."
            )
        return SQLiteStore(path)
    if scheme in ("redis", "rediss", "unix"):
        from antiphon.stores.redis import RedisStore

        return RedisStore(url)
    raise SettingsError(
        "ANTIPHON_ARCHIVE (--archive) must be sqlite:///path/of/a/file or redis://host:6379/0; "
        "any other store is given to the App: App(store=…)."
    )
