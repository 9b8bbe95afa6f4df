"""The needs of larger deployments, computed from the measurements on this machine."""

import math
from dataclasses import dataclass

from bench.kept import Kept

PACE = 20
TURN_SECONDS = 30
WORKER_SHARE = 0.7
CELL_SHARE = 0.6
"""The share of a core that may be in use: the rest is for a lost machine and for bursts."""
STREAMS_A_PROCESS = 1000
GATEWAY = "1,000 streams at 10/s, through the gateway"

# The place of each cost: part, subject, figure.
_PLACES = {
    "worker_chunk_us": ("streams", f"the knee at {PACE}/s", "CPU of the worker, a chunk"),
    "redis_chunk_us": ("streams", f"the knee at {PACE}/s", "CPU of Redis, a chunk"),
    "worker_turn_us": ("turns", "one worker process", "CPU of the worker, a turn"),
    "redis_turn_us": ("turns", "one worker process", "CPU of Redis, a turn"),
    "turn_kib": ("memory", "a turn in flight", "in Redis"),
    "chunk_bytes": ("memory", "a delta that it has said", "in Redis"),
    "session_kib": ("memory", "an idle session with one turn of 40 tokens", "in Redis"),
    "gateway_event_us": ("gateway", GATEWAY, "CPU of the gateway, an event"),
    "turn_in": ("network", "a turn", "into Redis"),
    "turn_out": ("network", "a turn", "out of Redis"),
    "chunk_in": ("network", "a chunk with one reader", "into Redis"),
    "chunk_out": ("network", "a chunk with one reader", "out of Redis"),
}


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of a chunk, a turn and a session. ``…_in`` and ``…_out`` are bytes into and out of Redis."""

    worker_chunk_us: float
    redis_chunk_us: float
    worker_turn_us: float
    redis_turn_us: float
    turn_kib: float
    chunk_bytes: float
    session_kib: float
    gateway_event_us: float
    turn_in: float
    turn_out: float
    chunk_in: float
    chunk_out: float


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of ``streams`` live streams. ``gib`` is memory of cells without replicas, ``…_gbits`` are rates."""

    streams: int
    chunks: float
    turns: float
    worker_cores: float
    processes: int
    cells: int
    gib: float
    gateways: int
    redis_gbits: float
    gateway_gbits: float


def costs_of(kept: Kept) -> Costs | list[str]:
    """Return the measured costs, or in words which of them are missing."""
    found = {name: kept.value(*place) for name, place in _PLACES.items()}
    missing = [
        f"`{_PLACES[name][0]}` ({', '.join(_PLACES[name][1:])})" for name in found if found[name] is None
    ]
    return missing or Costs(**{name: value for name, value in found.items() if value is not None})


def needs(costs: Costs, streams: int, pace: float = PACE, turn_seconds: float = TURN_SECONDS) -> Needs:
    """Return the needs of live streams with one reader each through a gateway, on average half done."""
    chunks, turns = streams * pace, streams / turn_seconds
    worker = (chunks * costs.worker_chunk_us + turns * costs.worker_turn_us) / 1e6 / WORKER_SHARE
    redis = (chunks * costs.redis_chunk_us + turns * costs.redis_turn_us) / 1e6 / CELL_SHARE
    said = pace * turn_seconds / 2 * costs.chunk_bytes
    return Needs(
        streams,
        chunks,
        turns,
        worker,
        max(math.ceil(worker), math.ceil(streams / STREAMS_A_PROCESS)),
        max(math.ceil(redis), 1),
        streams * (costs.turn_kib * 1024 + said) / 2**30,
        math.ceil(chunks * costs.gateway_event_us / 1e6 / WORKER_SHARE),
        8 * redis_bytes(costs, chunks, turns) / 1e9,
        8 * 2 * chunks * costs.chunk_out / 1e9,
    )


def redis_bytes(costs: Costs, chunks: float, turns: float = 0) -> float:
    """Return the bytes into and out of Redis. A gateway receives the latter, and sends its readers about as many."""
    return chunks * (costs.chunk_in + costs.chunk_out) + turns * (costs.turn_in + costs.turn_out)


HEAD = (
    "live streams", "chunks/s", "turns/s", "worker cores", "worker processes", "cells", "memory of the cells",
    "gateway processes", "network of Redis", "network of the gateways",
)  # fmt: skip


def row(one: Needs) -> tuple[str, ...]:
    """Return the needs as text, in the order of ``HEAD``."""
    return (
        f"{one.streams:,}", f"{one.chunks:,.0f}", f"{one.turns:,.0f}", f"{one.worker_cores:,.1f}", f"{one.processes:,}",
        f"{one.cells:,}", f"{one.gib:,.1f} GiB", f"{one.gateways:,}", f"{one.redis_gbits:,.2f} Gbit/s",
        f"{one.gateway_gbits:,.2f} Gbit/s",
    )  # fmt: skip
