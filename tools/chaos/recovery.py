"""How soon the turns of a dead worker continued, and where: each way waits for something different.

- *by another process*: a process that already took turns when the worker died; nothing has to be started;
- *by a new process*: a process that was started afterwards;
- *alone*: the turn has seen two crashes and waits for a process that runs nothing else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import quantiles

from antiphon.events import Event, TurnRetrying, TurnStarted

_TAKES_TURNS = re.compile(r"^(\S+ \S+) .*worker (\S+) takes turns", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Death:
    """A worker, or all of a supervisor's (``worker`` is then the prefix of their names), and when it died."""

    what: str
    worker: str
    at_ms: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """One turn that continued: how long after the death it was requeued and restarted, and by what."""

    what: str
    by: str
    turn_id: str
    handed_back: float
    started: float


def recoveries(
    logs: Iterable[Sequence[Event]],
    deaths: Sequence[Death],
    taking_since: Mapping[str, float],
    disturbances: Sequence[tuple[float, float]],
) -> list[Recovery]:
    """Return all turns of dead workers that continued, if Redis was reachable the whole time."""
    found: list[Recovery] = []
    for log in logs:
        started: dict[str, TurnStarted] = {}
        broken: dict[str, tuple[Death, float]] = {}
        for event in log:
            if isinstance(event, TurnRetrying) and event.code == "worker_died" and event.turn_id in started:
                death = _cause(deaths, started[event.turn_id], event.at)
                if death:
                    broken[event.turn_id] = death, event.at
            elif isinstance(event, TurnStarted):
                started[event.turn_id] = event
                if event.turn_id in broken:
                    death, handed_back = broken.pop(event.turn_id)
                    if not any(began < event.at and ended > death.at_ms for began, ended in disturbances):
                        found.append(_recovery(event, death, handed_back, taking_since))
    return found


def _cause(deaths: Sequence[Death], started: TurnStarted, at: float) -> Death | None:
    """Return the death of the process that ran this attempt."""
    died = [
        one
        for one in deaths
        if started.worker.startswith(one.worker)
        and "-alone" not in started.worker
        and started.at - 50 <= one.at_ms <= at + 50
    ]
    return died[-1] if died else None


def _recovery(event: TurnStarted, death: Death, handed_back: float, since: Mapping[str, float]) -> Recovery:
    if "-alone" in event.worker:
        by = "alone"
    elif since.get(event.worker, death.at_ms) < death.at_ms:
        by = "by another process"
    else:
        by = "by a new process"
    return Recovery(
        death.what,
        by,
        event.turn_id,
        (handed_back - death.at_ms) / 1000,
        (event.at - death.at_ms) / 1000,
    )


def since(outputs: Iterable[str]) -> dict[str, float]:
    """Return when each worker began to take turns, in ms, from the outputs of supervisors."""
    return {
        worker: datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() * 1000
        for output in outputs
        for at, worker in _TAKES_TURNS.findall(output)
    }


def spreads(found: Iterable[Recovery]) -> dict[str, dict[str, float]]:
    """Return per kind of death and recovery: the count, and the seconds from the death to the turn's next start.

    ``handed_back`` is the median of the seconds until the turns were back in the queue.
    """
    groups: dict[str, list[Recovery]] = {}
    for one in found:
        groups.setdefault(f"{one.what}, {one.by}", []).append(one)
    return {name: _spread(groups[name]) for name in sorted(groups)}


def _spread(group: list[Recovery]) -> dict[str, float]:
    seconds = [one.started for one in group]
    return {
        "count": len(group),
        "handed_back": _cut([one.handed_back for one in group], 50),
        "p50": _cut(seconds, 50),
        "p99": _cut(seconds, 99),
        "longest": max(seconds),
    }


def _cut(values: list[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1] if len(values) > 1 else values[0]
