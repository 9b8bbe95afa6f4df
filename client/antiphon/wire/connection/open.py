"""Opens Redis connections; no other module does.

A URL is ``redis://``, ``rediss://``, ``unix://`` or ``redis+sentinel://host1,host2/name/db``. Its user and password are
those of the primary; those of the Sentinels are ``?sentinel_username=…&sentinel_password=…``. ``rediss+sentinel://``
uses TLS for both, with redis-py's options (``ssl_ca_certs=…``). With ``?durability=replicated``, scripts are answered
when a replica has what they wrote. Connections are made at their first use.
"""

from __future__ import annotations

import asyncio
import os
import re
import weakref
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import AuthenticationError, ClusterError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from antiphon.errors import SettingsError
from antiphon.text import text_of
from antiphon.wire.connection.cancellable import cancellable
from antiphon.wire.connection.cluster import FIRST_TAG, OfCell, Place, each_cell
from antiphon.wire.connection.moved import check_here
from antiphon.wire.connection.names import NAMES, database_of, split_names
from antiphon.wire.connection.pipeline import ScriptRedis
from antiphon.wire.connection.replicated import REPLICATED, ReplicatedLine
from antiphon.wire.keys import Keys


class HasNumber(Protocol):
    def fileno(self) -> int:
        """Return the number of the open file, or -1."""
        ...


_open: weakref.WeakSet[HasNumber] = weakref.WeakSet()


def close_in_forks(one: HasNumber) -> None:
    """Close this socket in every process that is forked from this one, as ``multiprocessing`` does."""
    os.set_inheritable(one.fileno(), False)  # an executed program does not get it either
    _open.add(one)


def _close_all() -> None:
    """Replace each with an empty file, which keeps the number in use, so that a second close hits no other file."""
    empty = os.open(os.devnull, os.O_RDWR)
    for one in list(_open):
        number = one.fileno()
        if number >= 0:
            os.dup2(empty, number, inheritable=False)
    os.close(empty)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


_PERCENT_ENCODE = "percent-encode the special characters of the password"
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
SENTINEL_SECONDS = 1.0
CLOSED_BY_SERVER = ("Connection closed by server", "Error while reading", "Error while writing")
NUMBERS = frozenset({*URL_QUERY_ARGUMENT_PARSERS, "cells", "cell"})
PATHS = frozenset({"durability", NAMES, "ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile"})
"""The options of a URL whose values may be shown. Any other name may be a misspelt password."""
OBJECTS = frozenset({
    "connection_class", "credential_provider", "encoder_class", "event_dispatcher", "maint_notifications_config",
    "parser_class", "protocol", "redis_connect_func", "retry", "retry_on_error", "self",
})  # fmt: skip
"""Options that redis-py takes only from programs, and options that this module sets."""


def server_urls(text: str) -> list[str]:
    """Split a setting into the URLs of servers and clusters, which may contain commas."""
    return [url.strip() for url in re.split(r",(?=\s*[a-z+]+://)", text) if url.strip()]


def cell_urls(text: str) -> list[str]:
    """Split a setting into one URL for each cell. Raises ``SettingsError``."""
    try:
        return [one for url in server_urls(text) for one in each_cell(url)]
    except ValueError as exc:
        raise SettingsError(f"The Redis URL {redact(text)!r} cannot be read: {exc}.") from None


def open_redis(
    url: str,
    *,
    max_connections: int = 64,
    timeout_seconds: float = 5.0,
    retries: int = 3,
    durability: str = "",
) -> Redis:
    """Make a client for a URL. Raises ``SettingsError`` if the URL is not valid.

    A command that finds no connection, or loses it before the answer, is sent again up to ``retries`` times. Every
    script can be repeated. ``durability`` applies to a URL without one.
    """
    url, durability = without_durability(url, durability)
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
        _check_database(url)
        _check_options(url)
        redis: Any = _OPENERS[scheme.partition("+")[2]](url, max_connections, options)
        redis.connection_pool.make_connection()  # does not connect, and refuses unknown options
    except (ValueError, TypeError, RedisError) as exc:
        raise SettingsError(f"The Redis URL {redact(url)!r} {_fault(url, exc)}.") from None
    if durability:
        redis.replicated = ReplicatedLine(redis.connection_pool)
    redis.origin = url
    redis.reopen = partial(
        open_redis, max_connections=max_connections, timeout_seconds=timeout_seconds, retries=retries,
        durability=durability,
    )  # fmt: skip
    return redis


