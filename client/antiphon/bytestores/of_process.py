"""The byte store of this process, from ``ANTIPHON_FILES`` or ``use_byte_store``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from antiphon.bytestores.base import ByteStore
from antiphon.bytestores.folder import FolderStore
from antiphon.bytestores.s3 import S3Store
from antiphon.errors import AgentError, SettingsError, StoreUnavailable
from antiphon.settings import DeclaredSettings, setting
from antiphon.tools.threads import Threads


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings(DeclaredSettings):
    """The setting of processes that read or write files of sessions."""

    files: str = setting(
        "",
        "Where the contents of files are stored: file:///path/of/a/folder or s3://bucket/prefix; by default in Redis",
        shown=False,
    )


FILES_VARIABLE = FileSettings.variable("files")


class StoredBytes:
    """A byte store for the event loop: runs its methods in threads. Each raises ``StoreUnavailable``."""

    def __init__(self, store: ByteStore) -> None:
        self.store = store
        self._threads = Threads(limit=16)

    async def save(self, name: str, data: bytes) -> None:
        await self._call(partial(self.store.save, name, data))

    async def load(self, name: str) -> bytes | None:
        return await self._call(partial(self.store.load, name))

    async def delete(self, names: Sequence[str]) -> None:
        await self._call(partial(self.store.delete, names))

    async def page(self, names: Iterator[str], most: int) -> list[str]:
        """Take up to ``most`` names from the iterator of ``store.names``."""
        return await self._call(lambda: [name for name, _ in zip(names, range(most), strict=False)])

    async def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return await self._threads.run(call)
        except AgentError:
            raise
        except Exception as exc:
            why = str(exc) or type(exc).__name__
            raise StoreUnavailable(f"The byte store of files fails: {why.rstrip('.')}.") from exc


_of_process: list[StoredBytes] = []


def use_byte_store(store: ByteStore | str | None) -> None:
    """Store the contents of files here from now on, instead of in ``ANTIPHON_FILES``. None undoes this.

    Call it in every process before it uses a session, and in the module of an App, which every worker process imports.
    Contents that are in Redis stay there. Raises ``SettingsError`` for a URL of an unknown form.

    >>> from antiphon.bytestores import FolderStore, use_byte_store
    >>> use_byte_store(FolderStore("/tmp"))
    >>> use_byte_store(None)
    """
    _of_process[:] = (
        [] if store is None else [_opened(store) if isinstance(store, str) else StoredBytes(store)]
    )


def bytes_of_process() -> StoredBytes | None:
    """Return the byte store from ``use_byte_store`` or ``ANTIPHON_FILES``, or None. Raises ``SettingsError``."""
    if _of_process:
        return _of_process[0]
    url = os.environ.get(FILES_VARIABLE, "").strip()
    return _opened(url) if url else None


@lru_cache(8)
def _opened(url: str) -> StoredBytes:
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "file" and rest.startswith("/"):
        return StoredBytes(FolderStore(rest))
    if separator and scheme == "s3" and rest:
        return StoredBytes(S3Store.from_url(url))
    raise SettingsError(
        f"{FILES_VARIABLE} must be file:///path/of/a/folder or s3://bucket/prefix; give any other store to "
        "antiphon.bytestores.use_byte_store."
    )
