"""What a worker learns of its Redis before it takes a turn: is it one that keeps what is accepted?"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from antiphon.errors import StoreFull, StoreReadOnly, StoreUnsupported
from antiphon.wire.errors import store_error

__all__ = ["RedisFacts", "check_redis", "read_redis", "seconds_up"]

OLDEST = (6, 2)


class RedisFacts(Struct):
    """Version, role, persistence and memory of a server, as it says itself. ``None`` where it does not tell."""

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

    @property
    def durability(self) -> str:
        """What an accepted turn survives: ``fsync``, ``everysec`` or ``none``."""
        if not self.append_only:
            return "none"
        return "fsync" if self.fsync == "always" else "everysec" if self.fsync != "no" else "none"

    def sentence(self) -> str:
        """What holds, in one line."""
        version = ".".join(map(str, self.version))
        promise = {
            "fsync": "an accepted turn survives a power loss of this server (appendfsync always)",
            "everysec": "a power loss of this server may cost about the last two seconds (appendfsync everysec)",
            "none": "a restart of this server may cost accepted turns (no append-only file: CONFIG SET appendonly yes)",
        }[self.durability]
        failover = "; a fail-over to a replica may cost more" if self.replicas else ""
        return f"{self.server} {version}: durability {self.durability}: {promise}{failover}"


async def read_redis(redis: Redis) -> RedisFacts:
    """Ask the server about itself. Raises ``StoreUnavailable`` where it cannot be reached."""
    try:
        info: dict[str, Any] = await redis.info()
        config = await _config(redis)
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
    )


async def seconds_up(redis: Redis) -> float:
    """How long the server has been up. Raises ``StoreUnavailable`` where it cannot be reached."""
    try:
        told = await redis.execute_command("INFO server")  # as text: reading all of it would cost every start
    except (RedisError, OSError) as exc:
        raise store_error(exc) from exc
    found = re.search(
        r"uptime_in_seconds:(\d+)", told if isinstance(told, str) else bytes(told or b"").decode()
    )
    return float(found[1]) if found else 0.0


def check_redis(facts: RedisFacts, durability: str) -> None:
    """Refuse a server that would lose what it accepted. Raises ``StoreError`` with the command that mends it."""
    if facts.version < OLDEST:
        raise StoreUnsupported(
            f"{facts.server} {'.'.join(map(str, facts.version))} is too old: 6.2 or newer is needed."
        )
    if facts.role != "master":
        raise StoreReadOnly(
            "This Redis is a replica and takes no writes: point ANTIPHON_REDIS_URL at the primary."
        )
    if facts.max_memory and facts.eviction != "noeviction":
        raise StoreUnsupported(
            f"This Redis evicts keys when its memory is full ({facts.eviction}), which would lose sessions: "
            "CONFIG SET maxmemory-policy noeviction"
        )
    if facts.max_memory and facts.used_memory >= facts.max_memory:
        raise StoreFull(
            f"This Redis has no memory left ({facts.used_memory} of {facts.max_memory} bytes): raise maxmemory."
        )
    if durability == "fsync" and facts.append_only and facts.fsync is None:
        raise StoreUnsupported(
            "ANTIPHON_DURABILITY is fsync, but this Redis does not tell its appendfsync: let its user read it with "
            "ACL SETUSER <user> +config|get (where the service forbids CONFIG, use ANTIPHON_DURABILITY=everysec)"
        )
    if durability == "fsync" and facts.durability != "fsync":
        raise StoreUnsupported(
            "ANTIPHON_DURABILITY is fsync, but this Redis does not sync before it answers: "
            "CONFIG SET appendonly yes, then CONFIG SET appendfsync always"
        )


async def _config(redis: Redis) -> dict[str, str]:
    """Settings that INFO does not tell; nothing where the user may not read them."""
    try:
        found: dict[str, str] = await redis.config_get("appendfsync", "save")  # pyright: ignore[reportGeneralTypeIssues, reportAssignmentType]
    except RedisError:
        return {}
    return found
