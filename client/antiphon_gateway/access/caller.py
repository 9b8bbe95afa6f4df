"""``Caller``: the source of a request, what it may see and do, and the API keys that identify it.

[keys.shop]
hash = "5e2b…"              # printed by `antiphon serve --new-key`
tenant = "acme"             # or "*": sessions of every tenant
sessions = ["order-*"]      # ids, and prefixes that end with *; by default, all
rights = ["read", "write"]
user = "shop"               # the user that its turns are of, for budgets, limits and erasure
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidId, SettingsError
from antiphon.input.ids import tenant_id, user_name
from antiphon_gateway.problems import Refused

Right: TypeAlias = Literal["read", "write", "send", "admin"]
"""What a caller may do: read sessions and turns; submit, edit and cancel; send events; delete, choose queues and see
workers."""

RIGHTS: frozenset[Right] = frozenset(get_args(Right))


class Caller(Struct, frozen=True, kw_only=True):
    """The source of a request, and what it may see and do.

    ``tenant`` is the tenant of all sessions that the caller may use, None for all tenants. ``sessions`` names them:
    ids, and prefixes of ids that end with ``*``; None for all. With ``session``, it may use only this one.

    ``rights`` do not include each other. ``events`` are the types of events that streams show; None for all. ``life``
    distinguishes ``session`` from later ones with its id; None for any. ``until`` is when all this expires, in seconds
    since 1970. ``rate`` (requests a second) and ``streams`` (open at once) replace the gateway's own limits. All turns
    of the caller are of ``user``; with None, of the user that each request names.

    >>> caller = Caller(name="shop", tenant="acme", sessions=("order-*",), rights=frozenset({"read"}))
    >>> caller.may_use("order-7"), caller.may_use("invoice-7")
    (True, False)
    """

    name: str
    tenant: str | None
    sessions: tuple[str, ...] | None = None
    session: str | None = None
    life: str | None = None
    rights: frozenset[Right] = RIGHTS
    events: frozenset[str] | None = None
    until: float | None = None
    rate: float | None = None
    streams: int | None = None
    user: str | None = None

    def may_use(self, session: str) -> bool:
        """Return whether the session's id is one of those that the caller may use.

        >>> caller.may_use("order-8")
        True
        """
        if self.session is not None:
            return session == self.session
        return self.sessions is None or any(_fits(session, one) for one in self.sessions)

    def may_see(self, kind: str) -> bool:
        """Return whether streams show events of this type to the caller.

        >>> caller.may_see("text_delta")
        True
        """
        return self.events is None or kind in self.events

    def check_right(self, right: Right) -> None:
        """Raise ``Refused`` with 403 unless the caller has this right.

        >>> caller.check_right("write")
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This key does not have the right to write.
        """
        if right not in self.rights:
            raise Refused(403, "forbidden", f"This key does not have the right to {right}.")

    def check_session(self, session: str) -> None:
        """Raise ``Refused`` with 403 unless the caller may use a session of this id.

        >>> caller.check_session("order-7")
        """
        if not self.may_use(session):
            raise Refused(403, "forbidden", "This key has no access to this session id.")

    def check_every_session(self) -> None:
        """Raise ``Refused`` with 403 unless the caller may use every session of its tenant.

        >>> caller.check_every_session()
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This requires a key for every session.
        """
        if self.sessions is not None or self.session is not None:
            raise Refused(403, "forbidden", "This requires a key for every session.")

    def check_everywhere(self) -> None:
        """Raise ``Refused`` with 403 unless the caller may use every session of every tenant.

        >>> caller.check_everywhere()
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This requires a key for every session of every tenant.
        """
        if self.tenant is not None or self.sessions is not None or self.session is not None:
            raise Refused(403, "forbidden", "This requires a key for every session of every tenant.")

    def tenant_for(self, asked: str | None) -> str | None:
        """Return the tenant of a request that may name one. Raises ``Refused`` with 403 if it is not the caller's.

        >>> caller.tenant_for(None)
        'acme'
        """
        if self.tenant is None:
            return asked
        if asked not in (None, self.tenant):
            raise Refused(403, "wrong_tenant", "This key belongs to another tenant: omit tenant.")
        return self.tenant

    def user_for(self, asked: str | None) -> str | None:
        """Return the user of a turn that may name one. Raises ``Refused`` with 403 if it is not the caller's.

        >>> caller.user_for("alice")
        'alice'
        """
        if self.user is None:
            return asked
        if asked not in (None, self.user):
            raise Refused(403, "wrong_user", "This key submits turns of another user: omit user.")
        return self.user


def user_named_by(metadata: Any) -> str | None:
    """Return the user that a request names in its metadata."""
    match metadata:
        case {"user": str(name)} if name:
            return name
        case _:
            return None


def rights_of(names: Any) -> frozenset[Right]:
    """Return the rights with these names: a list, or text with spaces. Raises ``ValueError``."""
    given: Iterable[Any] = names.split() if isinstance(names, str) else names
    found = frozenset(given)
    if not found <= RIGHTS:
        raise ValueError(f"rights are {', '.join(sorted(RIGHTS))}, not {', '.join(map(str, found - RIGHTS))}")
    return found


def _fits(session: str, pattern: str) -> bool:
    return session.startswith(pattern[:-1]) if pattern.endswith("*") else session == pattern


PREFIX = "antk_"  # to find keys that were published by mistake
EVERY_TENANT = "*"


class Key(Struct, forbid_unknown_fields=True, kw_only=True):
    """One key in the configuration."""

    hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    tenant: str
    sessions: list[str] | None = None
    rights: list[str] = msgspec.field(default_factory=lambda: ["read", "write"])
    rate: Annotated[float, Meta(gt=0)] | None = None
    streams: Annotated[int, Meta(gt=0)] | None = None
    user: str | None = None


class _File(Struct, forbid_unknown_fields=True):
    keys: dict[str, Key]


class Keys:
    """The known keys. A comparison takes the same time for each of them."""

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._callers = [(bytes.fromhex(key.hash), _caller(name, key)) for name, key in keys.items()]

    def __len__(self) -> int:
        return len(self._callers)

    def caller(self, key: str) -> Caller | None:
        """Return the caller with this key, or None."""
        digest, found = bytes.fromhex(hash_of(key)), None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def new_key() -> str:
    """Return a new key: 256 random bits, so that a plain hash is enough to protect it."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """Return the hash of a key, for the configuration."""
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def read_keys(paths: Iterable[Path]) -> Keys:
    """Read files of keys. Raises ``SettingsError``."""
    found: dict[str, Key] = {}
    for path in paths:
        try:
            keys = msgspec.toml.decode(path.read_bytes(), type=_File).keys
        except OSError as exc:
            raise SettingsError(f"The keys in {path} cannot be read: {exc.strerror}.") from exc
        except (msgspec.DecodeError, UnicodeError) as exc:
            raise SettingsError(f"The keys in {path} cannot be read: {exc}.") from exc
        if twice := found.keys() & keys.keys():
            raise SettingsError(f"Two keys have the name {min(twice)!r}: give each key a different name.")
        found |= keys
    if len({key.hash for key in found.values()}) < len(found):
        raise SettingsError("Two keys have the same hash: remove one of them.")
    return Keys(found)


def _caller(name: str, key: Key) -> Caller:
    try:
        return Caller(
            name=f"key {name}", tenant=None if key.tenant == EVERY_TENANT else tenant_id(key.tenant),
            sessions=None if key.sessions is None else tuple(key.sessions), rights=rights_of(key.rights),
            rate=key.rate, streams=key.streams, user=None if key.user is None else user_name(key.user),
        )  # fmt: skip
    except (ValueError, InvalidId) as exc:
        raise SettingsError(f"The key {name!r} is not valid: {exc}.") from exc
