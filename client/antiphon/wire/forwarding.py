"""The events of child turns in the stream of the turn that waits for them, and the calls that children wait for."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct

from antiphon.events import ChildEvent
from antiphon.input.ids import TurnId
from antiphon.input.request import ParentTurn
from antiphon.model import TERMINAL, OpenCall, encode
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import unexpected
from antiphon.wire.records import DAMAGE, TurnRecord

OVER = "over"
"""The place in a child's events after the one that ended its run."""


class Asks(Struct):
    """What a child turn waits for after its last event. ``parent`` is the turn above it; ``over``: it has ended."""

    parent: str
    calls: list[OpenCall]
    over: bool = False


class Batch(Struct):
    """Events of a child's session with a seq after ``after``, up to ``upto``. With ``over`` they end the child's run.

    ``asks`` is what the child and turns below it wait for after these events, by their ids.
    """

    after: int
    upto: int
    events: list[ChildEvent]
    asks: dict[str, Asks]
    over: bool = False


def place_of(waiting: TurnRecord, child: str) -> int | str:
    """Return the seq up to which a child's events are in the stream of the turn that waits for it, or ``OVER``."""
    found = text_of(waiting.fields.get(f"child:{child}"))
    return found if found == OVER else int(found or 0)


def children_of(waiting: TurnRecord) -> list[TurnId]:
    """Return the children, from all runs of a turn, that have events in its stream."""
    return [TurnId(name.removeprefix("child:")) for name in waiting.fields if name.startswith("child:")]


async def forward(cell: Cell, waiting: ParentTurn, child: str, batch: Batch) -> int | str:
    """Publish events of a child in the stream of a turn that waits for it, or for one above it.

    Returns the new place, or the place from which events are needed instead. ``OVER``: no more events are needed,
    because the run of one of the two turns has ended. Repeating it publishes nothing twice. Raises ``StoreError``.
    """
    seal, session = cell.seal, waiting.session_id
    asks: list[str | bytes] = []
    for turn, one in batch.asks.items():
        place = f"{waiting.run}/{child}/{one.parent}/{OVER if one.over else ''} ".encode()
        calls = b",".join(seal.seal(session, "call", encode(call)) for call in one.calls)
        asks += [turn, place + b"[" + calls + b"]"]
    match await cell.run(
        "children/forward", waiting.turn_id, waiting.run, child, batch.after, batch.upto, "1" if batch.over else "",
        len(batch.asks), *asks, *seal.seal_all(session, "event", [*map(encode, batch.events)]),
    ):  # fmt: skip
        case [b"FORWARDED"]:
            return OVER if batch.over else batch.upto
        case [b"BEHIND", place]:
            return int(place)
        case [b"OVER"]:
            return OVER
        case answer:
            raise unexpected("children/forward", answer)


class _Below(NamedTuple):
    """What a child turn, or one below it, waits for: ``child`` is the one below the turn that was read."""

    child: str
    parent: str
    over: bool
    calls: list[OpenCall]


def _below(record: TurnRecord) -> dict[TurnId, _Below]:
    """Return what the turns below this one wait for in its run, by their ids. Damaged entries are left out."""
    found: dict[TurnId, _Below] = {}
    for name in sorted(name for name in record.fields if name.startswith("asks:")):
        place, _, calls = record.fields[name].partition(b" ")
        with suppress(*DAMAGE):
            run, child, parent, over = text_of(place).split("/")
            if int(run) == record.run:
                decoded = msgspec.json.decode(calls, type=list[OpenCall])
                found[TurnId(name.removeprefix("asks:"))] = _Below(child, parent, over != "", decoded)
    return found


def pending_below(record: TurnRecord) -> list[OpenCall]:
    """Return the calls that turns below this one wait for, with the ids to answer them by."""
    if record.status in TERMINAL:
        return []
    return [
        msgspec.structs.replace(call, call_id=f"{turn}:{call.call_id}")
        for turn, calls in _pending(record).items()
        for call in calls
    ]


def _pending(record: TurnRecord) -> dict[TurnId, list[OpenCall]]:
    below = _below(record)
    ended = {turn for turn, one in below.items() if one.over}
    return {
        turn: one.calls
        for turn, one in below.items()
        if one.parent not in ended and place_of(record, one.child) != OVER
    }


def owners_of(record: TurnRecord, call_id: str) -> list[tuple[TurnId, str]]:
    """Return the turns below this one that a call id may refer to, each with its own id of the call.

    The id begins with the id of such a turn and a colon, or that turn waits for a call of this id.
    """
    turn, _, own = call_id.partition(":")
    if own and turn in _below(record):
        return [(TurnId(turn), own)]
    pending = _pending(record).items()
    return [(one, call_id) for one, calls in pending if any(call.call_id == call_id for call in calls)]
