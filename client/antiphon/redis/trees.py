"""Reads a turn with the child turns below it, and what all of them have used.

The records of the turns are what counts: each child is read from its own, so it counts once, also if it has ended after
its parent, and whichever process died. The record of a parent names its children as soon as one of their events is in
its stream. A turn without children reads no other turn.
"""

from __future__ import annotations

import asyncio

import msgspec

from antiphon.errors import CorruptRecord, KeyMissing, TurnDeleted, TurnNotFound
from antiphon.input.ids import TurnId
from antiphon.input.request import ParentTurn, shown_request
from antiphon.model import TERMINAL, Usage
from antiphon.redis.cells import Cells
from antiphon.redis.turn_records import turn_info
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo
from antiphon.session.turn_tree import TurnTree
from antiphon.wire.forwarding import children_of
from antiphon.wire.records import TurnRecord, readable

AT_ONCE = 16


async def info_of(cells: Cells, record: TurnRecord) -> TurnInfo:
    """Return a turn, with what all turns below it have used, and without those of their calls that are decided.

    Raises ``CorruptRecord`` and ``StoreError``.
    """
    info = turn_info(record)
    if children_of(record):
        reader = _Reader(cells)
        tree = await reader.tree(record, None)
        info.total_usage, info.left_out = tree.total_usage, tree.left_out
        info.calls = [call for call in info.calls if reader.waits_for(call.call_id)]
    return info


async def listed(turn: TurnHandle) -> TurnInfo | None:
    """Return a turn of a list; None for one that was deleted in the meantime, or that is damaged.

    Raises ``KeyMissing`` and ``StoreError``.
    """
    try:
        return await turn.info()
    except KeyMissing:
        raise
    except (TurnNotFound, TurnDeleted, CorruptRecord):
        return None


async def tree_of(cells: Cells, record: TurnRecord) -> TurnTree:
    """Return a turn with the turns below it. Raises ``CorruptRecord`` and ``StoreError``."""
    return await _Reader(cells).tree(record, None)


class _Reader:
    """Reads the turns of one tree, some at once."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._room = asyncio.Semaphore(AT_ONCE)
        self._calls: dict[str, set[str]] = {}  # that the turns below wait for
        self._seen: set[str] = set()  # a damaged record may name a turn above it

    def waits_for(self, call_id: str) -> bool:
        """Return whether a call is pending, also one of a turn below: a decision is in that one's record first."""
        turn, _, own = call_id.partition(":")
        return turn not in self._calls or own in self._calls[turn]

    async def tree(self, record: TurnRecord, parent: ParentTurn | None) -> TurnTree:
        info = turn_info(record)
        self._seen.add(info.turn_id)
        if parent is not None:
            self._calls[info.turn_id] = {call.call_id for call in info.calls}
        found = await asyncio.gather(*(self._below(child, record) for child in children_of(record)))
        children = [one for one in found if isinstance(one, TurnTree)]
        children.sort(key=lambda one: (one.started or float("inf"), one.turn_id))
        left_out = [one for one in found if isinstance(one, str)]
        usage = info.usage if parent is None or record.status in TERMINAL else _used_so_far(record)
        return TurnTree(
            info.turn_id, info.session_id, info.status, info.agent, parent.call_id if parent else "",
            info.started, info.ended, info.code, usage,
            sum((one.total_usage for one in children), usage), children,
            sum((one.left_out for one in children), left_out),
        )  # fmt: skip

    async def _below(self, child: TurnId, above: TurnRecord) -> TurnTree | str | None:
        """Return a child of the last run of the turn above it; None for one that is not, or is not kept.

        Of one that cannot be read, only the id is known.
        """
        if child in self._seen:
            return None
        self._seen.add(child)
        try:
            async with self._room:
                record = await self._cells.of_turn(child).turn(child)
            with readable("The record of a turn", turn_id=child):
                parent = shown_request(record.fields["request"]).parent
            if parent is not None and (parent.turn_id, parent.run) == (above.turn_id, above.run):
                return await self.tree(record, parent)
        except TurnNotFound:
            pass
        except CorruptRecord:
            return child
        return None


def _used_so_far(record: TurnRecord) -> Usage:
    """Return what a child has used that has not ended: its session began with it."""
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        return msgspec.json.decode(record.fields.get("session_usage") or b"{}", type=Usage)
