"""The files of a session in a cell: stored once, by the hash of their content, in chunks or in a byte store.

Redis copies one chunk at a time, so that a large file takes no more memory than its size. With a byte store, Redis has
only the entries of files: see ``placed``.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.bytestores.of_process import StoredBytes
from antiphon.encryption.values import MARK
from antiphon.errors import StoreUnavailable, UsageError
from antiphon.input.ids import SessionId, other_tenant
from antiphon.input.limits import LIMITS, check_size
from antiphon.model.files import FileEntry, StoredFile
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.editing import new_op
from antiphon.wire.errors import STORED_AGAIN_SECONDS, full, tenant_limit, unexpected
from antiphon.wire.placed import load_placed, name_of, new_place, remove_placed, store_of
from antiphon.wire.records import readable
from antiphon.wire.scripts import given

CHUNK_BYTES = 256 * 1024
TRIES = 10
MOST_NAME = 1024
"""The most characters of a name or media type that are stored: they do not count as bytes of the session's files."""
_ID = re.compile(r"[0-9a-f]{64}")


async def add_file(
    cell: Cell, session: SessionId, data: bytes, media_type: str | None = None, name: str | None = None, *,
    tenant: str | None = None, ttl_ms: int | None = None, fence: str = "", by: str | None = None,
) -> FileEntry:  # fmt: skip
    """Store a file in a session, which is created if it does not exist. A file that it has is not sent again.

    A repeated call continues where an earlier one died. With the ``fence`` of a running turn, the file is stored only
    while that turn is held; ``StoreUnavailable`` otherwise. Raises ``LimitReached``, ``WrongTenant``, ``UsageError`` if
    the session is closed, and ``StoreError``.
    """
    check_size("file_bytes", len(data), "The file in bytes", "Pass it by URL.")
    entry = FileEntry(hashlib.sha256(data).hexdigest(), len(data), _short(media_type), _short(name), by)
    store = store_of(cell)
    new = NewFile(entry, data, tenant or "", given(ttl_ms), fence)
    for _ in range(TRIES):
        if await (add_chunks(cell, session, new) if store is None else place(cell, session, new, store)):
            return entry
    raise StoreUnavailable("Other calls keep deleting the session: try again later.", session_id=session)


class NewFile(Struct, frozen=True):
    """A file that is about to be stored."""

    entry: FileEntry
    data: bytes
    tenant: str
    ttl_ms: int | str
    fence: str

    def options(self) -> tuple[Any, ...]:
        """Return the last arguments of the scripts."""
        limits = LIMITS.sessions, LIMITS.session_files, LIMITS.session_file_bytes
        return self.tenant, self.ttl_ms, *limits, self.fence


async def add_chunks(cell: Cell, session: SessionId, new: NewFile) -> bool:
    """Store a file in Redis. Returns False if the session has lost chunks in the meantime."""
    entry, chunks = new.entry, chunks_of(new.data)
    key, op = cell.seal.digests(session, entry.id)[0], new_op()
    sealed = cell.seal.seal(session, "file", msgspec.json.encode(entry))
    for at, chunk in enumerate(chunks):
        kept = cell.seal.seal_bytes(session, f"{entry.id} {at}", bytes(chunk))
        answer = await cell.run(
            "files/add_chunk", session, op, key, at, len(chunks), entry.size, sealed, kept, *new.options()
        )
        match answer:
            case [b"STORED"]:
                return True
            case [b"NEXT"]:
                continue
            case [b"AGAIN"]:
                return False
            case _:
                raise refused(session, new, "add_chunk", answer)
    return False


