"""Documents of memories with encryption: a store has ciphertexts, and vectors that are meaningless without the key.

The page content of a document is encrypted for its scope and cannot be decrypted in another one. ``SealedEmbeddings``
decrypts it to embed it, and rotates the vector in a way that only the key determines: distances do not change, so any
store finds the nearest documents, but a model that inverts embeddings cannot read the vectors. Queries reach the
store in the same form. Each key has its own rotation and its own scopes, so documents of earlier keys are found.
"""

from __future__ import annotations

import binascii
import hashlib
import math
from base64 import b64decode, b64encode
from functools import lru_cache
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from antiphon.encryption.keyring import Key, Keyring, keyring_of_process
from antiphon.errors import KeyMissing, SealBroken

SIGN = "antiphon:sealed:"
HEAD = b"1:memory"
MOST_TURNS = 32  # rotations that are cached, by key and vector size


class SealedEmbeddings(Embeddings):
    """Embeddings for the store of a ``Memory`` with encryption: the store has no text, and vectors that it cannot read.

    ``embeddings`` are those of the model. Without keys, texts and vectors stay unchanged. A ``Memory`` whose store is
    a folder does this by itself.

    >>> from antiphon.memory import FaissStore, Memory, SealedEmbeddings, WordEmbeddings
    >>> sealed = SealedEmbeddings(WordEmbeddings())
    >>> memory = Memory(FaissStore("recollections", sealed))
    """

    def __init__(self, embeddings: Embeddings) -> None:
        self._embeddings = embeddings

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts, encrypted or not. Raises ``KeyMissing`` and ``SealBroken``.

        >>> [len(vector) for vector in sealed.embed_documents(["one", "two"])]
        [512, 512]
        """
        opened = [_given(text) for text in texts]
        vectors = self._embeddings.embed_documents([text for text, _ in opened])
        return [turned(vector, key) for vector, (_, key) in zip(vectors, opened, strict=True)]

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """``embed_documents``, awaited.

        >>> await sealed.aembed_documents(["one"]) == sealed.embed_documents(["one"])
        True
        """
        opened = [_given(text) for text in texts]
        vectors = await self._embeddings.aembed_documents([text for text, _ in opened])
        return [turned(vector, key) for vector, (_, key) in zip(vectors, opened, strict=True)]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query, encrypted or not. Raises ``KeyMissing`` and ``SealBroken``.

        >>> len(sealed.embed_query("one"))
        512
        """
        opened, key = _given(text)
        return turned(self._embeddings.embed_query(opened), key)

    async def aembed_query(self, text: str) -> list[float]:
        """``embed_query``, awaited.

        >>> await sealed.aembed_query("one") == sealed.embed_query("one")
        True
        """
        opened, key = _given(text)
        return turned(await self._embeddings.aembed_query(opened), key)


def _given(text: str) -> tuple[str, Key | None]:
    """Return a text to embed, and its key. Without keys, no text counts as encrypted, whatever its beginning."""
    return (text, None) if keyring_of_process() is None else opened_text(text)


def scope_of(scope: str, key: Key) -> str:
    """Return the scope of documents that this key encrypts for a scope."""
    return hashlib.sha256(f"{scope} {key.name}".encode()).hexdigest()[:40]


def sealed_text(ring: Keyring, key: Key, scope: str, text: str) -> str:
    """Encrypt a text for a scope of this key."""
    head = b":".join((HEAD, key.name.encode(), b""))
    sealed = ring.cipher(key, scope).seal(text.encode("utf-8", "replace"), head)
    return f"{SIGN}{scope}:{key.name}:{b64encode(sealed).decode()}"


def opened_text(text: str, scope: str | None = None) -> tuple[str, Key | None]:
    """Decrypt a text of ``sealed_text``, and return it with its key. A text that is not encrypted has no key.

    Raises ``KeyMissing``, and ``SealBroken`` for a text of another scope than ``scope``.
    """
    if not text.startswith(SIGN):
        return text, None
    ring = keyring_of_process()
    if ring is None:
        raise KeyMissing
    place, name, body = [*text.removeprefix(SIGN).split(":", 2), "", ""][:3]
    if scope not in (None, place):
        raise SealBroken
    key = ring.named(name)
    try:
        sealed = b64decode(body, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise SealBroken from exc
    return str(ring.cipher(key, place).open(sealed, b":".join((HEAD, name.encode(), b""))), "utf-8"), key


def turned(vector: list[float], key: Key | None) -> list[float]:
    """Rotate a vector in a way that only the key determines. Lengths, distances and angles do not change."""
    if key is None:
        return vector
    found = np.asarray(vector, dtype=np.float64)
    for order, cosines, sines in _turns(key.derived("vectors of memories"), len(vector)):
        found = found[order]
        one, other = found[: len(cosines)], found[len(cosines) : 2 * len(cosines)]
        rest = found[2 * len(cosines) :]
        found = np.concatenate((one * cosines - other * sines, one * sines + other * cosines, rest))
    return found.tolist()


@lru_cache(MOST_TURNS)
def _turns(secret: bytes, size: int) -> list[tuple[Any, Any, Any]]:
    """Return rotations of pairs of dimensions, in enough rounds that each dimension mixes with every other."""
    rounds = 2 * max(1, math.ceil(math.log2(max(size, 2))))
    found: list[tuple[Any, Any, Any]] = []
    for number in range(rounds):
        drawn = hashlib.shake_256(secret + number.to_bytes(2, "big")).digest(16 * size)
        order = np.argsort(np.frombuffer(drawn[: 8 * size], dtype="<u8"), kind="stable")
        angles = np.frombuffer(drawn[8 * size :], dtype="<u8")[: size // 2] * (2 * math.pi / 2.0**64)
        found.append((order, np.cos(angles), np.sin(angles)))
    return found
