"""The archive: the store that keeps sessions after their life in Redis, called without blocking the event loop."""

from __future__ import annotations

import logging
from asyncio import timeout
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

from antiphon.errors import CorruptRecord, StoreUnavailable
from antiphon.stores.base import SessionStore
from antiphon.stores.sealed import SealedStore
from antiphon.tools.threads import Threads
from antiphon_worker.loop.tools.calls import is_stop, text_of

__all__ = ["Archive", "ArchiveUnavailable"]

log = logging.getLogger("antiphon.archive")

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
            log.debug("the archive fails", exc_info=exc)
            raise self._failed(text_of(exc) or type(exc).__name__, type(exc).__name__) from exc
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
