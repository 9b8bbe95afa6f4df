"""Draws the turns of a session, their agents and their child turns, as a Mermaid diagram."""

from __future__ import annotations

import re
from collections.abc import Iterable

from antiphon.errors import CorruptRecord, TurnNotFound
from antiphon.events import ChildEvent, Event, Handoff, ToolCallEvent
from antiphon.input.ids import SessionId, TurnId
from antiphon.redis.session_recording import kept_turns
from antiphon.redis.turn_records import turn_info
from antiphon.wire.cell import Cell
from antiphon.wire.lists.inspection import turn_log

MOST_TURNS = 100
_STATES = {
    "turn_queued": "queued", "turn_started": "running", "turn_retrying": "retrying", "turn_suspended": "suspended",
    "turn_sleeping": "suspended", "turn_resumed": "queued", "turn_finished": "finished", "turn_failed": "failed",
    "turn_cancelled": "cancelled",
}  # fmt: skip


async def graph_of(cell: Cell, session: SessionId) -> str:
    """Return the last 100 turns of a session as a diagram, which ends with a newline. Raises ``StoreError``.

    It has no text of users, models or tools, and goes back as far as the session keeps events. A turn whose record
    cannot be read is ``unreadable``.
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
    """Return the hand-offs and the children of a turn, of which the node has this name, by its events."""
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
