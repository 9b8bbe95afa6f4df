"""Real processes on one Redis, and the plan of faults they suffer."""

import asyncio
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Protocol, Self

from support.ensemble import Ensemble, Supervised, signal_process
from support.eventually import patience, wait_until_async
from support.processes import Processes, worker_name
from support.receiver import Receiver
from support.releases import THIS, Release
from support.services.batch_server import BatchServer
from support.stage import Stage

from antiphon.bytestores.of_process import FILES_VARIABLE
from antiphon.client import AsyncClient
from antiphon.errors import AgentError
from antiphon.redis.turn import AsyncTurn
from antiphon.stores import SQLiteStore
from chaos.batched import SETTINGS, Batched, answer
from chaos.errands import LABELS, Errands
from chaos.filers import Filers
from chaos.gateway import Gateway
from chaos.load import Conversation, People
from chaos.moves import TwoPlaces
from chaos.network import ClusterOfHosts, Network, OneMachine, SeveralHosts
from chaos.plan import HOST_FAULTS, MOVE_FAULTS, NETWORK_FAULTS, SLOT_FAULTS, Fault, make_plan
from chaos.pushed import Pushed
from chaos.recovery import Death, since
from chaos.rememberers import AWAY, Rememberers
from chaos.sleepers import LIFE_SECONDS, Sleepers
from chaos.travellers import QUEUES, Travellers
from chaos.trees import Trees

HOSTS, PROCESSES, SESSIONS, PLACES = 2, 2, 16, 2
AWAY_FAULTS = {*NETWORK_FAULTS, *HOST_FAULTS, *SLOT_FAULTS, *MOVE_FAULTS, "lose all workers", "kill host"}
STALL_SECONDS = 2.0
PROBE_SECONDS = 60.0
LEASE_SECONDS = 3.0
SETTLE_SECONDS = 90.0
INDEXED_SECONDS = 90.0  # after an outage of the store, a retry may take up to 30 seconds
TOLD_SECONDS = 60.0  # a webhook stays held for 22 seconds after its deliverer dies
PUSHED_SECONDS = 120.0  # a notification is held for 30 seconds, and as long again if it is then refused


class Other(Protocol):
    """A client that submits turns of one kind, and checks them at the end. ``trouble`` lists the broken promises."""

    trouble: list[str]
    counts: Counter[str]

    async def run(self, over: Callable[[], bool], /) -> None: ...

    async def check(self, client: AsyncClient, /) -> None: ...


