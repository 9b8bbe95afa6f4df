"""ACL rules for the Redis user of each role: the only keys, channels and commands that it may use."""

from __future__ import annotations

import hashlib
import re
from typing import Literal, get_args

from antiphon.errors import UsageError
from antiphon.wire.keys import PREFIX, RQ, Keys

Role = Literal["worker", "client", "operator", "subscriber"]
ROLES: tuple[Role, ...] = get_args(Role)

_NAME = re.compile(r"[\w.-]+\Z")
# No commands that can harm the server, and of @scripting only those that run scripts.
_WRITES = ("+@all", "-@admin", "-@dangerous", "-@scripting", "+eval", "+evalsha", "+script|load")
# The commands that a reader of events and the history sends: none lists keys or runs scripts.
_READS = (
    "-@all", "+hmget", "+hgetall", "+xrange", "+lrange", "+llen", "+multi", "+exec", "+discard", "+subscribe",
    "+unsubscribe", "+ping", "+auth", "+hello", "+select", "+quit",
)  # fmt: skip
_OF_A_SESSION = ("session", "history", "events", "turns")


def user_rule(
    role: Role,
    name: str,
    password: str,
    *,
    prefix: str = PREFIX,
    sessions: str | None = None,
    database: int = 0,
) -> str:
    """Return the name and the rules of a user, for ``ACL SETUSER`` or after ``user`` in an ACL file.

    They contain the SHA-256 hash of the password. ``sessions`` is the prefix of a subscriber's session ids in this
    database. Raises ``UsageError`` if an ACL cannot hold the name, ``prefix`` or ``sessions``, or if ``sessions`` does
    not fit the role.

    >>> user_rule("subscriber", "acme", "secret", sessions="acme-").split()[4:7]
    ['~ant:session:acme-*', '~ant:history:acme-*', '~ant:events:acme-*']
    """
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is not a valid user name: use letters, digits, '_', '.' and '-'.")
    if (sessions is None) == (role == "subscriber"):
        raise UsageError(
            "A subscriber needs the prefix of its session ids (--sessions); other roles must omit it."
        )
    if re.search(r"\s", f"{prefix}{sessions or ''}"):
        raise UsageError("An ACL cannot hold white space: choose another prefix or other ids.")
    hashed = hashlib.sha256(password.encode()).hexdigest()
    return " ".join([name, "reset", "on", f"#{hashed}", *_scope(role, prefix, sessions or "", database)])


def _scope(role: Role, prefix: str, sessions: str, database: int) -> list[str]:
    escaped = _literal(prefix)
    if role == "subscriber":
        keys, ids = Keys(escaped), f"{_literal(sessions)}*"
        own = [getattr(keys, kind)(ids) for kind in _OF_A_SESSION]
        return [*(f"~{key}" for key in own), f"&{keys.live(database, ids)}", *_READS]
    channels = {
        "worker": (f"&{escaped}:*", f"&{RQ}:*"),
        "client": (f"&{escaped}:live:*",),
        "operator": (f"&{escaped}:*", f"&{RQ}:*"),
    }[role]
    asks = {"worker": ("+info", "+config|get"), "client": (), "operator": ("+info",)}[role]
    return [f"~{escaped}:*", f"~{RQ}:*", *channels, *_WRITES, *asks]


def _literal(text: str) -> str:
    """Return the pattern that matches only this text."""
    return re.sub(r"[*?\[\\]", r"\\\g<0>", text)
