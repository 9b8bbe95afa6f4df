"""How soon other queues restart a job whose worker was killed while another worker runs."""

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from redis import Redis
from support.eventually import happens_within, wait_until
from support.processes import Process

from bench.gauges import cpu_seconds
from bench.peers.catalogue import Peer
from bench.peers.services import surroundings
from bench.peers.work import starts_key
from bench.stand import stand

SESSION = "lost-"
LONG = "hi pace:20 length:100000"
START_SECONDS = 40.0
IDLE_SECONDS, IDLE_SHARE = 0.5, 0.05


def start_again(peers: Sequence[Peer], seconds: float) -> dict[str, float | str | None]:
    """Return by name the seconds to the second start of the job; None if that took too long, or what failed.

    All of them wait at the same time, since waiting uses no CPU.
    """
    with ThreadPoolExecutor(max(len(peers), 1)) as pool:
        found = pool.map(lambda peer: _try(peer, seconds), peers)
        return {peer.name: one for peer, one in zip(peers, found, strict=True)}


def _try(peer: Peer, seconds: float) -> float | str | None:
    try:
        return _one(peer, seconds)
    except (AssertionError, RuntimeError, ValueError, OSError) as exc:
        return str(exc) or repr(exc)


def _one(peer: Peer, seconds: float) -> float | None:
    module = f"bench.peers.{peer.module}"
    with stand() as built, surroundings(peer, built) as env, Redis.from_url(built.redis.url) as redis:
        workers = [built.python("-m", module, "worker", env=env, name=peer.module) for _ in range(2)]
        for worker in workers:
            wait_until(lambda pid=worker.pid: _idle(pid), START_SECONDS, f"{peer.name} has started")
        built.child(module, "submit", "1", SESSION, LONG, env=env, timeout=START_SECONDS)
        key = starts_key(f"{SESSION}0")
        wait_until(lambda: redis.llen(key), START_SECONDS, f"{peer.name} starts the job")
        _kill_holder(workers, int(redis.lindex(key, 0)))
        began = time.monotonic()
        started_again = happens_within(lambda: redis.llen(key) > 1, seconds)
        return time.monotonic() - began if started_again else None


def _kill_holder(workers: Sequence[Process], pid: int) -> None:
    """Kill the worker whose process, or whose child in its own process group, runs the job."""
    for worker in workers:
        if pid == worker.pid or pid in worker.children():
            worker.kill()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
    raise RuntimeError(f"process {pid} has the job and is none of the workers")


def _idle(pid: int) -> bool:
    """Return whether a process has finished starting and is idle."""
    before = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return cpu_seconds(pid) - before < IDLE_SECONDS * IDLE_SHARE
