"""Settings of ``antiphon serve``. Each is an option and an environment variable, and each has a default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from antiphon.errors import SettingsError
from antiphon.input.limits import LIMITS
from antiphon.input.values import parse_switch
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import read_keys
from antiphon_gateway.access.tokens import JwtSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request, and one caller, may take of a gateway process.

    ``rate`` is requests a second, ``streams`` those that are open at once; a caller may have others.
    """

    body_bytes: int = LIMITS.request_bytes + 64 * 1024
    rate: float = 100.0
    streams: int = 1000


def _setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of a gateway process."""

    host: str = _setting("127.0.0.1", "The address to listen on; without keys, only a local one")
    port: int = _setting(8700, "The port to listen on")
    keys: str = _setting("", "A file with the hashes of API keys; separate several with commas")
    secret: str = _setting("", "Signs stream tokens; 32 bytes or more, the same for every replica")
    jwt_secret: str = _setting("", "The shared secret that verifies JSON web tokens (HS256, HS384, HS512)")
    jwt_jwks_url: str = _setting("", "URL of the public keys that verify JSON web tokens")
    jwt_issuer: str = _setting("", "The issuer that a JSON web token must name")
    jwt_audience: str = _setting("", "The audience that a JSON web token must name")
    jwt_tenant_claim: str = _setting("tenant", "The claim that names the tenant")
    archive: str = _setting("", "URL of the workers' archive, to read archived sessions")
    cors: str = _setting("", "Allowed origins of web pages, separated by commas: https://chat.example.com")
    body_bytes: int = _setting(Limits().body_bytes, "The largest body of a request")
    rate: float = _setting(
        Limits().rate, "Requests per second of one key in this process, unless the key has a rate"
    )
    streams: int = _setting(
        Limits().streams, "Open streams of one key in this process, unless the key has streams"
    )
    connections: int = _setting(10_000, "Connections that may be open at once; further requests get 503")
    drain: float = _setting(10.0, "How long requests may take after SIGTERM, in seconds")
    log_level: str = _setting("info", "debug, info, warning or error")
    log_format: str = _setting("text", "text, or json for a JSON object on each line")
    status_port: int = _setting(
        0, "Port for /health, /ready and, with antiphon[metrics], /metrics for Prometheus; 0 for none"
    )
    status_host: str = _setting("127.0.0.1", "The address on which status_port listens")
    traces: bool = _setting(
        False,
        "Read the traceparent of requests and export OpenTelemetry traces, configured by the OTEL_* variables",
    )

    @classmethod
    def load(
        cls, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> GatewaySettings:
        """Read settings: flags other than None, then variables, then defaults. Raises ``SettingsError``."""
        values: dict[str, Any] = {}
        for known in fields(cls):
            flag = (flags or {}).get(known.name)
            text = flag if flag is not None else environ.get(variable_of(known.name))
            if text not in (None, ""):
                values[known.name] = _parsed(known.name, known.default, text)
        settings = cls(**values)
        settings.check()
        return settings

    def check(self) -> None:
        """Check the settings and their combinations. Raises ``SettingsError``."""
        for name in ("secret", "jwt_secret"):
            text: str = getattr(self, name)
            if text and len(text.encode()) < SECRET_BYTES:
                raise SettingsError(f"{variable_of(name)} must have at least {SECRET_BYTES} bytes.")
        if self.jwt_secret and self.jwt_jwks_url:
            raise SettingsError("Set ANTIPHON_GATEWAY_JWT_SECRET or …_JWT_JWKS_URL, not both.")
        if self.jwt_jwks_url and not self.jwt_jwks_url.startswith(
            ("https://", "http://127.0.0.1", "http://localhost")
        ):
            raise SettingsError("ANTIPHON_GATEWAY_JWT_JWKS_URL must begin with https://.")
        if self.log_format not in ("text", "json"):
            raise SettingsError(f"{variable_of('log_format')} (--log-format) must be text or json.")
        for name in ("body_bytes", "rate", "streams", "connections"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{variable_of(name)} must be greater than 0.")
        if any("*" in origin or "/" in origin.partition("://")[2] for origin in self.origins):
            raise SettingsError(
                "ANTIPHON_GATEWAY_CORS must name origins like https://chat.example.com, without *."
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
    def limits(self) -> Limits:
        return Limits(self.body_bytes, self.rate, self.streams)

    def access(self) -> Access:
        """Return who may use the gateway. Raises ``SettingsError`` if the keys cannot be read."""
        keys = read_keys(Path(one.strip()) for one in self.keys.split(",") if one.strip())
        tokens = JwtSettings(
            secret=self.jwt_secret, jwks_url=self.jwt_jwks_url, issuer=self.jwt_issuer,
            audience=self.jwt_audience, tenant_claim=self.jwt_tenant_claim,
        )  # fmt: skip
        return Access(keys, tokens if self.jwt_secret or self.jwt_jwks_url else None, self.secret)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"ANTIPHON_GATEWAY_{name.upper()}"


def _parsed(name: str, default: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    kind, parse = (
        ("true or false", parse_switch) if isinstance(default, bool) else ("a number", type(default))
    )
    try:
        return parse(value)
    except ValueError as exc:
        raise SettingsError(f"{variable_of(name)} (--{name.replace('_', '-')}) must be {kind}.") from exc