def with_durability(url: str, durability: str) -> str:
    """Add ``durability`` to a URL without one; '' adds nothing."""
    if not url or not durability or "durability=" in url.partition("?")[2]:
        return url
    return f"{url}{'&' if '?' in url else '?'}durability={durability}"


def without_durability(url: str, durability: str = "") -> tuple[str, str]:
    """Return a URL without its ``durability``, and its value, or else the given one. Raises ``SettingsError``."""
    place, _, query = url.partition("?")
    options = query.split("&") if query else []
    given = [one.partition("=")[2] for one in options if one.startswith("durability=")]
    if any(one not in ("", REPLICATED) for one in [*given, durability]):
        raise SettingsError(
            f"durability= of a client or of a Redis URL must be {REPLICATED!r}, not {[*given, durability][0]!r}."
        )
    rest = [one for one in options if not one.startswith("durability=")]
    return "?".join([place, "&".join(rest)] if rest else [place]), (given or [durability])[0]


def _opened(url: str, max_connections: int, options: dict[str, Any]) -> Redis:
    url, name = split_names(url)
    pool = _Pool.from_url(url, max_connections=max_connections, timeout=20, **options)
    pool.cell_name = name
    pool.connection_class = _own(pool.connection_class)
    return ScriptRedis.from_pool(pool)


class _OfCells:
    """A pool of connections to a cell. When it is closed, it also closes the connections that are opened later."""

    moved_key = ""
    """The key in which a moved cell names its new place. Each new connection reads it."""

    cell_name = ""
    """The name of the cell, if the URL gives it one."""

    _closed = False

    def make_connection(self) -> Any:
        connection: Any = super().make_connection()  # type: ignore[misc]
        connection.moved_key = self.moved_key
        return connection

    async def aclose(self) -> None:
        self._closed = True
        await super().aclose()  # type: ignore[misc]

    async def release(self, connection: Any) -> None:
        if self._closed:
            await connection.disconnect(nowait=True)
        await super().release(connection)  # type: ignore[misc]


class _Pool(_OfCells, BlockingConnectionPool):
    pass


class CellPool(_Pool):
    """The connections to the node that has the slot of one cell of a cluster."""

    place: Place
    """Which cell it is."""

    def make_connection(self) -> Any:
        connection: Any = super().make_connection()
        connection.place = self.place
        return connection


class _SentinelPool(_OfCells, SentinelConnectionPool):
    pass


