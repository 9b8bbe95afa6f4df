"""Stores feedback about turns, and lists the turns that have it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord, TurnDeleted, TurnNotFound
from antiphon.input.ids import TurnId
from antiphon.model import Message
from antiphon.model.feedback import Feedback
from antiphon.redis.cells import Cells
from antiphon.redis.listing import merged
from antiphon.redis.recording import session_before
from antiphon.redis.turn_records import turn_info
from antiphon.session.turn_info import TurnInfo
from antiphon.wire.cell import Cell
from antiphon.wire.feedback import rate, rated_turns
from antiphon.wire.lists.agents import revision_of
from antiphon.wire.records import TurnRecord


class RatedTurn(TurnInfo, omit_defaults=True):
    """A turn with feedback: the fields of ``TurnInfo``, and the ``revision`` of the agent that ran it.

    ``conversation`` are the preceding messages of its session, if they were requested.
    """

    revision: str = ""
    conversation: list[Message] = field(default_factory=list)


class Wanted(Struct):
    """Which turns with feedback are listed."""

    agent: str | None = None
    tenant: str | None = None
    since: int = 0
    conversation: bool = False

    def selects(self, turn: TurnInfo) -> bool:
        return self.agent in (None, turn.agent) and self.tenant in (None, turn.tenant)


async def rate_turn(cell: Cell, turn: TurnId, feedback: Feedback) -> None:
    """Store the feedback about a turn, and count it for its revision. Raises ``TurnNotFound``, ``TurnDeleted``."""
    record = await cell.turn(turn)
    revision = await revision_of(cell, record) if cell.has_disk else ("", "")
    await rate(cell, record, feedback, revision)


async def list_rated(cells: Cells, wanted: Wanted) -> AsyncGenerator[RatedTurn, None]:
    """Iterate over the turns of all cells that have feedback, latest feedback first. Raises ``StoreError``."""
    streams = [_of_cell(cell, wanted) for cell in cells]
    async for turn in merged(streams, lambda turn: turn.feedback.at if turn.feedback else 0, last=True):
        yield turn


async def _of_cell(cell: Cell, wanted: Wanted) -> AsyncGenerator[RatedTurn, None]:
    async for at, turn in rated_turns(cell, wanted.since, wanted.tenant):
        try:
            record = await cell.turn(TurnId(turn))
            info = turn_info(record)
            agent, revision = await revision_of(cell, record)
        except (TurnNotFound, TurnDeleted, CorruptRecord):
            continue  # it has expired, was erased, or cannot be read
        info.agent = info.agent or agent or None
        if info.feedback is not None and info.feedback.at == at and wanted.selects(info):
            before = await _conversation(cell, record) if wanted.conversation else []
            yield RatedTurn(**msgspec.structs.asdict(info), revision=revision, conversation=before)


async def _conversation(cell: Cell, turn: TurnRecord) -> list[Message]:
    """Return the messages of the turn's session before it; none if its history is gone or damaged."""
    try:
        return (await session_before(cell, turn))[1]
    except CorruptRecord:
        return []
