"""The network between Redis, workers, clients and the gateway of a chaos run, and its faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any, Protocol

from support.clusters import Cluster
from support.eventually import wait_until_async
from support.hosts import HERE, Hosts
from support.proxy import Proxy
from support.servers import Kind, RedisServer

from antiphon.redis.cells import open_cells
from chaos.plan import Fault

After = Callable[[float, Callable[[], None]], None]
"""Calls a function after this many seconds."""


class Network(Protocol):
    """``inside`` is the prefix of commands on a worker's host, or on the gateway's for None.

    ``stays`` are the keys that refuse calls where a cell was; ``strays`` are all other keys it left there.
    """

    servers: Sequence[RedisServer]

    @property
    def stays(self) -> Sequence[str]: ...

    def server_of(self, fault: Fault) -> RedisServer: ...
    def workers_url(self, number: int) -> str: ...
    def clients_url(self) -> str: ...
    def inside(self, number: int | None) -> tuple[str, ...]: ...
    def gateway_address(self) -> str: ...
    def disturb(self, fault: Fault, after: After) -> None: ...
    async def move(self, fault: Fault) -> None: ...
    def strays(self) -> list[str]: ...
    def heal(self) -> None: ...


class OneMachine:
    """Everything on one machine, with a proxy for all workers and one for all clients."""

    stays: Sequence[str] = ()

    def __init__(self, stack: ExitStack, kind: Kind, **options: Any) -> None:
        server = stack.enter_context(RedisServer(kind, **options))
        self.servers = [server]
        self._workers = stack.enter_context(Proxy(server.port))
        self._clients = stack.enter_context(Proxy(server.port))

    def server_of(self, fault: Fault) -> RedisServer:
        return self.servers[0]

    def workers_url(self, number: int) -> str:
        return self._workers.url

    def clients_url(self) -> str:
        return self._clients.url

    def inside(self, number: int | None) -> tuple[str, ...]:
        return ()

    def gateway_address(self) -> str:
        return "127.0.0.1"

    def disturb(self, fault: Fault, after: After) -> None:
        match fault.kind:
            case "cut workers":
                self._workers.cut()
            case "cut clients":
                self._clients.cut()
            case "delay workers":
                self._workers.delay(0.1)
                after(fault.seconds, self._workers.heal)
            case "hold back workers":
                self._workers.blackhole()
                after(fault.seconds, self._workers.heal)
            case _:
                (self._workers if fault.target % 2 else self._clients).drop_reply(b"EVALSHA")

    async def move(self, fault: Fault) -> None:
        raise NotImplementedError("one Redis has no slots")

    def strays(self) -> list[str]:
        return []

    def heal(self) -> None:
        self._workers.heal()
        self._clients.heal()


class SeveralHosts:
    """Redis, the gateway and each supervisor on separate hosts; the clients are on this one."""

    stays: Sequence[str] = ()

    def __init__(self, stack: ExitStack, kind: Kind, workers: int) -> None:
        names = [*self._nodes, "gateway", *(f"worker{number}" for number in range(workers))]
        self.hosts = stack.enter_context(Hosts(*names))
        self.servers = self._open_servers(stack, kind)
        self._pairs = [*combinations(self.hosts.names, 2)]

    _nodes: tuple[str, ...] = ("redis",)

    def _open_servers(self, stack: ExitStack, kind: Kind) -> Sequence[RedisServer]:
        host = self.hosts["redis"]
        server = RedisServer(
            kind, address=host.address, inside=host.inside, appendonly=True, appendfsync="always"
        )
        return [stack.enter_context(server)]

    def server_of(self, fault: Fault) -> RedisServer:
        return self.servers[fault.target % len(self.servers)]

    def workers_url(self, number: int) -> str:
        return self.clients_url()

    def clients_url(self) -> str:
        return self.servers[0].url

    def inside(self, number: int | None) -> tuple[str, ...]:
        return self.hosts["gateway" if number is None else f"worker{number}"].inside

    def gateway_address(self) -> str:
        return self.hosts["gateway"].address

    def disturb(self, fault: Fault, after: After) -> None:
        """Disturb a pair of hosts, for longer or shorter than a lease."""
        one, other = self._pairs[fault.target % len(self._pairs)]
        match fault.kind:
            case "part hosts":
                self.hosts.part(one, other)
            case "part hosts one way":
                self.hosts.part_one_way(*((one, other) if fault.target % 2 else (other, one)))
            case _:
                self.hosts.slow(one if one != HERE else other)
        after(3 * fault.seconds, self.hosts.heal)

    async def move(self, fault: Fault) -> None:
        raise NotImplementedError("one Redis has no slots")

    def strays(self) -> list[str]:
        return []

    def heal(self) -> None:
        self.hosts.heal()


CELLS, NODE_TIMEOUT_MS = 4, 30_000  # a node comes back after seconds: no replica takes over


class ClusterOfHosts(SeveralHosts):
    """The same with a cluster of three nodes, each on its own host."""

    _nodes = ("node0", "node1", "node2")

    def _open_servers(self, stack: ExitStack, kind: Kind) -> Sequence[RedisServer]:
        self._cluster = Cluster(
            kind,
            hosts=[self.hosts[name] for name in self._nodes],
            config=lambda: {"appendfsync": "always"},
            node_timeout_ms=NODE_TIMEOUT_MS,
        )
        self._slots = [cell.redis.connection_pool.place.slot for cell in open_cells(self._cluster.url(CELLS))]
        return stack.enter_context(self._cluster).nodes

    def clients_url(self) -> str:
        return self._cluster.url(CELLS, seeds=3)

    async def move(self, fault: Fault) -> None:
        """Move the slot of a cell to another node."""
        slot = self._slots[fault.target % CELLS]
        self.heal()  # the nodes must reach each other to do so
        await wait_until_async(self._cluster.serves, 30, "the cluster serves all slots", 0.1)
        if fault.kind == "move a slot":
            await self._cluster.move_at_once(slot)
        else:
            await asyncio.to_thread(self._cluster.move_all, slot)
