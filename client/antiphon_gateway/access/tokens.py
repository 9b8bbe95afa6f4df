"""JSON web tokens: those of an identity service, and the gateway's own short-lived ones for a session's stream.

Algorithms are pinned: a shared secret verifies HS256, HS384 and HS512, keys from a JWKS verify signatures with public
keys. ``exp`` is required. Apart from the id of its key, nothing in a token affects how it is verified.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import jwt
import msgspec
from msgspec import Struct

from antiphon.errors import InvalidId
from antiphon.input.ids import tenant_id, user_name
from antiphon_gateway.access.caller import Caller, rights_of
from antiphon_gateway.problems import Refused

SHARED = ["HS256", "HS384", "HS512"]
PUBLIC = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
AUDIENCE = "antiphon-stream"
LONGEST_STREAM_SECONDS = 24 * 3600.0
JWKS_SECONDS = 300.0
JWKS_PAUSE = 10.0
LEEWAY_SECONDS = 10.0


INVALID = (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError)
"""What reading a token may raise: its numbers may be out of range, and its JSON too deep."""

log = logging.getLogger("antiphon.gateway")


class JwtSettings(Struct, frozen=True, kw_only=True):
    """How tokens of an identity service are verified: with ``secret``, or with the keys at ``jwks_url``."""

    secret: str = ""
    jwks_url: str = ""
    issuer: str = ""
    audience: str = ""
    tenant_claim: str = "tenant"


class Jwts:
    """Verifies tokens and reads their claims.

    Claims: ``sub`` names the caller, ``tenant`` (or the claim ``tenant_claim``) its tenant and is required,
    ``sessions`` is a list of ids and prefixes of ids, ``rights`` a list or text with spaces; without ``rights`` the
    caller may read. ``user`` is the user that the caller's turns are of.
    """

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._jwks = _Jwks(settings.jwks_url) if settings.jwks_url else None

    async def caller(self, token: str) -> Caller:
        """Return the caller with this token. Raises ``Refused`` with 401."""
        known = self._settings
        key = known.secret if self._jwks is None else await self._jwks.key(token)
        claims = _claims(
            token, key, SHARED if self._jwks is None else PUBLIC,
            issuer=known.issuer or None, audience=known.audience or None,
        )  # fmt: skip
        try:
            return _caller(claims, known.tenant_claim)
        except (*INVALID, InvalidId, msgspec.ValidationError) as exc:
            raise _unauthorized(f"The token's claims are invalid: {exc}.") from None


class StreamTokens:
    """Makes and reads tokens for the stream of one session. Browsers may have them: they allow nothing else."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def make(
        self, caller: Caller, session: str, seconds: float, events: list[str] | None, life: str
    ) -> tuple[str, int]:
        """Return a token for the stream of a session, and when it expires: no later than the caller.

        ``life`` distinguishes the session from later ones with its id.
        """
        until = time.time() + min(seconds, LONGEST_STREAM_SECONDS)
        until = int(until if caller.until is None else min(until, caller.until))
        shown = sorted(caller.events) if events is None and caller.events is not None else events
        claims = {
            "aud": AUDIENCE, "sub": caller.name, "exp": until, "session": session,
            "tenant": caller.tenant, "events": shown, "life": life,
        }  # fmt: skip
        return jwt.encode(claims, self._secret, SHARED[0]), until

    def caller(self, token: str) -> Caller:
        """Return the caller that may read the stream of this token. Raises ``Refused`` with 401."""
        claims = _claims(token, self._secret, SHARED[:1], audience=AUDIENCE, leeway=0)
        try:
            events: Any = claims.get("events")
            return Caller(
                name=f"stream of {claims['sub']}", tenant=claims["tenant"], session=_text(claims["session"]),
                rights=frozenset({"read"}), events=None if events is None else frozenset(events),
                life=claims.get("life"),
                until=float(claims["exp"]),
            )  # fmt: skip
        except (KeyError, *INVALID):
            raise _unauthorized("The token is not a stream token.") from None


class _Jwks:
    """The keys of an identity service, read again when they are old or a token names a new one."""

    def __init__(self, url: str) -> None:
        self._client = jwt.PyJWKClient(url, cache_jwk_set=False, timeout=5)
        self._keys: dict[str, Any] = {}
        self._read_at = self._tried_at = -JWKS_SECONDS * 2
        self._unavailable: Refused | None = None  # why the last attempt to read them failed
        self._lock = asyncio.Lock()

    async def key(self, token: str) -> Any:
        try:
            known = str(jwt.get_unverified_header(token).get("kid", ""))
        except INVALID as exc:
            raise _unauthorized(f"The token is not valid: {exc}.") from None
        if self._stale(known):
            async with self._lock:
                if self._stale(known):
                    await self._read()
        if known not in self._keys:
            raise self._unavailable or _unauthorized("The token is signed with a key that is unknown.")
        return self._keys[known]

    def _stale(self, known: str) -> bool:
        """Return whether to read the keys: they are old or lack this one, and ``JWKS_PAUSE`` has passed."""
        now = time.monotonic()
        wanted = known not in self._keys or now - self._read_at > JWKS_SECONDS
        return wanted and now - self._tried_at > JWKS_PAUSE

    async def _read(self) -> None:
        self._tried_at = time.monotonic()
        try:
            found = await asyncio.to_thread(self._client.get_signing_keys, True)
        except Exception as exc:  # noqa: BLE001 - whatever the service has answered
            log.warning(
                "the keys of the identity service cannot be read: %s", type(exc).__name__,
                extra={"action": "jwks_not_read"},
            )  # fmt: skip
            self._unavailable = Refused(
                503, "keys_unavailable", "The keys of the identity service cannot be read: try again later.",
                retry_after=JWKS_PAUSE,
            )  # fmt: skip
            return  # the keys that were read before still count
        self._keys, self._unavailable = {str(one.key_id or ""): one for one in found}, None
        self._read_at = self._tried_at


def _claims(
    token: str, key: Any, algorithms: list[str], *, leeway: float = LEEWAY_SECONDS, **more: Any
) -> dict[str, Any]:
    try:
        return jwt.decode(token, key, algorithms, options={"require": ["exp"]}, leeway=leeway, **more)
    except INVALID as exc:
        raise _unauthorized(f"The token is not valid: {exc}.") from None


def _caller(claims: dict[str, Any], tenant_claim: str) -> Caller:
    if tenant_claim not in claims:
        raise ValueError(f"missing claim {tenant_claim}")
    sessions = msgspec.convert(claims.get("sessions"), tuple[str, ...] | None)
    tenant = tenant_id(claims[tenant_claim])
    return Caller(
        name=f"{tenant}:{claims.get('sub', '')}", tenant=tenant,
        sessions=sessions, rights=rights_of(claims.get("rights", "read")),
        until=float(claims["exp"]), user=user_name(claims["user"]) if "user" in claims else None,
    )  # fmt: skip


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _unauthorized(detail: str) -> Refused:
    return Refused(401, "unauthorized", detail, headers={"www-authenticate": "Bearer"})
