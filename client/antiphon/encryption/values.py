"""Encrypts single values, and decrypts them wherever they are in a record.

A sealed value is text: a mark, the version of this form, the kind of what it holds, the name of the key, and the nonce
with the ciphertext in base64. It stands in one of three ways, and opening puts back what was there:

    "\\u007f1:input:k1.9f86d081:…"              in the place of a JSON value
    "sealed":"\\u007f1:event:k1.9f86d081:…"     as a member of an object, in the place of other members
    DEL 1:reason:k1.9f86d081:…                 in the place of a text that is not JSON

So the scripts copy, join and quote records as they do without encryption. No encoder of ours writes the mark as it
stands here for anything that a user wrote.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable

import msgspec

from antiphon.encryption.keyring import KEYS_VARIABLE, Keyring, keyring_of_process
from antiphon.errors import KeyMissing, SealBroken

VERSION = "1"

TEXT_MARK = "\x7f"
RAW_MARK = TEXT_MARK.encode()
MARK = b'"\\u007f'
_SEALED = re.compile(rb'(?:(?:"version":1000,)?"sealed":)?"\\u007f([0-9]+:[a-z_]+:[^"\\]*)"')

NEWER_THAN_UNSEALED = b'"version":1000,'
"""Stands before the sealed members of a record that workers run, so that a release that knows no encryption leaves it
to others, as it does with any newer version."""

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Opened(bytes):
    """What a sealed field holds. ``stored`` is what stands in Redis, for scripts that compare it."""

    stored: bytes


class Sealer:
    """Seals and opens with the keys of a ring; without one it passes everything on as it is.

    A ``place`` is what a value belongs to, usually the id of a session. A ``kind`` is what the value is. Neither can be
    changed without the key.
    """

    def __init__(self, ring: Keyring | None) -> None:
        self.ring = ring
        self.on = ring is not None

    def value(self, place: str, kind: str, data: bytes) -> bytes:
        """Seal a value in JSON. Nothing stays nothing."""
        return b'"\\u007f' + self._sealed(place, kind, data) + b'"' if self.ring and data else data

    def text(self, place: str, kind: str, text: str) -> str:
        """Encrypt a text that is a whole field, or that a script inserts into JSON. Nothing stays nothing."""
        if self.ring is None or not text:
            return text.lstrip(TEXT_MARK)  # a text of a user is no sealed value
        return TEXT_MARK + self._sealed(place, kind, msgspec.json.encode(text)).decode()

    def members(self, place: str, kind: str, data: bytes, clear: Iterable[str], before: bytes = b"") -> bytes:
        """Seal the members of a JSON object but for the ``clear`` ones. ``before`` is put before the sealed member."""
        if self.ring is None:
            return data
        whole = members_of(data)
        kept = [member(name, whole.pop(name)) for name in clear if name in whole]
        if whole:
            inner = b",".join(member(name, value) for name, value in whole.items())
            kept.append(before + b'"sealed":"\\u007f' + self._sealed(place, kind, inner) + b'"')
        return b"{" + b",".join(kept) + b"}"

    def open(self, place: str, kinds: frozenset[str], data: bytes) -> bytes:
        """Return a record with all that is sealed in it. ``kinds`` are those that may stand there.

        Raises ``KeyMissing`` and ``SealBroken``.
        """
        if MARK not in data:
            return data

        def opened(found: re.Match[bytes]) -> bytes:
            return self._opened(place, kinds, found[1])

        return _SEALED.sub(opened, data)

    def open_text(self, place: str, kind: str, data: bytes) -> bytes:
        """Return a text that ``text`` returned. Raises ``KeyMissing`` and ``SealBroken``."""
        if not data.startswith(b"\x7f"):
            return data
        return msgspec.json.decode(self._opened(place, frozenset({kind}), data[1:]), type=str).encode()

    def digests(self, place: str, digest: str) -> list[str]:
        """Return the keyed hash of a content: whoever has no key must not guess what it is of.

        The first is the one to write. The others are those of earlier keys, and of before there was a key.
        """
        keys = self.ring.keys if self.ring else []
        return [
            *(hmac.digest(key.derived(f"digest {place}"), digest.encode(), "sha256").hex() for key in keys),
            digest,
        ]

    def seal_bytes(self, place: str, kind: str, data: bytes) -> str:
        """Seal bytes of any form as text. Needs keys."""
        return self._sealed(place, kind, data).decode()

    def open_bytes(self, place: str, kind: str, text: str) -> bytes:
        """Return what ``seal_bytes`` sealed. Raises ``KeyMissing`` and ``SealBroken``."""
        return self._opened(place, frozenset({kind}), text.encode())

    def _sealed(self, place: str, kind: str, data: bytes) -> bytes:
        assert self.ring is not None
        key = self.ring.sealing
        head = f"{VERSION}:{kind}:{key.name}:".encode()
        body = self.ring.cipher(key, place).seal(data, head)
        return head + base64.urlsafe_b64encode(body).rstrip(b"=")

    def _opened(self, place: str, kinds: frozenset[str], text: bytes) -> bytes:
        version, _, rest = text.partition(b":")
        if version != VERSION.encode():
            raise KeyMissing("This value was encrypted by a newer release: upgrade antiphon in this process.")
        if self.ring is None:
            raise KeyMissing(f"This value is encrypted and this process has no key: set {KEYS_VARIABLE}.")
        kind, key, body = _parts(rest)
        cipher = self.ring.cipher(self.ring.named(key), place)
        if kind not in kinds:
            raise SealBroken(
                f"An encrypted value of the kind {kind[:20]!r} was found in a field that cannot have "
                "one: the record was modified or copied from elsewhere."
            )
        try:
            raw = base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4))
        except (binascii.Error, ValueError) as exc:
            raise SealBroken from exc
        return cipher.open(raw, f"{VERSION}:{kind}:{key}:".encode())


def members_of(data: bytes) -> dict[str, bytes]:
    """Return the members of a JSON object, each with its raw value."""
    return {name: bytes(value) for name, value in _object.decode(data).items()}


def member(name: str, value: bytes) -> bytes:
    """Return the raw value of a member of a JSON object."""
    return msgspec.json.encode(name) + b":" + value


def _parts(text: bytes) -> tuple[str, str, bytes]:
    try:
        kind, key, body = text.split(b":")
        return kind.decode("ascii"), key.decode("ascii"), body
    except ValueError as exc:
        raise SealBroken from exc


def sealer_of(encryption: Keyring | None = None) -> Sealer:
    """Return what seals with these keys, or with those of the environment. Raises ``SettingsError``."""
    return Sealer(encryption or keyring_of_process())
