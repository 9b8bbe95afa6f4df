"""Records steps, sleeps and waits of tool calls and turn functions in the journal, so that they happen once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from msgspec import Struct

from antiphon.errors import (
    AgentError,
    EventTimeout,
    LimitReached,
    StepFailed,
    ToolError,
    TurnFailed,
    UsageError,
)
from antiphon.events import Event, StepRecorded
from antiphon.input.limits import check_size
from antiphon.model import Decision, Wait
from antiphon.tools import Context
from antiphon.tools.children import ChildTool
from antiphon.tools.durable import plain_result
from antiphon_worker.loop.hooks import Hooks
from antiphon_worker.loop.input import ChildTurns
from antiphon_worker.loop.steps import (
    DurableEntry,
    DurableResult,
    DurableSleep,
    DurableStart,
    JournalEntry,
    agent_call,
)
from antiphon_worker.loop.toolbox import TurnStopped

MOST_ROUNDS = 16
"""How often a task on another system may request input in one call."""
IN_PROCESS_SECONDS = 1.0
UNKNOWN = "It is unknown whether step {name!r} ran: the worker stopped after starting it, and it must not run twice."
NO_EVENT = "No event {event!r} came in time."
CHANGED = (
    "The code of this turn has changed: its journal has {known!r} as number {place} of {where}, and the code now asks "
    "for {asked!r}. Submit the turn again, or run it with the code that it began with."
)

Append = Callable[[Sequence[JournalEntry], Sequence[Event]], Awaitable[None]]
ServerTime = Callable[[], Awaitable[int]]


class CallWaits(TurnStopped):
    """The call waits without a worker, and runs again when the wait is over."""


class Durable:
    """The steps, sleeps, waits and agents in one call of a tool, or in the function of a turn (``call_id`` '').

    They are numbered in the order in which the code requests them. A number with a result in the journal is not run
    again. ``journal`` has the entries of all calls. An agent's waits belong to a call of its own. ``over`` has the
    decisions about ended waits by their ids, with the events that they have received. ``now`` is the time of the
    store in ms: a sleep ends at the same time on every worker.
    """

    def __init__(
        self, call_id: str, step: int, journal: Mapping[str, Sequence[DurableEntry]], over: Mapping[str, Decision],
        append: Append, now: ServerTime, approval: Decision | None = None, hooks: Hooks | None = None,
        children: Callable[[], ChildTurns] | None = None,
    ) -> None:  # fmt: skip
        self._call_id = call_id
        self._step = step
        self._journal = journal
        self._known = {entry.place: entry for entry in journal.get(call_id, ())}
        self._waits_over = over
        self.append = append
        self._now = now
        self._approval = approval
        self._hooks = hooks
        self._children = children
        self._asking: list[Durable] = []  # the calls that wait for agents
        self._asked: Counter[str] = Counter()
        self._running: set[asyncio.Future[None]] = set()
        self._received: dict[str, int] = {}  # the position of the last event, by the names of events
        self._over = False
        self._waits: list[Wait] = []
        self.fault: AgentError | None = None
        """Why the turn must fail, even if the tool has caught the exception."""

    @property
    def waits(self) -> list[Wait]:
        """The sleeps, events and agents that the call waits for."""
        return [*self._waits, *(wait for one in self._asking for wait in one.waits)]

    async def step(self, name: str, run: Callable[[], Awaitable[Any]], at_most_once: bool) -> Any:
        place, name = self._next(name)
        known = self._known.get(place)
        if not isinstance(known, DurableResult):
            with self._under_way():
                known = await self._run(place, name, run, at_most_once, started=known is not None)
        if known.error:
            raise StepFailed(known.error)
        return known.value

    @contextmanager
    def _under_way(self) -> Generator[None]:
        """Make ``end`` wait for the work inside this context."""
        running = asyncio.get_running_loop().create_future()
        self._running.add(running)
        try:
            yield
        finally:
            self._running.discard(running)
            running.set_result(None)

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
            await self.append([DurableStart(self._step, self._call_id, place, name)], [])
        try:
            value, error = await run(), ""
        except StepFailed as exc:
            value, error = None, exc.message
        if self._hooks is not None:
            value, error = await self._hooks.step_ended(name, value, error, self._call_id, self._step)
        return await self._record(place, name, value, error)

    async def end(self) -> None:
        """Wait for the steps that the call has left running. Raises ``fault``. No further steps may begin."""
        self._over = True
        while self._running:
            await asyncio.wait(self._running)
        for one in self._asking:
            await one.end()
        if self.fault is not None:
            raise self.fault

    async def _record(self, place: int, name: str, value: Any, error: str) -> DurableResult:
        entry = DurableResult(self._step, self._call_id, place, name, value, error)
        event = StepRecorded(step=self._step, call_id=self._call_id, name=name, is_error=bool(error))
        await self.append([entry], [event])
        return entry

    async def run_agent(self, tool: ChildTool, text: str, context: Context) -> str:
        """Run an agent as ``Context.run_agent`` does."""
        place, name = self._next(f"agent {tool.agent.name}", self._waits)
        known = self._known.get(place)
        if not isinstance(known, DurableResult):
            with self._under_way():
                known = await self._ask(place, name, tool, text, context)
        if known.error:
            raise StepFailed(known.error)
        return known.value

    async def _ask(
        self, place: int, name: str, tool: ChildTool, text: str, context: Context
    ) -> DurableResult:
        assert self._children is not None
        children, call_id = self._children(), agent_call(self._call_id, place)
        begun = children.begun(call_id)
        if begun not in ("", tool.agent.name):
            self._changed(f"agent {begun}", place, name)
        own = Durable(call_id, self._step, self._journal, self._waits_over, self.append, self._now)
        self._asking.append(own)
        inner = context.of_call(call_id, self._step, UnpublishedCall(own))
        try:
            value, error = plain_result(name, await children.ask(tool, text, inner)), ""
        except (ToolError, LimitReached) as exc:
            value, error = None, exc.message
        return await self._record(place, name, value, error)

    async def sleep(self, seconds: float) -> None:
        if seconds < IN_PROCESS_SECONDS:
            await asyncio.sleep(seconds)
            return
        place, name = self._next("sleep")
        if not isinstance(self._known.get(place), DurableResult):
            with self._under_way():
                await self._wait(place, Wait(self._call_id, name, seconds=seconds))
                await self.append([DurableResult(self._step, self._call_id, place, name)], [])

    @property
    def repeats(self) -> bool:
        """Whether the journal has an entry for the next request of the code."""
        return self._asked.total() + 1 in self._known

    async def wait_for_event(self, event: str, seconds: float, about: dict[str, Any] | None = None) -> Any:
        """Wait as ``Context.wait_for_event`` does. Readers of the turn see what the event is ``about``."""
        place, name = self._next(f"event {event}")
        known = self._known.get(place)
        if not isinstance(known, DurableResult):
            with self._under_way():
                known = await self._receive(place, name, event, seconds, about)
        if known.error:
            raise EventTimeout(known.error)
        self._received[event] = known.value["position"]
        return known.value["data"]

    async def _receive(
        self, place: int, name: str, event: str, seconds: float, about: dict[str, Any] | None
    ) -> DurableResult:
        after = self._received.get(event, 0)
        wait = Wait(self._call_id, name, "event", seconds, event=event, after=after, about=about)
        decision = await self._wait(place, wait)
        got = decision and decision.arguments
        error = "" if got else NO_EVENT.format(event=event)
        found = DurableResult(self._step, self._call_id, place, name, got, error)
        await self.append([found], [])
        return found

    async def _wait(self, place: int, wait: Wait) -> Decision | None:
        """Return the decision of an ended wait, or None if its time has passed. Raises ``CallWaits`` until then."""
        known = self._known.get(place)
        if not isinstance(known, DurableSleep):
            until = await self._now() + int(wait.seconds * 1000)
            known = DurableSleep(self._step, self._call_id, place, wait.name, until, self._approval)
            await self.append([known], [])
        if wait.id in self._waits_over:
            return self._waits_over[wait.id]
        wait.seconds = max(known.until - await self._now(), 0) / 1000
        if wait.seconds or wait.event:
            self._waits.append(wait)
            raise CallWaits
        return None

    def _next(self, name: str, waits: Sequence[Wait] | None = None) -> tuple[int, str]:
        """Return the place and the name of the next step, sleep or wait. Raises ``CallWaits`` if the call must end.

        It must end if there are ``waits``. Only agents may begin while others are waited for.
        """
        if (self.waits if waits is None else waits) or self.fault is not None:
            raise CallWaits  # the tool caught the first one
        if self._over:
            raise UsageError("The tool call is over: await its steps, sleeps and waits before it returns.")
        self._asked[name] += 1
        place, count = self._asked.total(), self._asked[name]
        check_size("steps", place, "The steps, sleeps and waits of a call")
        name = name if count == 1 else f"{name}#{count}"
        known = self._known.get(place)
        if known is not None and known.name != name:
            self._changed(known.name, place, name)
        return place, name

    def _changed(self, known: str, place: int, asked: str) -> NoReturn:
        where = "a tool call" if self._call_id else "its function"
        said = CHANGED.format(known=known, place=place, where=where, asked=asked)
        self.fault = TurnFailed(said, code="step_changed")
        raise CallWaits


class UnpublishedCall(Struct):
    """The call of a context outside the tool calls of an answer: it offers steps and sleeps, but no events."""

    durable: Durable
    cancelled: bool = False

    def progress(self, text: str, fraction: float | None) -> None:
        pass

    def emit(self, name: str, data: Any) -> None:
        pass


def durable_entries(entries: Iterable[JournalEntry]) -> dict[str, list[DurableEntry]]:
    """Return the durable entries of a journal by the ids of their calls."""
    found: dict[str, list[DurableEntry]] = {}
    for entry in entries:
        if isinstance(entry, DurableEntry):
            found.setdefault(entry.call, []).append(entry)
    return found


def durable_of(context: Context) -> Durable | None:
    """Return the durable steps of a call; None outside of a turn."""
    call = context._call  # pyright: ignore[reportPrivateUsage]
    return cast("Durable | None", call and call.durable)
