"""Decisions about pending calls: of a turn, and of the child turns below it."""

from __future__ import annotations

from antiphon.errors import UsageError
from antiphon.input.ids import TurnId
from antiphon.model import Decision
from antiphon.redis.cells import Cells
from antiphon.wire.forwarding import owners_of
from antiphon.wire.suspension import decide, open_calls


async def decide_in_tree(cells: Cells, turn: TurnId, decision: Decision) -> None:
    """Decide about a pending call of a turn, or of a child turn below it. Raises as ``decide`` does.

    The call of a child is named by its id alone, or with the id of the child and a colon in front.
    """
    try:
        await decide(cells.of_turn(turn), turn, decision)
    except UsageError as exc:  # not its own, or one that it waits for otherwise
        record = await cells.of_turn(turn).turn(turn)
        own, _ = open_calls(record.fields, turn)
        owners = owners_of(record, decision.call_id)
        if not owners or any(call.call_id == decision.call_id for call in own):
            raise
        if len(owners) > 1:
            ids = " or ".join(f"{child}:{call}" for child, call in owners)
            raise UsageError(
                f"Several turns below {turn} wait for a call {decision.call_id!r}: use {ids}.", turn_id=turn
            ) from exc
        [(child, decision.call_id)] = owners
        await decide(cells.of_turn(child), child, decision)
