"""A discrete-event model of deltas on their way through the nodes of a cluster. One node may fail.

Turns arrive at random, and each belongs to a cell and its node. The workers of a node send the new deltas of all its
streams in one call, at the end of a window, or when the previous call was answered. A call takes as long as Redis
needs for its events. While a node is down, the deltas wait in the workers; afterwards each stream sends its deltas in
one event.
Not modelled: the network, contention for the cores of workers, and the recovery of workers.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

WINDOW = 0.015
SAMPLES = 2
"""The number of deltas per window whose lag is recorded."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of ``nodes`` nodes, each busy for ``share`` of the time. One of them may fail once."""

    nodes: int
    event_us: float
    pace: float = 20.0
    turn_seconds: float = 30.0
    share: float = 0.6
    seconds: float = 60.0
    fails: bool = False
    down_seconds: float = 16.0
    """Seconds until another node has its cells: the ``cluster-node-timeout`` of 15 s, and 1 s for the election."""

    @property
    def streams(self) -> float:
        """The average number of live streams of a node."""
        return self.share * 1e6 / self.event_us / self.pace


class Lags:
    """The lags of deltas. Each sample is a lag in s with the number of deltas it represents; results are in ms."""

    def __init__(self, seen: Sequence[tuple[float, float]]) -> None:
        ordered = sorted(seen)
        self._lags = [lag * 1000 for lag, _ in ordered]
        self._upto = list(accumulate(number for _, number in ordered))

    @property
    def deltas(self) -> float:
        return self._upto[-1]

    def percentile(self, share: float) -> float:
        return self._lags[min(bisect_left(self._upto, share * self.deltas), len(self._lags) - 1)]

    def later(self, ms: float) -> float:
        """Return the share of deltas that arrived later than this, in ms."""
        place = bisect_left(self._lags, ms)
        return 1 - (self._upto[place - 1] / self.deltas if place else 0)


@dataclass(slots=True)
class _Node:
    live: int
    sent: float = 0.0
    """When its workers last sent their deltas."""
    down_until: float = 0.0


@dataclass(slots=True)
class _Model:
    load: Load
    random: random.Random
    nodes: list[_Node] = field(default_factory=list[_Node])
    events: list[tuple[float, int, str, int]] = field(default_factory=list[tuple[float, int, str, int]])
    seen: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def at(self, when: float, what: str, node: int = 0) -> None:
        heapq.heappush(self.events, (when, len(self.events), what, node))

    def begin(self) -> None:
        mean = self.load.streams
        for number in range(self.load.nodes):
            self.nodes.append(_Node(max(0, round(self.random.gauss(mean, math.sqrt(mean))))))
            self.at(self.random.random() * WINDOW, "send", number)
        self.at(0.0, "turn")
        if self.load.fails:
            self.at(self.load.seconds / 3, "fail", self.random.randrange(self.load.nodes))

    def turn(self, now: float, _: int) -> None:
        """Begin one turn and end another; all live turns are equally likely to end."""
        self.nodes[self.random.randrange(self.load.nodes)].live += 1
        ended = self.random.choices(self.nodes, [node.live for node in self.nodes])[0]
        ended.live -= 1
        rate = self.load.streams * self.load.nodes / self.load.turn_seconds
        self.at(now + self.random.expovariate(rate), "turn")

    def fail(self, now: float, number: int) -> None:
        self.nodes[number].down_until = now + self.load.down_seconds

    def send(self, now: float, number: int) -> None:
        """Send the new deltas of all streams of a node in one call, joined to one event per stream."""
        node, load = self.nodes[number], self.load
        if node.down_until > now:
            return self.at(node.down_until, "send", number)
        since = now - node.sent
        spoke = min(1.0, load.pace * since)
        mean, spread = node.live * spoke, math.sqrt(node.live * spoke * (1 - spoke))
        events = min(node.live, max(0, round(self.random.gauss(mean, spread))))
        took = events * load.event_us / 1e6
        samples = max(SAMPLES, round(SAMPLES * since / WINDOW))
        for _ in range(samples):
            lag = since * self.random.random() + took * self.random.random()
            self.seen.append((lag, node.live * load.pace * since / samples))
        node.sent = now
        return self.at(now + max(WINDOW, took), "send", number)


def simulate(load: Load, seed: int = 1) -> Lags:
    """Run the simulation, and return the lags of the deltas."""
    model = _Model(load, random.Random(seed))
    model.begin()
    while model.events and model.events[0][0] < load.seconds:
        now, _, what, number = heapq.heappop(model.events)
        getattr(model, what)(now, number)
    return Lags([one for one in model.seen if one[1]])


def points(lags: Lags) -> list[tuple[float, float]]:
    """Return points of the distribution: ms, and the percentage of deltas that arrive later."""
    grid = [10 ** (power / 8) for power in range(41)]
    found = [(ms, 100 * lags.later(ms)) for ms in grid]
    return [(ms, percent) for ms, percent in found if percent >= 0.01]
