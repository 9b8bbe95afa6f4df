"""The keys of a deployment: the first one encrypts, and all of them decrypt, with AES-256-GCM and random nonces."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

from antiphon.errors import KeyMissing, MissingPackage, SealBroken, SettingsError
from antiphon.settings import DeclaredSettings, setting

log = logging.getLogger("antiphon.encryption")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings(DeclaredSettings):
    """The settings of processes that read or write content."""

    VARIABLE: ClassVar[str] = "ANTIPHON_ENCRYPTION_{}"

    keys: str = setting(
        "",
        "Keys that encrypt content, as id:base64, separated by commas; the first one encrypts, all decrypt",
        shown=False,
    )
    accept_plaintext: bool = setting(
        False, "With keys, also read content that is not encrypted, while a deployment moves to keys"
    )


KEYS_VARIABLE = EncryptionSettings.variable("keys")
PLAINTEXT_VARIABLE = EncryptionSettings.variable("accept_plaintext")
KEY_BYTES = 32
ASK_AGAIN_SECONDS = 10.0
MOST_PLACES = 4096  # whose derived keys are cached

_URL_SAFE = str.maketrans("-_", "+/")
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

KeySource = Callable[[], "Iterable[tuple[str, bytes]]"]
"""Returns the ids and the 32 bytes of all keys. The first key encrypts."""


class Key:
    """One key. Its ``name`` in an encrypted value is its id and a part of its hash, so that a wrong key is detected.

    Each session has its own key, derived from this one: a value that is moved to another session cannot be decrypted,
    and no key encrypts more values than AES-GCM allows for random nonces.
    """

    def __init__(self, key_id: str, secret: bytes) -> None:
        if not _ID.fullmatch(key_id):
            raise SettingsError(
                f"The id of a key in {KEYS_VARIABLE} must be 1 to 32 letters, digits, '_' and '-'."
            )
        if len(secret) != KEY_BYTES:
            raise SettingsError(
                f"The key {key_id!r} in {KEYS_VARIABLE} must have 32 bytes, not {len(secret)}."
            )
        self.name = f"{key_id}.{hashlib.sha256(b'antiphon key ' + secret).hexdigest()[:8]}"
        self._secret = secret

    def __repr__(self) -> str:
        return f"Key({self.name!r})"

    def derived(self, purpose: str) -> bytes:
        """Return a key for one purpose. It does not reveal this key."""
        return hmac.digest(self._secret, purpose.encode(), "sha256")


class Keyring:
    """Keys by their names. ``source`` is a list of ids and keys, or a function that returns one.

    A function is called when the ring is created, and again, at most every ten seconds, when a value names a key that
    the ring does not have. So you can add a key without restarting processes. The function runs on the event loop, so
    it must not take long. If a later call fails, the ring keeps its keys and logs a warning. Raises ``SettingsError``
    for invalid keys, ``MissingPackage`` without ``antiphon[encryption]``, and the exceptions of the function's first
    call.

    >>> ring = Keyring([("2026-11", bytes(range(32))), ("2026-05", bytes(32))])
    >>> [key.name.partition(".")[0] for key in ring.keys]
    ['2026-11', '2026-05']
    """

    def __init__(self, source: Sequence[tuple[str, bytes]] | KeySource) -> None:
        self._source = source if callable(source) else None
        self._lock = threading.Lock()
        self._asked = time.monotonic()
        self._take(source() if callable(source) else source)
        self.cipher = lru_cache(MOST_PLACES)(_cipher_of)
        self.cipher(self.sealing, "")  # raise now what would be raised later

    def _take(self, found: Iterable[tuple[str, bytes]]) -> None:
        keys = [Key(key_id, secret) for key_id, secret in found]
        if not keys:
            raise SettingsError(f"{KEYS_VARIABLE} contains no key: use id:base64, or unset it.")
        named = {key.name: key for key in keys}
        if len(named) < len(keys):
            raise SettingsError(f"{KEYS_VARIABLE} has the same key twice.")
        self.keys, self._named = keys, named
        self.sealing = keys[0]  # the key that encrypts

    def named(self, name: str) -> Key:
        """Return the key that an encrypted value names. Raises ``KeyMissing``."""
        if name not in self._named:
            self._ask_again()
        if name not in self._named:
            raise KeyMissing(self._lacks(name.partition(".")[0]))
        return self._named[name]

    def _lacks(self, key_id: str) -> str:
        if any(known.partition(".")[0] == key_id for known in self._named):
            return (
                f"This process has another key with the id {key_id!r} than the one with which this was sealed: "
                f"correct it in {KEYS_VARIABLE}."
            )
        return (
            f"This process does not have the key {key_id!r} with which this was sealed: "
            f"add it to {KEYS_VARIABLE}."
        )

    def _ask_again(self) -> None:
        """Take the keys that the source has now. If it fails, keep the current ones: turns wait and do not fail."""
        with self._lock:
            if self._source is None or time.monotonic() - self._asked < ASK_AGAIN_SECONDS:
                return
            self._asked = time.monotonic()
            try:
                self._take(self._source())
            except Exception as exc:
                why = exc.message if isinstance(exc, SettingsError) else type(exc).__name__
                log.warning("keys could not be read again: %s", why, extra={"action": "keys_not_read"})
                log.debug("keys could not be read again", exc_info=exc)


def _cipher_of(key: Key, place: str) -> Cipher:
    return Cipher(key.derived(f"place {place}"))


_of_process: list[Keyring] = []


def use_keys(source: Sequence[tuple[str, bytes]] | KeySource | None) -> None:
    """Set the keys of this process, in place of ``ANTIPHON_ENCRYPTION_KEYS``, for clients and stores opened later.

    Call it before you create a client or a store, and in the module of an App, which every worker process imports.
    The arguments and errors are those of ``Keyring``.

    >>> use_keys(lambda: [("2026-11", bytes(range(32)))])
    >>> use_keys(None)  # those of the variable again
    """
    _of_process[:] = [] if source is None else [Keyring(source)]


def keyring_of_process() -> Keyring | None:
    """Return the keys from ``use_keys`` or ``ANTIPHON_ENCRYPTION_KEYS``, or None. Raises ``SettingsError``."""
    if _of_process:
        return _of_process[0]
    text = os.environ.get(KEYS_VARIABLE, "").strip()
    return _keyring_of(text) if text else None


@lru_cache(4)
def _keyring_of(text: str) -> Keyring:
    parts = [part.strip() for part in text.split(",")]
    return Keyring([_parsed(part, number) for number, part in enumerate(parts, 1) if part])


def _parsed(part: str, number: int) -> tuple[str, bytes]:
    """Return id and key. An error does not quote the text: any of it may be a key."""
    key_id, colon, encoded = part.partition(":")
    with suppress(ValueError):
        if colon:
            return key_id, base64.b64decode(encoded.translate(_URL_SAFE), validate=True)
    raise SettingsError(
        f"{KEYS_VARIABLE} must be id:base64, several separated with commas; number {number} is not."
    )


def new_key(key_id: str) -> str:
    """Create a key in the form of ``ANTIPHON_ENCRYPTION_KEYS``.

    >>> len(new_key("2026-11"))
    52
    """
    Key(key_id, bytes(KEY_BYTES))
    return f"{key_id}:{base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}"


NONCE_BYTES = 12


@cache
def _library() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return the algorithm, and the exceptions that it raises for modified values."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as exc:
        raise MissingPackage("Encryption needs a package: pip install 'antiphon[encryption]'.") from exc
    return AESGCM, (InvalidTag, ValueError)


class Cipher:
    """Encrypts and decrypts with one key. Raises ``MissingPackage`` without ``antiphon[encryption]``."""

    __slots__ = ("_gcm", "_refusals")

    def __init__(self, key: bytes) -> None:
        algorithm, self._refusals = _library()
        self._gcm = algorithm(key)

    def seal(self, data: bytes, beside: bytes) -> bytes:
        """Return the nonce and the ciphertext. ``beside`` stays in plain text, but decryption fails if it changes."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._gcm.encrypt(nonce, data, beside)

    def open(self, sealed: bytes, beside: bytes) -> bytes:
        """Return the decrypted data. Raises ``SealBroken``."""
        try:
            return self._gcm.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], beside)
        except self._refusals as exc:
            raise SealBroken from exc
