"""``ByteStore``: what keeps the contents of files outside Redis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence


class ByteStore(ABC):
    """Keeps contents under names. All methods may be called from several threads and processes at once.

    A name has the characters ``a-z``, ``0-9`` and ``/``, and is never used for another content. What a method raises
    becomes ``StoreUnavailable``, except for an ``AgentError``.
    """

    @abstractmethod
    def save(self, name: str, data: bytes) -> None:
        """Store content. When this returns, it outlives a crash; before, ``load`` finds nothing of it."""

    @abstractmethod
    def load(self, name: str) -> bytes | None:
        """Return the content of this name, or None."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Remove contents. A name without one is no error."""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Iterate over the names that begin with this prefix, which ends with ``/``, in the order of the names."""
