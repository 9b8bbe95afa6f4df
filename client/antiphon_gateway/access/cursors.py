"""Encrypted cursors of lists: the place in a list may be the id of another tenant's session."""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken

from antiphon_gateway.problems import Refused


def sealed(key: bytes, cursor: str) -> str:
    """Return a cursor that only a gateway with the same configuration can read."""
    return _fernet(key).encrypt(cursor.encode()).decode()


def opened(key: bytes, text: str) -> str:
    """Return the cursor. Raises ``Refused`` with 400."""
    try:
        return _fernet(key).decrypt(text.encode()).decode()
    except InvalidToken:
        raise Refused(400, "invalid_query", "This is not a cursor of a list of sessions.") from None


def _fernet(key: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(key))
