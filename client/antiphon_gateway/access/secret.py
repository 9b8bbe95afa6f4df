"""The secret that all gateways of a deployment share: it encrypts cursors, and makes unpredictable ids."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

from cryptography.fernet import Fernet, InvalidToken

from antiphon.client import AsyncClient
from antiphon.errors import StoreError
from antiphon.redis.deployment import gateway_secret
from antiphon_gateway.problems import Refused

AGAIN_SECONDS = 60.0
"""How long gateways may have different secrets after a loss of Redis."""


class SharedSecret:
    """The configured secret (``own``), or the one in Redis, which the first gateway writes."""

    def __init__(self, client: AsyncClient, own: bytes) -> None:
        self._client = client
        self._own = bool(own)
        self._secret = own
        self._read_at = -AGAIN_SECONDS

    async def learn(self) -> None:
        """Read the secret if it is unknown or ``AGAIN_SECONDS`` old. Raises ``StoreError`` if it stays unknown."""
        now = time.monotonic()
        if self._own or now - self._read_at < AGAIN_SECONDS:
            return
        try:
            self._secret = await gateway_secret(self._client.connections)
            self._read_at = now
        except StoreError:
            if not self._secret:
                raise

    @property
    def cursor_key(self) -> bytes:
        """The key that encrypts cursors and summaries."""
        return hashlib.sha256(b"antiphon cursor\0" + self._secret).digest()

    def digest(self, *parts: str) -> str:
        """Return a deterministic hash of texts that callers cannot compute."""
        return hmac.digest(self._secret, "\0".join(parts).encode(), "sha256").hex()


def sealed(key: bytes, cursor: str) -> str:
    """Return an encrypted cursor that only a gateway with the same key can read."""
    return _fernet(key).encrypt(cursor.encode()).decode()


def opened(key: bytes, text: str) -> str:
    """Return the decrypted cursor. Raises ``Refused`` with 400 if it is invalid."""
    try:
        return _fernet(key).decrypt(text.encode()).decode()
    except InvalidToken:
        raise Refused(400, "invalid_query", "This is not a cursor of a list of sessions.") from None


def _fernet(key: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(key))
