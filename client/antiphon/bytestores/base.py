"""``ByteStore``: the interface of stores that keep the contents of files outside Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence


class ByteStore(ABC):
    """Keeps contents under names. All methods may be called from several threads and processes at once.

    A name consists of ``a-z``, ``0-9`` and ``/``, and is never used for another content. Any exception of a method
    except an ``AgentError`` becomes ``StoreUnavailable``.
    """

    @abstractmethod
    def save(self, name: str, data: bytes) -> None:
        """Store content. When this returns, it survives a crash; until then, ``load`` returns None."""

    @abstractmethod
    def load(self, name: str) -> bytes | None:
        """Return the content with this name, or None."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Remove contents, ignoring names without one."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Iterate in order over the names that begin with this prefix, which ends with ``/``."""
