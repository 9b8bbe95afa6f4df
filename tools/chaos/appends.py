"""Checks that each session behaves like one list to which turns are appended, judged only by what clients saw.

The model is that of Elle's list-append: every turn appends itself to the history of its session, and every snapshot
reads the whole. What clients saw is correct if there is an order of all calls in which each reads what was appended
before it, and in which a call that ended before another began precedes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise


@dataclass(frozen=True)
class Append:
    """A turn submitted at ``began``, in s; ``ended`` is when its client saw that it had finished, or infinity."""

    turn: str
    began: float
    ended: float = float("inf")


@dataclass(frozen=True)
class Read:
    """The turns of a history, in order, from a snapshot requested at ``began`` and received at ``ended``."""

    turns: tuple[str, ...]
    began: float
    ended: float


def faults(appends: Sequence[Append], reads: Sequence[Read]) -> Iterator[str]:
    """Yield a sentence for each observation that one list cannot explain. The last read shows the final history."""
    order = reads[-1].turns
    if len({*order}) != len(order):
        yield f"turns stand twice in the history: {order}"
        return
    if other := next((read for read in reads if read.turns != order[: len(read.turns)]), None):
        yield f"a snapshot had {other.turns}, which is no beginning of {order}"
        return
    for append in appends:
        if append.ended < float("inf") and append.turn not in order:
            yield f"turn {append.turn} had finished, and is lost"
    if strange := {*order} - {append.turn for append in appends}:
        yield f"nobody has submitted {sorted(strange)}"
        return
    if circle := _circle(appends, reads, order):
        yield f"no order explains what was seen: {' before '.join(circle)}"


def _circle(appends: Sequence[Append], reads: Sequence[Read], order: Sequence[str]) -> list[str]:
    """Return a cycle of calls that each must precede the next, ending with the first; [] if there is an order."""
    place = {turn: number for number, turn in enumerate(order)}
    calls = [
        (f"append {one.turn}", 2 * place[one.turn], one.began, one.ended)
        for one in appends
        if one.turn in place
    ] + [
        (f"read {number} of {len(one.turns)}", 2 * len(one.turns) - 1, one.began, one.ended)
        for number, one in enumerate(reads)
    ]  # fmt: skip
    graph: TopologicalSorter[str] = TopologicalSorter()
    places: dict[int, list[str]] = {}
    for name, at, _, _ in calls:
        places.setdefault(at, []).append(name)
    for before, after in pairwise(sorted(places)):
        for name in places[after]:
            graph.add(name, *places[before])
    for name, _, began, _ in calls:
        graph.add(name, *(other for other, _, _, ended in calls if ended < began))
    try:
        graph.prepare()
    except CycleError as exc:
        return exc.args[1]
    return []
