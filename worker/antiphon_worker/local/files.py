"""The transitions of a memory cell that store the files of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.input.request import WITH_FILES
from antiphon.model.files import FileEntry, StoredFile
from antiphon.wire.files import chunks_of
from antiphon_worker.local.moves import ENDED, Answer, Moves
from antiphon_worker.local.records import KeptFile, Record, Session


def with_files(request: bytes) -> bytes:
    """Return the request of a turn whose session has files: workers without support for files leave it to others."""
    end = WITH_FILES.encode()
    return request if request.endswith(end) else request[:-1] + end


def marked(request: bytes, session: Record) -> bytes:
    """Return the request of a new turn, marked for workers that support files if its session has some."""
    return with_files(request) if "media" in session else request


class FileTransitions(Moves):
    """The scripts of stored files."""

    def add_chunk(
        self, session_id: str, op: str, file: str, at: int, count: int, size: int, entry: bytes, chunk: bytes,
        tenant: str, ttl_ms: Any, session_limit: int, files_limit: int, bytes_limit: int, fence: str,
    ) -> Answer:  # fmt: skip
        """Add a chunk of a file to a session. The last one completes the file."""
        if fence and self._held(session_id, fence) is None:
            return [b"SUPERSEDED"]
        session, now = self._begun(session_id), self.clock()
        record, known = session.record, session.files.get(file)
        if tenant and "created" in record and record.text("tenant") != tenant:
            return [b"OTHER_TENANT"]
        if "closed" in record and not fence:
            return [b"SESSION_CLOSED"]
        if known is not None and known.entry:
            return [b"STORED"]
        files, total = files_of(session)
        if known is None:
            if at:
                return [b"AGAIN"]
            if "created" not in record and len(self.sessions) >= session_limit:
                return [b"FULL", b"sessions"]
            if files >= files_limit or total + size > bytes_limit:
                return [b"FULL", b"session_files" if files >= files_limit else b"session_file_bytes"]
            known = session.files[file] = KeptFile(size)
            self._begin_files(session, op, tenant, ttl_ms, now)
            count_files(session, files + 1, total + size)
            self._publish(session, now)
        known.chunks[at] = chunk
        if not session.inbox:
            self._release(session, now)
        if at < count - 1:
            return [b"NEXT"]
        if not known.chunks.keys() >= {*range(count)}:
            return [b"AGAIN"]
        known.entry = entry
        return [b"STORED"]

    def _begin_files(self, session: Session, op: str, tenant: str, ttl_ms: Any, now: int) -> None:
        """Note that a session, perhaps new, has files. Its pending turns then need workers that support them."""
        record = session.record
        if record.begin(now, op) and tenant:
            record.put(tenant=tenant)
        self.sessions[session.id] = session
        if ttl_ms != "":
            record.put(ttl=ttl_ms)
        for turn in [] if "media" in record else session.turns:
            if turn.status not in ENDED or turn.status == "failed":
                turn.record.put(request=with_files(turn.record["request"]))

    def read_chunk(self, session_id: str, at: int, *names: str) -> Answer:
        """Read a chunk of a file, and its entry."""
        session = self.find(session_id)
        for file in (session.files.get(name) for name in names) if session else ():
            if file is not None and file.entry and at in file.chunks:
                return [b"FOUND", file.entry, file.chunks[at]]
        return [b"MISSING"]

    def list_files(self, session_id: str) -> Answer:
        """Read the entries of a session's files."""
        session = self.find(session_id)
        return [b"FILES", [one.entry for one in session.files.values() if one.entry] if session else []]

    def drop_files(self, session_id: str, *names: str) -> Answer:
        """Remove files of a session, including incomplete ones."""
        session, dropped = self.find(session_id), 0
        if session is None:
            return [b"DROPPED", 0]
        for name in names:
            file = session.files.pop(name, None)
            if file is not None:
                files, total = files_of(session)
                count_files(session, files - 1, total - file.size)
                dropped += 1
        return [b"DROPPED", dropped]


def files_of(session: Session) -> tuple[int, int]:
    """Return how many files a session has, and their total bytes."""
    files, _, total = (session.record.text("media") or "0 0").partition(" ")
    return int(files), int(total)


def count_files(session: Session, files: int, total: int) -> None:
    session.record.put(media=f"{max(files, 0)} {max(total, 0)}")


def files_in(session: Session) -> list[StoredFile]:
    """Return the files of a session in saved form."""
    found: list[StoredFile] = []
    for kept in session.files.values():
        if kept.entry:
            entry = msgspec.json.decode(kept.entry, type=FileEntry)
            data = b"".join(chunk for _, chunk in sorted(kept.chunks.items()))
            found.append(StoredFile(entry.id, entry.size, entry.media_type, entry.name, entry.by, data))
    return found


def put_files(session: Session, files: Sequence[StoredFile]) -> None:
    """Add saved files to those of a session."""
    for one in files:
        entry = msgspec.json.encode(FileEntry(one.id, one.size, one.media_type, one.name, one.by))
        chunks = {at: bytes(chunk) for at, chunk in enumerate(chunks_of(one.data))}
        session.files[one.id] = KeptFile(one.size, chunks, entry)
    if session.files:
        count_files(session, len(session.files), sum(one.size for one in session.files.values()))
