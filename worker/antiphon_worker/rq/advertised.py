"""The capabilities of each worker's App, advertised in the worker's record, so that a turn finds a worker
that can run it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import suppress
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Struct, field
from redis.exceptions import RedisError

from antiphon.errors import StoreUnavailable
from antiphon.input.request import AgentSpec
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.keys import rq_key
from antiphon.wire.lists.workers import FIELD

ANY = "*"
MOST_NAMES, MOST_WOKEN = 500, 8


class AppParts(Struct, omit_defaults=True):
    """The names of what turns may ask an App for; ``tools`` and ``providers`` are for agents that come with turns.

    ``calls`` are the other tools of the agents: calls that have waited for a decision need them. ``models`` are those
    that agents that come with turns may name, None for any. ``more`` is true where names were left out.
    """

    prefix: str
    agents: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    models: list[str] | None = None
    more: bool = False

    @classmethod
    def of(
        cls,
        prefix: str,
        agents: Collection[str],
        tools: Collection[str],
        providers: Collection[str],
        stops: Collection[str],
        calls: Collection[str] = (),
        models: Collection[str] | None = None,
    ) -> AppParts:
        """Return the parts with at most ``MOST_NAMES`` of each kind."""
        kinds = [sorted(names) for names in (agents, tools, providers, stops, calls)]
        named = None if models is None else sorted(models)[:MOST_NAMES]
        more = any(len(names) > MOST_NAMES for names in (*kinds, models or ()))
        return cls(prefix, *(names[:MOST_NAMES] for names in kinds), models=named, more=more)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    def digest(self) -> str:
        """Return a short name of an App with these parts."""
        return hashlib.sha256(self.encoded()).hexdigest()[:10]

    def has(self, asked: str | AgentSpec | None, to_run: Collection[str] = ()) -> bool:
        """Return whether turns that ask for this agent, and whose calls of these tools are to run, may run there."""
        if self.more:
            return True
        sent = [tool.name for tool in asked.caller_tools] if isinstance(asked, AgentSpec) else []
        if not set(to_run) <= {*self.tools, *self.calls, *sent}:
            return False
        if asked is None:
            return len(self.agents) == 1
        if isinstance(asked, str) or asked.name in self.agents:
            return (asked if isinstance(asked, str) else asked.name) in self.agents
        stops = asked.limits.stop if asked.limits else []
        providers = {asked.provider, *(one.provider for one in asked.fallback)}
        return (
            (ANY in self.providers or providers <= set(self.providers))
            and set(asked.tools) <= set(self.tools)
            and set(stops) <= set(self.stops)
        )


class Found(NamedTuple):
    """Some workers that have what a turn needs, and the digests of the Apps that lack it."""

    workers: list[str]
    lacking: list[str]


def how_to_start(queue: str) -> str:
    """Return the sentence for a turn that no worker can run."""
    return (
        f"No worker of the queue {queue} has it: start one with `antiphon worker --app module:app --queues {queue}`, "
        "and submit the turn again."
    )


async def workers_with(
    cell: Cell,
    queue: str,
    asked: str | AgentSpec | None,
    lacking: Collection[str],
    to_run: Collection[str] = (),
) -> Found:
    """Find workers of a queue whose App has this agent, or what it needs, and these tools. Raises ``StoreUnavailable``.

    Apps that are known to be ``lacking`` do not count, whatever their records say.
    """
    stem = rq_key("rq_worker", "")
    try:
        members: set[bytes] = await cast("Any", cell.redis).smembers(rq_key("rq_workers_of", queue))
        keys = sorted(text_of(member) for member in members)
        pipe = cell.redis.pipeline(transaction=False)
        for key in keys:
            pipe.hget(key, FIELD)
        records = await pipe.execute() if keys else []
    except (RedisError, OSError) as exc:
        raise StoreUnavailable(f"The workers cannot be read: {exc}.") from exc
    found = Found([], list(lacking))
    for key, record in zip(keys, records, strict=True):
        with suppress(msgspec.MsgspecError, UnicodeError):
            parts = msgspec.json.decode(record or b"", type=AppParts)
            digest = parts.digest()
            if parts.prefix != cell.keys.prefix or digest in lacking:
                continue
            if parts.has(asked, to_run):
                found.workers.append(key.removeprefix(stem))
            elif digest not in found.lacking:
                found.lacking.append(digest)
    return Found(found.workers[:MOST_WOKEN], found.lacking)
