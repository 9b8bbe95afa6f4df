"""``antiphon graph``: the turns of a session, their agents and their child turns, as a Mermaid diagram."""

from __future__ import annotations

import re
from collections.abc import Iterable

from antiphon.cli.arguments import add_redis, command_parser, read_client
from antiphon.client import AsyncClient
from antiphon.errors import TurnNotFound
from antiphon.events import ChildEvent, Event, Handoff, ToolCallEvent
from antiphon.input.ids import TurnId, session_id
from antiphon.redis.turn_records import turn_info
from antiphon.wire.lists.inspection import turn_log

MOST_TURNS = 100
_STATES = {
    "turn_queued": "queued", "turn_started": "running", "turn_retrying": "retrying", "turn_suspended": "suspended",
    "turn_sleeping": "suspended", "turn_resumed": "queued", "turn_finished": "finished", "turn_failed": "failed",
    "turn_cancelled": "cancelled",
}  # fmt: skip


def graph(argv: list[str]) -> int:
    """Print the turns of a session, their agents and their child turns, as a Mermaid diagram

    The diagram has the last 100 turns, and no text of users, models or tools. It goes back as far as the session keeps
    events.
    """
    parser = command_parser(graph)
    parser.add_argument("session", help="the session's id")
    add_redis(parser)
    options = parser.parse_args(argv)

    for line in read_client(options, lambda client: _drawn(client, options.session)):
        print(line)
    return 0


async def _drawn(client: AsyncClient, session: str) -> list[str]:
    lines, before = ["flowchart TD"], ""
    cell = client.connections.cell_of_session(session_id(session))
    newest: list[TurnId] = []
    async for turn in client.turns(session):
        newest.append(turn.id)
        if len(newest) == MOST_TURNS:
            break
    for number, turn in enumerate(reversed(newest), start=1):
        try:
            record = await cell.turn(turn)
        except TurnNotFound:
            continue
        info, name = turn_info(record), f"t{number}"
        lines.append(_node(name, info.agent, info.status))
        if before:
            lines.append(f"  {before} --> {name}")
        lines += drawn_below(name, turn, await turn_log(cell, record))
        before = name
    return lines


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
    return [_node(nodes[child], *told) for child, told in children.items()] + lines


def _edge(above: str, below: str, tool: str) -> str:
    return f'  {above} -- "{_text(tool)}" --> {below}' if tool else f"  {above} --> {below}"


def _node(name: str, agent: str | None, status: str = "") -> str:
    said = "<br/>".join(_text(one) for one in (agent or "turn", status) if one)
    return f'  {name}["{said}"]'


def _text(text: str) -> str:
    """Escape text for a label in a diagram."""
    return re.sub(r"[^\w .:/@-]", lambda found: f"#{ord(found[0])};", text)
