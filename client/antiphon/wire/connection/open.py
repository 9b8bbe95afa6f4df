"""The only module that opens Redis connections.

A URL is ``redis://``, ``rediss://``, ``unix://`` or ``redis+sentinel://host1,host2/name/db``. Its user and password are
those of the primary; those of the Sentinels are ``?sentinel_username=…&sentinel_password=…``. ``rediss+sentinel://``
speaks TLS to both, with redis-py's options (``ssl_ca_certs=…``). Opening connects to nothing: connections are made when
they are first used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from inspect import signature
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.errors import SettingsError
from antiphon.wire.connection.pipeline import ScriptRedis

__all__ = ["database_of", "open_like", "open_redis", "redact", "url_like"]

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
SENTINEL_SECONDS = 1.0
SECRETS = ("password", "passwd", "secret", "token", "auth")


def open_redis(
    url: str, *, max_connections: int = 64, timeout_seconds: float = 5.0, retries: int = 3
) -> Redis:
    """A client for a URL. Raises ``SettingsError`` where the URL cannot be one.

    A command that finds no connection, or loses it before the answer, is sent again ``retries`` times: every
    script bears that.
    """
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES:
        raise SettingsError(
            f"The Redis URL {redact(url)!r} must begin with {', '.join(f'{s}://' for s in SCHEMES)}."
        )
    options: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "health_check_interval": 0,
        "retry": Retry(ExponentialWithJitterBackoff(base=0.02, cap=0.5), retries),
        "protocol": 2,
    }
    if scheme != "unix":
        options["socket_keepalive"] = True
    try:
        _check_encoded(url)
        redis = (_open_sentinel if scheme.endswith("+sentinel") else _open)(url, max_connections, options)
        redis.connection_pool.make_connection()  # connects to nothing, and takes no option that it does not know
    except ValueError as exc:
        why = f"{exc}" if "@" not in url else "special characters of a password are percent-encoded in a URL"
        raise SettingsError(f"The Redis URL {redact(url)!r} cannot be read: {why}.") from None
    except TypeError as exc:
        raise SettingsError(
            f"The Redis URL {redact(url)!r} has an option that is not one of redis-py's"
            f"{'' if '@' in url else f': {exc}'}."
        ) from None
    return redis


def _open(url: str, max_connections: int, options: dict[str, Any]) -> Redis:
    pool = _Pool.from_url(url, max_connections=max_connections, timeout=20, **options)
    pool.connection_class = _cancellable(pool.connection_class)
    return ScriptRedis.from_pool(pool)


class _Closing:
    """A pool that keeps no connection once it is closed: a command that was under way may have opened one since."""

    _closed = False

    async def aclose(self) -> None:
        self._closed = True
        await super().aclose()  # type: ignore[misc]

    async def release(self, connection: Any) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
        await super().release(connection)  # type: ignore[misc]


class _Pool(_Closing, BlockingConnectionPool):
    pass


class _SentinelPool(_Closing, SentinelConnectionPool):
    pass


class _Cancellable:
    """A connection whose writes can be cancelled.

    redis-py writes inside ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation that comes in the
    moment in which the write is done: a service would not stop, a time-out would not end what it limits.
    """

    stale = False
    """Whether it leads to a server that is no longer the primary, as far as this process knows."""

    follows_primary = False
    """Whether it is closed, and opened elsewhere, where its server is found to be no longer the primary."""

    def error_of(self: Any, text: str) -> Exception:
        """redis-py's exception for the text of an error."""
        return self._parser.parse_error(text)

    def hand_over(self: Any, protocol: asyncio.Protocol) -> asyncio.Transport:
        """From now on what comes is the protocol's, which writes on the transport, and closes with ``leave``."""
        self._writer.transport.set_protocol(protocol)
        return self._writer.transport

    def leave(self: Any) -> None:
        """Close it, without waiting."""
        self._parser.on_disconnect()
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None

    async def send_packed_command(
        self: Any, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Write a command. A failure closes the connection, because half of the command may be on its way."""
        if self.stale:
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await self.connect()
        pieces = [command.encode() if isinstance(command, str) else command]
        try:
            async with asyncio.timeout(self.socket_timeout):
                self._writer.writelines(pieces if isinstance(pieces[0], bytes) else command)
                await self._writer.drain()
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError("Timeout writing to socket") from None
        except OSError as exc:
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"Error while writing to socket: {exc}") from exc
        except BaseException:
            await self.disconnect(nowait=True)
            raise


class _Managed:
    """A connection to the primary of a Sentinel. What took its place may have been heard of over another connection:
    one that was a black hole, and is not any more, still takes itself for the primary.
    """

    follows_primary = True

    @property
    def stale(self: Any) -> bool:
        primary = self.connection_pool.master_address
        return primary is not None and primary != (self.host, self.port)


class _OfSentinel(ScriptRedis):
    """A client whose connections to the Sentinels are closed with its own."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close every connection."""
        try:
            await super().aclose(close_connection_pool)
        finally:
            pool: Any = self.connection_pool
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose()


@cache
def _cancellable(connection: type[Any], *more: type[Any]) -> type[Any]:
    """The same kind of connection, whose writes can be cancelled, and with what ``more`` adds."""
    return type(f"Cancellable{connection.__name__}", (*more, _Cancellable, connection), {})


def database_of(redis: Redis) -> int:
    """The database number a client selects; pub/sub channels do not know it by themselves."""
    return int(redis.connection_pool.connection_kwargs.get("db") or 0)


def redact(url: str) -> str:
    """A URL without its passwords, for messages and logs; also one that is written wrongly."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    secret, at, place = rest.rpartition("@")
    user, colon, _ = secret.partition(":")
    known = "" if not at else f"{user}:***@" if colon else "***@"
    place, question, query = place.partition("?")
    return f"{scheme}{mark}{known}{place}{question}{'&'.join(_redacted(pair) for pair in query.split('&'))}"


def _redacted(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}=***" if equals and any(word in name.lower() for word in SECRETS) else pair


def _check_encoded(url: str) -> None:
    """Raise ``ValueError`` where a password is cut off by a character that has a meaning in URLs."""
    parts = urlsplit(url)
    behind = f"{parts.path}{parts.fragment}" + "".join(
        pair for pair in parts.query.split("&") if "password=" not in pair
    )
    if "@" in behind and "@" not in parts.netloc:
        raise ValueError("special characters of a password are percent-encoded in a URL")


def _open_sentinel(url: str, max_connections: int, options: dict[str, Any]) -> Redis:
    parts = urlsplit(url)
    hosts = [_host_and_port(host) for host in parts.netloc.rpartition("@")[2].split(",") if host]
    path = [unquote(piece) for piece in parts.path.split("/") if piece]
    if not hosts or not path:
        raise ValueError("it must read redis+sentinel://host1:26379,host2:26379/service-name/0")
    credentials = _options_of(parts.query)
    if parts.scheme == "rediss+sentinel":
        credentials["ssl"] = True
    if parts.password:
        credentials |= {
            "password": unquote(parts.password),
            "username": unquote(parts.username or "") or None,
        }
    database = int(path[1]) if len(path) > 1 else 0
    # One that does not answer is often on the host that was lost: the next one is asked soon.
    asking: dict[str, Any] = {"socket_timeout": SENTINEL_SECONDS, "retry": Retry(NoBackoff(), 0)}
    for name in ("username", "password"):
        if given := credentials.pop(f"sentinel_{name}", None):
            asking[name] = given
    asking |= {name: value for name, value in credentials.items() if name.startswith("ssl")}
    redis = Sentinel(hosts, sentinel_kwargs=asking).master_for(
        path[0], _OfSentinel, _SentinelPool, db=database, max_connections=max_connections, **credentials, **options
    )  # fmt: skip
    redis.connection_pool.connection_class = _cancellable(redis.connection_pool.connection_class, _Managed)
    return redis


def _options_of(query: str) -> dict[str, Any]:
    """Options of a URL, as redis-py reads them."""
    read: dict[str, Any] = URL_QUERY_ARGUMENT_PARSERS  # type: ignore[assignment]
    return {name: read[name](value) if name in read else value for name, value in parse_qsl(query)}


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host else (text, 26379)


def open_like(client: Any, **options: Any) -> Redis:
    """A client of our own with the address and credentials of a redis-py client, whichever kind it is."""
    try:
        settings: dict[str, Any] = client.connection_pool.connection_kwargs
    except AttributeError:
        raise SettingsError(
            f"A Redis is a URL, a list of URLs or a redis-py client, not {type(client).__name__}."
        ) from None
    if hasattr(client.connection_pool, "sentinel_manager"):
        raise SettingsError(
            "For a primary that Sentinels name give a URL: redis+sentinel://host1,host2/name/0."
        )
    scheme = "unix" if settings.get("path") else "redis"
    place = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    redis = open_redis(f"{scheme}://{place}", **options)
    keep = ("db", "username", "password", "credential_provider")
    redis.connection_pool.connection_kwargs |= {name: settings[name] for name in keep if settings.get(name)}
    if issubclass(client.connection_pool.connection_class, _tls_connections()):
        redis.connection_pool.connection_class = _cancellable(SSLConnection)
        redis.connection_pool.connection_kwargs |= {
            name: settings[name] for name in _tls_options() if settings.get(name) is not None
        }
    return redis


def url_like(client: Any) -> str:
    """The URL of a redis-py client's server, with its credentials; '' where a Sentinel alone knows it."""
    pool = client.connection_pool
    settings: dict[str, Any] = pool.connection_kwargs
    if hasattr(pool, "sentinel_manager"):
        return ""
    tls = issubclass(pool.connection_class, _tls_connections())
    options = {
        name: settings[name] for name in _tls_options() if tls and isinstance(settings.get(name), str | bool)
    }
    user, password = settings.get("username") or "", settings.get("password") or ""
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    if settings.get("path"):
        return f"unix://{credentials}{settings['path']}?{urlencode({'db': settings.get('db') or 0})}"
    host, port = settings.get("host", "localhost"), settings.get("port", 6379)
    place = f"[{host}]" if ":" in host else host
    query = f"?{urlencode(options)}" if options else ""
    return f"{'rediss' if tls else 'redis'}://{credentials}{place}:{port}/{settings.get('db') or 0}{query}"


def _tls_options() -> list[str]:
    """Those that redis-py's asynchronous connections know too."""
    return [name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")]


def _tls_connections() -> tuple[type, ...]:
    from redis.connection import SSLConnection as SyncSSLConnection

    return (SSLConnection, SyncSSLConnection)
