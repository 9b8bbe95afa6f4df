"""Keeps the content of images and files out of messages: stores it in the session, and reads it where it is needed."""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import msgspec

from antiphon.input.ids import SessionId
from antiphon.input.limits import LIMITS, check_size
from antiphon.model import File, Image, Item, Message, Part, Text, ToolResult
from antiphon.model.files import FileEntry, StoredFile
from antiphon.model.parts import STORED
from antiphon.wire.cell import Cell
from antiphon.wire.files import add_file, drop_files, list_files, read_file

MOST_INLINE = 16 * 1024
"""The most base64 characters that stay in a message: a file this small is not worth a call of its own."""

TOO_OFTEN = "Name each file once, shorten the history with a window, or remove files from the session."
WITH_FILES = {Image, File, Item, ToolResult}
"""The parts that may name stored files, or have contents to store."""
OWN = "="
_FORM = re.compile(rf"{STORED}({OWN}*)[0-9a-f]{{64}}")
_PICTURES = ("png", "jpeg", "webp")
P = TypeVar("P", bound=Part)


class SessionFiles:
    """The files of one session. With the ``fence`` of a running turn, files are added only while that is in force.

    ``user`` is the user of the turn for which files are added.
    """

    def __init__(
        self,
        cell: Cell,
        session: SessionId,
        *,
        tenant: str | None = None,
        ttl_ms: int | None = None,
        fence: str = "",
        user: str | None = None,
    ) -> None:
        self._cell = cell
        self._session = session
        self._tenant = tenant
        self._ttl_ms = ttl_ms
        self._fence = fence
        self._user = user

    async def add(
        self, data: bytes, media_type: str | None, name: str | None = None, by: str | None = None
    ) -> FileEntry:
        """Store a file. Raises as ``add_file`` does."""
        return await add_file(
            self._cell, self._session, data, media_type, name, tenant=self._tenant, ttl_ms=self._ttl_ms,
            fence=self._fence, by=by or self._user,
        )  # fmt: skip

    async def read(self, file_id: str) -> StoredFile | None:
        """Return a file with its content, or None."""
        return await read_file(self._cell, self._session, file_id)

    async def entries(self) -> list[FileEntry]:
        """Return the files without their contents."""
        return await list_files(self._cell, self._session)

    async def drop(self, *file_ids: str) -> int:
        """Remove files, and return how many there were."""
        return await drop_files(self._cell, self._session, *file_ids)

    async def whole(self) -> list[StoredFile]:
        """Return all files with their contents."""
        found = [await self.read(one.id) for one in await self.entries()]
        return [one for one in found if one is not None]

    async def put_back(self, files: Iterable[StoredFile]) -> None:
        """Store files that were saved with the session."""
        for one in files:
            await self.add(one.data, one.media_type, one.name, one.by)

    async def moved(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with large contents stored, and named by their ids. Raises as ``add_file`` does."""
        return [
            msgspec.structs.replace(one, parts=[await self.moved_part(part) for part in one.parts])
            if is_large(one)
            else one
            for one in messages
        ]

    async def moved_part(self, part: P) -> P:
        """Return a part as ``moved`` does."""
        if isinstance(part, ToolResult):
            if isinstance(part.content, str) or not any(_data(one) for one in part.content):
                return part
            content = [await self.moved_part(one) for one in part.content]
            return msgspec.structs.replace(part, content=content)
        if isinstance(part, Item):
            item, contents = without_contents(part.item)
            for data, media_type in contents.values():
                await self.add(data, media_type)
            return msgspec.structs.replace(part, item=item) if contents else part
        found = _data(part)
        if found is None or not isinstance(part, Image | File):
            return part
        media_type, data = found
        entry = await self.add(data, media_type, part.name if isinstance(part, File) else None)
        return msgspec.structs.replace(part, url=None, data=None, media_type=media_type, id=entry.id)

    async def filled(self, messages: Sequence[Message], past: Iterable[StoredFile] = ()) -> list[Message]:
        """Return the messages with the contents of stored files. Each file is read once.

        ``past`` are archived files. A file that the session no longer has becomes a text that states this.
        Raises ``CorruptRecord``, ``StoreError``, and ``LimitReached`` if they name the same files too often.
        """
        known: dict[str, StoredFile | None] = {one.id: one for one in past}
        size = 0
        for file_id in stored_ids(messages):
            if file_id not in known:
                known[file_id] = await self.read(file_id)
            found = known[file_id]
            size += found.size if found is not None else 0
            check_size("session_file_bytes", size, "The files that the messages name, in bytes", TOO_OFTEN)
        return [
            msgspec.structs.replace(one, parts=[_filled(part, known) for part in one.parts])
            if is_unfilled([one])
            else one
            for one in messages
        ]


def is_large(message: Message) -> bool:
    """Return whether a message has content to store."""
    for part in message.parts:  # most are text, and cost no call
        if part.__class__ in WITH_FILES and (has_contents(part) or any(map(_data, _within(part)))):
            return True
    return False


def has_contents(part: object) -> bool:
    """Return whether a provider's item has content to store, such as a generated image."""
    return isinstance(part, Item) and bool(without_contents(part.item)[1])


def without_contents(item: dict[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[bytes, str | None]]]:
    """Return a provider's item with the ids of its large contents in their place, and the contents by their ids.

    Only base64 in its standard form counts as content, so that the item can be sent as it came.
    """
    contents: dict[str, tuple[bytes, str | None]] = {}

    def replaced(value: str) -> str:
        data = _decoded(value)
        if data is None or b64encode(data).decode() != value:
            return value
        file_id = hashlib.sha256(data).hexdigest()
        kind = item.get("output_format")
        contents[file_id] = data, f"image/{kind}" if kind in _PICTURES else None
        return f"{STORED}{file_id}"

    found = _mapped(item, replaced)
    return (found, contents) if contents else (item, contents)


def marked(part: Part) -> Part:
    """Return a model service's part with texts that look like file ids marked, so that they stay texts."""
    if not isinstance(part, Item) or not is_unfilled([Message("assistant", [part])]):
        return part
    return msgspec.structs.replace(part, item=_mapped(part.item, _as_own))


def _as_own(text: str) -> str:
    return f"{STORED}{OWN}{text.removeprefix(STORED)}" if _FORM.fullmatch(text) else text


def _id_in(text: str) -> str | None:
    """Return the id of a stored file, if a text of an item replaces its content."""
    found = _FORM.fullmatch(text)
    return text.removeprefix(STORED) if found and not found[1] else None


def _texts(value: Any) -> Iterator[str]:
    """Yield each text within plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        inner = (
            cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        )
        for one in inner:
            yield from _texts(one)


def _mapped(value: Any, change: Callable[[str], str | None]) -> Any:
    """Return plain data with each text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_mapped(one, change) for one in cast("list[Any]", value)]
    return value


