"""Ids of sessions and turns: their types, their limits and how new ones are made.

A turn id is also an RQ job id, and its first ten characters are the hash of the session at the root of its
family, so that whoever holds a turn id knows the cell it lives on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NewType

from antiphon.errors import InvalidId

__all__ = [
    "Fence",
    "SessionId",
    "TurnId",
    "cell_hash",
    "new_session_id",
    "new_turn_id",
    "session_id",
    "turn_id",
    "turn_id_of_key",
]

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
Fence = NewType("Fence", str)

MAX_SESSION_ID_BYTES = 200
_TURN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def session_id(value: object) -> SessionId:
    """Check a session id: 1 to 200 bytes of text without control characters. Raises ``InvalidId``."""
    if not isinstance(value, str):
        raise InvalidId(f"A session id is text, not {type(value).__name__}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidId("A session id must be valid Unicode text.") from None
    if not 1 <= size <= MAX_SESSION_ID_BYTES:
        raise InvalidId(f"A session id has 1 to {MAX_SESSION_ID_BYTES} bytes, this one has {size}.")
    if _CONTROL.search(value):
        raise InvalidId("A session id must not hold control characters.")
    return SessionId(value)


def turn_id(value: object) -> TurnId:
    """Check a turn id: 1 to 64 letters, digits, ``_`` and ``-``. Raises ``InvalidId``."""
    if not isinstance(value, str) or not _TURN_ID.fullmatch(value):
        raise InvalidId("A turn id is 1 to 64 letters, digits, '_' and '-'.")
    return TurnId(value)


def cell_hash(root_session: str) -> str:
    """The ten characters that name the cell of a session family."""
    return hashlib.sha256(root_session.encode()).hexdigest()[:10]


def new_session_id() -> SessionId:
    return SessionId(secrets.token_hex(16))


def new_turn_id(root_session: str) -> TurnId:
    return TurnId(cell_hash(root_session) + secrets.token_hex(11))


def turn_id_of_key(root_session: str, session: str, key: str) -> TurnId:
    """The turn id that an idempotency key of a session always leads to."""
    digest = hashlib.sha256(f"{len(session)}:{session}:{key}".encode()).hexdigest()
    return TurnId(cell_hash(root_session) + "k" + digest[:31])
