"""Antiphon, bare SDK calls and peers doing the same work: turns a second, and submit to first delta."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from redis import Redis
from support.eventually import patience, wait_until
from support.processes import Process

from antiphon.client import AsyncClient
from bench.floor import HANDS
from bench.latency import PAUSE_SECONDS
from bench.load import all_ended, rate, steady_rate, submit_turns, warm_up
from bench.peers.catalogue import PEERS, Peer, installed_version, missing
from bench.peers.services import surroundings, wait_until_it_listens
from bench.peers.work import ONE_CHUNK, history_key
from bench.results import Plan, Result
from bench.stand import Stand, stand

TITLE = "the same work on other queues, workflow engines and agent servers"
OURS = "Antiphon"
FLOOR = "bare SDK calls, no queue"
ROUNDS = 2
PREFIX = "turn-"
PEER_SECONDS, QUICK_PEER_SECONDS = 50.0, 45.0
"""The time limit of a peer in one round."""
QUICK_AT_ONCE = 3
ONE_EACH = tuple({peer.module: peer for peer in PEERS}.values())
"""The peers of a quick run: without variants."""


@dataclass(slots=True)
class Found:
    """The results of all rounds of one subject."""

    rates: list[float] = field(default_factory=list[float])
    first_ms: list[float] = field(default_factory=list[float])
    failed: list[str] = field(default_factory=list[str])


async def measure(plan: Plan, result: Result) -> None:
    """Measure in interleaved rounds. A failed peer is listed with the reason, and the others continue."""
    number, rounds = plan.pick(1000, 200), min(plan.rounds, ROUNDS)
    unusable = missing()
    peers = plan.pick(PEERS, ONE_EACH)
    found = {name: Found() for name in (FLOOR, OURS, *[peer.name for peer in peers])}
    for one in range(rounds):
        with stand() as built:
            found[FLOOR].rates.append(_sdk(built, number))
            rate, first = await _antiphon(built, number, plan.pick(40, 3))
            found[OURS].rates.append(rate)
            found[OURS].first_ms.append(first)
        await _all(
            plan, [partial(_try, found[peer.name], unusable, plan, peer, number, one == 0) for peer in peers]
        )
    for name, of_it in found.items():
        _add(result, name, of_it)
    versions = dict.fromkeys(installed_version(peer) for peer in peers if peer.module not in unusable)
    result.remarks.append(
        f"Rounds: {rounds}. One worker each, room for 100 turns where it has room for more than one, other settings "
        f"as they come: {', '.join(versions)}. The turns wait when a worker starts; where 100 are in flight, a caller "
        f"hands in the next one when it has read one to its end."
    )


def _add(result: Result, name: str, found: Found) -> None:
    if found.rates:
        result.add(name, "turns", found.rates, "a second")
    if found.first_ms:
        result.add(name, "submit to first delta p50", found.first_ms, "ms")
    if found.failed:
        result.fail(name, found.failed[0])


async def _all(plan: Plan, work: list[Callable[[], None]]) -> None:
    """Run one after another; in a quick run, some at once."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(plan.pick(1, QUICK_AT_ONCE)) as pool:
        await asyncio.gather(*[loop.run_in_executor(pool, one) for one in work])


def _sdk(built: Stand, number: int) -> float:
    return built.child("bench.sdk", "calls", "aiohttp", str(number), str(HANDS))["calls"]


async def _antiphon(built: Stand, number: int, probes: int) -> tuple[float, float]:
    worker = built.worker()
    async with AsyncClient(built.redis.url) as client:
        await warm_up(client, 50)
        times = built.child("bench.prober", built.redis.url, str(probes), str(PAUSE_SECONDS))
        built.stop(worker)
        turns = await submit_turns(client, number, "turn-")
        built.worker()
        await all_ended(turns)
    return rate(built.redis.url, turns), statistics.median(times["turn_first"])


def _try(found: Found, unusable: dict[str, str], plan: Plan, peer: Peer, number: int, probed: bool) -> None:
    """Run one round of a peer within its time limit; skip peers that have failed."""
    if peer.module in unusable:
        found.failed = [unusable[peer.module]]
    if found.failed:
        return
    probes = plan.pick(peer.probes, min(peer.probes, 3)) if probed else 0
    number = max(6, round(number * peer.share))
    try:
        with stand() as built, surroundings(peer, built) as env:
            run = _Run(built, peer, env, plan.pick(PEER_SECONDS, QUICK_PEER_SECONDS))
            if peer.server:
                first, rate = run.in_flight(probes, number)
            else:
                first, rate = run.first_deltas(probes) if probes else [], run.rate(number)
            found.rates.append(rate)
            if first:
                found.first_ms.append(statistics.median(first))
    except (AssertionError, RuntimeError, ValueError, OSError) as exc:
        found.failed.append(str(exc))


class _Run:
    """One round of a peer, with a time limit over all of it."""

    def __init__(self, built: Stand, peer: Peer, env: Mapping[str, str], seconds: float) -> None:
        self._built = built
        self._env = env
        self._module = f"bench.peers.{peer.module}"
        self._deadline = time.monotonic() + seconds

    def first_deltas(self, probes: int) -> list[float]:
        """Return the times from submit to first delta of single turns, in ms."""
        with self._worker():
            return self._child("wait", str(probes))["first"]

    def rate(self, number: int) -> float:
        """Return turns a second of a worker that is started when all turns wait."""
        self._child("submit", str(number), PREFIX, ONE_CHUNK)
        with self._worker() as worker:
            return steady_rate(_wait_for_ends(self._built.redis.url, worker, number, self._left()))

    def in_flight(self, probes: int, number: int) -> tuple[list[float], float]:
        """Return the ms to the first delta of single turns, and turns a second of a server with many in flight."""
        with self._worker() as server:
            wait_until_it_listens(server, int(self._env["PEER_PORT"]), self._left())
            seen = self._child("flow", str(probes), str(number))
            return seen["first"], steady_rate(seen["ends"])

    @contextmanager
    def _worker(self) -> Iterator[Process]:
        """Start a worker, and stop it at the end. If it has ended when something fails, report its output."""
        worker = self._built.python("-m", self._module, "worker", env=self._env, name=self._module)
        try:
            yield worker
        except (AssertionError, RuntimeError) as exc:
            raise RuntimeError(str(exc) if worker.running else f"{exc}\n{worker.output}") from None
        finally:
            self._built.stop(worker)

    def _child(self, *argv: str) -> dict[str, list[float]]:
        return self._built.child(self._module, *argv, env=self._env, timeout=self._left())

    def _left(self) -> float:
        """Return the remaining time, divided by the factor with which ``patience`` extends timeouts."""
        return max(self._deadline - time.monotonic(), 1.0) / patience(1.0)


def _wait_for_ends(url: str, worker: Process, number: int, timeout: float) -> list[float]:
    """Return when each turn ended, once all have. Fail as soon as the worker has ended."""
    ends: dict[int, float] = {}
    with Redis.from_url(url) as redis:

        def all_there() -> bool:
            assert worker.running, "the worker has ended"
            missing = [index for index in range(number) if index not in ends]
            pipe = redis.pipeline(transaction=False)
            for index in missing:
                pipe.lindex(history_key(f"{PREFIX}{index}"), -1)
            for index, message in zip(missing, pipe.execute(), strict=True):
                if message:
                    ends[index] = json.loads(message)["ended"]
            return len(ends) == number

        wait_until(all_there, timeout, f"{number} turns have ended", interval=0.2)
    return list(ends.values())
