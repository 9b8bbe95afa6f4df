"""``Access``: identifies the caller of a request.

With keys or JSON web tokens, a request needs ``Authorization: Bearer …``. Without either, every program on this
machine has all rights, and no other has any: a request from another address, through a proxy or for another host name
is refused. ``check_origin`` refuses requests that a browser sends for web pages of other origins.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request

from antiphon_gateway.access.caller import PREFIX, Caller, Keys
from antiphon_gateway.access.signers import Signers
from antiphon_gateway.access.tokens import Jwts, JwtSettings, StreamTokens
from antiphon_gateway.problems import Refused

NOBODY_ELSE: Final = Caller(name="this machine", tenant=None)
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Access:
    """The callers that may use a gateway: those of ``keys``, ``jwt``, and stream tokens made with ``secret``.

    ``signers`` are services that may send signed events.

    >>> Access().closed
    False
    """

    def __init__(
        self,
        keys: Keys | None = None,
        jwt: JwtSettings | None = None,
        secret: str = "",
        signers: Signers | None = None,
    ) -> None:
        self.signers = signers or Signers({})
        self._keys = keys or Keys({})
        self._jwts = None if jwt is None else Jwts(jwt)
        self.streams = StreamTokens(secret) if secret else None
        self.secret = (secret or (jwt.secret if jwt else "")).encode()

    @property
    def closed(self) -> bool:
        """Whether a request needs a key or a token."""
        return bool(len(self._keys)) or self._jwts is not None

    async def caller(self, request: Request, *, stream: bool) -> Caller:
        """Return the caller of a request. ``stream`` is whether the query may contain a stream token.

        Raises ``Refused``: 401 without a valid key or token, 403 for another machine if neither is configured.
        """
        token = request.query_params.get("token")
        if token is not None:
            return self._of_stream(token, stream)
        if not self.closed:
            _check_local(request)
            return NOBODY_ELSE
        bearer = _bearer(request)
        found = self._keys.caller(bearer) if self._jwts is None or bearer.startswith(PREFIX) else None
        if found is not None:
            return found
        if self._jwts is None or bearer.startswith(PREFIX):
            raise _unauthorized("This key is unknown.")
        return await self._jwts.caller(bearer)

    def _of_stream(self, token: str, stream: bool) -> Caller:
        if not stream:
            raise _unauthorized("A token in the query string is valid only for event streams.")
        if self.streams is None:
            raise _unauthorized("This gateway does not issue stream tokens: set ANTIPHON_GATEWAY_SECRET.")
        return self.streams.caller(token)


def _bearer(request: Request) -> str:
    given = request.headers.getlist("authorization")
    if not given:
        raise _unauthorized("Authenticate with a key or a token: Authorization: Bearer …")
    scheme, _, credentials = given[0].partition(" ")
    if len(given) > 1 or scheme.lower() != "bearer" or not credentials.strip():
        raise _unauthorized("Send one header Authorization: Bearer …")
    return credentials.strip()


def _check_local(request: Request) -> None:
    """Refuse requests from other machines. Raises ``Refused``."""
    address = request.client.host if request.client is not None else ""
    through = [name for name in FORWARDED if name in request.headers]
    hosts = request.headers.getlist("host")
    if not _is_local(address) or through or len(hosts) != 1 or not _is_local(_host(hosts[0])):
        raise Refused(
            403, "forbidden",
            "This gateway has no keys, so it answers only programs on its own machine: configure keys or tokens.",
        )  # fmt: skip


def _host(header: str) -> str:
    return header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _unauthorized(detail: str) -> Refused:
    return Refused(401, "unauthorized", detail, headers={"www-authenticate": "Bearer"})


PORTS = {"http": 80, "https": 443}
READING = ("GET", "HEAD")
OWN = ("same-origin", "none")


def check_origin(request: Request, allowed: Collection[str]) -> None:
    """Accept requests of programs, and of pages of this or ``allowed`` origins. Raises ``Refused`` with 403.

    A browser sends ``Sec-Fetch-Site`` to trustworthy hosts. It sends ``Origin`` with WebSockets, with requests
    that read the answer from another origin, and with those that may change something. Pages cannot change either.
    """
    origins = request.headers.getlist("origin")
    if origins and all(one.lower() in allowed for one in origins):
        return
    site = request.headers.get("sec-fetch-site")
    if site in OWN:
        return
    foreign = site is not None and request.method not in READING
    if foreign or not all(_is_own(one, request.headers.get("host", "")) for one in origins):
        raise Refused(
            403, "forbidden",
            "A web page of another origin sent this request: list its origin in ANTIPHON_GATEWAY_CORS (cors=), as "
            "https://chat.example.com, if it may call this gateway.",
        )  # fmt: skip


def _is_own(origin: str, host: str) -> bool:
    """Return whether an origin is the host of a request. The scheme is not compared: a proxy may end TLS."""
    try:
        page = urlsplit(origin)
        return bool(page.hostname) and _place(page, page.scheme) == _place(urlsplit(f"//{host}"), page.scheme)
    except ValueError:
        return False


def _place(parts: SplitResult, scheme: str) -> tuple[str | None, int | None]:
    return parts.hostname, parts.port or PORTS.get(scheme)
