"""Forwards the events of child turns to the streams of the turns that wait for them.

The child's own log is authoritative. The record of the waiting turn holds the place up to which the events are in its
stream, and one script compares the place, publishes what follows and moves it. So it does not matter which worker
forwards the events, how often, or where a process dies. The worker that runs the child forwards them as they arrive;
the parent's worker forwards the rest before it takes the result.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import CorruptRecord, TurnNotFound
from antiphon.events import ChildEvent
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.request import ParentTurn, TurnRequest, decode_request
from antiphon.model import TERMINAL, OpenCall
from antiphon.redis.cells import Cells
from antiphon.redis.turn import terminal_event
from antiphon.wire.forwarding import OVER, Asks, Batch, forward, place_of
from antiphon.wire.records import Published, TurnRecord, decode_published

PAGE = 100
ENDS = ("turn_finished", "turn_failed", "turn_cancelled")


class Link(Struct):
    """A child turn and its parent. ``place`` is how far its events were forwarded; None if unknown."""

    child: str
    session: str
    agent: str
    parent: ParentTurn
    place: int | str | None = None


class Upward:
    """Forwards a child's events to the streams of all turns above it."""

    def __init__(self, cells: Cells, child: Link) -> None:
        self._cells, self._links = cells, [child]

    async def bring(self) -> None:
        """Forward what the child and the turns between have published. Raises ``StoreError``."""
        for link in self._links:  # grows: each link adds the one above it
            if link.place is None:
                await self._look(link)
            while link.place != OVER and (batch := await self._read(link)) is not None:
                link.place = await self._forward(link, batch)

    async def end(self, record: TurnRecord) -> None:
        """Forward the events of a child that has ended with this record; its log may no longer be complete."""
        await self.bring()
        link = self._links[0]
        if link.place != OVER:
            await self._look(link)
        if isinstance(link.place, int):
            batch = Batch(link.place, max(link.place, record.last_seq), [], {}, over=True)
            _add(batch, link, msgspec.json.decode(terminal_event(record).to_json()))
            link.place = await self._forward(link, batch)
            await self.bring()

    async def _look(self, link: Link) -> None:
        """Read how far the events of a child were forwarded, and which turn waits for its parent."""
        link.place = OVER
        with suppress(TurnNotFound):
            cell = self._cells.of_turn(link.parent.turn_id)
            record = await cell.turn(TurnId(link.parent.turn_id))
            if record.run == link.parent.run and record.status not in TERMINAL:
                link.place = place_of(record, link.child)
            if link is self._links[-1]:
                self._links += link_of(
                    record.turn_id, record.session_id, decode_request(record.fields["request"])
                )

    async def _read(self, link: Link) -> Batch | None:
        assert isinstance(link.place, int)
        cell = self._cells.of_session(link.session)
        _, found = await cell.log(SessionId(link.session), ("seq",), link.place + 1, PAGE)
        if not found:
            return None
        batch = Batch(link.place, found[-1][0], [], {})
        for seq, data in found:
            known = _readable(data)
            if known is None or known.turn_id != link.child or not _wanted(known.type, link):
                continue
            opened = cell.seal.open(link.session, "event", data)
            _add(batch, link, msgspec.json.decode(opened))
            if known.type in ENDS:
                batch.upto, batch.over = seq, True
                break
        return batch

    async def _forward(self, link: Link, batch: Batch) -> int | str:
        return await forward(self._cells.of_turn(link.parent.turn_id), link.parent, link.child, batch)


def link_of(turn: str, session: str, request: TurnRequest) -> list[Link]:
    """Return the link between a child turn and its parent; [] for other turns."""
    if request.parent is None:
        return []
    return [Link(turn, session, request.agent if isinstance(request.agent, str) else "", request.parent)]


def _readable(data: bytes) -> Published | None:
    try:
        return decode_published(data)
    except CorruptRecord:
        return None


def _wanted(kind: str, link: Link) -> bool:
    return link.parent.deltas or not kind.endswith("_delta")


def _add(batch: Batch, link: Link, event: dict[str, Any]) -> None:
    """Add an event of the child, or an event in its stream of a turn below it."""
    parent = link.parent
    shown = ChildEvent(
        session_id=parent.session_id, turn_id=parent.turn_id, run=parent.run, step=parent.step, child_id=link.child,
        call_id=parent.call_id, agent=link.agent, depth=parent.depth, parent_id=parent.turn_id, event=event,
    )  # fmt: skip
    if event["type"] == ChildEvent.type:
        for name in ("child_id", "agent", "depth", "parent_id", "event"):
            setattr(shown, name, event[name])
    if not _wanted(shown.event["type"], link):
        return
    shown.event.pop("input", None)
    batch.events.append(shown)
    if (asks := _asks(shown)) is not None:
        batch.asks[shown.child_id] = asks


def _asks(shown: ChildEvent) -> Asks | None:
    """Return what a turn waits for after an event, or None if the event does not change that."""
    match shown.event["type"]:
        case "turn_suspended":
            calls = msgspec.convert(shown.event.get("calls", []), list[OpenCall])
            return Asks(shown.parent_id, calls)
        case "turn_resumed":
            return Asks(shown.parent_id, [])
        case kind if kind in ENDS:
            return Asks(shown.parent_id, [], over=True)
        case _:
            return None
