"""Checks, before a worker takes a turn, that its Redis keeps what it accepts."""

from __future__ import annotations

import re
from typing import Any, cast

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

from antiphon.errors import StoreError, StoreFull, StoreReadOnly, StoreUnavailable, StoreUnsupported
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.connection.replicated import REPLICATED
from antiphon.wire.errors import asked, store_error
from antiphon.wire.keys import Keys

OLDEST = (6, 2)
DURABILITIES = ("none", "everysec", "fsync", REPLICATED)


class RedisFacts(Struct):
    """Version, role, persistence and memory of a server, as it reports them. ``None`` means unknown."""

    server: str
    version: tuple[int, ...]
    role: str
    append_only: bool
    fsync: str | None
    snapshots: bool
    max_memory: int
    used_memory: int
    eviction: str
    replicas: int
    publishes: bool = True

    @property
    def durability(self) -> str:
        """The durability of accepted turns: ``fsync``, ``everysec`` or ``none``."""
        if not self.append_only:
            return "none"
        return "fsync" if self.fsync == "always" else "everysec" if self.fsync != "no" else "none"

    def sentence(self) -> str:
        """Return what this server promises, in one line."""
        version = ".".join(map(str, self.version))
        promise = {
            "fsync": "an accepted turn survives a power loss of this server (appendfsync always)",
            "everysec": "a power loss of this server may cost about the last two seconds (appendfsync everysec)",
            "none": "a restart of this server may cost accepted turns (no append-only file: CONFIG SET appendonly yes)",
        }[self.durability]
        failover = "; a fail-over to a replica may cost more" if self.replicas else ""
        return f"{self.server} {version}: durability {self.durability}: {promise}{failover}"


async def read_redis(redis: Redis, keys: Keys | None = None) -> RedisFacts:
    """Read the facts from the server. Raises ``StoreUnavailable`` if it cannot be reached."""
    try:
        info: dict[str, Any] = await redis.info()
        config = await _config(redis)
        publishes = await _may_publish(redis, keys or Keys())
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    return RedisFacts(
        server="Valkey" if "valkey_version" in info else "Redis",
        version=tuple(int(part) for part in version.split(".")[:3] if part.isdigit()),
        role=str(info.get("role", "master")),
        append_only=bool(info.get("aof_enabled")),
        fsync=config.get("appendfsync"),
        snapshots=bool(config.get("save")),
        max_memory=int(info.get("maxmemory", 0)),
        used_memory=int(info.get("used_memory", 0)),
        eviction=str(info.get("maxmemory_policy", "noeviction")),
        replicas=int(info.get("connected_slaves", 0)),
        publishes=publishes,
    )


async def write_refusal(cell: Cell) -> StoreError | None:
    """Return why this cell takes no turns now, or None. Nothing is written.

    Redis checks memory, disk, role and replicas before it runs a command that may write; this one writes an empty text.
    """
    try:
        await asked(cell.redis.setrange(cell.keys.fence, 0, ""))
    except StoreError as exc:
        return exc
    return None


async def memory_of(cell: Cell) -> tuple[int, int] | None:
    """Return the memory that Redis uses and its ``maxmemory``, in bytes; None if the user may not read them."""
    try:
        info: dict[str, Any] = await asked(cell.redis.info("memory"))
    except StoreUnsupported:
        return None
    return int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))


async def wait_for_disk(cell: Cell, patience_ms: int = 2000) -> bool:
    """Return when everything written so far is on the server's disk.

    Returns False if the server cannot confirm that: it has no append-only file, or is a Redis before 7.2. Raises
    ``StoreUnavailable`` if its disk has not caught up within ``patience_ms``.
    """
    try:
        pipe = cell.redis.pipeline(transaction=False)
        pipe.incrby(
            cell.keys.fence, 0
        )  # WAITAOF waits for the writes of its own connection: this is the last
        pipe.execute_command("WAITAOF", 1, 0, patience_ms)
        written, synced = await pipe.execute(raise_on_error=False)
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
    if isinstance(written, Exception):
        raise store_error(written)
    if isinstance(synced, Exception):
        return False
    if synced[0] < 1:
        raise StoreUnavailable(f"Redis has not written to its disk within {patience_ms / 1000:g} s.")
    return True


async def seconds_up(redis: Redis) -> float:
    """Return how long the server has been up. Raises ``StoreUnavailable`` if it cannot be reached."""
    try:
        # As text: parsing all of it would cost time at every start.
        told = cast("str | bytes | None", await redis.execute_command("INFO server"))
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
    found = re.search(r"uptime_in_seconds:(\d+)", told if isinstance(told, str) else text_of(told))
    return float(found[1]) if found else 0.0


def check_redis(facts: RedisFacts, durability: str) -> None:
    """Refuse a server that would lose accepted turns. Raises ``StoreError`` with the command that corrects it."""
    if facts.version < OLDEST:
        raise StoreUnsupported(
            f"{facts.server} {'.'.join(map(str, facts.version))} is too old: use 6.2 or newer."
        )
    if facts.role != "master":
        raise StoreReadOnly(
            "This Redis is a replica and refuses writes: point ANTIPHON_REDIS_URL at the primary."
        )
    if facts.max_memory and facts.eviction != "noeviction":
        raise StoreUnsupported(
            f"This Redis evicts keys when its memory is full ({facts.eviction}), which would lose sessions. "
            "Correct it with: CONFIG SET maxmemory-policy noeviction"
        )
    if facts.max_memory and facts.used_memory >= facts.max_memory:
        raise StoreFull(
            f"This Redis is out of memory ({facts.used_memory} of {facts.max_memory} bytes): raise maxmemory."
        )
    if not facts.publishes:
        raise StoreUnsupported(
            "The Redis user may not publish events, so readers would receive them seconds late. Allow "
            "it with: ACL SETUSER <user> +publish '&ant:*' (with ANTIPHON_PREFIX in place of ant)"
        )
    if durability == REPLICATED and not facts.replicas:
        raise StoreUnsupported(
            "ANTIPHON_DURABILITY is replicated, but no replica is connected to this Redis: nothing could be accepted. "
            "Connect one with: REPLICAOF <host> <port>, on the replica"
        )
    if durability == "fsync" and facts.append_only and facts.fsync is None:
        raise StoreUnsupported(
            "ANTIPHON_DURABILITY is fsync, but this Redis does not show its appendfsync. Allow its user to read it: "
            "ACL SETUSER <user> +config|get (if the service forbids CONFIG, use ANTIPHON_DURABILITY=everysec)"
        )
    if durability == "fsync" and facts.durability != "fsync":
        raise StoreUnsupported(
            "ANTIPHON_DURABILITY is fsync, but this Redis answers before it syncs its log to disk. Correct it with: "
            "CONFIG SET appendonly yes, then CONFIG SET appendfsync always"
        )


async def _may_publish(redis: Redis, keys: Keys) -> bool:
    """Return whether a script's events can reach the readers; nothing receives this one."""
    try:
        await redis.execute_command("SPUBLISH" if keys.tag else "PUBLISH", keys.live(0, ""), "")
    except NoPermissionError:
        return False
    return True


async def _config(redis: Redis) -> dict[str, str]:
    """Read settings that INFO does not show; empty if the user may not read them."""
    try:
        found: dict[str, str] = await redis.config_get("appendfsync", "save")  # pyright: ignore[reportGeneralTypeIssues, reportAssignmentType]
    except RedisError:
        return {}
    return found
