"""A turn and the child turns below it: reads and draws them, and decides about their pending calls.

Each child is read from its own record, so it counts once, even if it ended after its parent or a process died. The
record of a parent names its children as soon as one of their events is in its stream. For a turn without children, no
other turn is read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import msgspec

from antiphon.errors import CorruptRecord, KeyMissing, TurnDeleted, TurnNotFound, UsageError
from antiphon.events import ChildEvent, Event, Handoff, ToolCallEvent
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.request import ParentTurn, shown_request
from antiphon.model import TERMINAL, Decision, Usage
from antiphon.redis.cells import Cells
from antiphon.redis.recording import kept_turns
from antiphon.redis.turn_records import turn_info
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo, TurnTree
from antiphon.wire.cell import Cell
from antiphon.wire.forwarding import children_of, owners_of
from antiphon.wire.lists.inspection import turn_log
from antiphon.wire.records import TurnRecord, readable
from antiphon.wire.suspension import decide, open_calls

AT_ONCE = 16


async def info_of(cells: Cells, record: TurnRecord) -> TurnInfo:
    """Return a turn with the usage of all turns below it, and without their calls that are already decided.

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
    """Return a turn of a list; None if it was deleted in the meantime or is damaged.

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
    """Reads the turns of one tree, several at once."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._room = asyncio.Semaphore(AT_ONCE)
        self._calls: dict[str, set[str]] = {}  # that the turns below wait for
        self._seen: set[str] = set()  # a damaged record may name a turn above it

    def waits_for(self, call_id: str) -> bool:
        """Return whether a call is pending. A turn below has decisions about its calls in its own record first."""
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
        """Return a child of the last run of the turn above it; None if it belongs to another run or is not kept.

        If it cannot be read, return only its id.
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
    """Return the usage so far of a child that has not ended: that of its session, which began with it."""
    with readable("The record of a turn", session_id=record.session_id, turn_id=record.turn_id):
        return msgspec.json.decode(record.fields.get("session_usage") or b"{}", type=Usage)


MOST_TURNS = 100
_STATES = {
    "turn_queued": "queued", "turn_started": "running", "turn_retrying": "retrying", "turn_suspended": "suspended",
    "turn_sleeping": "suspended", "turn_resumed": "queued", "turn_finished": "finished", "turn_failed": "failed",
    "turn_cancelled": "cancelled",
}  # fmt: skip


async def graph_of(cell: Cell, session: SessionId) -> str:
    """Return the last 100 turns of a session as a diagram, which ends with a newline. Raises ``StoreError``.

    It contains no text of users, models or tools, and goes back as far as the session keeps events. A turn whose
    record cannot be read is ``unreadable``.
    """
    lines, before = ["flowchart TD"], ""
    for number, turn in enumerate((await kept_turns(cell, session))[-MOST_TURNS:], start=1):
        name = f"t{number}"
        try:
            node, *below = await _drawn(cell, turn, name)
        except TurnNotFound:
            continue
        except CorruptRecord:
            node, below = _node(name, None, "unreadable"), []
        lines += [node, *([f"  {before} --> {name}"] if before else []), *below]
        before = name
    return "\n".join([*lines, ""])


async def _drawn(cell: Cell, turn: TurnId, name: str) -> list[str]:
    """Return the node of a turn, and what is drawn below it. Raises ``CorruptRecord`` and ``TurnNotFound``."""
    record = await cell.turn(turn)
    info = turn_info(record)
    return [_node(name, info.agent, info.status), *drawn_below(name, turn, await turn_log(cell, record))]


def drawn_below(name: str, turn: str, events: Iterable[Event]) -> list[str]:
    """Return the hand-offs and children of the turn whose node has this name, from its events."""
    nodes, children, tools = {turn: name}, dict[str, list[str]](), dict[str, str]()
    lines, in_charge = list[str](), name
    for event in events:
        match event:
            case ToolCallEvent():
                tools[event.call_id] = event.name
            case Handoff():
                passed = f"{name}h{len(lines)}"
                lines += [_node(passed, event.target), f'  {in_charge} -. "hands over" .-> {passed}']
                in_charge = passed
            case ChildEvent():
                own = event.parent_id in ("", turn)
                if event.child_id not in children:
                    nodes[event.child_id] = f"{name}c{len(nodes)}"
                    above = in_charge if own else nodes.get(event.parent_id, name)
                    lines.append(
                        _edge(above, nodes[event.child_id], tools.get(event.call_id, "") if own else "")
                    )
                    children[event.child_id] = [event.agent, "queued"]
                status = _STATES.get(str(event.event.get("type")))
                children[event.child_id][1] = status or children[event.child_id][1]
            case _:
                pass
    return [_node(nodes[child], *drawn) for child, drawn in children.items()] + lines


def _edge(above: str, below: str, tool: str) -> str:
    return f'  {above} -- "{_text(tool)}" --> {below}' if tool else f"  {above} --> {below}"


def _node(name: str, agent: str | None, status: str = "") -> str:
    said = "<br/>".join(_text(one) for one in (agent or "turn", status) if one)
    return f'  {name}["{said}"]'


def _text(text: str) -> str:
    """Escape text for a label in a diagram."""
    return re.sub(r"[^\w .:/@-]", lambda found: f"#{ord(found[0])};", text)


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