def stored_ids(messages: Iterable[Message]) -> list[str]:
    """Return the ids of the stored files that messages name."""
    return [
        found
        for one in messages
        for part in one.parts
        if part.__class__ in WITH_FILES
        for found in named_files(part)
    ]


def _within(part: Part) -> Sequence[object]:
    if isinstance(part, ToolResult):
        return () if isinstance(part.content, str) else part.content
    return (part,)


def named_files(part: Part) -> list[str]:
    """Return the ids of the stored files that a part names."""
    if isinstance(part, Item):
        return [found for one in _texts(part.item) if (found := _id_in(one))]
    return [one.id for one in _within(part) if isinstance(one, Image | File) and one.id and not one.data]


def is_unfilled(messages: Iterable[Message]) -> bool:
    """Return whether messages name stored files, or have texts that are marked as not being ids."""
    for message in messages:
        for part in message.parts:  # most are text, and cost no call
            if part.__class__ is Item and any(map(_FORM.fullmatch, _texts(cast("Item", part).item))):
                return True
            if part.__class__ in WITH_FILES and named_files(part):
                return True
    return False


def _data(part: object) -> tuple[str | None, bytes] | None:
    """Return the media type and the content of a part to store, if the content can be read."""
    if not isinstance(part, Image | File):
        return None
    media_type, text = part.media_type, part.data
    if text is None and part.url is not None and part.url[:5].lower() == "data:":
        head, _, text = part.url[5:].partition(",")
        kind, _, coding = head.rpartition(";")
        if coding != "base64":
            return None
        media_type = kind or None
    data = None if text is None else _decoded(text)
    return None if data is None else (media_type, data)


def _decoded(text: str) -> bytes | None:
    """Return the content of a base64 text, if it is to be stored."""
    if not MOST_INLINE < len(text) <= LIMITS.file_bytes * 4 // 3 + 4:
        return None
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _content(text: str, known: dict[str, StoredFile | None]) -> str | None:
    file_id = _id_in(text)
    if file_id is None:
        return text.replace(OWN, "", 1) if _FORM.fullmatch(text) else text
    found = known.get(file_id)
    return None if found is None else b64encode(found.data).decode()


def _filled(part: Part, known: dict[str, StoredFile | None]) -> Part:
    if isinstance(part, ToolResult):
        if not named_files(part):
            return part
        content = [_filled(one, known) for one in cast("list[Part]", part.content)]
        return msgspec.structs.replace(part, content=content)
    if isinstance(part, Item):
        return msgspec.structs.replace(part, item=_mapped(part.item, lambda text: _content(text, known)))
    if not isinstance(part, Image | File) or not part.id or part.data:
        return part
    found, name = known[part.id], (part.name if isinstance(part, File) else None) or "An image"
    if found is None:
        return Text(f"[{name} is no longer available.]")
    data, kind = b64encode(found.data).decode(), part.media_type or found.media_type
    if isinstance(part, File) and (kind or "").startswith("image/"):
        return Image(data=data, media_type=kind)
    return msgspec.structs.replace(part, data=data, media_type=kind)
