"""AES-256-GCM with random nonces: the only module that knows ``cryptography``."""

from __future__ import annotations

import os

from antiphon.errors import MissingPackage, SealBroken

NONCE_BYTES = 12


class Cipher:
    """Seals and opens with one key. Raises ``MissingPackage`` without ``antiphon[encryption]``."""

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as exc:
            raise MissingPackage("Encryption needs a package: pip install 'antiphon[encryption]'.") from exc
        self._gcm = AESGCM(key)
        self._refusals = (InvalidTag, ValueError)

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
