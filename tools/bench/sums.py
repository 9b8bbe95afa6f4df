"""What larger deployments need, computed from what the benchmark has measured on this machine."""

import math
from dataclasses import dataclass

from bench.kept import Kept

PACE = 20
TURN_SECONDS = 30
WORKER_SHARE = 0.7
CELL_SHARE = 0.6
"""How much of a core may be in use: the rest is for a lost machine and for bursts."""
STREAMS_A_PROCESS = 1000

# Where each cost stands: part, subject, what it is.
_PLACES = {
    "worker_chunk_us": ("streams", f"the knee at {PACE}/s", "CPU of the worker, a chunk"),
    "redis_chunk_us": ("streams", f"the knee at {PACE}/s", "CPU of Redis, a chunk"),
    "worker_turn_us": ("turns", "one worker process", "CPU of the worker, a turn"),
    "redis_turn_us": ("turns", "one worker process", "CPU of Redis, a turn"),
    "turn_kib": ("memory", "a turn in flight", "in Redis"),
    "chunk_bytes": ("memory", "a delta that it has said", "in Redis"),
    "session_kib": ("memory", "an idle session with one turn of 40 tokens", "in Redis"),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """What one chunk, one turn and one session cost."""

    worker_chunk_us: float
    redis_chunk_us: float
    worker_turn_us: float
    redis_turn_us: float
    turn_kib: float
    chunk_bytes: float
    session_kib: float


@dataclass(frozen=True, slots=True)
class Needs:
    """What so many live streams need. ``gib`` is memory of all cells without replicas."""

    streams: int
    chunks: float
    turns: float
    worker_cores: float
    processes: int
    cells: int
    gib: float


def costs_of(kept: Kept) -> Costs | list[str]:
    """The costs that were measured, or in words which of them were not."""
    found = {name: kept.value(*place) for name, place in _PLACES.items()}
    missing = [
        f"`{_PLACES[name][0]}` ({', '.join(_PLACES[name][1:])})" for name in found if found[name] is None
    ]
    return missing or Costs(**{name: value for name, value in found.items() if value is not None})


def needs(costs: Costs, streams: int) -> Needs:
    """Live streams at ``PACE`` in turns of ``TURN_SECONDS``, half said on the average."""
    chunks, turns = streams * PACE, streams / TURN_SECONDS
    worker = (chunks * costs.worker_chunk_us + turns * costs.worker_turn_us) / 1e6 / WORKER_SHARE
    redis = (chunks * costs.redis_chunk_us + turns * costs.redis_turn_us) / 1e6 / CELL_SHARE
    said = PACE * TURN_SECONDS / 2 * costs.chunk_bytes
    return Needs(
        streams,
        chunks,
        turns,
        worker,
        max(math.ceil(worker), math.ceil(streams / STREAMS_A_PROCESS)),
        max(math.ceil(redis), 1),
        streams * (costs.turn_kib * 1024 + said) / 2**30,
    )
