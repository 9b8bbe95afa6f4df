"""Reads sessions from the archive, and restores them before a turn or an edit that needs them.

When a session begins again under its id, the archived messages are inserted before the new ones, as if the session
had never ended. A worker does this for its first turn, and a reader for the messages that it shows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, structs

from antiphon.errors import AgentError, CorruptRecord, SessionNotFound, StoreUnavailable, UsageError
from antiphon.input.ids import Fence, SessionId, session_id
from antiphon.input.values import Asked, is_a
from antiphon.model import encode
from antiphon.model.files import StoredFile
from antiphon.redis.cells import Cells
from antiphon.redis.edits import Found, found_in
from antiphon.redis.fields import DICTIONARY_FIELDS, TEXT_FIELDS, encode_field, encode_fields
from antiphon.redis.files import SessionFiles
from antiphon.session.runtime import SessionRef
from antiphon.session.saved import SavedSession, read_saved
from antiphon.stores.base import SessionStore
from antiphon.stores.encrypted import SealedStore
from antiphon.stores.turns import IndexedTurn
from antiphon.stores.urls import store_at
from antiphon.stores.words import Query
from antiphon.text import number, text_of
from antiphon.tools.threads import Threads
from antiphon.wire.archiving import Refusal, Restored, is_deleted, restore_session
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Change, FieldChange, change_session, new_op
from antiphon.wire.ends import FIELD, FULL, behind, is_of_ends, read_ends, text_of_ends, whole_text
from antiphon.wire.records import Snapshot

ONLY_IN_REDIS = ("ttl", "window", "agent_queue")
"""The fields of an archived copy that a saved session does not have."""


class Restoration(Struct):
    """The changes that restore a session. ``refuse`` is why turns that it has accepted must fail."""

    fields: list[FieldChange]
    messages: list[bytes]
    refuse: Refusal = ""


def restoration(found: Found, data: Mapping[str, Any] | None) -> Restoration:
    """Fit the result of ``archived_form`` to the session as it is now; None means that it was never archived.

    Fields that were set since then stay, except those that are only set if missing (the agent, variables that an
    opening offers). Raises ``CorruptRecord`` if the data cannot be read.
    """
    if data is None:
        return Restoration(_changes(found, {"offered": b"", "origin": b""}), [])
    saved, kept = read_saved(data), _kept(data)
    foreign = found.text("tenant") not in ("", saved.tenant)
    cleared = found.text("restored") == "cleared" and not foreign
    live = Found({}, [], 0, []) if foreign else found
    fields = {**_merged(live, saved, kept), "offered": b"", "origin": b""}
    if not cleared:
        fields |= {"window": kept.get("window", b""), "summary": encode_field("summary", saved.summary)}
    refuse: Refusal = "tenant" if foreign else "closed" if saved.closed else ""
    messages = [] if cleared else [encode(message) for message in saved.messages]
    fields |= _ends(found, _noted(data), len(messages), foreign=foreign)
    return Restoration(_changes(found, fields), messages, refuse)


def _ends(found: Found, noted: str, length: int, *, foreign: bool) -> dict[str, bytes]:
    """Return the notes of the history (``antiphon.wire.ends``) with the archived messages before the present ones."""
    old = {name: b"" for name in found.fields if is_of_ends(name)}
    if foreign:
        return old
    first = number(found.text("first"))
    live = read_ends(text_of_ends(found.fields), first)
    if not noted and not (length and live.noted):
        return {}
    past = noted or f"{first}~{length} "
    return {**old, f"{FULL}{past.partition('~')[0]}": behind(past, length, live).encode()}


def noted_ends(found: Found) -> str:
    """Return the notes of a whole history, to be archived with it. Empty if it is unknown where they begin."""
    ends, seq = read_ends(text_of_ends(found.fields), number(found.text("first"))), number(found.text("seq"))
    if not seq or (found.length and not ends.noted and not ends.begins.length):
        return ""
    return whole_text(ends, seq, found.length)


def _noted(data: Mapping[str, Any]) -> str:
    archived = data.get("archived")
    found = archived.get(FIELD) if isinstance(archived, Mapping) else None
    return found if isinstance(found, str) and "~" in found else ""


def _merged(live: Found, saved: SavedSession, kept: Mapping[str, bytes]) -> dict[str, bytes]:
    archived = {**encode_fields(saved), **kept}
    fields = {name: live.fields.get(name) or archived[name] for name in TEXT_FIELDS}
    fields |= {name: archived[name] for name in ("closed", "created") if archived.get(name)}
    fields["ttl"] = live.fields.get("ttl") or archived.get("ttl", b"")
    if saved.agent is not None:
        fields |= {"agent": archived["agent"], "agent_queue": archived["agent_queue"]}
    merged = {name: getattr(saved, name) | live.value(name) for name in DICTIONARY_FIELDS}
    merged["variables"] = _variables(live, saved)
    merged["children"] = list(dict.fromkeys([*saved.children, *live.children]))
    merged["users"] = list(dict.fromkeys([*saved.users, *live.value("users")]))
    return fields | {name: encode_field(name, value) for name, value in merged.items()}


def _variables(live: Found, saved: SavedSession) -> dict[str, Any]:
    """Merge variables: archived ones take precedence over those that an opening only offers."""
    offered = live.value("offered")
    known = live.value("variables")
    changed = {name: value for name, value in known.items() if name not in offered or offered[name] != value}
    return {**known, **saved.variables, **changed}


def _changes(found: Found, fields: Mapping[str, bytes]) -> list[FieldChange]:
    old = {name: found.fields.get(name, b"") for name in fields}
    return [FieldChange(name, old[name], new) for name, new in fields.items() if new != old[name]]


def _kept(data: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields that only Redis has. A copy saved by a local runtime has none."""
    try:
        kept = msgspec.convert(data.get("archived") or {}, dict[str, str])
    except msgspec.ValidationError as exc:
        raise CorruptRecord(f"The archived fields of a session cannot be read: {exc}.") from exc
    return {name: kept[name].encode() for name in ONLY_IN_REDIS if name in kept}


