"""The context of a tool call: what a tool can read about its call and publish while it runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from antiphon.errors import EventTimeout, UsageError
from antiphon.input.ids import event_name
from antiphon.input.limits import LIMITS, check_depth, check_size
from antiphon.input.values import is_a
from antiphon.tools.durable import LONGEST_SLEEP, DurableCall, attempts, check_async, check_step, seconds_of

_EVENT_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,64}")


class CallUnderWay(Protocol):
    """The call of a ``Context``, provided by a runtime. Any thread may use it."""

    @property
    def cancelled(self) -> bool: ...

    @property
    def durable(self) -> DurableCall: ...

    def progress(self, text: str, fraction: float | None) -> None: ...

    def emit(self, name: str, data: Any) -> None: ...


class Context(Struct):
    """The session, turn and call that a tool runs in. ``variables`` are the session's: changes to them are saved when
    the turn finishes.

    ``attempt`` counts the attempts at the turn, as in its events: it is 2 if a worker died during the first one.
    ``run`` counts the runs of the turn, and ``step_number`` its model calls. To call a tool in a test, create a context
    yourself: it is not cancelled, it checks arguments but publishes nothing, and it does not sleep:

    >>> context = Context("user-123", "turn-1", "call_1")
    >>> context.progress("Page 3 of 10", 0.3)
    >>> context.cancelled
    False
    """

    session_id: str = ""
    turn_id: str = ""
    call_id: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1
    run: int = 1
    step_number: int = 0
    _call: CallUnderWay | None = None

    def of_call(self, call_id: str, step: int = 0, call: CallUnderWay | None = None) -> Context:
        """Return a copy for one tool call. The variables are shared."""
        return Context(
            self.session_id, self.turn_id, call_id, self.variables, self.attempt, self.run, step, call
        )

    @property
    def key(self) -> str:
        """A key for services that must do something only once: 32 hexadecimal digits.

        It is the same whenever this call is repeated, after a crash or a retry and on any worker. Every other call has
        a different key, and so do the calls of the turn's next run, after ``requeue``.

        >>> Context("s", "turn-1", "call_1").key == Context("s", "turn-1", "call_1", attempt=2).key
        True
        >>> Context("s", "turn-1", "call_1").key == Context("s", "turn-1", "call_2").key
        False
        """
        place = msgspec.json.encode([self.turn_id, self.run, self.step_number, self.call_id])
        return hashlib.sha256(place).hexdigest()[:32]

    @property
    def cancelled(self) -> bool:
        """True as soon as the result of this call is no longer needed. It stays true. All threads may read it.

        The turn was cancelled, exceeded its time limit or lost its lease, its worker stops, or the call itself took
        too long. It is also true after the call has returned.
        """
        return self._call is not None and self._call.cancelled

    def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, retries: int = 0, timeout: float | None = None,
        at_most_once: bool = False, **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:  # fmt: skip
        """Call a function once and keep its result, so that it does not run again after a crash.

        Await it in an asynchronous tool. The tool is called again on another worker if its worker dies, and after each
        ``sleep``. A step that has returned is then not called again: its kept result is returned, in plain JSON types
        and of 1 MiB at most. A synchronous ``function`` runs in a thread.

        A failed attempt is repeated ``retries`` times, after 1, 2, 4 … 60 s; ``timeout`` is in seconds, for each
        attempt. After the last attempt, ``StepFailed`` is raised, and raised again whenever the tool is repeated. A
        step that was running when its worker died runs again. With ``at_most_once`` it does not: ``StepFailed`` is
        raised, because it is unknown whether the step ran.

        A name that is used again is numbered: ``charge``, ``charge#2``. The steps of a call must come in the same order
        each time. If they do not, because the code has changed, the turn fails (``step_changed``).

        >>> async def charge(order):
        ...     return {"paid": order}
        >>> await Context().step("charge", charge, 17, retries=3)
        {'paid': 17}
        """
        check_step(name, retries, timeout)

        async def run() -> Any:
            return await attempts(name, function, args, kwargs, retries, timeout)

        return run() if self._call is None else self._call.durable.step(name, run, at_most_once)

    def sleep(self, duration: timedelta | float) -> Coroutine[Any, Any, None]:
        """Sleep for this long, a ``timedelta`` or seconds, without a worker: 30 days at most.

        Await it in an asynchronous tool. The turn is suspended (``turn_sleeping``), and holds no worker, no thread and
        no connection. When the time has passed, by the clock of Redis, any worker calls the tool again from its
        start: its finished ``step`` calls are not repeated, everything else is. A sleep of less than a second stays in
        the worker.

        Other calls of the same step finish first. Without a worker, as in a test, it returns at once.

        >>> await Context().sleep(timedelta(hours=8))
        """
        seconds = seconds_of(duration)
        return _at_once() if self._call is None else self._call.durable.sleep(seconds)

    def wait_for_event(
        self, name: str, *, timeout: timedelta | float | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Wait for an event of this name without a worker, and return its data in plain JSON types.

        ``client.send_event``, ``antiphon event`` and the HTTP interface send events. Await it in an asynchronous tool.
        The turn is suspended as in ``sleep``, and any worker calls the tool again from its start when the event has
        arrived. Events of other tenants are never received. Events are kept for a day, so an event that was sent before
        the wait is received too. A call that waits repeatedly receives each event once, in the order of sending.

        Raises ``EventTimeout`` if none has arrived after ``timeout``, a ``timedelta`` or seconds: 30 days at most,
        which is also the default. Without a worker, as in a test, it raises at once.

        >>> await Context().wait_for_event("payment:4711", timeout=timedelta(days=2))
        Traceback (most recent call last):
        antiphon.errors.EventTimeout: No event 'payment:4711' came in time.
        """
        known = event_name(name)
        seconds = seconds_of(LONGEST_SLEEP if timeout is None else timeout, "wait_for_event")
        return _no_event(known) if self._call is None else self._call.durable.wait_for_event(known, seconds)

    def run_agent(
        self, agent: Any, text: str, *, timeout: timedelta | float | None = None, deltas: bool = False
    ) -> Coroutine[Any, Any, str]:
        """Run another agent of the App with this input, without a worker, and return its answer.

        Await it in an asynchronous tool or turn function. The agent runs as a child turn in a session of its own, on
        any worker that has it, while this turn is suspended: ``Agent.as_tool`` describes both, and ``timeout`` and
        ``deltas``. When it has ended, any worker calls the tool again from its start. The text of the answer is then
        kept, 1 MiB at most. To run several agents at once, use ``asyncio.gather``.

        If the agent fails, is cancelled, or does not answer in time, ``StepFailed`` is raised, and raised again
        whenever the tool is repeated. Raises ``UsageError`` outside a turn.

        >>> Context().run_agent(agent, "When is Kyoto best?")
        Traceback (most recent call last):
        antiphon.errors.UsageError: context.run_agent needs a turn, which runs the agent: call it in a session.
        """
        if not callable(getattr(agent, "as_tool", None)):
            raise UsageError(f"context.run_agent takes an Agent of the App, not {agent!r}.")
        if not is_a(text, str) or not text:
            raise UsageError(f"context.run_agent takes a text for the agent, not {text!r}.")
        check_async("run_agent")
        tool = agent.as_tool(timeout=timeout, deltas=deltas)
        if self._call is None:
            raise UsageError("context.run_agent needs a turn, which runs the agent: call it in a session.")
        return self._call.durable.run_agent(tool, text, self)

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Publish the tool's progress as a ``tool_progress`` event. ``fraction`` is the part done, from 0 to 1.

        All threads may call this; it does not wait. Text beyond 4 KiB is cut. The first progress after a silence is
        published at once, and then the latest one every 50 ms. It may be lost in a crash.
        Raises ``UsageError`` if an argument is not as described.
        """
        if not is_a(text, str):
            raise UsageError(f"text= must be text, not {type(text).__name__}.")
        if fraction is not None:
            fraction = _checked_fraction(fraction)
        if self._call is not None:
            self._call.progress(_cut(text), fraction)

    def emit(self, name: str, data: Any = None) -> None:
        """Publish an event of your own: ``custom``, with this name and with data that has a JSON form.

        All threads may call this; it does not wait. The events of a call are published in order. They may be lost in a
        crash, and a call that is repeated publishes them again. Raises ``UsageError`` if the name or the data cannot be
        sent, and ``LimitReached`` beyond 16 KiB of JSON or 1,000 events of one call.

        >>> Context().emit("order.placed", {"order": 17})
        """
        if not is_a(name, str) or not _EVENT_NAME.fullmatch(name):
            raise UsageError(
                f"{str(name)[:80]!r} is not a valid event name: use 1 to 64 letters, digits and any of '_.:/-'."
            )
        found = _plain_data(name, data)
        if self._call is not None:
            self._call.emit(name, found)


async def _at_once() -> None:
    """Sleep without a worker."""


async def _no_event(name: str) -> None:
    """Wait without a worker."""
    raise EventTimeout(f"No event {name!r} came in time.")


def _checked_fraction(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UsageError(f"fraction= must be a number from 0 to 1 or None, not {value!r}.")
    return float(value)


def _cut(text: str) -> str:
    """Return at most ``progress_bytes`` of the text. Lone surrogates, which cannot be stored, become ``?``."""
    most = LIMITS.progress_bytes
    data = text[: most + 1].encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len("…".encode())].decode("utf-8", "ignore") + "…"


def _plain_data(name: str, data: Any) -> Any:
    """Return a copy of the data as plain JSON types. Raises ``UsageError`` and ``LimitReached``."""
    try:
        encoded = msgspec.json.encode(data)
        check_size("custom_bytes", len(encoded), f"The data of the event {name!r} in bytes")
        found = msgspec.json.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"The data of the event {name!r} cannot be written as JSON: {exc}.") from exc
    check_depth(found, f"The data of the event {name!r}")
    return found
