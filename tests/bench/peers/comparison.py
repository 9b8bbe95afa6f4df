"""Antiphon and its peers at the same work: turns a second, and submit to first delta."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis
from support.eventually import wait_until

from antiphon.client import AsyncClient
from bench.latency import PAUSE_SECONDS
from bench.load import all_ended, rate, steady_rate, submit_turns, warm_up
from bench.peers.work import history_key
from bench.results import Plan, Result
from bench.stand import TESTS, Stand, stand

__all__ = ["measure"]

TITLE = "the same work on other queues"
INSTALL_SECONDS = 180
DRAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Peer:
    """``share`` is how many of the turns it gets: the slow ones get fewer."""

    name: str
    module: str
    requires: str = ""
    share: float = 1.0
    env: dict[str, str] = field(default_factory=dict[str, str])


PEERS = (
    Peer("rq worker (forks)", "rq", share=0.01, env={"RQ_KIND": "forking"}),
    Peer("rq SimpleWorker", "rq", share=0.25, env={"RQ_KIND": "simple"}),
    Peer("arq", "arq", "arq>=0.26"),
    Peer("SAQ", "saq", "saq[redis]>=0.24"),
    Peer("docket", "docket", "pydocket>=0.20"),
    Peer(
        "Celery, 100 threads", "celery", "celery[redis]>=5.5", share=0.5, env={"CELERY_POOL": "threads:100"}
    ),
    Peer("Celery, 2 processes", "celery", "celery[redis]>=5.5", share=0.5, env={"CELERY_POOL": "prefork:2"}),
)


async def measure(plan: Plan) -> Result:
    result = Result("peers", TITLE, axes=("", "turns/s"))
    number, probes = plan.pick(1000, 200), plan.pick(40, 3)
    paths = {peer.requires: _installed(peer, result) for peer in PEERS if peer.requires}
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(plan.rounds):
        with stand() as built:
            found.setdefault("Antiphon", []).append(await _antiphon(built, number, probes))
        for peer in PEERS:
            path = paths.get(peer.requires)
            if peer.requires and path is None:
                continue
            try:
                with stand() as built:
                    one = _peer(built, peer, path, number, probes)
                found.setdefault(peer.name, []).append(one)
            except (AssertionError, RuntimeError, ValueError) as exc:
                result.remarks.append(f"{peer.name}: could not be measured: {str(exc)[:300]}")
    for name, rounds in found.items():
        result.bars[name] = result.add(f"{name}: turns", [turns for turns, _ in rounds], "turns/s").median
        result.add(f"{name}: submit to first delta, p50", [first for _, first in rounds], "ms")
    result.remarks.append(
        "One worker each, room for 100 turns where it has room for more than one, other settings as they come."
    )
    return result


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


def _peer(built: Stand, peer: Peer, path: Path | None, number: int, probes: int) -> tuple[float, float]:
    """Idle first, then a worker that is started when all turns wait."""
    number = max(4, round(number * peer.share))
    env = {**peer.env, "PYTHONPATH": ":".join(str(part) for part in (path, TESTS) if part)}
    module = f"bench.peers.{peer.module}"
    worker = built.python("-m", module, "worker", env=env, name=peer.module)
    probes = min(probes, number)
    times = built.child(module, "wait", str(probes), env=env)["first"]
    built.stop(worker)
    built.child(module, "submit", str(number), "turn-", env=env)
    built.python("-m", module, "worker", env=env, name=peer.module)
    ends = _wait_for_ends(built.redis.url, "turn-", number, DRAIN_SECONDS)
    return steady_rate(ends), statistics.median(times)


def _wait_for_ends(url: str, prefix: str, number: int, timeout: float) -> list[float]:
    """When each turn ended, once all have."""
    ends: dict[int, float] = {}
    with Redis.from_url(url) as redis:

        def all_there() -> bool:
            missing = [index for index in range(number) if index not in ends]
            pipe = redis.pipeline(transaction=False)
            for index in missing:
                pipe.lindex(history_key(f"{prefix}{index}"), -1)
            for index, message in zip(missing, pipe.execute(), strict=True):
                if message:
                    ends[index] = json.loads(message)["ended"]
            return len(ends) == number

        wait_until(all_there, timeout, f"{number} turns have ended", interval=0.2)
    return list(ends.values())


def _installed(peer: Peer, result: Result) -> Path | None:
    """Where the peer and what it needs are installed: apart, because it may need another redis-py than we do."""
    path = Path(sys.prefix) / "peers" / peer.module
    done = path / "installed"
    if done.exists() and done.read_text() == peer.requires:
        return path
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    try:
        subprocess.run(
            [*command, "--target", str(path), peer.requires],
            check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        result.remarks.append(f"{peer.name}: not installed, it took longer than {INSTALL_SECONDS} s")
        return None
    except subprocess.CalledProcessError as exc:
        last = (exc.stderr.strip().splitlines() or ["pip failed"])[-1]
        result.remarks.append(f"{peer.name}: not installed: {last[:200]}")
        return None
    done.write_text(peer.requires)
    return path