Load: TypeAlias = Callable[[str], Awaitable[dict[str, Any] | None]]

TRIES = 50
PAUSE_SECONDS = 0.1


async def restore(
    cell: Cell, load: Load, session_id: SessionId, fence: Fence | None = None
) -> Restored | None:
    """Insert the archived part of a session before its present one, once in its life. Returns None if there is none.

    ``load`` reads the archive. ``fence`` is the holder's; without it, the session must have no holder. Raises what
    ``load`` raises, ``CorruptRecord`` if the archived copy cannot be read, and Redis' ``StoreError``.
    """
    found = await found_in(cell, session_id)
    data = await load(found.text("origin") or session_id)
    if data is not None and data.get("media") and not await is_deleted(cell, session_id):
        await SessionFiles(cell, session_id).put_back(read_saved(data).media)
    for _ in range(TRIES):
        new = await asyncio.to_thread(restoration, found, data)
        answer = await restore_session(
            cell, session_id, fence or "", fields=new.fields, messages=new.messages, refuse=new.refuse
        )
        if answer == "RESTORED" and data is None:
            return None
        if answer != "CONFLICT":
            return answer
        found = await found_in(cell, session_id)
    raise _kept_from(session_id)


async def archived_files(cell: Cell, load: Load, session_id: SessionId, found: Found) -> list[StoredFile]:
    """Return the files of a session's archived copy, unless the session was deleted. Raises as ``restore`` does."""
    data = await load(found.text("origin") or session_id)
    return [] if data is None or await is_deleted(cell, session_id) else read_saved(data).media


async def bring_back(cell: Cell, load: Load, session: SessionRef) -> None:
    """Restore a session outside its turns, once in its life. This does not create missing sessions.

    Raises as ``restore`` does.
    """
    for _ in range(TRIES):
        found = await found_in(cell, session.id)
        if found.text("restored") == "1" or not (found.fields or await _begin(cell, load, session)):
            return
        if await restore(cell, load, session.id) != "SUPERSEDED":
            return
        await asyncio.sleep(PAUSE_SECONDS)  # a worker has claimed its turn, and restores it first
    raise _kept_from(session.id)


