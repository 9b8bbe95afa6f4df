"""The files of a session in a cell: stored once, by the hash of their content, in chunks.

A chunk is all that Redis copies at a time, so that a large file costs its memory no more than its size.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from antiphon.encryption.values import MARK
from antiphon.errors import StoreUnavailable, UsageError
from antiphon.input.ids import SessionId, other_tenant
from antiphon.input.limits import LIMITS, check_size
from antiphon.model.files import FileEntry, StoredFile
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.editing import new_op
from antiphon.wire.errors import full, unexpected
from antiphon.wire.records import readable
from antiphon.wire.scripts import given

CHUNK_BYTES = 256 * 1024
TRIES = 10
MOST_NAME = 1024
"""So many characters of a name and of a media type are stored: they do not count as bytes of the session's files."""
_ID = re.compile(r"[0-9a-f]{64}")


async def add_file(
    cell: Cell, session: SessionId, data: bytes, media_type: str | None = None, name: str | None = None, *,
    tenant: str | None = None, ttl_ms: int | None = None, fence: str = "",
) -> FileEntry:  # fmt: skip
    """Store a file in a session, which begins with it if it does not exist. One that it has is not sent again.

    A repetition continues where an earlier call has died. With the ``fence`` of a running turn, it is stored only while
    that turn is held; ``StoreUnavailable`` otherwise. Raises ``LimitReached``, ``WrongTenant``, ``UsageError`` if
    the session is closed, and ``StoreError``.
    """
    check_size("file_bytes", len(data), "The file in bytes", "Pass it by URL.")
    entry = FileEntry(hashlib.sha256(data).hexdigest(), len(data), _short(media_type), _short(name))
    key, op = cell.seal.digests(session, entry.id)[0], new_op()
    sealed, chunks = cell.seal.seal(session, "file", msgspec.json.encode(entry)), chunks_of(data)
    limits = given(ttl_ms), LIMITS.sessions, LIMITS.session_files, LIMITS.session_file_bytes
    for _ in range(TRIES):
        for at, chunk in enumerate(chunks):
            kept = cell.seal.seal_bytes(session, f"{entry.id} {at}", bytes(chunk))
            answer = await cell.run(
                "files/add_chunk", session, op, key, at, len(chunks), len(data), sealed, kept, tenant or "", *limits,
                fence,
            )  # fmt: skip
            match answer:
                case [b"STORED"]:
                    return entry
                case [b"NEXT"]:
                    continue
                case [b"AGAIN"]:
                    break
                case [b"SUPERSEDED"]:
                    raise StoreUnavailable(
                        "The turn is no longer held: nothing was stored.", session_id=session
                    )
                case [b"SESSION_CLOSED"]:
                    raise UsageError("The session is closed.", session_id=session)
                case [b"OTHER_TENANT"]:
                    raise other_tenant(session, tenant or "")
                case [b"FULL", limit]:
                    raise full(text_of(limit), session)
                case _:
                    raise unexpected("add_chunk", answer)
    raise StoreUnavailable("Other calls keep deleting the session: try again later.", session_id=session)


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
                    return StoredFile(entry.id, entry.size, entry.media_type, entry.name, data)
            case answer:
                raise unexpected("read_chunk", answer)


async def list_files(cell: Cell, session: SessionId) -> list[FileEntry]:
    """Return the files of a session without their contents, by their ids."""
    match await cell.run("files/list_files", session):
        case [b"FILES", entries]:
            return sorted((_entry(cell, session, one) for one in entries), key=lambda one: one.id)
        case answer:
            raise unexpected("list_files", answer)


async def drop_files(cell: Cell, session: SessionId, *file_ids: str) -> int:
    """Remove files from a session, also those that were only begun. Returns how many it had."""
    names = [name for one in file_ids for name in _names(cell, session, one)]
    match await cell.run("files/drop_files", session, *names):
        case [b"DROPPED", dropped]:
            return dropped
        case answer:
            raise unexpected("drop_files", answer)


def _short(text: str | None) -> str | None:
    """Return a name as it is stored: halves of characters, which Redis cannot store, become question marks."""
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
