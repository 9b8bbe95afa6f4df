"""Services that send signed events: the signature scheme and the secret of each.

[signers.github]
scheme = "github"             # or "slack", "standard", "stripe"
secret = "GITHUB_SECRET"      # the environment variable that contains it
events = ["github:*"]         # names, and prefixes of names that end with *
tenant = "acme"               # whose turns receive them; by default, turns without a tenant
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidId, SettingsError
from antiphon.input.ids import tenant_id
from antiphon_gateway.problems import Refused

WINDOW_SECONDS = 300
"""How far a signed time may be behind this machine's clock, or ahead of it."""
SECRET_PREFIX = "whsec_"


class Signed(NamedTuple):
    """The signatures of a request, and the content that they sign. ``id`` is '' if the scheme signs no id."""

    signatures: list[str]
    content: bytes
    at: str
    id: str


class Scheme(NamedTuple):
    """How a service signs. ``timed`` schemes sign a time, which must be close. ``read`` reads the headers.

    ``id_field`` is the field of the body that identifies the event if the headers do not.
    """

    read: Callable[[Mapping[str, str], bytes], Signed]
    encode: Callable[[bytes], str]
    timed: bool = True
    encoded_secret: bool = False
    id_field: str = "id"


def _standard(headers: Mapping[str, str], body: bytes) -> Signed:
    name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    found = [
        one.removeprefix("v1,") for one in headers.get("webhook-signature", "").split() if one[:3] == "v1,"
    ]
    return Signed(found, f"{name}.{at}.".encode() + body, at, name)


def _github(headers: Mapping[str, str], body: bytes) -> Signed:
    scheme, _, signature = headers.get("x-hub-signature-256", "").partition("=")
    return Signed([signature] if scheme == "sha256" else [], body, "", "")


def _stripe(headers: Mapping[str, str], body: bytes) -> Signed:
    parts = [one.strip().partition("=") for one in headers.get("stripe-signature", "").split(",")]
    at = next((value for name, _, value in parts if name == "t"), "")
    return Signed([value for name, _, value in parts if name == "v1"], f"{at}.".encode() + body, at, "")


def _slack(headers: Mapping[str, str], body: bytes) -> Signed:
    at = headers.get("x-slack-request-timestamp", "")
    version, _, signature = headers.get("x-slack-signature", "").partition("=")
    return Signed([signature] if version == "v0" else [], f"v0:{at}:".encode() + body, at, "")


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


SCHEMES: dict[str, Scheme] = {
    "standard": Scheme(_standard, _base64, encoded_secret=True),
    "github": Scheme(_github, bytes.hex, timed=False),
    "stripe": Scheme(_stripe, bytes.hex),
    "slack": Scheme(_slack, bytes.hex, id_field="event_id"),
}


class Signer(Struct, forbid_unknown_fields=True, kw_only=True):
    """One service in the configuration."""

    scheme: Literal["standard", "github", "stripe", "slack"]
    secret: str
    events: Annotated[list[str], Meta(min_length=1)]
    tenant: str | None = None


class _File(Struct, forbid_unknown_fields=True):
    signers: dict[str, Signer]


class Signers:
    """The services that may send events.

    >>> import os
    >>> os.environ["SECRET"] = "It's a Secret to Everybody"
    >>> signers = Signers({"github": Signer(scheme="github", secret="SECRET", events=["github:*"])})
    >>> headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    >>> signers.verified("github", "github:push", headers, b"Hello, World!").tenant is None
    True
    """

    def __init__(self, signers: Mapping[str, Signer], clock: Callable[[], float] = time.time) -> None:
        self._signers = {name: (one, _secret(name, one)) for name, one in signers.items()}
        self._clock = clock

    def verified(self, name: str, event: str, headers: Mapping[str, str], body: bytes) -> Verified:
        """Check the signature of an event. Raises ``Refused``: 401, or 403 for an event that it may not send."""
        known = self._signers.get(name)
        if known is None:
            raise _refused("The signature does not fit.")
        signer, secret = known
        scheme = SCHEMES[signer.scheme]
        signed = scheme.read(headers, body)
        expected = scheme.encode(hmac.digest(secret, signed.content, hashlib.sha256)).encode()
        fits = [hmac.compare_digest(expected, one.encode()) for one in signed.signatures]
        if not any(fits):
            raise _refused("The signature does not fit.")
        if scheme.timed and not self._is_near(signed.at):
            raise _refused(f"The signature is more than {WINDOW_SECONDS} s old: sign the event again.")
        if not any(_fits(event, one) for one in signer.events):
            raise Refused(403, "forbidden", "This service may not send events of this name.")
        key = signed.id or _id_in(body, scheme.id_field) or hashlib.sha256(body).hexdigest()
        return Verified(name, signer.tenant, key, signer.scheme)

    def _is_near(self, at: str) -> bool:
        return (
            at.isascii() and at.isdigit() and len(at) < 16 and abs(self._clock() - int(at)) <= WINDOW_SECONDS
        )


class Verified(NamedTuple):
    """The signer of an event, the tenant whose turns receive it, and its ``key``: the same for the same event."""

    signer: str
    tenant: str | None
    key: str
    scheme: str


def read_signers(path: Path) -> Signers:
    """Read a file of signers. Raises ``SettingsError``."""
    try:
        return Signers(msgspec.toml.decode(path.read_bytes(), type=_File).signers)
    except OSError as exc:
        raise SettingsError(f"The signers in {path} cannot be read: {exc.strerror}.") from exc
    except (msgspec.DecodeError, UnicodeError) as exc:
        raise SettingsError(f"The signers in {path} cannot be read: {exc}.") from exc


def _secret(name: str, signer: Signer) -> bytes:
    text = os.environ.get(signer.secret, "")
    try:
        if signer.tenant is not None:
            tenant_id(signer.tenant)
        if SCHEMES[signer.scheme].encoded_secret:
            secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        else:
            secret = text.encode()
    except (binascii.Error, InvalidId, ValueError) as exc:
        raise SettingsError(f"The signer {name!r} is not valid: {exc}.") from exc
    if not secret:
        raise SettingsError(
            f"The signer {name!r} needs its secret in the environment variable {signer.secret}."
        )
    return secret


def _id_in(body: bytes, field: str) -> str:
    """Return the id in a signed body, such as Stripe's ``evt_…``: it stays the same if the event is sent again."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    known = found.get(field) if isinstance(found, dict) else None
    return known if isinstance(known, str) and 0 < len(known) <= 200 else ""


def _fits(event: str, pattern: str) -> bool:
    return event.startswith(pattern[:-1]) if pattern.endswith("*") else event == pattern


def _refused(detail: str) -> Refused:
    return Refused(401, "unauthorized", detail)
