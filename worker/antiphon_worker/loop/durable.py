"""Steps and sleeps of tool calls and turn functions: recorded in the journal, so that they happen once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

from antiphon.errors import AgentError, StepFailed, TurnFailed, UsageError
from antiphon.events import Event, StepRecorded
from antiphon.input.limits import check_size
from antiphon.input.values import now_ms
from antiphon.model import Decision, Wait
from antiphon_worker.loop.hooks import Hooks
from antiphon_worker.loop.steps import DurableEntry, DurableResult, DurableSleep, DurableStart, JournalEntry
from antiphon_worker.loop.toolbox import TurnStopped

IN_PROCESS_SECONDS = 1.0
UNKNOWN = "It is unknown whether step {name!r} ran: the worker stopped after starting it, and it must not run twice."
CHANGED = (
    "The code of this turn has changed: its journal has {known!r} as number {place} of {where}, and the code now asks "
    "for {asked!r}. Submit the turn again, or run it with the code that it began with."
)

Append = Callable[[Sequence[JournalEntry], Sequence[Event]], Awaitable[None]]


class CallWaits(TurnStopped):
    """The call sleeps without a worker: it is run again when it wakes up."""


class Durable:
    """The steps and sleeps in one call of a tool, or in the function of a turn (``call_id`` '').

    They are numbered in the order in which the code asks for them. A number that the journal knows is not run again.
    ``woken`` are the ids of the waits that are over.
    """

    def __init__(
        self, call_id: str, step: int, entries: Iterable[DurableEntry], woken: Collection[str], append: Append,
        approval: Decision | None = None, hooks: Hooks | None = None,
    ) -> None:  # fmt: skip
        self._call_id = call_id
        self._step = step
        self._known = {entry.place: entry for entry in entries}
        self._woken = woken
        self._append = append
        self._approval = approval
        self._hooks = hooks
        self._asked: Counter[str] = Counter()
        self._running: set[asyncio.Future[None]] = set()
        self._over = False
        self.wait: Wait | None = None
        """The sleep for which the call is suspended."""
        self.fault: AgentError | None = None
        """Why the turn must fail, also if the tool has caught it."""

    async def step(self, name: str, run: Callable[[], Awaitable[Any]], at_most_once: bool) -> Any:
        place, name = self._next(name)
        known = self._known.get(place)
        if not isinstance(known, DurableResult):
            running = asyncio.get_running_loop().create_future()
            self._running.add(running)
            try:
                known = await self._run(place, name, run, at_most_once, started=known is not None)
            finally:
                self._running.discard(running)
                running.set_result(None)
        if known.error:
            raise StepFailed(known.error)
        return known.value

    async def _run(
        self, place: int, name: str, run: Callable[[], Awaitable[Any]], at_most_once: bool, started: bool
    ) -> DurableResult:
        if started:
            return await self._record(place, name, None, UNKNOWN.format(name=name))
        if self._hooks is not None:
            reason = await self._hooks.step_started(name, self._call_id, self._step)
            if reason:
                return await self._record(place, name, None, reason)
        if at_most_once:
            await self._append([DurableStart(self._step, self._call_id, place, name)], [])
        try:
            value, error = await run(), ""
        except StepFailed as exc:
            value, error = None, exc.message
        if self._hooks is not None:
            value, error = await self._hooks.step_ended(name, value, error, self._call_id, self._step)
        return await self._record(place, name, value, error)

    async def end(self) -> None:
        """Wait for the steps that the call has left running. Raises ``fault``. No further one may begin."""
        self._over = True
        while self._running:
            await asyncio.wait(self._running)
        if self.fault is not None:
            raise self.fault

    async def _record(self, place: int, name: str, value: Any, error: str) -> DurableResult:
        entry = DurableResult(self._step, self._call_id, place, name, value, error)
        event = StepRecorded(step=self._step, call_id=self._call_id, name=name, is_error=bool(error))
        await self._append([entry], [event])
        return entry

    async def sleep(self, seconds: float) -> None:
        if seconds < IN_PROCESS_SECONDS:
            await asyncio.sleep(seconds)
            return
        place, name = self._next("sleep")
        known = self._known.get(place)
        if isinstance(known, DurableResult):
            return
        if not isinstance(known, DurableSleep):
            until = now_ms() + int(seconds * 1000)
            known = DurableSleep(self._step, self._call_id, place, name, until, self._approval)
            await self._append([known], [])
        wait = Wait(self._call_id, name, seconds=max(known.until - now_ms(), 0) / 1000)
        if wait.id not in self._woken and wait.seconds:
            self.wait = wait
            raise CallWaits
        await self._append([DurableResult(self._step, self._call_id, place, name)], [])

    def _next(self, name: str) -> tuple[int, str]:
        """Return the number of what the code asks for, and its name. Raises ``CallWaits`` where the turn must end."""
        if self.wait is not None or self.fault is not None:
            raise CallWaits  # the tool has caught it the first time
        if self._over:
            raise UsageError("The tool call is over: await its steps and sleeps before it returns.")
        self._asked[name] += 1
        place, count = self._asked.total(), self._asked[name]
        check_size("steps", place, "The steps and sleeps of a call")
        name = name if count == 1 else f"{name}#{count}"
        known = self._known.get(place)
        if known is not None and known.name != name:
            where = "a tool call" if self._call_id else "its function"
            said = CHANGED.format(known=known.name, place=place, where=where, asked=name)
            self.fault = TurnFailed(said, code="step_changed")
            raise CallWaits
        return place, name


def durable_entries(entries: Iterable[JournalEntry]) -> dict[str, list[DurableEntry]]:
    """Return the steps and sleeps of a journal by the ids of their calls."""
    found: dict[str, list[DurableEntry]] = {}
    for entry in entries:
        if isinstance(entry, DurableEntry):
            found.setdefault(entry.call, []).append(entry)
    return found