async def _begin(cell: Cell, load: Load, session: SessionRef) -> bool:
    """Create a session that is only in the archive, empty. Returns False if it was deleted or is not there."""
    if await is_deleted(cell, session.id) or await load(session.id) is None:
        return False
    await change_session(cell, session.id, new_op(), Change([]), when="any", ttl_ms=session.ttl_ms)
    return True


def _kept_from(session_id: SessionId) -> StoreUnavailable:
    return StoreUnavailable("Other calls keep changing the session: try again later.", session_id=session_id)


T = TypeVar("T")

STORE_SECONDS = 20.0
"""Less than the minute for which a deletion is remembered, so that a copy loaded before it is not shown."""


class ArchiveReader:
    """The archive of a deployment, for clients: a store, or its URL, which is opened on first use."""

    def __init__(self, store: SessionStore | str) -> None:
        if not is_a(store, SessionStore | str):
            raise UsageError(f"archive= must be a SessionStore or its URL, not {store!r}.")
        self._url = store if isinstance(store, str) else ""
        self._store = None if isinstance(store, str) else store
        self._opening = threading.Lock()
        self._indexed = False  # once it is known that there is an index
        self._threads = Threads(limit=16)

    def open(self) -> None:
        """Open the store now instead of on first use. Raises ``SettingsError`` if its URL is not valid."""
        self._opened()

    async def load(self, session: str) -> dict[str, Any] | None:
        """Return the copy of a session. Raises ``StoreUnavailable``, and ``CorruptRecord`` if it cannot be read."""
        return await self._asked(lambda store: SealedStore(store).load(session))

    async def page(self, after: str, count: int) -> list[str]:
        """Return up to ``count`` ids of sessions after ``after``, in order. Raises ``StoreUnavailable``."""
        return await self._asked(lambda store: store.page_of_sessions(after, count))

    async def searchable(self) -> bool:
        """Return whether there is an index that ``find`` reads. A store that fails has none."""

        def indexed(store: SessionStore) -> bool:
            index = store.turn_index()
            return index is not None and index.exists()

        try:
            self._indexed = self._indexed or await self._asked(indexed)
        except AgentError:
            return False
        return self._indexed

    async def find(
        self, query: Query, *, tenant: str | None, session: str | None, start: int, count: int
    ) -> list[IndexedTurn]:
        """Find turns in the index. Raises ``UsageError`` if the store has none, and ``StoreUnavailable``."""

        def found(store: SessionStore) -> list[IndexedTurn]:
            index = store.turn_index()
            if index is None:
                raise UsageError(
                    "search needs an archive in SQLite or PostgreSQL: this store has no full-text index."
                )
            if not self._indexed and not index.exists():
                raise UsageError(
                    "The archive has no index of turns yet: start workers with App(search=True) and this archive."
                )
            self._indexed = True
            return index.find(query, tenant=tenant, session=session, start=start, count=count)

        return await self._asked(found)

    def close(self) -> None:
        """Close a store that was opened here. A store that was passed in belongs to the caller."""
        if self._url and self._store is not None:
            getattr(self._store, "close", lambda: None)()
            self._store = None

    async def _asked(self, question: Callable[[SessionStore], T]) -> T:
        def answer() -> T:
            try:
                return question(self._opened())
            except AgentError:
                raise
            except BaseException as exc:  # also what would end the caller's event loop
                raise _unavailable(exc) from exc

        try:
            async with asyncio.timeout(STORE_SECONDS):
                return await self._threads.run(answer)
        except TimeoutError as exc:
            raise _unavailable(exc) from exc

    def _opened(self) -> SessionStore:
        with self._opening:
            if self._store is None:
                self._store = store_at(self._url, "archive=")
            return self._store


def _unavailable(exc: BaseException) -> StoreUnavailable:
    return StoreUnavailable(f"The archive is unavailable: {type(exc).__name__}.")


