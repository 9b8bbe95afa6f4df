"""AES-256-GCM with random nonces: the only module that knows ``cryptography``."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from antiphon.errors import MissingPackage, SealBroken

NONCE_BYTES = 12


@cache
def _library() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the algorithm, and what it raises for values that were changed."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise MissingPackage("Encryption needs a package: pip install 'antiphon[encryption]'.") from exc
    return AESGCM, (InvalidTag, ValueError)


class Cipher:
    """Seals and opens with one key. Raises ``MissingPackage`` without ``antiphon[encryption]``."""

    __slots__ = ("_gcm", "_refusals")

    def __init__(self, key: bytes) -> None:
        algorithm, self._refusals = _library()
        self._gcm = algorithm(key)

    def seal(self, data: bytes, beside: bytes) -> bytes:
        """Return the nonce and the ciphertext. ``beside`` stays in plain text and cannot be changed either."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._gcm.encrypt(nonce, data, beside)

    def open(self, sealed: bytes, beside: bytes) -> bytes:
        """Return what was sealed. Raises ``SealBroken``."""
        try:
            return self._gcm.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], beside)
        except self._refusals as exc:
            raise SealBroken from exc
