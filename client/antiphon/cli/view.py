"""The content of ``antiphon top``: one reading of the deployment, with rates since the last, sorted and filtered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from antiphon.cli.explain import duration
from antiphon.cli.terminal import clock_time, counted, printable, table
from antiphon.redis.deployment import Overview, QueueState
from antiphon.wire.lists.workers import TurnRow, WorkerRow

SORTS = ("age", "step", "attempt", "status", "session", "worker")


class Rates(Struct):
    """Turns ended and tokens used per second, over all live workers."""

    turns: float = 0.0
    tokens: float = 0.0


def rates_between(before: Overview | None, now: Overview) -> Rates:
    """Compare two readings. A worker that started or stopped between them is not counted."""
    if before is None or now.at <= before.at:
        return Rates()
    known = {one.name: one for one in before.workers}
    pairs = [(known[one.name], one) for one in now.workers if one.name in known]
    seconds = (now.at - before.at) / 1000
    ended = sum(new.finished + new.failed - old.finished - old.failed for old, new in pairs)
    tokens = sum(new.tokens - old.tokens for old, new in pairs)
    return Rates(max(ended, 0) / seconds, max(tokens, 0) / seconds)


class View(Struct):
    """One screen. ``filter`` keeps only the lines that contain it."""

    overview: Overview
    rates: Rates
    sort: str = "age"
    reverse: bool = False
    filter: str = ""

    @property
    def summary(self) -> str:
        """Return the totals, shown above all other lines."""
        found, counts = self.overview, self.overview.counts
        running = sum(one.running for one in found.workers)
        lag = max((one.lag for one in found.workers), default=0.0)
        return (
            f"{clock_time(found.at)}   {counted(len(found.workers), 'worker')}, {counted(running, 'turn')} running, "
            f"{sum(one.queued for one in found.queues)} queued   {self.rates.turns:.1f} turns/s   "
            f"{self.rates.tokens:,.0f} tokens/s   lag {lag * 1000:.0f} ms"
            f"\n{counted(counts.sessions, 'session')} with turns, {counts.waiting} waiting for decisions, "
            f"{counts.delayed} delayed, "
            f"{sum(one.failed for one in found.queues)} failed, {counts.quarantined} set aside"
        )

    @property
    def troubles(self) -> list[str]:
        """Return the problems that an operator should look at first."""
        stranded = [one.name for one in self.overview.queues if one.queued and not one.workers]
        said = [f"No worker serves {printable(name)}: its turns wait." for name in stranded]
        if self.overview.counts.waiting:
            said.append(f"Turns that wait for people: {self.overview.counts.waiting} (antiphon waiting)")
        if self.overview.counts.quarantined:
            said.append(f"Damaged records: {self.overview.counts.quarantined} (antiphon failed)")
        return said

    def queue_rows(self) -> tuple[list[str], list[list[object]]]:
        head = ["queue", "queued", "oldest", "running", "waiting", "delayed", "failed", "workers"]
        return head, [_queue(one) for one in self.overview.queues if self._kept(one.name)]

    def worker_rows(self) -> tuple[list[str], list[list[object]]]:
        head = ["worker", "state", "turns", "finished", "failed", "tokens", "lag", "queues"]
        found = sorted(self.overview.workers, key=lambda one: (-one.running, one.name))
        return head, [_worker(one) for one in found if self._kept(one.name, *one.queues)]

    def turn_rows(self) -> tuple[list[str], list[list[object]]]:
        head = ["turn", "session", "status", "age", "step", "attempt", "queue", "worker"]
        return head, [
            [
                one.turn_id, one.session_id, one.status, duration(self._age(one)), one.step, one.attempt, one.queue,
                one.worker or "-",
            ]
            for one in self._turns()
        ]  # fmt: skip

    def plain(self) -> list[str]:
        """Return the whole screen as lines without colour."""
        lines = [*self.summary.splitlines(), *self.troubles]
        for head, rows in (self.queue_rows(), self.worker_rows(), self.turn_rows()):
            lines += ["", *table(head, rows)]
        return lines

    def _turns(self) -> list[TurnRow]:
        found = [
            one for one in self.overview.turns
            if self._kept(one.turn_id, one.session_id, one.status, one.queue, one.worker, one.tenant or "")
        ]  # fmt: skip

        places: dict[str, Callable[[TurnRow], Any]] = {
            "age": lambda one: -self._age(one), "step": lambda one: -one.step, "attempt": lambda one: -one.attempt,
            "status": lambda one: one.status, "session": lambda one: one.session_id, "worker": lambda one: one.worker,
        }  # fmt: skip
        return sorted(found, key=places[self.sort], reverse=self.reverse)

    def _age(self, turn: TurnRow) -> float:
        """Return how many seconds the turn has run, or has waited if it has not started."""
        return max(self.overview.at - (turn.started or turn.queued or self.overview.at), 0) / 1000

    def _kept(self, *texts: str) -> bool:
        return any(self.filter.lower() in text.lower() for text in texts)


def _queue(one: QueueState) -> list[object]:
    oldest = "-" if one.oldest_seconds is None else duration(one.oldest_seconds)
    return [one.name, one.queued, oldest, one.running, one.waiting, one.delayed, one.failed, one.workers]


def _worker(one: WorkerRow) -> list[object]:
    lag = f"{one.lag * 1000:.0f} ms"
    return [
        one.name, one.state, one.running, one.finished, one.failed, one.tokens, lag, ",".join(one.queues),
    ]  # fmt: skip
