"""Measurements from outside: CPU time and memory of processes, Redis's own counters, and statistics."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

_PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, with ns resolution (``/proc`` has only ticks of 10 ms)."""
    return time.clock_gettime((~pid << 3) | 2)  # the id from clock_getcpuclockid(3)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def pss_bytes(pid: int) -> int:
    """Return the memory of a process, including its part of shared memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which this share of all values lies; 0 if there are none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def net_bytes(urls: Iterable[str]) -> tuple[int, int]:
    """Return the bytes these servers have read from and written to connections, without their cluster bus."""
    read = written = 0
    for url in urls:
        with Redis.from_url(url) as redis:
            stats: Any = redis.info("stats")
            read += stats["total_net_input_bytes"]
            written += stats["total_net_output_bytes"]
    return read, written


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several rounds, and their range."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Counters:
    """Redis's counters since its start: commands by name, script calls, CPU time; and its memory."""

    commands: dict[str, int]
    cpu_seconds: float
    memory_bytes: int

    def since(self, before: Counters) -> Counters:
        commands = {
            name: calls - before.commands.get(name, 0)
            for name, calls in self.commands.items()
            if calls != before.commands.get(name, 0)
        }
        return Counters(
            commands, self.cpu_seconds - before.cpu_seconds, self.memory_bytes - before.memory_bytes
        )

    @property
    def scripts(self) -> int:
        return self.commands.get("evalsha", 0) + self.commands.get("eval", 0)


def redis_counters(redis: Redis) -> Counters:
    """Read the counters; the reading itself (INFO) is not counted."""
    pipe = redis.pipeline(transaction=False)
    for section in ("commandstats", "cpu", "memory"):
        pipe.info(section)
    stats, cpu, memory = pipe.execute()
    commands: dict[str, Any] = {
        name.removeprefix("cmdstat_"): values["calls"]
        for name, values in stats.items()
        if name != "cmdstat_info"
    }
    return Counters(commands, cpu["used_cpu_user"] + cpu["used_cpu_sys"], memory["used_memory"])
