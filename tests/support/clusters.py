"""A Redis Cluster for tests: primaries with replicas, each a server in its own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from redis import Redis
from support.eventually import wait_until, wait_until_async
from support.hosts import Host
from support.network import free_port
from support.servers import Kind, RedisServer

SLOTS = 16384
NODE_TIMEOUT_MS = 1000


class Cluster:
    """A cluster whose primaries share the slots, each with the same number of replicas.

    Data survives the death of a primary, unless ``config`` turns ``appendonly`` off.
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        primaries: int = 3,
        replicas: int = 0,
        config: Callable[[], dict[str, str]] = dict,
        hosts: Sequence[Host] = (),
        node_timeout_ms: int = NODE_TIMEOUT_MS,
    ) -> None:
        self._node_timeout_ms = node_timeout_ms
        number = primaries * (1 + replicas)
        self.nodes = [self._node(kind, config(), host) for host in (hosts or [None] * number)]
        self.primaries = self.nodes[:primaries]

    def _node(self, kind: Kind, more: dict[str, str], host: Host | None) -> RedisServer:
        config = {"appendonly": "yes"} | more | {
            "cluster-enabled": "yes", "cluster-port": str(free_port()),
            "cluster-node-timeout": str(self._node_timeout_ms),
            "cluster-require-full-coverage": "no", "repl-diskless-sync-delay": "0",
        }  # fmt: skip
        place = {} if host is None else {"address": host.address, "inside": host.inside}
        return RedisServer(kind, config=config, **place)

    def url(self, cells: int, *, seeds: int = 1) -> str:
        """Return the URL of a deployment with this many cells."""
        places = ",".join(f"{node.address}:{node.port}" for node in self.nodes[:seeds])
        return f"redis+cluster://{places}?cells={cells}"

    def call(self, node: RedisServer, *command: Any) -> Any:
        """Run a command on a node."""
        with Redis.from_url(node.url) as redis:
            return redis.execute_command(*command)

    def owner(self, slot: int) -> RedisServer:
        """Return the node that has a slot, according to the first running node that lists it."""
        for node in self.nodes:
            if node.runs:
                for low, high, place, *_ in self.call(node, "CLUSTER SLOTS"):
                    if low <= slot <= high:
                        return next(one for one in self.nodes if one.port == place[1])
        raise AssertionError(f"no node has the slot {slot}")

    def in_step(self, primary: RedisServer) -> bool:
        """Return whether a replica of this node has received all writes."""
        facts = self.call(primary, "INFO", "replication")
        replicas = [
            value for name, value in facts.items() if name.startswith("slave") and isinstance(value, dict)
        ]
        return any(replica["offset"] >= facts["master_repl_offset"] for replica in replicas)

    async def move_at_once(self, slot: int) -> None:
        """Move a slot to another primary as a whole. Needs Valkey 9 or newer."""
        source = self.owner(slot)
        target = next(node for node in self.primaries if node is not source)
        name = self.call(target, "CLUSTER MYID")
        self.call(source, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", name)
        await wait_until_async(lambda: self.owner(slot) is target, 20, "the slot has moved")

    def move_all(self, slot: int) -> None:
        """Move a slot to another primary key by key, with any server."""

        async def move() -> None:
            async with self.moving_key_by_key(slot):
                pass

        asyncio.run(move())

    @asynccontextmanager
    async def moving_key_by_key(self, slot: int) -> AsyncIterator[None]:
        """Move a slot to another primary as resharding does. Within the block, half of its keys have moved."""
        source = self.owner(slot)
        target = next(node for node in self.primaries if node is not source)
        names = {node.port: self.call(node, "CLUSTER MYID") for node in (source, target)}
        self.call(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source.port])
        self.call(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target.port])
        keys = self.call(source, "CLUSTER", "GETKEYSINSLOT", slot, 1_000_000)
        self._migrate(source, target, keys[::2])
        yield
        while keys := self.call(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
            self._migrate(source, target, keys)
        for node in (target, source):
            self.call(node, "CLUSTER", "SETSLOT", slot, "NODE", names[target.port])

    def _migrate(self, source: RedisServer, target: RedisServer, keys: list[bytes]) -> None:
        self.call(source, "MIGRATE", target.address, target.port, "", 0, 5000, "KEYS", *keys)

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        first, size = self.nodes[0], len(self.primaries)
        for number, node in enumerate(self.primaries):
            self.call(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            low, high = SLOTS * number // size, SLOTS * (number + 1) // size - 1
            self.call(node, "CLUSTER", "ADDSLOTSRANGE", low, high)
        for node in self.nodes[1:]:
            self.call(node, "CLUSTER", "MEET", first.address, first.port, first.config["cluster-port"])
        wait_until(lambda: all(self._knows_all(node) for node in self.nodes), 20, "all nodes know each other")
        for number, node in enumerate(self.nodes[size:]):
            self.call(node, "CLUSTER", "REPLICATE", self.call(self.primaries[number % size], "CLUSTER MYID"))
        wait_until(self.serves, 20, "the cluster serves all slots")
        return self

    def serves(self) -> bool:
        """Return whether every node serves, and knows the owners of all slots."""
        return all(self._serves(node) for node in self.nodes)

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close()

    def _knows_all(self, node: RedisServer) -> bool:
        return len(self.call(node, "CLUSTER NODES")) == len(self.nodes)

    def _serves(self, node: RedisServer) -> bool:
        facts = self.call(node, "CLUSTER INFO")
        ready = facts["cluster_state"] == "ok" and facts["cluster_slots_ok"] == str(SLOTS)
        if node in self.primaries:
            return ready
        return ready and self.call(node, "INFO", "replication").get("master_link_status") == "up"
