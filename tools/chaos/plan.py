"""The faults of a run and their times: a sequence that depends only on the seed."""

import random
from collections.abc import Collection
from dataclasses import dataclass

FAULTS: dict[str, int] = {
    "kill worker": 6,
    "stop worker": 4,
    "kill host": 2,
    "restart host": 3,
    "cut workers": 3,
    "cut clients": 3,
    "delay workers": 2,
    "hold back workers": 2,
    "lose a reply": 6,
    "flush scripts": 2,
    "kill redis": 1,
    "restart redis": 1,
    "lose redis power": 1,
}
"""Each fault with its weight."""
NETWORK_FAULTS = ("cut workers", "cut clients", "delay workers", "hold back workers", "lose a reply")
"""The faults that need everything on one machine."""
HOST_FAULTS: dict[str, int] = {"part hosts": 7, "part hosts one way": 7, "slow host": 3}
"""Replace the network faults if there are several hosts, between any two of them."""
CLOCK_FAULTS: dict[str, int] = {"put clock forward": 4, "put clock back": 4}
"""Added if the server's clock can be moved."""
ARCHIVE_FAULTS: dict[str, int] = {"lose all workers": 2}
"""Added if there is an archive: sessions expire while no worker saves them."""


MEMORY_FAULTS: dict[str, int] = {"lose the store": 3}
"""Added if there is a memory: its store cannot be written."""
ERRAND_FAULTS: dict[str, int] = {"restart host": 6, "kill gateway": 3}
"""Override the others if there are errands: hosts return on the next revision; a gateway is killed."""

SLOT_FAULTS: dict[str, int] = {"move a slot": 5, "move a slot key by key": 5}
"""Added if Redis is a cluster."""
MOVE_FAULTS: dict[str, int] = {"move the cell": 6, "kill the mover": 6}
"""Added if there is a single Redis and a cluster: `antiphon cells move`, which may die."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``at`` seconds after the start, on candidate number ``target`` (modulo), for ``seconds``."""

    at: float
    kind: str
    target: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:6.2f} s  {self.kind}, target {self.target}, {self.seconds:.2f} s"


def make_plan(
    seed: int,
    seconds: float,
    pace: float = 0.8,
    *,
    clock: bool = False,
    archive: bool = False,
    memory: bool = False,
    errands: bool = False,
    apart: bool = False,
    cluster: bool = False,
    moves: bool = False,
) -> list[Fault]:
    """Return the faults of a run, ``pace`` seconds apart on average; with ``apart`` the faults of several hosts.

    With ``clock`` the server's clock also jumps, and with ``archive`` all workers are away for longer than some
    sessions live. With ``memory`` its store is away. With ``errands`` hosts restart more often, and the gateway is
    killed. With ``cluster`` slots move between nodes. With ``moves`` the cell moves between places.
    """
    chance, plan, at = random.Random(seed), [], 1.0
    faults = FAULTS if not apart else _without(FAULTS, NETWORK_FAULTS) | HOST_FAULTS
    faults = faults | (CLOCK_FAULTS if clock else {}) | (ARCHIVE_FAULTS if archive else {})
    faults |= (SLOT_FAULTS if cluster else {}) | (MOVE_FAULTS if moves else {})
    faults |= (MEMORY_FAULTS if memory else {}) | (ERRAND_FAULTS if errands else {})
    while at < seconds:
        kind = chance.choices(list(faults), list(faults.values()))[0]
        lasting = chance.choice((0.2, 0.5, 3.0)) * chance.uniform(0.8, 1.2)
        plan.append(Fault(at, kind, chance.randrange(1000), lasting))
        at += chance.expovariate(1 / pace)
    return plan


def _without(faults: dict[str, int], names: Collection[str]) -> dict[str, int]:
    return {kind: weight for kind, weight in faults.items() if kind not in names}
