"""Files that a session stores once, apart from the messages that name them."""

from __future__ import annotations

from msgspec import Struct


class FileEntry(Struct, omit_defaults=True):
    """A stored file without its content. ``id`` is the SHA-256 of the content, and ``size`` is in bytes.

    ``by`` is the user of the turn that first stored it, if the turn has one.
    """

    id: str
    size: int
    media_type: str | None = None
    name: str | None = None
    by: str | None = None


class StoredFile(FileEntry, omit_defaults=True):
    """A stored file with its content."""

    data: bytes = b""
