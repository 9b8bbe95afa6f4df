"""Child turns: an agent of the App as a tool, which runs as a turn of its own on any worker that has the agent.

The tool submits the child, writes its id to the journal and waits for its end as for an event: the parent is
suspended and holds no worker. The worker that ends the child sends the event. In case the event is lost, the parent
checks the child after 30 s and then at growing intervals. The child's record always decides.

No child outlives its parent: a parent that ends early first has its children cancelled, and a running child checks
every few seconds whether its parent still waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from antiphon.errors import AgentError, EventTimeout, StoreError, ToolError, TurnNotFound
from antiphon.input.ids import SessionId, TurnId, sub_agent_session, turn_id_of_key
from antiphon.input.limits import LIMITS
from antiphon.input.messages import to_input
from antiphon.input.request import ParentTurn, TurnRequest, decode_request, encode_request
from antiphon.model import TERMINAL, encode
from antiphon.redis.cells import Cells
from antiphon.redis.connections import new_turn
from antiphon.redis.edits import Edits
from antiphon.redis.sent_events import tell_waiting
from antiphon.redis.turn import response_of_end
from antiphon.session.runtime import Opening, SessionRef
from antiphon.session.work import Work
from antiphon.tools import Context
from antiphon.tools.children import ChildTool
from antiphon.wire.keys import PREFIX
from antiphon.wire.records import ClaimedTurn, TurnRecord
from antiphon_worker.app import App
from antiphon_worker.loop.durable import Durable
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import ChildBegun, open_children
from antiphon_worker.process.budgets import Attempt
from antiphon_worker.process.forwarding import Upward, link_of
from antiphon_worker.process.journal import TurnJournal, patiently
from antiphon_worker.process.lease import Lease
from antiphon_worker.process.outcomes import Cancelled, Failed, Finished, Outcome
from antiphon_worker.process.publisher import TurnSink

LOOK_SECONDS = 5.0
"""How often a running child checks whether its parent still waits, in seconds."""
ORPHANED = "The turn that waited for this one has ended."
STOPPED = "The turn that waited for this one was stopped."
TIME_OVER = "Its time was over."


class Children:
    """The children of one attempt at a turn."""

    def __init__(self, cells: Cells, app: App, attempt: Attempt, journal: TurnJournal) -> None:
        self._cells, self._app, self._journal = cells, app, journal
        self._attempt, self._turn, self._lease = attempt, attempt.turn, attempt.lease
        self._request = attempt.request
        self._found = {one.call: one for one in journal.entries if isinstance(one, ChildBegun)}
        self._opening = asyncio.Lock()  # each changes the parent's session: concurrently, most would fail

    def offer(self, inp: LoopInput) -> None:
        """Let those tools of ``inp`` that are agents run as children of the turn."""
        inp.children = self
        inp.tools = [self._bound(one) if isinstance(one, ChildTool) else one for one in inp.tools]

    async def stop(self) -> None:
        """Cancel the children whose calls have no results, because the turn ends without them."""
        await stop_children(self._cells, self._lease, open_children(self._journal.entries), STOPPED)

    def _bound(self, tool: ChildTool) -> Any:
        async def run(text: str, context: Context) -> str:
            return await self.ask(tool, text, context)

        return tool.bound(run)

    def begun(self, call_id: str) -> str:
        """Return the name of the agent that was started for a call, or ''."""
        found = self._found.get(call_id)
        return found.agent if found is not None else ""

    async def ask(self, tool: ChildTool, text: str, context: Context) -> str:
        """Run an agent for the call of this context, and return its answer. Raises ``ToolError``."""
        call = context._call  # pyright: ignore[reportPrivateUsage]
        assert call is not None
        begun = self._found.get(context.call_id)
        if begun is None:
            begun = await self._begin(tool, text, context, cast("Durable", call.durable))
        return self._answer(begun, await self._end_of(begun, context))

    async def _begin(self, tool: ChildTool, text: str, context: Context, durable: Durable) -> ChildBegun:
        depth = 1 + (self._request.parent.depth if self._request.parent else 0)
        if depth > LIMITS.child_depth:
            raise ToolError(f"Sub-agents may be nested {LIMITS.child_depth} deep: this one was not started.")
        session, child = self._ids(context)
        begun = ChildBegun(context.step_number, context.call_id, child, session, tool.agent.name, depth)
        turn = self._turn
        parent = ParentTurn(
            turn.session_id, turn.turn_id, turn.run, depth, self._attempt.paying, begun.step, begun.call, tool.deltas
        )  # fmt: skip
        now = await self._journal.now() if is_limited(tool, self._request) else 0
        begun.seconds = call_seconds(tool, self._attempt, now)
        begun.until = None if begun.seconds is None else now + int(begun.seconds * 1000)
        try:
            await patiently(self._lease, lambda: self._submit(tool, text, begun, parent))
        except AgentError as exc:
            raise ToolError(f"The agent {tool.agent.name} could not be started: {exc.message}") from exc
        await durable.append([begun], [])
        self._found[context.call_id] = begun
        return begun

    def _ids(self, context: Context) -> tuple[SessionId, TurnId]:
        """Return the ids of a child: the same in every attempt at its call."""
        session = sub_agent_session(context.key)
        prefix = self._cells.of_session(session).keys.deployment
        return session, turn_id_of_key(session, context.key, "" if prefix == PREFIX else prefix)

    async def _submit(self, tool: ChildTool, text: str, begun: ChildBegun, parent: ParentTurn) -> None:
        ref = SessionRef(SessionId(begun.session), tenant=self._turn.tenant or None)
        opening = Opening(token=begun.child, parent=self._turn.session_id, tenant=ref.tenant)
        user = self._request.user
        messages = [msgspec.structs.replace(one, by=user) for one in to_input(text)]
        work = Work(messages, queue=tool.agent.queue, tenant=ref.tenant, user=user)
        request = TurnRequest(messages, agent=tool.agent.name, user=user, parent=parent)
        turn = new_turn(ref, TurnId(begun.child), work, request, default_queue=self._turn.queue)
        turn.priority = "front"
        if begun.seconds is not None:
            # Not part of the digest: the next attempt at the call has less time left.
            request.parent = msgspec.structs.replace(parent, seconds=begun.seconds)
            turn.request = encode_request(request)
        with self._app.submitting(tool.agent):
            async with self._opening:
                await Edits(self._cells.of_session, ref, _no_wait).open(opening)
            await self._cells.of_session(begun.session).submit(turn)

    async def _end_of(self, begun: ChildBegun, context: Context) -> TurnRecord | None:
        """Wait for the end of a child. Returns its record, or None if its time limit passed first."""
        child, waits = TurnId(begun.child), ChildWaits(begun)
        while True:
            record = await patiently(self._lease, lambda: self._known(child))
            if record.status in TERMINAL:
                return record
            wait = waits.next(0 if begun.until is None else await self._journal.now())
            if wait <= 0:
                await stop_children(self._cells, self._lease, [begun.child], TIME_OVER)
                return None
            try:
                await context.wait_for_event(event_of(begun.child), timeout=wait)
            except EventTimeout:
                waits.waited()

    async def _known(self, child: TurnId) -> TurnRecord:
        """Read a child, and forward its events."""
        record = await self._cells.of_turn(child).turn(child)
        for link in link_of(child, record.session_id, decode_request(record.fields["request"])):
            upward = Upward(self._cells, link)
            await (upward.end(record) if record.status in TERMINAL else upward.bring())
        return record

    def _answer(self, begun: ChildBegun, record: TurnRecord | None) -> str:
        if record is None or (record.status, record.error) == ("cancelled", TIME_OVER):
            raise ToolError(f"The agent {begun.agent} did not answer in time, and was stopped.")
        try:
            response = response_of_end(record)
        except AgentError as exc:
            raise ToolError(f"The agent {begun.agent} failed ({exc.code}): {exc.message}") from exc
        return response.text if response.output is None else encode(response.output).decode()


class Kin:
    """One attempt at a child turn: checks whether the parent still waits, and forwards events to it."""

    def __init__(
        self, cells: Cells, turn: ClaimedTurn, request: TurnRequest, lease: Lease, sink: TurnSink
    ) -> None:
        [self._link] = link_of(turn.turn_id, turn.session_id, request)
        self._cells, self._turn, self._lease, self._sink = cells, turn, lease, sink
        self._task = asyncio.create_task(self._watch(), name=f"parent of {turn.turn_id}")

    async def _watch(self) -> None:
        upward, seen, look_at = Upward(self._cells, self._link), 0, 0.0
        while self._lease.stop is None:
            try:
                if time.monotonic() >= look_at:
                    left = await self._left()
                    reason = TIME_OVER if left <= 0 else "" if await self._waits() else ORPHANED
                    if reason:
                        await self._cells.of_turn(self._turn.turn_id).cancel(self._turn.turn_id, reason)
                        return
                    look_at = time.monotonic() + min(left, LOOK_SECONDS)
                await upward.bring()
                async with asyncio.timeout(max(look_at - time.monotonic(), 0)):
                    seen = await self._sink.published_after(seen)
            except TimeoutError:
                continue
            except AgentError:  # the parent's worker forwards what this one cannot
                await asyncio.sleep(LOOK_SECONDS)

    async def _left(self) -> float:
        """Return how many seconds the child has left."""
        parent = self._link.parent
        now = 0 if parent.seconds is None else await self._cells.of_turn(self._turn.turn_id).server_ms()
        return left_of_child(parent, self._turn, now)

    async def _waits(self) -> bool:
        parent = self._link.parent
        try:
            record = await self._cells.of_turn(parent.turn_id).turn(TurnId(parent.turn_id))
        except TurnNotFound:
            return False
        return record.run == parent.run and record.status not in TERMINAL

    def leave(self) -> None:
        """Stop watching: the attempt is over."""
        self._task.cancel()

    async def ended(self, outcome: Outcome) -> None:
        """Forward the last events of the attempt, and notify the parent if the child has ended."""
        turn, parent = self._turn, self._link.parent
        with suppress(AgentError):
            await Upward(self._cells, self._link).bring()
        with suppress(StoreError):  # the parent checks again
            if isinstance(outcome, Finished | Failed | Cancelled):
                cell, name = self._cells.of_turn(parent.turn_id), event_of(turn.turn_id)
                await tell_waiting(cell, name, key=f"{turn.turn_id}:{turn.run}", tenant=turn.tenant or None)


def event_of(child: str) -> str:
    """Return the name of the event that ends the wait for a child."""
    return f"child:{child}"


async def stop_children(cells: Cells, lease: Lease, children: Sequence[str], reason: str) -> None:
    """Cancel these child turns. Repeating it changes nothing."""
    for child in children:
        with suppress(TurnNotFound):
            await patiently(lease, lambda child=child: cells.of_turn(child).cancel(TurnId(child), reason))


async def _no_wait(turn: TurnId) -> None:
    """Do nothing: opening a session does not wait for turns."""


FIRST_WAIT, LONGEST_WAIT = 30.0, 3600.0
"""How long a parent waits before it checks a silent child, in seconds: at first, and at most."""
FOREVER = float("inf")


def is_limited(tool: ChildTool, request: TurnRequest) -> bool:
    """Return whether a child called by this tool, in a turn with this request, has a time limit."""
    above = request.parent is not None and request.parent.seconds is not None
    return above or bool(request.timeout) or tool.wait_seconds is not None


def call_seconds(tool: ChildTool, attempt: Attempt, now: int) -> float | None:
    """Return the time limit of a child that begins ``now`` (ms, by the clock of Redis), in seconds; None: no limit.

    The time limit of the parent counts only if its caller set one: the worker's own limit applies to the time during
    which it holds a turn.
    """
    found = [] if tool.wait_seconds is None else [tool.wait_seconds]
    if attempt.request.timeout:
        found.append(min(attempt.request.timeout, attempt.seconds) - (time.monotonic() - attempt.began))
    if attempt.request.parent is not None:
        found.append(left_of_child(attempt.request.parent, attempt.turn, now))
    least = min(found, default=FOREVER)
    return None if least == FOREVER else max(least, 0.0)


def left_of_child(parent: ParentTurn, turn: ClaimedTurn, now: int) -> float:
    """Return how many seconds a child has left ``now`` (ms), even if the clock of Redis was set back."""
    if parent.seconds is None:
        return FOREVER
    return parent.seconds - max(now - turn.created, 0) / 1000


class ChildWaits:
    """The waits of a call for its child: the same whenever the call is repeated.

    Completed waits count as well as the clock, because the clock of Redis may have been set back.
    """

    def __init__(self, begun: ChildBegun) -> None:
        self._until = begun.until
        self._left = FOREVER if begun.seconds is None else begun.seconds
        self._pause = FIRST_WAIT

    def next(self, now: int) -> float:
        """Return how many seconds to wait before the next check of the child; 0 or less when its time is over."""
        by_clock = FOREVER if self._until is None else (self._until - now) / 1000
        return min(self._pause, self._left, by_clock)

    def waited(self) -> None:
        """Note that a wait has timed out."""
        self._left -= min(self._pause, self._left)
        self._pause = min(self._pause * 2, LONGEST_WAIT)
