"""Damage every kind of key beside live processes and readers: ``python -m chaos.damage --mutations 20000``.

The workers have a memory and an archive, and some turns wait for an approval. Keys of some sessions, tenants, schedules
and webhooks are damaged for good, and those that all share until the end of a round. No process may die, and the turns
of another session run after each round.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from redis import Redis
from redis.exceptions import ResponseError
from support.network import free_port
from support.processes import Process, Processes
from support.servers import RedisServer
from support.stage import Stage

from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.input.ids import cell_hash
from antiphon.input.request import AgentSpec
from antiphon.wire.keys import KINDS
from chaos.rememberers import AGENT as REMEMBERS
from chaos.sleepers import LIFE_SECONDS

COMMAND = str(Path(sys.executable).with_name("antiphon"))
AGENT = AgentSpec(provider="scripted", model="m")
NEIGHBOUR, VICTIM = "neighbour", "victim"
OWN = (
    "ant:session", "ant:inbox", "ant:history", "ant:events", "ant:turns", "ant:turn", "ant:journal", "ant:schedule",
    "ant:scheduled", "ant:webhook", "ant:deliveries", "ant:tenant", "ant:share", "ant:line", "ant:pace", "rq:job",
    "rq:results", "ant:user_places", "ant:user_line", "ant:user_turns", "ant:rounds",
)  # fmt: skip
"""The kinds of keys that belong to one session, tenant, user, schedule or webhook."""
MARKER = "ant:moved"
JUNK = [b"abc", b"", b"-1", b"1.5", b"1e999", b"nan", b"\xff\xfe", b"9" * 20, b"{", b"\x7fr\x00"]
AT_ONCE, ROUND_SECONDS, MOST_SECONDS = 50, 0.2, 60.0
TYPES = {
    "string": ("SET", "x"), "list": ("RPUSH", "x"), "hash": ("HSET", "x", "y"), "set": ("SADD", "x"),
    "zset": ("ZADD", 1, "x"), "stream": ("XADD", "*", "x", "y"),
}  # fmt: skip


@dataclass
class Damage:
    """The damage done, and its consequences."""

    kinds: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)  # of the neighbour's turn after each round
    faults: list[str] = field(default_factory=list)

    def table(self) -> str:
        waits = sorted(self.waits)
        median, longest = waits[len(waits) // 2], waits[-1]
        lines = [f"{count:>7} {kind}" for kind, count in sorted(self.kinds.items())]
        lines.append(
            f"{self.kinds.total():>7} mutations of {len(self.kinds)} kinds of keys in {len(waits)} rounds"
        )
        lines.append(f"the neighbour's turns took {median:.2f} s, at most {longest:.2f} s")
        return "\n".join(
            [*lines, *self.faults, "A promise is broken." if self.faults else "Every promise held."]
        )


def mutate(redis: Redis, key: bytes, chance: random.Random) -> None:
    """Damage one key: its type, a field, a member, a score, or the whole key."""
    kind = redis.type(key).decode()
    ways = ["type", "gone", *(["inside"] * 4)]
    way, junk = chance.choice(ways), chance.choice(JUNK)
    if way == "type" or kind == "none":
        word, *values = TYPES[chance.choice([one for one in TYPES if one != kind])]
        redis.delete(key)
        redis.execute_command(word, key, *values)
    elif way == "gone":
        redis.delete(key)
    elif kind == "hash":
        name = chance.choice([*redis.hkeys(key), junk])
        redis.hset(key, name, junk) if chance.random() < 0.8 else redis.hdel(key, name)
    elif kind == "zset":
        member = chance.choice([*redis.zrange(key, 0, 20), junk])
        redis.zadd(key, {member: chance.choice([0, -1, 1e18, float("inf"), float("-inf")])})
    elif kind == "list":
        redis.lset(key, 0, junk) if chance.random() < 0.5 else redis.rpush(key, junk)
    elif kind == "set":
        redis.sadd(key, junk)
    elif kind == "stream":
        with suppress(Exception):
            redis.xadd(key, {junk or b"x": junk})
    else:
        redis.set(key, junk)


class Stand:
    """A server, its workers, a gateway, and a neighbour session that no damage may delay."""

    def __init__(self, redis: Redis, client: AsyncClient, gateway: str, chance: random.Random) -> None:
        self.redis, self.client, self.gateway, self.chance = redis, client, gateway, chance
        self.found = Damage()
        self._victims = 0

    async def populate(self) -> None:
        """Add victims in several states. Calls may be refused because of earlier damage."""
        self._victims += 1
        name, tenant = f"{VICTIM}-{self._victims}", f"{VICTIM}-{self._victims % 5}"
        client = self.client
        for call in (
            lambda: client.submit(name, "Hello", agent=AGENT, tenant=tenant, user="ann"),
            lambda: client.submit(f"{name}-next", "Hello", agent=AGENT, tenant=tenant, user="ann"),
            lambda: client.submit(f"{name}-later", "Hello", agent=AGENT, delay=5, tenant=tenant),
            lambda: client.submit(f"{name}-high", "Hello", agent=AGENT, priority="high"),
            lambda: client.submit(f"{name}-asks", "tool:guarded", agent="stage", tenant=tenant),
            lambda: client.submit(f"{name}-remembers", f"I am {name}", agent=REMEMBERS, tenant=tenant),
            lambda: client.submit(f"{name}-sleeps", "Hello", agent=AGENT, ttl=LIFE_SECONDS),
            lambda: client.set_tenant_limits(tenant, in_flight=2, per_minute=10_000, user_in_flight=1),
            lambda: client.schedules(name, tenant=tenant).set("tick", "Tick", every=1, agent=AGENT),
            lambda: client.webhooks(tenant=tenant).set(tenant, "http://127.0.0.1:9/", private=True),
        ):
            with suppress(AgentError):
                await call()
        with suppress(AgentError):
            async for waiting in client.waiting():
                if self.chance.random() < 0.2:
                    turn = await client.turn(waiting.turn_id)
                    await turn.approve(waiting.calls[0].call_id, by="ada")

    async def read(self) -> None:
        """Read all lists, as a client and through the gateway: they may refuse, but must not crash."""
        for listing in (
            self.client.sessions(),
            self.client.failed(),
            self.client.schedules(),
            self.client.webhooks(),
            self.client.waiting(),
            self.client.memory(tenant=f"{VICTIM}-1"),
        ):
            with suppress(AgentError):
                async for _ in listing:
                    pass
        async with httpx2.AsyncClient(timeout=30) as http:
            for path in ("sessions", "turns/failed", "queues", "workers", "schedules", "webhooks"):
                answer = await http.get(f"{self.gateway}/{path}")
                if answer.status_code == 500 and not any(code in answer.text for code in self._expected()):
                    self.found.faults.append(f"GET /{path} answered {answer.text[:200]}")

    def _expected(self) -> list[str]:
        """Return the codes of failures that the damage explains. A damaged marker of a move stops the whole cell."""
        return ["corrupt_record", *(["store_unsupported"] if self.redis.exists(MARKER) else [])]

    def keys(self) -> dict[str, list[bytes]]:
        """Return the keys to damage, by kind, with one of each kind that may be new; none is the neighbour's."""
        found: dict[str, list[bytes]] = {}
        for kind in KINDS:
            key = f"ant:{kind.template}".format(VICTIM, VICTIM).encode()
            found[b":".join(key.split(b":")[:2]).decode()] = [key]
        own = (NEIGHBOUR.encode(), cell_hash(NEIGHBOUR).encode())
        for key in self.redis.scan_iter(count=1000):
            if not any(name in key for name in own):
                found.setdefault(b":".join(key.split(b":")[:2]).decode(errors="replace"), []).append(key)
        return found

    async def round(self) -> None:
        """Damage keys, let everything run for a moment, repair the shared keys, and run a turn of the neighbour."""
        await self.populate()
        found, saved = self.keys(), dict[bytes, bytes | None]()
        for _ in range(AT_ONCE):
            kind = self.chance.choice(sorted(found))
            key = self.chance.choice(found[kind])
            if kind not in OWN and key not in saved:
                saved[key] = self.redis.dump(key)
            with suppress(ResponseError):  # its type has changed in the meantime
                mutate(self.redis, key, self.chance)
            self.found.kinds[kind] += 1
        await asyncio.gather(self.read(), asyncio.sleep(ROUND_SECONDS))
        for key, before in saved.items():
            if before is None:
                self.redis.delete(key)
            else:
                self.redis.restore(key, 0, before, replace=True)
        began = time.monotonic()
        turn = await self.client.submit(NEIGHBOUR, "Hello", agent=AGENT)
        await turn.result(MOST_SECONDS)
        self.found.waits.append(time.monotonic() - began)

    def forget(self) -> None:
        """Delete the victims and all damage, so that scanning the keys stays fast."""
        for key in self.redis.scan_iter(match="*", count=1000):
            if NEIGHBOUR.encode() not in key and not key.startswith((b"rq:worker", b"ant:held", b"ant:bell")):
                self.redis.delete(key)


