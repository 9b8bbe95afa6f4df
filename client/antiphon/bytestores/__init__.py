"""Where the contents of files are stored outside Redis: in a folder, in S3, or in a store of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.lazy import names_of

if TYPE_CHECKING:
    from antiphon.bytestores.base import ByteStore
    from antiphon.bytestores.folder import FolderStore
    from antiphon.bytestores.of_process import use_byte_store
    from antiphon.bytestores.s3 import S3Store

__all__ = ["ByteStore", "FolderStore", "S3Store", "use_byte_store"]

__getattr__, __dir__ = names_of(
    __name__, {"ByteStore": "base", "FolderStore": "folder", "S3Store": "s3", "use_byte_store": "of_process"}
)
