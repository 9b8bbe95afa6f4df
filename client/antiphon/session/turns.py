"""The turns of a session: saying something, and reading what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import msgspec

from antiphon.errors import InvalidOutput, UsageError
from antiphon.events import Event, TurnFinished
from antiphon.input.ids import check_key, check_queue
from antiphon.input.messages import Input, to_input
from antiphon.input.parameters import check_params
from antiphon.input.request import Travelling
from antiphon.input.schema import output_schema, parse_output
from antiphon.model import Message, Response
from antiphon.redis.turn import Turn
from antiphon.session.background import call
from antiphon.session.deadline import Deadline
from antiphon.session.runtime import (
    AgentLike,
    IfBusy,
    Opening,
    Runtime,
    SessionRef,
    TurnHandle,
    Work,
    duration,
    plain,
)
from antiphon.session.streams import AsyncEventStream, EventStream

__all__ = ["TurnTaking", "check_if_busy"]

REPAIR = "Your answer cannot be used: {problem} Answer again, with nothing but JSON that fits the schema."


# How many steps of the event loop pass between the end of ``async for`` and the closing of its generator.
CLOSING_STEPS = 3


class _OwnedTurn:
    """A turn that a caller of this handle owns; ``over`` when it has ended or is rolled back."""

    def __init__(self) -> None:
        self.left = False
        self.over: Future[None] = Future()


class TurnTaking:
    """What ``Session`` does with turns."""

    def __init__(
        self, agent: AgentLike | str | None, ref: SessionRef, opening: Opening | None, runtime: Runtime | None
    ) -> None:
        self._agent = agent
        self._ref = ref
        self._opening = None if opening is None or opening.empty else opening
        self._opens_after: TurnTaking | None = (
            None  # its parent: a child's report is not what that begins with
        )
        self._given_runtime = runtime  # a client's; else the agent's own
        self._owned: set[_OwnedTurn] = set()  # the turns of this handle whose callers may leave them

    def run(
        self,
        text: Input,
        *,
        agent: AgentLike | str | None = None,
        timeout: float | timedelta | None = None,
        if_busy: IfBusy = "enqueue",
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        **params: Any,
    ) -> Response:
        """Say something and wait for the answer. Every failure is an ``AgentError`` and leaves the history as it was.

        ``text`` is text, parts or a ``Message``. ``agent`` (an ``Agent``, or the name of one) works on this turn
        alone. ``timeout`` (seconds or a timedelta) bounds the whole call, waiting and retries
        included: then the turn is rolled back, and the error's code is ``turn_timed_out``. ``if_busy="reject"`` raises
        ``SessionBusy`` where the session has a turn already. Other keywords (``temperature``, ``max_tokens``,
        ``model``, …) go to the model.

        >>> response = session.run("Hello", temperature=0.2, timeout=60)
        >>> response.text, response.stop_reason
        ('You said: Hello', 'end')
        """
        work = self._work(
            text, agent=agent, timeout=timeout, if_busy=if_busy, metadata=metadata, queue=queue, **params
        )
        return call(self._complete(work))

    async def run_async(self, text: Input, **options: Any) -> Response:
        """``run``, awaited.

        >>> (await session.run_async("Hello")).text
        'You said: Hello'
        """
        return await self._complete(self._work(text, **options))

    def stream(self, text: Input, **options: Any) -> EventStream:
        """Say something and read the events of the turn as they come; options as in ``run``.

        The history is updated when the stream completes. Leaving the loop early rolls the turn back: nothing of it
        stays. The ``AgentError`` of a failed turn is raised after its terminal event.

        >>> [event.text for event in session.stream("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = self._work(text, **options)
        return EventStream(lambda: self._events(work))

    def stream_async(self, text: Input, **options: Any) -> AsyncEventStream:
        """``stream`` for ``async for``, with or without ``await`` in front.

        >>> [event.text async for event in session.stream_async("Go on") if event.type == "text_delta"]
        ['You ', 'said: ', 'Go ', 'on']
        """
        work = self._work(text, **options)
        return AsyncEventStream(lambda: self._events(work))

    def json(self, text: Input, *, schema: Any, **options: Any) -> Response:
        """Say something and read the answer as ``schema``: it is in ``response.output``; options as in ``run``.

        ``schema`` is a pydantic model, a msgspec struct, a dataclass, a TypedDict, or a JSON schema. The model is
        given one chance to repair an answer that does not fit; then ``InvalidOutput`` carries what it said as
        ``raw``, and the history is as it was.

        >>> from dataclasses import dataclass
        >>> from antiphon.testing import script
        >>> @dataclass
        ... class User:
        ...     name: str
        >>> agent = Agent(provider=script({"name": "Alice"}), model="any")
        >>> agent.session().json("Who am I?", schema=User).output
        User(name='Alice')
        """
        return call(self.json_async(text, schema=schema, **options))

    async def json_async(self, text: Input, *, schema: Any, **options: Any) -> Response:
        """``json``, awaited.

        >>> from antiphon.testing import script
        >>> session = Agent(provider=script({"name": "Alice"}), model="any").session()
        >>> schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        >>> (await session.json_async("Who am I?", schema=schema)).output
        {'name': 'Alice'}
        """
        work = self._work(text, **options)
        work.output = output_schema(schema)
        deadline = Deadline(work.timeout)
        first = await self._complete(work, deadline)
        try:
            first.output = parse_output(schema, first.text)
        except InvalidOutput as exc:
            return await self._repair(work, deadline, first, exc, schema)
        return first

    def submit(self, text: Input, **options: Any) -> Turn:
        """Hand in a turn and go on: it does not depend on the caller. Options as in ``run``, with ``key`` (submit
        once) and ``delay`` (seconds or a timedelta). ``timeout`` is here that of the work alone: each attempt may take
        so long from its start, and waiting does not count.

        >>> turn = session.submit("Take your time", key="order-4711")
        >>> turn.result(timeout=10).text
        'You said: Take your time'
        """
        return Turn(cast("Any", call(self.submit_async(text, **options))))

    async def submit_async(self, text: Input, **options: Any) -> TurnHandle:
        """``submit``, awaited; so are the methods of the turn that it gives.

        >>> turn = await session.submit_async("Take your time")
        >>> (await turn.result(timeout=10)).text
        'You said: Take your time'
        """
        key, delay = options.pop("key", None), duration(options.pop("delay", None), "delay")
        work = self._work(text, **options)
        work.key, work.delay = None if key is None else check_key(key), delay
        return await (await self._ready()).submit(self._ref, work)

    @property
    def _runtime(self) -> Runtime:
        if self._given_runtime is not None:
            return self._given_runtime
        assert self._agent is not None
        assert not isinstance(self._agent, str), "only sessions of a client name their agent"
        return self._agent.runtime

    async def _ready(self) -> Runtime:
        """The runtime, once what ``agent.session(…)`` asked for is done and turns that were left are rolled back."""
        runtime, opening = self._runtime, self._opening
        if opening is not None:
            if self._opens_after is not None:
                await self._opens_after._ready()
            await runtime.open(self._ref, opening)
            self._opening = self._opens_after = None
        if self._owned:
            await self._rolled_back()
        return runtime

    async def _events(
        self, work: Work, deadline: Deadline | None = None
    ) -> AsyncGenerator[list[Event], None]:
        deadline = deadline or Deadline(work.timeout)
        runtime, owned, at_work = await deadline.wait(self._ready()), _OwnedTurn(), False
        self._owned.add(owned)
        batches = runtime.work(self._ref, work)
        try:
            while batch := await deadline.wait(anext(batches, None), at_work=at_work):
                at_work = at_work or any(event.type == "turn_started" for event in batch)
                yield batch
        finally:
            owned.left = True
            try:
                await batches.aclose()
            finally:
                self._owned.discard(owned)
                owned.over.set_result(None)

    async def _rolled_back(self) -> None:
        """Leaving ``async for`` closes its generator a moment later; this is that moment."""
        for _ in range(CLOSING_STEPS):
            await asyncio.sleep(0)
        for owned in [one for one in self._owned if one.left]:
            await asyncio.wrap_future(owned.over)

    async def _complete(self, work: Work, deadline: Deadline | None = None) -> Response:
        response: Response | None = None
        async for batch in self._events(work, deadline):
            last = batch[-1]
            if isinstance(last, TurnFinished):
                response = last.response
        assert response is not None, "a turn ends with its response or raises"
        return response

    async def _repair(
        self, work: Work, deadline: Deadline, first: Response, problem: InvalidOutput, schema: Any
    ) -> Response:
        """Ask once more. What stays in the history is the question and an answer that fits, or nothing."""
        runtime = self._runtime
        turns = [first.turn_id]
        try:
            message = Message.user(REPAIR.format(problem=problem.message))
            second = await self._complete(msgspec.structs.replace(work, messages=[message]), deadline)
            turns.append(second.turn_id)
            second.output = parse_output(schema, second.text)
        except BaseException:
            await runtime.amend(self._ref, turns, [])
            raise
        answer = second.messages[-1:]
        question = [msgspec.structs.replace(one, turn_id=second.turn_id) for one in work.messages]
        await runtime.amend(self._ref, turns, [*question, *answer])
        second.usage = first.usage + second.usage
        return second

    def _work(
        self,
        text: Input,
        *,
        agent: AgentLike | str | None = None,
        timeout: float | timedelta | None = None,
        if_busy: IfBusy = "enqueue",
        metadata: Mapping[str, Any] | None = None,
        queue: str | None = None,
        **params: Any,
    ) -> Work:
        check_if_busy(if_busy)
        check_params(params)
        _check_agent(agent)
        return Work(
            messages=to_input(text),
            agent=self._agent if agent is None else agent,
            params=plain(params, "params"),
            metadata=plain(metadata, "metadata"),
            timeout=duration(timeout, "timeout"),
            if_busy=if_busy,
            queue=None if queue is None else check_queue(queue),
        )


def _check_agent(agent: object) -> None:
    if agent is not None and not isinstance(agent, str | Travelling):
        raise UsageError(f"agent= takes an Agent or an agent's name, not {type(agent).__name__}.")


def check_if_busy(value: object) -> None:
    """Raise ``UsageError`` where this is no way to treat a busy session."""
    if value not in ("enqueue", "reject"):
        raise UsageError(f"if_busy= takes 'enqueue' or 'reject', not {value!r}.")