async def run(url: str, gateway: str, processes: list[Process], mutations: int, seed: int) -> Damage:
    """Damage this many keys, and return the consequences."""
    redis = Redis.from_url(url)
    async with AsyncClient(url) as client:
        stand = Stand(redis, client, gateway, random.Random(seed))
        follow = asyncio.create_task(_follow(client.subscribe_all()))
        try:
            while stand.found.kinds.total() < mutations and not stand.found.faults:
                await stand.round()
                stand.found.faults += [fault for process in processes for fault in _deaths(process)]
                if len(stand.found.waits) % 20 == 0:
                    stand.forget()
        except AgentError as exc:
            stand.found.faults.append(f"The neighbour was delayed or refused: {exc!r}")
        finally:
            follow.cancel()
            (broken,) = await asyncio.gather(follow, return_exceptions=True)
            if not isinstance(broken, AgentError | asyncio.CancelledError):
                stand.found.faults.append(f"A reader broke: {broken!r}")
    redis.close()
    return stand.found


async def _follow(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


def _deaths(process: Process) -> list[str]:
    if not process.running:
        return [f"{process.name} has ended:\n{process.output[-2000:]}"]
    return [
        line for line in process.output.splitlines() if "[worker_died]" in line or "[loop_stalled]" in line
    ]


@contextmanager
def stand_of(url: str) -> Iterator[tuple[str, list[Process]]]:
    """Start workers and a gateway on this Redis; yield the gateway's URL and the processes."""
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-damage-") as folder,
        closing(Processes(Path(folder))) as processes,
    ):
        port = free_port()
        flags = ("--redis-url", url, "--archive", f"sqlite:///{folder}/archive")
        env = Stage(Path(folder) / "stage").env | {"STAGE_MEMORY": "1"}
        started = [
            processes.start(COMMAND, "worker", "--processes", "2", *flags, name="worker", env=env),
            processes.start(COMMAND, "serve", "--port", str(port), *flags, name="serve"),
        ]
        started[0].wait_for_output("takes turns")
        started[1].wait_for_output("[serving]")
        yield f"http://127.0.0.1:{port}", started


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.damage", description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000, help="how many keys to damage (default 2000)")
    parser.add_argument("--seed", type=int, default=1, help="names the sequence of mutations (default 1)")
    options = parser.parse_args()
    with RedisServer() as server, stand_of(server.url) as (gateway, processes):
        found = asyncio.run(run(server.url, gateway, processes, options.mutations, options.seed))
    print(found.table())
    return bool(found.faults)


if __name__ == "__main__":
    sys.exit(main())
