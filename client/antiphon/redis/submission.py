"""Turns that a client submits, from the arguments of the call: one, or many in few calls."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias, Unpack

from msgspec import UNSET

from antiphon.errors import AgentError, StoreError, StoreUnavailable
from antiphon.input.ids import SessionId, TurnId, session_id
from antiphon.input.messages import Input
from antiphon.input.request import travelling_agent
from antiphon.input.values import lifetime
from antiphon.redis.connections import Connections, without_contents
from antiphon.redis.files import is_large
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import SessionRef
from antiphon.session.work import ClientSubmitOptions, work_of_client
from antiphon.wire.cell import Cell
from antiphon.wire.records import NewTurn

MOST_TURNS, MOST_BYTES = 32, 256 * 1024
"""The most that one call submits: while its script runs, the server does nothing else."""
AT_ONCE = 8
"""The most calls to Redis in progress at once: more would wait too long for their answers."""


class Submission:
    """One turn for ``submit_many``, checked but not submitted. Arguments and errors as in ``submit``."""

    def __init__(self, session: str, text: Input, **options: Unpack[ClientSubmitOptions]) -> None:
        given: dict[str, Any] = dict(options)
        self._agent = travelling_agent(given.pop("agent", None))
        ttl = given.pop("ttl", UNSET)
        self._ref = SessionRef(session_id(session), ttl=lifetime(ttl))
        self._work = work_of_client(text, given)

    @property
    def session(self) -> SessionId:
        return self._ref.id

    async def submit(self, connections: Connections) -> AsyncTurn:
        """Submit the turn over these connections."""
        turn = await connections.submit(self._ref, self._work, self._agent)
        return self.turn(connections, turn)

    @property
    def large(self) -> bool:
        """Whether its messages have contents to store separately."""
        return any(map(is_large, self._work.messages))

    async def prepare(self, connections: Connections) -> None:
        """Store large contents of its messages in its session. Raises as ``add_file`` does."""
        self._work = await without_contents(connections.cell_of_session(self._ref.id), self._ref, self._work)

    def new_turn(self, connections: Connections) -> NewTurn:
        """Return the turn as a cell accepts it. Raises ``InvalidMessage``, ``LimitReached`` and ``UsageError``."""
        return connections.new_turn(self._ref, self._work, self._agent)

    def turn(self, connections: Connections, turn: TurnId) -> AsyncTurn:
        """Return the turn that was accepted with this id."""
        return AsyncTurn(connections, turn, self._ref.id, self._work.schema)


Outcome: TypeAlias = AsyncTurn | AgentError


async def submit_all(connections: Connections, wanted: Sequence[Submission]) -> list[Outcome]:
    """Submit these in order. Return the turn of each, or the error that refused it.

    If a cell can no longer be reached, its remaining turns are not tried.
    """
    outcomes: dict[int, Outcome] = {}
    of_cells: dict[Cell, dict[int, Submission]] = defaultdict(dict)
    for place, one in enumerate(wanted):
        of_cells[connections.cell_of_session(one.session)][place] = one
    await asyncio.gather(*(_submit_to(cell, connections, some, outcomes) for cell, some in of_cells.items()))
    return [outcomes[place] for place in range(len(wanted))]


async def _submit_to(
    cell: Cell, connections: Connections, wanted: Mapping[int, Submission], outcomes: dict[int, Outcome]
) -> None:
    """Submit the turns of a cell. The next calls are encoded while the server processes earlier ones."""
    outcomes |= await _prepared(connections, wanted)
    wanted = {place: one for place, one in wanted.items() if place not in outcomes}
    calls: deque[asyncio.Task[StoreUnavailable | None]] = deque()
    lost, most = None, 1  # the first call goes alone: a server without the script is sent it once
    for turns in _encoded(connections, wanted, outcomes):
        if lost is None and len(calls) == most:
            lost, most = await calls.popleft(), AT_ONCE
        if lost is not None:
            outcomes |= dict.fromkeys(turns, lost)
            continue
        calls.append(asyncio.create_task(_call(cell, connections, wanted, turns, outcomes)))
        await asyncio.sleep(0)  # send it now
    for call in calls:
        await call


async def _prepared(connections: Connections, wanted: Mapping[int, Submission]) -> dict[int, AgentError]:
    """Store large contents of these turns' messages. Returns the errors, by place, of turns for which this failed."""
    failed: dict[int, AgentError] = {}
    for place in [place for place, one in wanted.items() if one.large]:
        try:
            await wanted[place].prepare(connections)
        except AgentError as exc:
            failed[place] = exc
    return failed


def _encoded(
    connections: Connections, wanted: Mapping[int, Submission], outcomes: dict[int, Outcome]
) -> Generator[dict[int, NewTurn]]:
    """Yield the turns of each call, by place. If a turn cannot be submitted, its error becomes its outcome."""
    turns: dict[int, NewTurn] = {}
    size = 0
    for place, one in wanted.items():
        try:
            turns[place] = one.new_turn(connections)
        except AgentError as exc:
            outcomes[place] = exc
            continue
        size += len(turns[place].request)
        if len(turns) == MOST_TURNS or size > MOST_BYTES:
            yield turns
            turns, size = {}, 0
    if turns:
        yield turns


async def _call(
    cell: Cell,
    connections: Connections,
    wanted: Mapping[int, Submission],
    turns: Mapping[int, NewTurn],
    outcomes: dict[int, Outcome],
) -> StoreUnavailable | None:
    """Submit these turns in one call. Returns the error if the cell can no longer be reached."""
    try:
        answers = await cell.submit_many([*turns.values()])
    except StoreError as exc:
        outcomes |= dict.fromkeys(turns, exc)
        return exc if isinstance(exc, StoreUnavailable) else None
    for (place, turn), answer in zip(turns.items(), answers, strict=True):
        refused = isinstance(answer, AgentError)
        outcomes[place] = answer if refused else wanted[place].turn(connections, turn.turn_id)
    return None
