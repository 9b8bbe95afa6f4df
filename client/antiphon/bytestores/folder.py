"""``FolderStore``: contents as files in a folder, such as a network share that all processes use."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from antiphon.bytestores.base import ByteStore
from antiphon.errors import SettingsError

TRIES = 10
NEW = ".new"
LEFT_BEHIND_SECONDS = 24 * 3600


class FolderStore(ByteStore):
    """Stores each content as a file in this folder, which must exist and be the same for all processes.

    Raises ``SettingsError`` if the folder does not exist.

    >>> store = FolderStore("/tmp")
    >>> store.save("example/1", b"Buy milk.")
    >>> store.load("example/1"), list(store.names("example/"))
    (b'Buy milk.', ['example/1'])
    >>> store.delete(["example/1"])
    >>> store.load("example/1") is None
    True
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            raise SettingsError(f"The folder for files, {os.fspath(folder)!r}, does not exist: create it.")

    def save(self, name: str, data: bytes) -> None:
        """Write the content to a new file, and rename the file when it is on the disk."""
        path, new = self._folder / name, self._folder / NEW / secrets.token_hex(16)
        for _ in range(TRIES):  # another process may remove the folder while it is empty
            with suppress(FileNotFoundError):
                new.parent.mkdir(exist_ok=True)
                _write(new, data)
                path.parent.mkdir(parents=True, exist_ok=True)
                new.replace(path)
                return _on_disk(path.parent)
        raise OSError(f"the folder of {name!r} is removed again and again")

    def load(self, name: str) -> bytes | None:
        """Read the file with this name."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def delete(self, names: Sequence[str]) -> None:
        """Remove these files, and folders that have become empty."""
        for name in names:
            path = self._folder / name
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty, or another process has removed it
                for parent in path.relative_to(self._folder).parents[:-1]:
                    (self._folder / parent).rmdir()

    def names(self, prefix: str) -> Iterator[str]:
        """Walk through the folder. Also remove files whose writer died more than a day ago."""
        self._remove_left_behind()
        yield from self._below(prefix.rstrip("/"))

    def _below(self, name: str) -> Iterator[str]:
        try:
            found = sorted(os.scandir(self._folder / name), key=lambda one: one.name)
        except FileNotFoundError:
            return
        for one in found:
            if one.is_dir():
                yield from self._below(f"{name}/{one.name}")
            else:
                yield f"{name}/{one.name}"

    def _remove_left_behind(self) -> None:
        before = time.time() - LEFT_BEHIND_SECONDS
        with suppress(FileNotFoundError):
            for one in os.scandir(self._folder / NEW):
                if one.stat().st_mtime < before:
                    Path(one.path).unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _on_disk(folder: Path) -> None:
    """Make the names in a folder survive a power loss, if the system supports this."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
