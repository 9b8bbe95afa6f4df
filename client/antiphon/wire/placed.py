"""The contents of files that are in a byte store: ``root/session/place``, where Redis knows root and place.

Redis notes the place of content before it is stored and its file afterwards, and forgets both in one step. So content
whose place Redis does not know belongs to no file, whichever process died and when, and can be removed at any time: by
the caller that has removed the file, by ``clear`` when a session is erased, and by ``sweep`` for sessions that have
expired. The root is a name of this cell only: content of other deployments in the same store is never touched.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from base64 import b32decode, b32encode
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby

from antiphon.bytestores.of_process import FILES_VARIABLE, StoredBytes, bytes_of_process
from antiphon.encryption.values import MARK
from antiphon.errors import CorruptRecord, SettingsError, StoreUnavailable
from antiphon.input.ids import SessionId
from antiphon.model.files import FileEntry, StoredFile
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

log = logging.getLogger("antiphon.files")

LONGEST_PART = 200
"""The most characters in a part of a name: folders allow 255."""
PAGE = 1000


def store_of(cell: Cell) -> StoredBytes | None:
    """Return the byte store for the files of this cell. Sessions of one process keep theirs in its memory."""
    return bytes_of_process() if cell.has_disk else None


def new_place() -> str:
    """Return a place that no other content has."""
    return secrets.token_hex(16)


def name_of(session: str, place: str) -> str:
    """Return the name of content in the byte store. Names do not rely on upper and lower case."""
    root, _, last = place.partition("/")
    return f"{_folder(root, session)}{last}"


def _folder(root: str, session: str) -> str:
    encoded = b32encode(session.encode()).decode().rstrip("=").lower()
    parts = [encoded[at : at + LONGEST_PART] for at in range(0, len(encoded), LONGEST_PART)]
    return "/".join([root, *parts, ""])


def _session_of(name: str) -> str:
    """Return the session that the content of this name belongs to, or '' for a name that is not ours."""
    encoded = "".join(name.split("/")[1:-1]).upper()
    with suppress(ValueError):
        return b32decode(encoded + "=" * (-len(encoded) % 8)).decode()
    return ""


async def load_placed(
    cell: Cell, session: SessionId, entry: FileEntry, place: str, kept: bytes
) -> StoredFile | None:
    """Return a file with its content, or None if the byte store does not have it (any more).

    ``kept`` is the entry as Redis has it. Raises ``SettingsError``, ``StoreUnavailable`` and ``CorruptRecord``.
    """
    store = bytes_of_process()
    if store is None:
        raise SettingsError(
            f"This file is in a byte store, and this process has none: set {FILES_VARIABLE}.",
            session_id=session,
        )
    data = await store.load(name_of(session, place))
    if data is None:
        return None
    if kept.startswith(MARK):
        data = cell.seal.open_bytes(session, f"{entry.id} whole", data)
    if hashlib.sha256(data).hexdigest() != entry.id:
        raise CorruptRecord("The content of a file in the byte store was changed.", session_id=session)
    return StoredFile(entry.id, entry.size, entry.media_type, entry.name, entry.by, data)


async def remove_placed(session: SessionId, places: Sequence[str]) -> None:
    """Remove contents whose places Redis no longer knows. What remains is left to ``sweep``."""
    store = bytes_of_process() if places else None
    if store is None:
        return
    try:
        await store.delete([name_of(session, place) for place in places])
    except StoreUnavailable as exc:
        log.warning(
            "%s A worker removes %d contents later.", exc, len(places), extra={"action": "files_left"}
        )


async def clear(cell: Cell, session: SessionId) -> int:
    """Remove all contents of a session that belong to no file. Returns how many there were.

    Raises ``StoreError``. Without a byte store in this process it does nothing.
    """
    root, store = await _root_of(cell), store_of(cell)
    if store is None or not root:
        return 0
    return await _remove_unknown(cell, store, _folder(root, session))


async def sweep(cell: Cell) -> int:
    """Remove the contents of this cell that belong to no file. Returns how many there were. Raises ``StoreError``."""
    root, store = await _root_of(cell), store_of(cell)
    return 0 if store is None or not root else await _remove_unknown(cell, store, f"{root}/")


async def is_placed(cell: Cell) -> bool:
    """Return whether files of this cell were ever stored in a byte store."""
    return bool(await _root_of(cell))


async def _root_of(cell: Cell) -> str:
    return text_of(await asked(cell.redis.get(cell.keys.byte_root)))


async def _remove_unknown(cell: Cell, store: StoredBytes, prefix: str) -> int:
    names, count = store.store.names(prefix), 0
    while page := await store.page(names, PAGE):
        for session, group in groupby(page, _session_of):
            places = await places_of(cell, SessionId(session)) if session else []
            doomed = sorted({*group} - {name_of(session, place) for place in places})
            if session and doomed:  # other names are not ours
                await store.delete(doomed)
                count += len(doomed)
    return count


async def places_of(cell: Cell, session: SessionId) -> list[str]:
    """Return the places of a session's contents in a byte store, also of those being stored. Raises ``StoreError``."""
    if not cell.has_disk:
        return []
    [places] = await cell.run_for(b"PLACES", "files/places", session)
    return [text_of(place) for place in places]
