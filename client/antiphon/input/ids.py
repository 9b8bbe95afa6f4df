"""The ids of sessions and turns: their types, checks and creation.

A turn id is also an RQ job id. Its first ten characters are the hash of its session id, which determines the turn's
cell.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NewType

from antiphon.errors import InvalidId, UsageError, WrongTenant
from antiphon.input.limits import LIMITS

SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
Fence = NewType("Fence", str)

_TURN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_QUEUE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_EVENT_NAME = re.compile(r"[A-Za-z0-9_.:/@-]{1,128}")
_SUB_AGENT = re.compile(r"child-[0-9a-f]{24}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]")


def session_id(value: object) -> SessionId:
    """Check a session id: 1 to 200 bytes of text without control characters. Raises ``InvalidId``."""
    return SessionId(_text(value, "session id"))


def tenant_id(value: object) -> str:
    """Check the name of a tenant, which has the limits of a session id. Raises ``InvalidId``."""
    return _text(value, "tenant")


def user_name(value: object) -> str:
    """Check the name of a user, which has the limits of a session id. Raises ``InvalidId``."""
    return _text(value, "user")


def sub_agent_session(key: str) -> SessionId:
    """Return the id of the session in which a sub-agent runs the call with this key."""
    return SessionId(f"child-{hashlib.sha256(key.encode()).hexdigest()[:24]}")


def is_of_sub_agent(session: str) -> bool:
    """Return whether a session belongs to a sub-agent; it is deleted with its parent's session."""
    return _SUB_AGENT.fullmatch(session) is not None


def event_name(value: object) -> str:
    """Check the name of an event that turns wait for. Raises ``InvalidId``."""
    name = _text(value, "event name")
    if not is_event_name(name):
        raise InvalidId(
            f"{name[:80]!r} is not a valid event name: use 1 to 128 letters, digits and any of '_.:/@-'."
        )
    return name


def is_event_name(value: str) -> bool:
    """Return whether events may have this name."""
    return bool(_EVENT_NAME.fullmatch(value))


def other_tenant(session: str, tenant: str) -> WrongTenant:
    """Return the error for a call that names a tenant other than the session's."""
    return WrongTenant(
        f"The session does not belong to the tenant {tenant!r}: leave tenant= out, or use another session id.",
        session_id=session,
    )


def check_tenant(session: str, asked: str | None, exists: bool, tenant: str | None) -> None:
    """Check the tenant that a call names, if any, against that of the session, if it exists.

    Raises ``WrongTenant``, with the same message whether the session belongs to another tenant or to none.
    """
    if asked is not None and exists and tenant != asked:
        raise other_tenant(session, asked)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidId(f"A {what} must be text, not {type(value).__name__}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidId(f"A {what} must be valid Unicode text.") from None
    if not 1 <= size <= LIMITS.id_bytes:
        raise InvalidId(f"A {what} must have 1 to {LIMITS.id_bytes} bytes; this one has {size}.")
    if _CONTROL.search(value):
        raise InvalidId(f"A {what} must not contain control characters.")
    return value


def check_queue(name: object) -> str:
    """Check a queue's name. Raises ``UsageError``."""
    if not isinstance(name, str) or not _QUEUE.fullmatch(name):
        raise UsageError(f"A queue name must be 1 to 100 letters, digits, '_', '.' and '-', not {name!r}.")
    return name


def turn_id(value: object) -> TurnId:
    """Check a turn id: 1 to 64 letters, digits, ``_`` and ``-``. Raises ``InvalidId``."""
    if not isinstance(value, str) or not _TURN_ID.fullmatch(value):
        raise InvalidId("A turn id must be 1 to 64 letters, digits, '_' and '-'.")
    return TurnId(value)


def cell_hash(session: str) -> str:
    """Return the ten characters that select the cell of a session."""
    return hashlib.sha256(session.encode()).hexdigest()[:10]


def new_session_id() -> SessionId:
    return SessionId(secrets.token_hex(16))


def new_turn_id(session: str) -> TurnId:
    return TurnId(cell_hash(session) + secrets.token_hex(11))


def new_again() -> str:
    """Return an id for one request to run a failed turn again, so that repeating the request does nothing."""
    return secrets.token_hex(6)


def check_key(key: object) -> str:
    """Check an idempotency key: a non-empty string. Raises ``UsageError``."""
    if not isinstance(key, str) or not key or _no_utf8(key):
        raise UsageError(f"key= must be a non-empty string, not {key!r}.")
    return key


def _no_utf8(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def turn_id_of_key(session: str, key: str, prefix: str = "") -> TurnId:
    """Return the turn id for an idempotency key of a session. The same key always has the same id.

    ``prefix`` is the deployment's, or '' for the default. It is part of the id because RQ's keys, which contain turn
    ids, have no prefix.
    """
    deployment = f"|{len(prefix)}:{prefix}|" if prefix else ""
    digest = hashlib.sha256(f"{deployment}{len(session)}:{session}:{key}".encode()).hexdigest()
    return TurnId(cell_hash(session) + "k" + digest[:31])
