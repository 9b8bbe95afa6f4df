"""API keys. The configuration has only their hashes, so that whoever reads it cannot use them.

[keys.shop]
hash = "5e2b…"              # printed by `antiphon serve --new-key`
tenant = "acme"             # or "*": sessions of every tenant
sessions = ["order-*"]      # ids, and beginnings that end with *; all if left out
rights = ["read", "write"]
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidId, SettingsError
from antiphon.input.ids import tenant_id
from antiphon_gateway.access.caller import Caller, rights_of

__all__ = ["Key", "Keys", "hash_of", "new_key", "read_keys"]

PREFIX = "antk_"  # keys that were published by mistake can be found by it
EVERY_TENANT = "*"


class Key(Struct, forbid_unknown_fields=True, kw_only=True):
    """One key as the configuration has it."""

    hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    tenant: str
    sessions: list[str] | None = None
    rights: list[str] = msgspec.field(default_factory=lambda: ["read", "write"])
    rate: Annotated[float, Meta(gt=0)] | None = None
    streams: Annotated[int, Meta(gt=0)] | None = None


class _File(Struct, forbid_unknown_fields=True):
    keys: dict[str, Key]


class Keys:
    """The keys that are known. Comparing takes the same time for all of them."""

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._callers = [(bytes.fromhex(key.hash), _caller(name, key)) for name, key in keys.items()]

    def __len__(self) -> int:
        return len(self._callers)

    @property
    def hashes(self) -> list[bytes]:
        return [known for known, _ in self._callers]

    def caller(self, key: str) -> Caller | None:
        """Return whose key this is, or None."""
        digest, found = bytes.fromhex(hash_of(key)), None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def new_key() -> str:
    """Return a new key: 256 random bits, so that a plain hash protects it."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    """Return what the configuration has of a key."""
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
            raise SettingsError(f"Two keys have the name {min(twice)!r}: give each key a name of its own.")
        found |= keys
    if len({key.hash for key in found.values()}) < len(found):
        raise SettingsError("Two keys have the same hash: remove one of them.")
    return Keys(found)


def _caller(name: str, key: Key) -> Caller:
    try:
        return Caller(
            name=f"key {name}", tenant=None if key.tenant == EVERY_TENANT else tenant_id(key.tenant),
            sessions=None if key.sessions is None else tuple(key.sessions), rights=rights_of(key.rights),
            rate=key.rate, streams=key.streams,
        )  # fmt: skip
    except (ValueError, InvalidId) as exc:
        raise SettingsError(f"The key {name!r} is not valid: {exc}.") from exc