class Hit:
    """One fault that was carried out: the worker or host (the prefix of its workers' names), and when."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.worker = ""
        self.began_ms = time.time() * 1000
        self.ended_ms = self.began_ms


class Chaos:
    """One run. Use it as a context manager, which ends everything it started."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        directory: Path,
        *,
        server: str = "valkey",
        clock: bool = False,
        webhook: bool = False,
        archive: bool = False,
        memory: bool = False,
        errands: bool = False,
        files: bool = False,
        batches: bool = False,
        apart: bool = False,
        cluster: bool = False,
        moves: bool = False,
    ) -> None:
        self.seed = seed
        self.seconds = seconds
        self.clock = clock
        self.apart, self.cluster, self.moves = apart, cluster, moves
        self.plan = make_plan(
            seed,
            seconds,
            clock=clock,
            archive=archive,
            memory=memory,
            errands=errands,
            apart=apart,
            cluster=cluster,
            moves=moves,
        )
        self.hits: list[Hit] = []
        self.stage = Stage(directory / "stage")
        self.conversations: list[Conversation] = []
        self.hosts: list[Supervised] = []
        self._processes = Processes(directory)
        self._files = directory / "files"
        self._server_kind = server
        self._stack = ExitStack()
        self._later: set[asyncio.Task[None]] = set()
        self.free_places = 0
        self.receiver = Receiver() if webhook else None
        self._clock_offset = 0.0
        self._began = 0.0
        self.archive = SQLiteStore(directory / "archive.db") if archive else None
        self.sleepers: Sleepers | None = None
        self.with_memory = memory
        self.rememberers: Rememberers | None = None
        self.with_files = files
        if files:
            self._files.mkdir()
        self.others: dict[str, Other] = {}
        self.services = BatchServer(answer, quick=False) if batches else None
        self.with_errands = errands
        self.gateway: Gateway | None = None
        self.pushed: Pushed | None = None
        self.endpoints = Receiver() if errands and not apart else None
        self._labels: dict[int, str] = {}  # the revision of each host, by process id

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        self.network = self._open_network(stack)
        for receiver in filter(None, (self.receiver, self.endpoints)):
            stack.enter_context(receiver)
        stack.callback(self._processes.close)  # runs first, so that nothing connects to a closing proxy

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open_network(self, stack: ExitStack) -> Network:
        kind: Any = self._server_kind
        if self.cluster:
            return ClusterOfHosts(stack, kind, HOSTS)
        if self.apart:
            return SeveralHosts(stack, kind, HOSTS)
        if self.moves:
            return TwoPlaces(stack, kind, self._processes)
        return OneMachine(stack, kind, appendonly=True, appendfsync="always", movable_clock=self.clock)

    async def run(self) -> None:
        """Run the load while the plan is carried out; then wait until everything ends."""
        async with AsyncClient(self.network.clients_url()) as client, self.services or nullcontext():
            self._ensemble = Ensemble(self.network.clients_url(), self.stage, self._processes, client)
            errands: Errands | None = None
            if self.with_errands:
                self.gateway = Gateway(self._processes, self.network, self.stage.directory)
                errands = self.others["errands"] = Errands(client, self.stage, self.seed, self.gateway)
                await errands.open()
            self.hosts = [self._start_host(number) for number in range(HOSTS)]
            for host in self.hosts:
                await asyncio.to_thread(host.ready, PROCESSES)
            if self.receiver:
                await client.webhooks().set("chaos", self.receiver.url, private=True)
            began = self._began = time.monotonic()
            self.conversations = self._conversations(client)
            readers = [asyncio.create_task(one.read_along()) for one in self.conversations]
            readers += [asyncio.create_task(one.look()) for one in self.conversations]
            talkers = [asyncio.create_task(one.talk(self._is_over)) for one in self.conversations]
            self.people = People(client, self.seed)
            operators = [asyncio.create_task(self.people.decide_all())]
            if self.archive:
                self.sleepers = Sleepers(client, self.archive, self.seed)
                talkers.append(asyncio.create_task(self.sleepers.sleep_and_wake(self._is_over)))
            if self.with_memory:
                self.rememberers = Rememberers(client, self.stage.directory, self.seed)
                talkers.append(asyncio.create_task(self.rememberers.remember(self._is_over)))
            if errands:
                operators.append(asyncio.create_task(errands.operate()))
            self._add_others(client)
            talkers += [asyncio.create_task(one.run(self._is_over)) for one in self.others.values()]
            for fault in self.plan:
                await asyncio.sleep(began + fault.at - time.monotonic())
                await self._carry_out(fault)
            await self._settle(talkers)
            for operator in operators:
                operator.cancel()
            await asyncio.gather(*operators, return_exceptions=True)
            self.free_places = await self._count_free_places()
            if self.gateway:
                await self.gateway.aclose()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    def _add_others(self, client: AsyncClient) -> None:
        if self.with_files:
            self.others["files"] = Filers(client, self._files, self.seed)
        if self.services:
            self.others["batches"] = Batched(client, self.services, self.seed)
        if self.with_errands:
            self.others["travellers"] = Travellers(client, self.seed)
            self.others["trees"] = Trees(client, self.seed)
        if self.endpoints:
            self.pushed = self.others["pushed"] = Pushed(client, self.seed, self.endpoints)

    def _is_over(self) -> bool:
        """Return whether clients stop submitting."""
        return time.monotonic() - self._began > self.seconds

    def _conversations(self, client: AsyncClient) -> list[Conversation]:
        return [Conversation(f"s{i}", client, self.seed) for i in range(SESSIONS)]

    def _start_host(self, number: int, before: Supervised | None = None) -> Supervised:
        """Start a host, in place of ``before`` if given."""
        label = self._next_label(before)
        host = self._ensemble.supervisor(
            url=self.network.workers_url(number),
            inside=self.network.inside(number),
            release=self._release(before),
            env=({"STAGE_MEMORY": "1"} if self.with_memory else {})
            | ({FILES_VARIABLE: f"file://{self._files}"} if self.with_files else {})
            | {"STAGE_ERRANDS": label}
            | ({"STAGE_BATCHES": self.services.url} if self.services else {}),
            queues=",".join(QUEUES),
            processes=PROCESSES,
            lease=LEASE_SECONDS,
            drain=1,
            stall_timeout=STALL_SECONDS,
            isolated_turns=PLACES,
            **(SETTINGS if self.services else {}),
            **({"archive": f"sqlite:///{self.archive.path}"} if self.archive else {}),
        )
        self._labels[host.process.pid] = label
        return host

    def _next_label(self, before: Supervised | None) -> str:
        """Return the revision of a host: the one after its predecessor's; '' without errands."""
        number = (
            0
            if before is None or not self.with_errands
            else 1 + LABELS.index(self._labels[before.process.pid])
        )
        return LABELS[number % len(LABELS)] if self.with_errands else ""

    def _release(self, before: Supervised | None) -> Release:
        return THIS

    @property
    def deaths(self) -> list[Death]:
        """Every death of a worker, by a fault or by a turn that kills its process."""
        killed = [
            Death("a process died" if hit.fault.kind == "kill worker" else "a host was lost", hit.worker, hit.began_ms)
            for hit in self.hits
            if hit.worker and hit.fault.kind in ("kill worker", "kill host")
        ]  # fmt: skip
        own = [
            Death("a process died", note["worker"], note["at"] * 1000) for note in self.stage.notes("dies")
        ]  # a hanging process dies when its supervisor notices, and is not timed
        return sorted(killed + own, key=lambda death: death.at_ms)

    @property
    def taking_since(self) -> dict[str, float]:
        """When each worker began to take turns, in ms."""
        return since(process.output for process in self._processes.started)

    @property
    def disturbances(self) -> list[tuple[float, float]]:
        """When Redis was not reachable from everywhere, or another host was lost: begin and end, in ms."""
        return [
            (hit.began_ms, hit.ended_ms)
            for hit in self.hits
            if "redis" in hit.fault.kind or hit.fault.kind in AWAY_FAULTS
        ]  # fmt: skip

    async def _carry_out(self, fault: Fault) -> None:
        self._start_ended_hosts()
        host = self.hosts[fault.target % len(self.hosts)]
        hit = Hit(fault)
        self.hits.append(hit)
        match fault.kind:
            case "kill worker" | "stop worker":
                hit.worker = self._hit_worker(host, fault)
            case "kill host" | "restart host":
                hit.worker = self._end_host(host, fault)
            case "lose all workers":
                await self._lose_all_workers(fault)
            case kind if kind in NETWORK_FAULTS or kind in HOST_FAULTS:
                self.network.disturb(fault, self._after)
            case "kill gateway" if self.gateway:
                await asyncio.to_thread(self.gateway.kill)
            case "lose the store":
                self._lose_store(fault)
            case "flush scripts":
                await asyncio.to_thread(self.network.server_of(fault).flush_scripts)
            case kind if kind in SLOT_FAULTS or kind in MOVE_FAULTS:
                await self._move(hit)
            case "put clock forward" | "put clock back":
                self._move_clock(fault)
            case _:
                await self._end_server(fault)
        if fault.kind in HOST_FAULTS:
            hit.ended_ms += 3 * fault.seconds * 1000
        elif "redis" not in fault.kind and "worker" in fault.kind and fault.kind != "kill worker":
            hit.ended_ms += fault.seconds * 1000
        else:
            hit.ended_ms = max(hit.ended_ms, time.time() * 1000)

    def _end_host(self, host: Supervised, fault: Fault) -> str:
        """End a host and replace it. Return the name prefix of its killed workers; '' if they end by themselves."""
        lost = fault.kind == "kill host"
        if lost:
            host.process.kill()
        else:
            host.process.send_signal(signal.SIGTERM)
        self._replace(host)
        return f"{socket.gethostname()}-{host.process.pid}-".replace(":", "_") if lost else ""

    async def _end_server(self, fault: Fault) -> None:
        server = self.network.server_of(fault)
        end = {"restart redis": server.stop, "lose redis power": server.lose_power}
        await asyncio.to_thread(end.get(fault.kind, server.kill))
        await asyncio.sleep(min(fault.seconds, 1.0))
        await asyncio.to_thread(server.start)

    async def _lose_all_workers(self, fault: Fault) -> None:
        for host in self.hosts:
            host.process.kill()
        await asyncio.sleep(fault.seconds + LIFE_SECONDS)
        self._start_ended_hosts()

    def _lose_store(self, fault: Fault) -> None:
        away = self.stage.directory / AWAY
        away.touch()
        self._after(3 * fault.seconds, lambda: away.unlink(missing_ok=True))

    def _hit_worker(self, host: Supervised, fault: Fault) -> str:
        """Hit a worker, and return its name; '' if there is none."""
        workers = host.workers
        if not workers:
            return ""
        pid = workers[fault.target // 2 % len(workers)]
        name = worker_name(pid)
        if fault.kind == "kill worker":
            signal_process(pid, signal.SIGKILL)
        else:
            signal_process(pid, signal.SIGSTOP)
            self._after(fault.seconds, lambda: signal_process(pid, signal.SIGCONT))
        return name

    def _replace(self, host: Supervised) -> None:
        number = self.hosts.index(host)
        self.hosts[number] = self._start_host(number, host)

    def _start_ended_hosts(self) -> None:
        """Restart supervisors that found no Redis at their start and ended, as a service manager does."""
        for host in self.hosts:
            if not host.process.running:
                self._replace(host)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            act()

        self._meanwhile(later())

    async def _move(self, hit: Hit) -> None:
        """Move a slot while nothing else breaks, or a cell while everything does."""

        async def move() -> None:
            await self.network.move(hit.fault)
            hit.ended_ms = time.time() * 1000

        if hit.fault.kind in MOVE_FAULTS:
            self._meanwhile(move())
        else:
            await move()

    def _meanwhile(self, act: Coroutine[Any, Any, None]) -> None:
        """Do something while the next faults are carried out; it finishes before the run settles."""
        task = asyncio.create_task(act)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _move_clock(self, fault: Fault) -> None:
        """Move the clock by seconds, minutes or up to two hours."""
        jump = (2, 90, 1800)[fault.target % 3] * fault.seconds
        self._clock_offset += jump if fault.kind == "put clock forward" else -jump
        self.network.server_of(fault).move_clock(self._clock_offset)

    async def _settle(self, talkers: list[asyncio.Task[None]]) -> None:
        """Stop all faults. Every turn must end, and every reader must reach the last event."""
        await asyncio.gather(*self._later)
        self._start_ended_hosts()
        self.network.heal()
        await asyncio.wait(talkers, timeout=patience(SETTLE_SECONDS))
        for task in talkers:
            task.cancel()
        await asyncio.gather(*talkers, return_exceptions=True)
        with _in_time():
            await wait_until_async(self._all_ended, SETTLE_SECONDS, "every turn has ended", 0.2)
        with _in_time():
            await wait_until_async(self._all_seen, 10, "every reader has seen everything", 0.2)
        with _in_time():
            await wait_until_async(self._all_indexed, INDEXED_SECONDS, "all is indexed", 0.5)
        with _in_time():
            await wait_until_async(self._all_told, TOLD_SECONDS, "the webhook is told of everything", 0.2)
        with _in_time():
            await wait_until_async(self._all_pushed, PUSHED_SECONDS, "every endpoint is told", 0.2)

    async def _count_free_places(self) -> int:
        """Submit as many turns that run alone as there are places, and return how many of them run at once."""
        ensemble = self._ensemble
        probes: list[AsyncTurn] = []
        for number in range(self.places):
            first = await ensemble.submit(f"probe{number}", "probe gate:first")
            probes.append(await ensemble.submit(f"probe{number}", f"probe {number} gate:alone"))
            cell = ensemble.client.connections.cell_of_turn(probes[-1].id)
            await cell.redis.hset(cell.keys.turn(probes[-1].id), "crashes", 2)
            probes.append(first)
        self.stage.open("first")
        with _in_time():
            await wait_until_async(
                lambda: len(self.stage.notes("waits", gate="alone")) >= self.places,
                PROBE_SECONDS,
                "all run",
                0.2,
            )
        found = len(self.stage.notes("waits", gate="alone"))
        self.stage.open("alone")
        for probe in probes:
            with suppress(AgentError):
                await probe.result(30)
        return found

    @property
    def places(self) -> int:
        """The number of turns that may run alone at the same time."""
        return HOSTS * PROCESSES * PLACES

    async def _all_ended(self) -> bool:
        try:
            for cell in self._ensemble.client.connections.cells:
                if await cell.redis.exists(cell.keys.active, cell.keys.due):
                    return False
        except (AgentError, OSError):
            return False
        return True

    async def _all_indexed(self) -> bool:
        return self.rememberers is None or await self.rememberers.all_indexed(self._ensemble.client)

    async def _all_told(self) -> bool:
        if not self.receiver:
            return True
        ends = {
            f"{event.turn_id}-{event.seq}"
            for one in self.conversations
            for event in one.seen
            if event.terminal
        }
        waits = [hook.waiting async for hook in self._ensemble.client.webhooks()]
        return ends <= {*self.receiver.ids} and waits == [0]

    async def _all_pushed(self) -> bool:
        return self.pushed is None or self.pushed.all_told()

    async def _all_seen(self) -> bool:
        for one in self.conversations:
            cell = one.client.connections.cell_of_session(one.session)  # type: ignore[arg-type]
            newest = await cell.redis.hget(cell.keys.session(one.session), "seq")  # type: ignore[arg-type]
            if int(newest or 0) > (one.seen[-1].seq if one.seen else 0):
                return False
        return True


@contextmanager
def _in_time() -> Iterator[None]:
    """Ignore what is late: the checker reports it."""
    try:
        yield
    except AssertionError:
        return
