"""Reads back how much of an answer, begun by another attempt at the turn, readers have received."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.events import (
    ItemEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    TurnRetrying,
    decode_event,
)
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn, decode_published
from antiphon_worker.loop.steps import AnswerBegun, AnswerGone, JournalEntry
from antiphon_worker.providers.base import Published

PAGE = 1000
_TEXTS = {TextDelta: "text", ReasoningDelta: "reasoning", RefusalDelta: "refusal"}


def answering(entries: Sequence[JournalEntry], step: int) -> str:
    """Return the step whose answer continues without this worker, '0' if it no longer does, '' if nothing changes.

    A retry of the turn in this step does not withdraw the answer.
    """
    last = entries[-1] if entries else None
    return str(step) if isinstance(last, AnswerBegun) else "0" if isinstance(last, AnswerGone) else ""


async def published(cell: Cell, turn: ClaimedTurn, step: int) -> Published:
    """Return how much of the answer of a step is in the session's events. Raises ``StoreError``."""
    after, found = await cell.place_of_turn(turn.session_id, turn.turn_id), Published()
    while True:
        _, page = await cell.log(turn.session_id, ("seq",), after + 1, PAGE)
        for seq, body in page:
            after = seq
            known = decode_published(body)
            if known.turn_id == turn.turn_id:
                event = decode_event(cell.seal.open(turn.session_id, "event", body))
                if isinstance(event, TurnRetrying):
                    found = Published()
                elif event.run == turn.run and getattr(event, "step", None) == step:
                    _count(found, event)
        if len(page) < PAGE:
            return found


def _count(found: Published, event: object) -> None:
    match event:
        case TextDelta(text=text) | ReasoningDelta(text=text) | RefusalDelta(text=text):
            kind = _TEXTS[type(event)]
            found.texts[kind] = found.texts.get(kind, 0) + len(text)
        case ToolCallDelta(call_id=call_id, arguments=arguments):
            found.calls[call_id] = found.calls.get(call_id, 0) + len(arguments)
        case ItemEvent():
            found.items += 1
        case _:
            pass
