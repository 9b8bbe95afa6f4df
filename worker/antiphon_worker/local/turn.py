"""One turn of a local session: it runs the agent loop, yields the events and saves the result."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from antiphon.errors import AgentError, TurnFailed
from antiphon.events import Event, TextDelta, TurnFailedEvent, TurnFinished, TurnStarted, VariablesChanged
from antiphon.model import Message, Response
from antiphon.session.work import AgentLike, Work
from antiphon.tools import Context
from antiphon.window import SavedSummary
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.session import LocalSession, commit
from antiphon_worker.loop.input import loop_input, stamp
from antiphon_worker.loop.run_turn import TimeLimit, TurnResult, run_turn
from antiphon_worker.loop.steps import JournalEntry, messages_of, plain_variables
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.loop.visible_history import LoadedHistory
from antiphon_worker.providers.base import Provider

__all__ = ["LocalTurn"]

FULL = 1000


class _EventQueue:
    """The sink of the agent loop: numbers events and queues them. One task puts events, another takes them."""

    def __init__(self, session: LocalSession, place: Place) -> None:
        self._session = session
        self._place = place
        self._events: list[Event] = []
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._ended = False

    def put(self, event: Event) -> None:
        self._events.append(self._session.numbered(event, self._place.turn_id))
        self._place.step = max(self._place.step, event.step)
        self._changed.set()

    def text(self, step: int, text: str) -> None:
        self.put(TextDelta(step=step, text=text))

    @property
    def full(self) -> bool:
        return len(self._events) >= FULL

    async def drain(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def take(self) -> list[Event]:
        """Wait for events and return all since the last call. Returns an empty list when the loop has ended."""
        while not self._events and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        batch, self._events = self._events, []
        self._room.set()
        return batch


class _Journal:
    """The journal of a local turn: a list in memory, which does not survive this process."""

    def __init__(self, queue: _EventQueue) -> None:
        self.entries: list[JournalEntry] = []
        self._kept: list[JournalEntry] = []
        self._queue = queue

    async def append(self, entries: Sequence[JournalEntry], events: Sequence[Event]) -> None:
        self._kept += entries
        for event in events:
            self._queue.put(event)

    async def checkpoint(self) -> None:
        """Return at once, because local turns have no lease."""

    @property
    def finished_steps(self) -> list[Message]:
        return messages_of(self._kept)


class LocalTurn:
    """One turn, from its place in the inbox to its saved result."""

    def __init__(
        self,
        session: LocalSession,
        place: Place,
        agent: AgentLike,
        work: Work,
        provider: Provider,
        toolbox: ToolBox,
    ) -> None:
        self._session = session
        self._place = place
        self._agent = agent
        self._work = work
        self._provider = provider
        self._toolbox = toolbox
        self._queue = _EventQueue(session, place)
        self._journal = _Journal(self._queue)
        self._input = [copy.copy(message) for message in work.messages]
        variables = copy.deepcopy(session.state.variables)
        self._context = Context(session.session_id, place.turn_id, variables=variables)

    async def run(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events as they arrive, then raise the error of a failed turn.

        The history is updated before the terminal event.
        """
        loop = asyncio.create_task(self._answer(), name=f"turn {self._place.turn_id}")
        try:
            yield [self._numbered(TurnStarted(worker="local"))]
            while batch := await self._queue.take():
                yield batch
            before = self._session.state.variables
            last: list[Event] = [TurnFinished(response=await self._finish(await loop))]
            if self._session.state.variables != before:
                last.insert(0, VariablesChanged(variables=copy.deepcopy(self._session.state.variables)))
            yield [self._numbered(event) for event in last]
        except AgentError as exc:
            error = self._placed(exc)
            yield [self._numbered(TurnFailedEvent(code=str(error.code), message=error.message))]
            raise
        finally:
            await _end(loop)

    async def keep_finished_steps(self) -> int:
        """Add the finished steps of a cancelled turn to the history. Returns the number of messages."""
        steps = self._journal.finished_steps
        if not steps:
            return 0
        await self._commit(steps, plain_variables(self._context.variables))
        return len(self._input) + len(steps)

    def _numbered(self, event: Event) -> Event:
        return self._session.numbered(event, self._place.turn_id)

    async def _answer(self) -> TurnResult:
        """Run the agent loop within the turn's timeout. Raises all failures as ``AgentError``."""
        session, agent = self._session, self._agent
        try:
            async with TimeLimit(self._work.timeout):
                inp = loop_input(
                    agent, self._work, agent.tools, session.state.system, session.state.variables
                )
                inp.new_messages = self._input
                return await run_turn(
                    self._provider, inp, self._loaded_history(), self._toolbox, self._journal, self._queue,
                    self._context,
                )  # fmt: skip
        except AgentError:
            raise
        except Exception as exc:
            raise TurnFailed(f"The turn failed: {type(exc).__name__}: {exc}.", code="internal_error") from exc
        finally:
            self._queue.end()

    def _loaded_history(self) -> LoadedHistory:
        """Return the history from the start of the last window on."""
        session, state = self._session, self._session.state

        async def read(start: int, stop: int) -> list[Message]:
            return state.messages[start:stop]

        start = session.window.start or (state.summary.messages if state.summary else 0)
        return LoadedHistory(
            state.messages[start:], start, session.window.counted or None, state.summary, read
        )

    async def _finish(self, result: TurnResult) -> Response:
        response = result.loop.response(self._place.turn_id, self._session.session_id)
        await self._commit(result.loop.messages, result.variables, result.summary)
        if result.window is not None:
            self._session.window = result.window
        return msgspec.structs.replace(response, messages=list(response.messages))

    async def _commit(
        self, answers: list[Message], variables: dict[str, Any], summary: SavedSummary | None = None
    ) -> None:
        state = self._session.state.shallow()
        messages = stamp([*self._input, *answers], self._place.turn_id, self._agent.name)
        state.messages += [message.copied() for message in messages]
        state.summary = summary or state.summary
        state.variables = variables
        if state.agent is None:
            state.agent = msgspec.to_builtins(self._agent.described())
        await commit(self._session, state)

    def _placed(self, error: AgentError) -> AgentError:
        error.session_id = error.session_id or self._session.session_id
        error.turn_id = error.turn_id or self._place.turn_id
        return error


async def _end(loop: asyncio.Task[Any]) -> None:
    """Cancel the loop, and wait for its cleanup."""
    loop.cancel()
    await asyncio.wait([loop])
    if not loop.cancelled():
        loop.exception()  # marks the exception as retrieved: it was raised above, or the caller has left