async def whole_snapshot(
    cell: Cell,
    archive: ArchiveReader | None,
    session: SessionId,
    start: int = 0,
    stop: int = -1,
    turns: Asked = "",
) -> Snapshot:
    """Read a session with a page of its history as ``Cell.snapshot`` does, including its archived past.

    The archive is read only for sessions that are gone from Redis, or have begun again and were not restored yet.
    Raises ``SessionNotFound``, ``StoreError``, and ``CorruptRecord``.
    """
    found = await _snapshot(cell, session, start, stop, turns)
    if archive is None or _is_restored(found):
        return _existing(found, session)
    for _ in range(TRIES):
        if await is_deleted(cell, session):
            return _existing(await _snapshot(cell, session, start, stop, turns), session)
        found = await _snapshot(cell, session, 0, -1, turns)
        data = None if _is_restored(found) else await archive.load(_origin(found) or session)
        now = await _snapshot(cell, session, 1, 0)
        if _same(found, now) and not await is_deleted(cell, session):
            return _page(_existing(_with_past(found, data), session), start, stop)
    raise StoreUnavailable("Other calls keep changing the session: try again later.", session_id=session)


async def whole_found(
    cell: Cell, archive: ArchiveReader | None, session: SessionId, start: int = 1, stop: int = 0
) -> Found:
    """Read as ``whole_snapshot`` does. A session that does not exist is read as an empty one."""
    try:
        snapshot = await whole_snapshot(cell, archive, session, start, stop)
    except SessionNotFound:
        return Found({}, [], 0, [])
    return Found(snapshot.fields, snapshot.history, snapshot.history_length, snapshot.inbox)


async def archived_sessions(
    cells: Cells, archive: ArchiveReader, after: str, page: int
) -> AsyncGenerator[tuple[SessionId, Snapshot], None]:
    """Iterate over the archived sessions after an id that are no longer in Redis, ordered by id.

    Those that cannot be read, in Redis or the archive, are left out: one must not hide all others. Raises
    ``StoreError``.
    """
    while ids := await archive.page(after, page):
        for name in filter(_is_session, ids):
            session = SessionId(name)
            cell = cells.of_session(session)
            try:
                if await _snapshot(cell, session, 1, 0) is not None:
                    continue
                found = await whole_snapshot(cell, archive, session, 1, 0)
            except (CorruptRecord, SessionNotFound):
                continue
            yield session, found
        after = ids[-1]


async def _snapshot(
    cell: Cell, session: SessionId, start: int, stop: int, turns: Asked = ""
) -> Snapshot | None:
    try:
        return await cell.snapshot(session, start, stop, turns)
    except SessionNotFound:
        return None


def _existing(found: Snapshot | None, session: SessionId) -> Snapshot:
    if found is None:
        raise SessionNotFound(session_id=session)
    return found


def _is_restored(found: Snapshot | None) -> bool:
    return found is not None and found.fields.get("restored") == b"1"


def _origin(found: Snapshot | None) -> str:
    return "" if found is None else text_of(found.fields.get("origin"))


def _same(one: Snapshot | None, other: Snapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.fields, one.history_length, one.inbox) == (other.fields, other.history_length, other.inbox)


def _with_past(found: Snapshot | None, data: dict[str, Any] | None) -> Snapshot | None:
    """Put the archived part before the part in Redis, as ``restore.lua`` does. Raises ``CorruptRecord``."""
    if data is None:
        return found
    live = found or Snapshot(0, None, 0, [], {}, [], [], [])
    past = restoration(Found(live.fields, live.history, live.history_length, live.inbox), data)
    fields = live.fields | {one.name: one.new for one in past.fields}
    fields.setdefault("updated", str(read_saved(data).updated).encode())
    history = [*past.messages, *([] if past.refuse == "tenant" else live.history)]
    kept = {name: value for name, value in fields.items() if value}
    return structs.replace(live, fields=kept, history=history, history_length=len(history))


def _page(found: Snapshot, start: int, stop: int) -> Snapshot:
    """Cut a whole history to a page, with bounds as in ``LRANGE``."""
    first = max(0, found.history_length + start) if start < 0 else start
    last = found.history_length + stop if stop < 0 else stop
    return structs.replace(found, history=found.history[first : max(first, last + 1)])


def _is_session(name: str) -> bool:
    """Return whether this is a session's copy, and not one that the archiver keeps separately for a day."""
    try:
        return bool(session_id(name))
    except AgentError:
        return False