class _Own:
    """A connection to a server that has our data. A fork does not keep it open.

    Otherwise, Redis would run the commands of a dead process for as long as a child of it holds the connection.
    """

    follows_primary = False
    """Whether this connection is replaced when its server is no longer the primary."""

    of_cluster = False
    """Whether the server may be a node of a cluster."""

    moved_key = ""
    """The key in which a moved cell names its new place."""

    async def _connect(self: Any) -> None:
        await super()._connect()  # type: ignore[misc]
        close_in_forks(self)

    def fileno(self: Any) -> int:
        """Return the number of the open socket, or -1."""
        writer = self._writer
        if writer is None or writer.transport.is_closing():
            return -1
        return writer.get_extra_info("socket").fileno()

    def error_of(self: Any, text: str) -> Exception:
        """Return redis-py's exception for the text of an error."""
        return self._parser.parse_error(text)

    def hand_over(self: Any, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Hand the transport over to a protocol, which reads, writes and closes it with ``leave``."""
        self._writer.transport.set_protocol(protocol)
        return self._writer.transport

    def leave(self: Any) -> None:
        """Close the connection without waiting."""
        self._parser.on_disconnect()
        if self._writer is not None:
            self._writer.close()
            self._reader = self._writer = None

    async def connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        """Connect. If apparently only one side uses TLS, the error contains a hint."""
        try:
            await super().connect_check_health(*args, **options)  # type: ignore[misc]
        except (RedisConnectionError, RedisTimeoutError) as exc:
            hint = _tls_hint(exc, uses_tls=isinstance(self, SSLConnection))
            if not hint:
                raise
            raise type(exc)(f"{str(exc).rstrip('.')}; {hint}") from exc

    async def on_connect_check_health(self: Any, *args: Any, **options: Any) -> None:
        """Prepare a new connection. Raises ``ClusterError`` if the server is part of a cluster and must not be.

        Raises ``CellMoved`` if the cell was moved away: then nothing else is sent on this connection. HELLO and GET
        change nothing here, and a server that refuses them is used all the same.
        """
        await super().on_connect_check_health(*args, **options)  # type: ignore[misc]
        asked = [("HELLO",), *([("GET", self.moved_key)] if self.moved_key else [])]
        await self.send_packed_command(self.pack_commands(asked), check_health=False)
        facts, *moved = [await self._answer() for _ in asked]
        in_cluster = dict(zip(facts[::2], facts[1::2], strict=False)).get(b"mode") == b"cluster"
        if in_cluster and not self.of_cluster:
            raise ClusterError("the server is part of a Redis Cluster")
        check_here(text_of(moved[0]) if moved and moved[0] else "", self.moved_key)

    async def read_response(self: Any, *args: Any, **options: Any) -> Any:
        """Return the next reply. The reply of a stalled server may contain what the new primary never had."""
        reply = await super().read_response(*args, **options)  # type: ignore[misc]
        if self.stale:
            await self.disconnect(nowait=True)
            raise RedisConnectionError("Another server is the primary.")
        return reply

    async def _answer(self: Any) -> Any:
        """Return the next answer; empty if the server refuses the command, or this key's slot is elsewhere.

        For a key that is not a string, the answer is the server's error message.
        """
        try:
            return await super().read_response()  # type: ignore[misc]
        except (ResponseError, AuthenticationError) as exc:
            return str(exc).encode() if "WRONGTYPE" in str(exc) else ()


class _Managed:
    """A connection to the primary of a Sentinel.

    Another connection may learn of a new primary first. After a network fault, the old server may still believe itself
    to be the primary.
    """

    follows_primary = True

    @property
    def stale(self: Any) -> bool:
        primary = self.connection_pool.master_address
        return primary is not None and primary != (self.host, self.port)


class _Sentinels(Sentinel):
    """Sentinels that explain why they lead to no primary."""

    async def discover_master(self, service_name: str) -> Any:
        try:
            return await super().discover_master(service_name)
        except MasterNotFoundError as exc:
            settings = [one.connection_pool.connection_kwargs for one in self.sentinels]
            places = ", ".join(f"{one['host']}:{one['port']}" for one in settings)
            raise MasterNotFoundError(
                f"no Sentinel of {places} answers with a primary named {service_name!r}"
            ) from exc


class _OfSentinel(ScriptRedis):
    """A client that also closes its connections to the Sentinels."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        pool: Any = self.connection_pool
        self._sentinels = pool.sentinel_manager.sentinels

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections."""
        try:
            await super().aclose(close_connection_pool)
        finally:
            for sentinel in self._sentinels:
                await sentinel.aclose()


def _own(connection: type[Any], *more: type[Any]) -> type[Any]:
    """Return this class of connection with our own additions and those of ``more``."""
    return cancellable(connection, *more, _Own)


def _tls_hint(exc: RedisConnectionError | RedisTimeoutError, *, uses_tls: bool) -> str:
    """Return a hint if only one side uses TLS: plain Redis waits for more of the handshake; a TLS server closes."""
    if uses_tls and isinstance(exc, RedisTimeoutError):
        return "if this port speaks no TLS, write redis in place of rediss in the URL"
    if not uses_tls and str(exc).startswith(CLOSED_BY_SERVER):
        return "if this port speaks TLS, write rediss in place of redis in the URL"
    return ""


def keys_of(redis: Redis, prefix: str) -> Keys:
    """Return the keys of the cell to which a client leads."""
    pool, replicated = redis.connection_pool, getattr(redis, "replicated", None)
    keys = Keys(prefix)
    if isinstance(pool, CellPool):
        pool.place.belong(Keys(prefix, FIRST_TAG).cells)
        keys = Keys(prefix, pool.place.tag)
    if replicated is not None:
        replicated.counter = keys.fence
    cast("Any", pool).moved_key = keys.moved
    cast("Any", redis).naming = partial(_naming, prefix)
    return keys


def _naming(prefix: str, redis: Redis) -> tuple[Keys, int]:
    return keys_of(redis, prefix), database_of(redis)


def redact(url: str) -> str:
    """Remove the passwords from a URL, even an invalid one, for messages and logs."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    secret, at, place = rest.rpartition("@")
    user, colon, _ = secret.partition(":")
    known = "" if not at else f"{user}:***@" if colon else "***@"
    place, question, query = place.partition("#")[0].partition("?")
    hosts, slash, path = place.partition("/")
    if scheme in ("redis", "rediss") and path and not path.isdigit():
        path = "***"
    if scheme != "unix":
        hosts = ",".join(map(_without_text_for_a_port, hosts.split(",")))
    place = f"{hosts}{slash}{path}"
    return f"{scheme}{mark}{known}{place}{question}{'&'.join(_redacted(pair) for pair in query.split('&'))}"


def _without_text_for_a_port(host: str) -> str:
    """Redact a port that is not a number: a user and a password without a host look like a host and a port."""
    name, colon, port = host.rpartition(":")
    return f"{name}:***" if colon and port and "]" not in port and not port.isdigit() else host


def _redacted(pair: str) -> str:
    name, equals, value = pair.partition("=")
    shown = name in PATHS or (name in NUMBERS and value.replace(".", "", 1).isdigit())
    return pair if shown or not pair else f"{name}=***" if equals else "***"


def _check_encoded(url: str) -> None:
    """Raise ``ValueError`` if a character with a meaning in URLs cuts off a password."""
    parts = urlsplit(url)
    behind = f"{parts.path}{parts.fragment}" + "".join(
        pair for pair in parts.query.split("&") if "password=" not in pair
    )
    if "@" in behind and "@" not in parts.netloc:
        raise ValueError(_PERCENT_ENCODE)


def _check_database(url: str) -> None:
    """Raise ``ValueError`` for a path that is not a number: redis-py would use database 0."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and database and not (database.isascii() and database.isdigit()):
        raise ValueError("the host must be followed by a database number, as in redis://host:6379/0")


def _check_options(url: str) -> None:
    """Raise ``TypeError``, as redis-py does, for an option that a URL cannot have."""
    for name, _ in parse_qsl(urlsplit(url).query):
        if name in OBJECTS:
            raise TypeError(f"argument {name!r}")


def _fault(url: str, exc: Exception) -> str:
    """Return what is wrong with a URL: the name of an option, never its value, and nothing of Python.

    A name that ``redact`` hides may be part of a password.
    """
    found = re.search(r"(?:argument|value for) '([^']+)'", f"{exc}")
    name = found[1] if found and f"{found[1]}=" in redact(url) else ""
    if isinstance(exc, TypeError):
        tls = "; options of TLS need a URL that begins with rediss" if name.startswith("ssl_") else ""
        return (f"has the unknown option {name!r}" if name else "has an unknown option") + tls
    if name or isinstance(exc, RedisError):
        return (
            f"has an invalid value for the option {name!r}" if name else "has an option with an invalid value"
        )
    if "@" in url:
        return f"cannot be read: {_PERCENT_ENCODE}"
    if "invalid literal" in f"{exc}" or f"{exc}".startswith("Port "):
        return "cannot be read: ports and databases must be numbers"
    return f"cannot be read: {f'{exc}'.rstrip('.')}"


def _open_sentinel(url: str, max_connections: int, options: dict[str, Any]) -> Redis:
    url, cell_name = split_names(url)
    parts = urlsplit(url)
    hosts = [_host_and_port(host) for host in parts.netloc.rpartition("@")[2].split(",") if host]
    path = [unquote(piece) for piece in parts.path.split("/") if piece]
    if not hosts or not path:
        raise ValueError("write it as redis+sentinel://host1:26379,host2:26379/service-name/0")
    credentials = _options_of(parts.query)
    if parts.scheme == "rediss+sentinel":
        credentials["ssl"] = True
    if parts.password:
        credentials |= {
            "password": unquote(parts.password),
            "username": unquote(parts.username or "") or None,
        }
    database = int(path[1]) if len(path) > 1 else 0
    # A Sentinel that does not answer is often on the lost host: the next one is asked soon.
    asking: dict[str, Any] = {"socket_timeout": SENTINEL_SECONDS, "retry": Retry(NoBackoff(), 0)}
    for name in ("username", "password"):
        if given := credentials.pop(f"sentinel_{name}", None):
            asking[name] = given
    asking |= {name: value for name, value in credentials.items() if name.startswith("ssl")}
    sentinels = _Sentinels(hosts, sentinel_kwargs=asking)
    for one in sentinels.sentinels:
        one.connection_pool.connection_class = cancellable(one.connection_pool.connection_class)
    redis = sentinels.master_for(
        path[0], _OfSentinel, _SentinelPool, db=database, max_connections=max_connections, **credentials, **options
    )  # fmt: skip
    redis.connection_pool.connection_class = _own(redis.connection_pool.connection_class, _Managed)
    cast("Any", redis.connection_pool).cell_name = cell_name
    return redis


def _open_cell(url: str, max_connections: int, options: dict[str, Any]) -> Redis:
    place = Place(url)
    pool: Any = CellPool.from_url(
        place.topology.seeds[0], max_connections=max_connections, timeout=20, **options
    )
    pool.place = place
    pool.cell_name = place.name
    pool.connection_class = _own(pool.connection_class, OfCell)
    return ScriptRedis.from_pool(pool)


_OPENERS = {"": _opened, "sentinel": _open_sentinel, "cluster": _open_cell}


def _options_of(query: str) -> dict[str, Any]:
    """Read the options of a URL as redis-py does."""
    read: dict[str, Any] = URL_QUERY_ARGUMENT_PARSERS  # type: ignore[assignment]
    options: dict[str, Any] = {}
    for name, value in parse_qsl(query):
        try:
            options[name] = read[name](value) if name in read else value
        except (TypeError, ValueError):
            raise ValueError(f"Invalid value for {name!r} in connection URL.") from None
    return options


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host else (text, 26379)


def open_like(client: Any, **options: Any) -> Redis:
    """Make our own client with the address and credentials of a redis-py client of any kind."""
    if url := getattr(client, "cell_url", ""):
        return open_redis(url, **options)
    try:
        settings: dict[str, Any] = client.connection_pool.connection_kwargs
    except AttributeError:
        raise SettingsError(
            f"A Redis must be a URL, a list of URLs or a redis-py client, not {type(client).__name__}."
        ) from None
    if hasattr(client.connection_pool, "sentinel_manager"):
        raise SettingsError(
            "A redis-py client of a Sentinel is unusable: give a URL, redis+sentinel://host1,host2/name/0."
        )
    scheme = "unix" if settings.get("path") else "redis"
    place = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
    redis = open_redis(f"{scheme}://{place}", **options)
    cast("Any", redis).origin = "" if settings.get("credential_provider") else url_like(client)
    keep = ("db", "username", "password", "credential_provider")
    redis.connection_pool.connection_kwargs |= {name: settings[name] for name in keep if settings.get(name)}
    if issubclass(client.connection_pool.connection_class, _tls_connections()):
        redis.connection_pool.connection_class = _own(SSLConnection)
        redis.connection_pool.connection_kwargs |= {
            name: settings[name] for name in _tls_options() if settings.get(name) is not None
        }
    return redis


def url_like(client: Any) -> str:
    """Return the URL of a redis-py client's server, with its credentials; '' if only a Sentinel knows the server."""
    if url := getattr(client, "cell_url", ""):
        return url
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
    """Return the TLS options that redis-py's asynchronous connections also know."""
    return [
        name
        for name in signature(cast("Callable[..., None]", SSLConnection.__init__)).parameters
        if name.startswith("ssl_")
    ]


def _tls_connections() -> tuple[type, ...]:
    from redis.connection import SSLConnection as SyncSSLConnection

    return (SSLConnection, SyncSSLConnection)
