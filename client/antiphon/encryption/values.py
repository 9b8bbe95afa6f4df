"""Encrypts and decrypts single values.

An encrypted value is text: a mark, the version of this form, the kind of its content, the name of the key, and the
nonce with the ciphertext in base64. It is stored in one of three ways:

    "\\u007f1:input:k1.9f86d081:…"              in the place of a JSON value
    "sealed":"\\u007f1:event:k1.9f86d081:…"     as a member of an object, in the place of other members
    DEL 1:reason:k1.9f86d081:…                 in the place of a text that is not JSON

So the scripts copy, join and quote records as they do without encryption. Our encoders never write the mark in this
form for a user's text.
"""

from __future__ import annotations

import binascii
import hmac
from functools import lru_cache
from typing import TypeVar

from antiphon.encryption.keyring import KEYS_VARIABLE, PLAINTEXT_VARIABLE, Key, Keyring
from antiphon.errors import KeyMissing, NotEncrypted, SealBroken

VERSION = "1"

RAW_MARK = b"\x7f"
MARK = b'"\\u007f'
MOST_HEADS = 1024  # combinations of a kind and a key's name that are cached

_TO_URL_SAFE, _FROM_URL_SAFE = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_+/", b"+/\0\0")

T = TypeVar("T")


class Values:
    """Encrypts with the first key of a ring. Without a ring, values stay unchanged.

    A ``place`` is what a value belongs to, usually the id of a session. A ``kind`` is what the value is. Neither can be
    changed without the key. With keys, values in plain text are refused unless ``accept_plaintext`` is set.
    """

    def __init__(self, ring: Keyring | None, accept_plaintext: bool = False) -> None:
        self.ring = ring
        self.on = ring is not None
        self.strict = self.on and not accept_plaintext

    def as_json(self, place: str, kind: str, data: bytes) -> bytes:
        """Encrypt a JSON value, as a JSON string."""
        return MARK + self.encrypted(place, kind, data) + b'"'

    def from_json(self, place: str, kind: str, data: bytes) -> bytes:
        """Decrypt a value of ``as_json``. Raises ``KeyMissing`` and ``SealBroken``."""
        return self.decrypted(place, kind, data.removeprefix(MARK).removesuffix(b'"'))

    def plain(self, kind: str, data: T) -> T:
        """Return data in plain text if this is allowed. Raises ``NotEncrypted``."""
        if not self.strict:
            return data
        raise NotEncrypted(
            f"A value of the kind {kind!r} is not encrypted: it was forged, or written by a process without keys. Set "
            f"{KEYS_VARIABLE} for every process. To read what was written without keys, set {PLAINTEXT_VARIABLE}=yes."
        )

    def digests(self, place: str, digest: str) -> list[str]:
        """Return the keyed hashes of content: without a key, they do not help to guess the content.

        Write the first one. The others are those of earlier keys and, unless plain text is refused, the unkeyed hash.
        """
        keys = self.ring.keys if self.ring else []
        keyed = [hmac.digest(key.derived(f"digest {place}"), digest.encode(), "sha256").hex() for key in keys]
        return keyed if self.strict else [*keyed, digest]

    def encrypted(self, place: str, kind: str, data: bytes) -> bytes:
        """Encrypt any data. Requires keys."""
        assert self.ring is not None
        key = self.ring.sealing
        head = _head(kind, key.name)
        body = self.ring.cipher(key, place).seal(data, head)
        return head + binascii.b2a_base64(body, newline=False).rstrip(b"=").translate(_TO_URL_SAFE)

    def seal_bytes(self, place: str, where: str, data: bytes) -> bytes:
        """Encrypt bytes as bytes, without base64. ``where`` is their position in the place."""
        if self.ring is None:
            return data
        key = self.ring.sealing
        head = f"{VERSION}:bytes:{key.name}:".encode()
        return head + self.ring.cipher(key, place).seal(data, head + where.encode())

    def open_bytes(self, place: str, where: str, data: bytes) -> bytes:
        """Decrypt bytes of ``seal_bytes``. Raises ``KeyMissing`` and ``SealBroken``."""
        version, kind, key, body = [*data.split(b":", 3), b"", b"", b""][:4]
        if self.ring is None or (version, kind) != (VERSION.encode(), b"bytes"):
            raise SealBroken
        head = b":".join((version, kind, key, b""))
        try:
            name = key.decode("ascii")
        except UnicodeDecodeError as exc:
            raise SealBroken from exc
        return self.ring.cipher(self.ring.named(name), place).open(body, head + where.encode())

    def decrypted(self, place: str, kind: str, text: bytes) -> bytes:
        """Decrypt a value of ``encrypted``. Raises ``KeyMissing`` and ``SealBroken``."""
        key = self._key_of(kind, text)
        head = _head(kind, key.name)
        body = text[len(head) :].translate(_FROM_URL_SAFE)
        try:
            raw = binascii.a2b_base64(body + b"=" * (-len(body) % 4), strict_mode=True)
        except (binascii.Error, ValueError) as exc:
            raise SealBroken from exc
        assert self.ring is not None
        return self.ring.cipher(key, place).open(raw, head)

    def _key_of(self, kind: str, text: bytes) -> Key:
        """Return the key that an encrypted value names. The value must be of this kind."""
        if self.ring is not None and text.startswith(_head(kind, self.ring.sealing.name)):
            return self.ring.sealing
        version, _, rest = text.partition(b":")
        if version != VERSION.encode():
            raise KeyMissing("This value was encrypted by a newer release: upgrade antiphon in this process.")
        if self.ring is None:
            raise KeyMissing(f"This value is encrypted and this process has no key: set {KEYS_VARIABLE}.")
        found, name = _parts(rest)
        key = self.ring.named(name)
        if found != kind:
            raise SealBroken(
                f"An encrypted value of the kind {found[:20]!r} was found in the place of one of the kind {kind!r}: "
                "the record was modified or copied from elsewhere."
            )
        return key


@lru_cache(MOST_HEADS)
def _head(kind: str, key: str) -> bytes:
    return f"{VERSION}:{kind}:{key}:".encode()


def _parts(text: bytes) -> tuple[str, str]:
    try:
        kind, key, _ = text.split(b":")
        return kind.decode("ascii"), key.decode("ascii")
    except ValueError as exc:
        raise SealBroken from exc
