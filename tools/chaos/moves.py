"""A single Redis and a cluster, between which `antiphon cells move` moves the cell while everything breaks."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from redis import Redis
from support.clusters import Cluster
from support.processes import COMMAND, Processes
from support.proxy import Proxy
from support.servers import Kind, RedisServer

from antiphon.wire.connection.cluster import FIRST_TAG
from antiphon.wire.keys import Keys
from antiphon.wire.moving import guards, moves
from chaos.network import After
from chaos.plan import Fault

MOST_TRIES = 30
PAUSE_SECONDS = 2


class TwoPlaces:
    """A Redis and a cluster on one machine, with a proxy to each for clients, workers and movers.

    Every process starts with the URL of the single Redis, and follows the cell.
    """

    def __init__(self, stack: ExitStack, kind: Kind, processes: Processes) -> None:
        single = RedisServer(kind, appendonly=True, appendfsync="always")
        cluster = Cluster(kind, primaries=1, config=lambda: {"appendfsync": "always"})
        self.servers = [single, *cluster.nodes]
        self._links = [stack.enter_context(Proxy(server.port)) for server in self.servers]
        cluster.nodes[0].config["cluster-announce-port"] = str(self._links[1].port)
        stack.enter_context(single)
        stack.enter_context(cluster)
        self._places = [self._links[0].url, f"redis+cluster://127.0.0.1:{self._links[1].port}?cells=1"]
        self._processes = processes
        self._moving = False
        self._at = 0
        self.moved = 0

    def server_of(self, fault: Fault) -> RedisServer:
        return self.servers[fault.target % len(self.servers)]

    def workers_url(self, number: int) -> str:
        return self._places[0]

    def clients_url(self) -> str:
        return self._places[0]

    def inside(self, number: int | None) -> tuple[str, ...]:
        return ()

    def gateway_address(self) -> str:
        return "127.0.0.1"

    def disturb(self, fault: Fault, after: After) -> None:
        """Break the link to one of the places."""
        link = self._links[fault.target % len(self._links)]
        match fault.kind:
            case "cut workers" | "cut clients":
                link.cut()
            case "delay workers":
                link.delay(0.1)
                after(fault.seconds, link.heal)
            case "hold back workers":
                link.blackhole()
                after(fault.seconds, link.heal)
            case _:
                link.drop_reply(b"EVALSHA")

    async def move(self, fault: Fault) -> None:
        """Move the cell to the other place, with as many movers as it takes. Do nothing while another call moves it.

        A mover is killed after it has copied something, up to the end of its move.
        """
        if self._moving:
            return
        self._moving = True
        source, target = self._places[self._at], self._places[1 - self._at]
        doomed = fault.kind == "kill the mover"
        for _ in range(MOST_TRIES):
            mover = self._processes.start(
                COMMAND, "cells", "move", target, "--redis-url", source, "--pause", str(PAUSE_SECONDS),
                name="mover",
            )  # fmt: skip
            while mover.running:
                await asyncio.sleep(0.02)
                if doomed and "copied" in mover.output:
                    await asyncio.sleep(fault.seconds / 10)
                    mover.kill()
                    doomed = False
            if mover.wait() == 0:
                break
            await asyncio.sleep(fault.seconds)
        else:
            raise AssertionError(f"the cell does not move to {target}: {mover.output}")
        self._at, self._moving = 1 - self._at, False
        self.moved += 1

    def heal(self) -> None:
        for link in self._links:
            link.heal()

    @property
    def stays(self) -> list[str]:
        return guards(self._left) if self.moved else []

    @property
    def _left(self) -> Keys:
        """The names of the cell's keys at the place it is not at."""
        return Keys() if self._at else Keys(tag=FIRST_TAG)

    def strays(self) -> list[str]:
        keys, stay = self._left, {key.encode() for key in self.stays}
        with Redis.from_url(self.servers[1 - self._at].url) as redis:
            found = [*redis.scan_iter(f"{keys.prefix}:*"), *redis.scan_iter(f"{keys.rq}:*")]
            return sorted(key.decode() for key in found if moves(keys, key) and key not in stay)
