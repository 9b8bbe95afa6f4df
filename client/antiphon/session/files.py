"""``SessionFiles``: the methods of ``AsyncSession`` for the files of a session."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Sequence
from contextlib import suppress
from mimetypes import guess_type
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from antiphon.errors import UsageError
from antiphon.input.values import is_a
from antiphon.model import File, Image, Message
from antiphon.model.files import FileEntry, StoredFile
from antiphon.model.parts import media_problem
from antiphon.session.runtime import Edit, Runtime, SessionRef
from antiphon.session.saved import SavedSession

Attachment: TypeAlias = File | Image | bytes | str | PathLike[str]
BINARY = "application/octet-stream"


class SessionFiles(ABC):
    """The methods of a session for its files."""

    _ref: SessionRef

    @abstractmethod
    async def _ready(self) -> Runtime: ...
    @abstractmethod
    async def _readable(self) -> Runtime: ...
    @abstractmethod
    async def _saved(self) -> SavedSession: ...
    @abstractmethod
    async def _edit(self, edit: Edit) -> None: ...

    async def files(self) -> dict[str, File]:
        """The files of the session by name, for use in messages.

        >>> await session.files()
        {}
        """
        return (await self._saved()).files

    async def add_file(
        self, file: Attachment, *, name: str | None = None, media_type: str | None = None
    ) -> File | Image:
        """Store a file in the session, and return it for use in messages: an ``Image``, or a ``File``.

        ``file`` is the content as bytes, a path, or a ``File`` or ``Image``. One with a ``url`` or the provider's
        ``file_id`` stays a reference. With a name (a path includes one), ``files`` lists it. The name also determines
        the media type, unless that is given.

        Content is stored once, however often it is added or used, and is deleted with the session. Messages, events
        and requests of turns contain only its id, so add large files here; large contents of messages are stored
        automatically. After a crash, repeat the call to continue. Raises ``UsageError``, ``LimitReached`` for a file
        that is too large, ``OSError`` for a path that cannot be read, and ``StoreError``.

        >>> photo = await session.add_file(b"PNG", name="photo.png")
        >>> photo.media_type, (await session.read_file(photo)).data
        ('image/png', b'PNG')
        >>> (await session.run(["What is this?", photo])).text
        'You said: What is this?'
        """
        part, content = attached(file, name, media_type)
        if content is not None:
            named = part.name if isinstance(part, File) else name
            entry = await (await self._ready()).add_file(self._ref, content, part.media_type, named)
            part = msgspec.structs.replace(part, id=entry.id)
            name = named
        else:
            name = name or (part.name if isinstance(part, File) else None)
            if not name:
                raise UsageError("The file has no name: use File(name=…).")
        if name:
            await self._edit(Edit(files={name: as_file(part, name)}))
        return part

    async def read_file(self, file: str | File | Image) -> StoredFile:
        """Return a stored file, with its content in ``data``. ``file`` is the file or its id.

        Raises ``NotFound`` if the session does not store it, and ``StoreError``.

        >>> note = await session.add_file(b"Buy milk.", media_type="text/plain")
        >>> found = await session.read_file(note.id)
        >>> found.data, found.size, found.media_type
        (b'Buy milk.', 9, 'text/plain')
        """
        return await (await self._readable()).read_file(self._ref, stored_id(file))

    async def stored_files(self) -> list[FileEntry]:
        """Return the stored files without their contents, ordered by id: added ones, and those of messages and tools.

        >>> note = await session.add_file(b"Buy milk.", name="note.txt")
        >>> [(one.name, one.size) for one in await session.stored_files() if one.id == note.id]
        [('note.txt', 9)]
        """
        return await (await self._readable()).stored_files(self._ref)

    async def load_files(self, messages: Sequence[Message]) -> list[Message]:
        """Return copies of the session's messages with the contents of stored files, as a model receives them.

        A file that was removed becomes a text. Raises ``StoreError``.

        >>> photo = await session.add_file(b"PNG", name="photo.png")
        >>> [message] = await session.load_files([Message.user([photo])])
        >>> message.parts[0].data
        'UE5H'
        """
        return await (await self._readable()).load_files(self._ref, [one.copied() for one in messages])

    async def remove_file(self, file: str | File | Image) -> bool:
        """Remove a file, and return whether the session stored it. A model then reads that it is no longer available.

        Removing or replacing messages removes no files. Raises ``StoreError``.

        >>> note = await session.add_file(b"Buy eggs.", media_type="text/plain")
        >>> await session.remove_file(note), await session.remove_file(note)
        (True, False)
        """
        file_id = stored_id(file)
        if names := [name for name, one in (await self.files()).items() if one.id == file_id]:
            with suppress(UsageError):  # a closed session keeps the names
                await self._edit(Edit(unnamed=names))
        return await (await self._ready()).remove_file(self._ref, file_id)


def attached(file: Any, name: str | None, media_type: str | None) -> tuple[File | Image, bytes | None]:
    """Return a message part for a file, and its content, which is None for a reference. Raises ``UsageError``."""
    if isinstance(file, bytes):
        return _part(name, media_type), file
    if is_a(file, str | PathLike):
        path = Path(fspath(cast("str | PathLike[str]", file)))
        return _part(name or path.name, media_type), path.read_bytes()
    if not is_a(file, File | Image):
        raise UsageError(f"add_file takes bytes, a path, a File or an Image, not {type(file).__name__}.")
    if problem := media_problem(file):
        raise UsageError(problem)
    part = copy.copy(file)
    if part.data is None:
        return part, None
    named = name or (part.name if isinstance(part, File) else None)
    try:
        content = b64decode(part.data, validate=True)
    except ValueError as exc:
        raise UsageError(f"The data of the file is not valid base64: {exc}.") from exc
    stored = _part(named, media_type or part.media_type)
    if isinstance(part, Image):
        stored = Image(media_type=stored.media_type, detail=part.detail)
    return stored, content


def as_file(part: File | Image, name: str) -> File:
    """Return the part as ``session.files`` lists it."""
    file_id = part.file_id if isinstance(part, File) else None
    return File(part.url, part.data, file_id, part.media_type, name, part.id)


def stored_id(file: str | File | Image) -> str:
    """Return the id of a stored file. Raises ``UsageError`` for a part that is not stored."""
    found = file if isinstance(file, str) else file.id
    if found is None:
        raise UsageError("The file is not stored in a session: add it with session.add_file(…).")
    return found


def _part(name: str | None, media_type: str | None) -> File | Image:
    kind = media_type or guess_type(name or "")[0] or BINARY
    return Image(media_type=kind) if kind.startswith("image/") else File(media_type=kind, name=name)
