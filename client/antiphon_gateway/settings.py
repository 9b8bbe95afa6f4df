"""Settings of ``antiphon serve``. Each is an option and an environment variable, and each has a default."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from antiphon.errors import SettingsError
from antiphon.input.limits import LIMITS
from antiphon.settings import ABOVE_ZERO, PORT, CommandSettings, Rule, setting
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import read_keys
from antiphon_gateway.access.signers import read_signers
from antiphon_gateway.access.tokens import JwtSettings
from antiphon_gateway.published import A2AAgent, read_agents

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECRET_BYTES = 32
LONG_SECRET = Rule(
    lambda text: not text or len(text.encode()) >= SECRET_BYTES, f"must have at least {SECRET_BYTES} bytes"
)


def is_origin(text: str) -> bool:
    """Return whether a text is an origin, as browsers send it: a scheme and a host, perhaps with a port.

    >>> is_origin("https://chat.example.com"), is_origin("chat.example.com"), is_origin("*")
    (True, False, False)
    """
    scheme, separator, host = text.partition("://")
    return bool(scheme and separator and host) and not {"*", "/"} & {*host}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request and one caller may use of a gateway process.

    ``rate`` is in requests per second, and ``streams`` may be open at once. A caller may have its own limits.
    """

    body_bytes: int = LIMITS.request_bytes + 64 * 1024
    rate: float = 100.0
    streams: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(CommandSettings):
    """The settings of a gateway process."""

    VARIABLE: ClassVar[str] = "ANTIPHON_GATEWAY_{}"

    host: str = setting("127.0.0.1", "The address to listen on; without keys, only a local one")
    port: int = setting(8700, "The port to listen on; 0 for any that is free", PORT)
    keys: str = setting("", "A file with the hashes of API keys; separate several with commas")
    signers: str = setting("", "A file of services that may send signed events")
    a2a: str = setting("", "A file of agents that other agents may call by the A2A protocol")
    secret: str = setting(
        "", "Signs stream tokens; 32 bytes or more, the same for every replica", LONG_SECRET
    )
    jwt_secret: str = setting(
        "", "The shared secret that verifies JSON web tokens (HS256, HS384, HS512)", LONG_SECRET
    )
    jwt_jwks_url: str = setting("", "URL of the public keys that verify JSON web tokens")
    jwt_issuer: str = setting("", "The issuer that a JSON web token must name")
    jwt_audience: str = setting("", "The audience that a JSON web token must name")
    jwt_tenant_claim: str = setting("tenant", "The claim that names the tenant")
    archive: str = setting("", "URL of the workers' archive, to read archived sessions")
    cors: str = setting(
        "", "Other origins whose web pages may call, separated by commas: https://chat.example.com"
    )
    body_bytes: int = setting(Limits().body_bytes, "The largest body of a request", ABOVE_ZERO)
    rate: float = setting(
        Limits().rate,
        "Requests per second of one key in this process, unless the key has a rate",
        ABOVE_ZERO,
        kind="N",
    )
    streams: int = setting(
        Limits().streams,
        "Open streams of one key in this process, unless the key has streams",
        ABOVE_ZERO,
    )
    connections: int = setting(
        10_000, "Connections that may be open at once; further requests get 503", ABOVE_ZERO
    )
    drain: float = setting(10.0, "How long requests may take after SIGTERM, in seconds")
    traces: bool = setting(
        False,
        "Read the traceparent of requests and export OpenTelemetry traces, configured by the OTEL_* variables",
    )

    def check(self) -> None:
        """Check the settings and their combinations. Raises ``SettingsError``."""
        CommandSettings.check(self)
        if self.jwt_secret and self.jwt_jwks_url:
            raise SettingsError("Set ANTIPHON_GATEWAY_JWT_SECRET or …_JWT_JWKS_URL, not both.")
        if self.jwt_jwks_url and not self.jwt_jwks_url.startswith(
            ("https://", "http://127.0.0.1", "http://localhost")
        ):
            raise SettingsError("ANTIPHON_GATEWAY_JWT_JWKS_URL must begin with https://.")
        if not all(is_origin(one) for one in self.origins):
            raise SettingsError(
                "ANTIPHON_GATEWAY_CORS (--cors) must name origins like https://chat.example.com, without * or a path."
            )
        if self.host.count(":") == 1:
            raise SettingsError(
                f"ANTIPHON_GATEWAY_HOST (--host) must be an address without a port, not {self.host}: use --port."
            )
        if not self.access().closed and self.host not in LOOPBACK:
            raise SettingsError(
                f"Without keys the gateway listens on this machine only, not on {self.host}: set "
                "ANTIPHON_GATEWAY_KEYS, or verify JSON web tokens with ANTIPHON_GATEWAY_JWT_SECRET or "
                "ANTIPHON_GATEWAY_JWT_JWKS_URL."
            )

    @property
    def origins(self) -> list[str]:
        """The origins of ``cors``."""
        return [one.strip() for one in self.cors.split(",") if one.strip()]

    @property
    def agents(self) -> list[A2AAgent]:
        """The agents of the file ``a2a``. Raises ``SettingsError``."""
        return read_agents(Path(self.a2a)) if self.a2a else []

    @property
    def limits(self) -> Limits:
        return Limits(self.body_bytes, self.rate, self.streams)

    def access(self) -> Access:
        """Return the callers that may use the gateway. Raises ``SettingsError`` if keys or signers cannot be read."""
        keys = read_keys(Path(one.strip()) for one in self.keys.split(",") if one.strip())
        tokens = JwtSettings(
            secret=self.jwt_secret, jwks_url=self.jwt_jwks_url, issuer=self.jwt_issuer,
            audience=self.jwt_audience, tenant_claim=self.jwt_tenant_claim,
        )  # fmt: skip
        signers = read_signers(Path(self.signers)) if self.signers else None
        return Access(keys, tokens if self.jwt_secret or self.jwt_jwks_url else None, self.secret, signers)