async def place(cell: Cell, session: SessionId, new: NewFile, store: StoredBytes) -> bool:
    """Store a file in the byte store: its content first, then its entry. Returns False if its place was lost."""
    entry, op, place, noted = new.entry, new_op(), new_place(), b""
    key = cell.seal.digests(session, entry.id)[0]
    sealed = cell.seal.seal(session, "file", msgspec.json.encode(entry))
    while True:
        answer = await cell.run(
            "files/place_file", session, op, key, entry.size, noted, place, new_place(), *new.options()
        )
        match answer:
            case [b"STORED"]:
                return True
            case [b"SEND", at]:
                place, noted = text_of(at), sealed
                content = cell.seal.seal_bytes(session, f"{entry.id} whole", new.data)
                await store.save(name_of(session, place), content)
            case [b"AGAIN"]:
                await remove_placed(session, [place])
                return False
            case _:
                raise refused(session, new, "place_file", answer)


def refused(session: SessionId, new: NewFile, script: str, answer: Any) -> Exception:
    """Return the error for a file that the session does not take."""
    match answer:
        case [b"SUPERSEDED"]:
            return StoreUnavailable("The turn is no longer held: nothing was stored.", session_id=session)
        case [b"SESSION_CLOSED"]:
            return UsageError("The session is closed.", session_id=session)
        case [b"OTHER_TENANT"]:
            return other_tenant(session, new.tenant)
        case [b"FULL", limit]:
            return full(text_of(limit), session)
        case [b"TENANT_LIMIT", limit, most]:
            return tenant_limit(text_of(limit), most, STORED_AGAIN_SECONDS, session)
        case _:
            return unexpected(script, answer)


async def read_file(cell: Cell, session: SessionId, file_id: str) -> StoredFile | None:
    """Return a file of a session, or None if it does not have it. Raises ``CorruptRecord`` and ``StoreError``."""
    names = _names(cell, session, file_id)
    chunks: list[bytes] = []
    while True:
        match await cell.run("files/read_chunk", session, len(chunks), *names):
            case [b"MISSING"]:
                return None
            case [b"FOUND", found, chunk]:
                entry = _entry(cell, session, found)
                sealed = found.startswith(MARK)
                where = f"{file_id} {len(chunks)}"
                chunks.append(cell.seal.open_bytes(session, where, chunk) if sealed else chunk)
                if len(chunks) == _count(entry.size):
                    data = b"".join(chunks)
                    return StoredFile(entry.id, entry.size, entry.media_type, entry.name, entry.by, data)
            case [b"PLACED", found, place]:
                return await load_placed(cell, session, _entry(cell, session, found), text_of(place), found)
            case answer:
                raise unexpected("read_chunk", answer)


async def list_files(cell: Cell, session: SessionId) -> list[FileEntry]:
    """Return the files of a session without their contents, sorted by id."""
    [entries] = await cell.run_for(b"FILES", "files/list_files", session)
    return sorted((_entry(cell, session, one) for one in entries), key=lambda one: one.id)


async def drop_files(cell: Cell, session: SessionId, *file_ids: str) -> int:
    """Remove files from a session, including incomplete ones. Returns how many it had."""
    names = [name for one in file_ids for name in _names(cell, session, one)]
    dropped, *places = await cell.run_for(b"DROPPED", "files/drop_files", session, *names)
    await remove_placed(session, [text_of(place) for place in places])
    return dropped


def _short(text: str | None) -> str | None:
    """Return a name as it is stored: lone surrogates, which Redis cannot store, become question marks."""
    return None if text is None else text[:MOST_NAME].encode("utf-8", "replace").decode()


def _names(cell: Cell, session: SessionId, file_id: str) -> list[str]:
    """Return the names that a file may have; none for an id that no file can have, such as that of a chunk."""
    return cell.seal.digests(session, file_id) if _ID.fullmatch(file_id) else []


def _entry(cell: Cell, session: SessionId, data: bytes) -> FileEntry:
    with readable("The entry of a file", session_id=session):
        return msgspec.json.decode(cell.seal.open(session, "file", data), type=FileEntry)


def _count(size: int) -> int:
    return max(1, -(-size // CHUNK_BYTES))


def chunks_of(data: bytes) -> list[memoryview]:
    """Return the content of a file in chunks, without copying it."""
    view = memoryview(data)
    return [view[at : at + CHUNK_BYTES] for at in range(0, max(1, len(data)), CHUNK_BYTES)]
