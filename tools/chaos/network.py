"""What lies between Redis, workers, clients and the gateway of a chaos run, and its faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations
from typing import Any, Protocol

from support.hosts import HERE, Hosts
from support.proxy import Proxy
from support.servers import Kind, RedisServer

from chaos.plan import Fault

After = Callable[[float, Callable[[], None]], None]
"""Does something so many seconds later."""


class Network(Protocol):
    """``inside`` is what the command of a worker's host, or of the gateway, begins with."""

    server: RedisServer

    def workers_url(self, number: int) -> str: ...
    def clients_url(self) -> str: ...
    def inside(self, number: int | None) -> tuple[str, ...]: ...
    def gateway_address(self) -> str: ...
    def disturb(self, fault: Fault, after: After) -> None: ...
    def heal(self) -> None: ...


class OneMachine:
    """Everything on one machine, with a proxy for all workers and one for all clients."""

    def __init__(self, stack: ExitStack, kind: Kind, **options: Any) -> None:
        self.server = stack.enter_context(RedisServer(kind, **options))
        self._workers = stack.enter_context(Proxy(self.server.port))
        self._clients = stack.enter_context(Proxy(self.server.port))

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

    def heal(self) -> None:
        self._workers.heal()
        self._clients.heal()


class SeveralHosts:
    """Redis, the gateway and each supervisor on hosts of their own; the clients are on this one."""

    def __init__(self, stack: ExitStack, kind: Kind, workers: int, **options: Any) -> None:
        names = [f"worker{number}" for number in range(workers)]
        self.hosts = stack.enter_context(Hosts("redis", "gateway", *names))
        here = self.hosts["redis"]
        self.server = stack.enter_context(
            RedisServer(kind, address=here.address, inside=here.inside, **options)
        )
        self._pairs = [*combinations(self.hosts.names, 2)]

    def workers_url(self, number: int) -> str:
        return self.server.url

    def clients_url(self) -> str:
        return self.server.url

    def inside(self, number: int | None) -> tuple[str, ...]:
        return self.hosts["gateway" if number is None else f"worker{number}"].inside

    def gateway_address(self) -> str:
        return self.hosts["gateway"].address

    def disturb(self, fault: Fault, after: After) -> None:
        """For longer than a lease, or shorter."""
        one, other = self._pairs[fault.target % len(self._pairs)]
        match fault.kind:
            case "part hosts":
                self.hosts.part(one, other)
            case "part hosts one way":
                self.hosts.part_one_way(*((one, other) if fault.target % 2 else (other, one)))
            case _:
                self.hosts.slow(one if one != HERE else other)
        after(3 * fault.seconds, self.heal)

    def heal(self) -> None:
        self.hosts.heal()
