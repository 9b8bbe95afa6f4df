"""Tools that run elsewhere: agents as tools, remote agents, and the tools of MCP servers."""

from __future__ import annotations

from functools import partial

from antiphon.a2a import RemoteAgent
from antiphon.input.request import AgentSpec
from antiphon.redis.cells import Cells
from antiphon_worker.app import App
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.observing.observer import Observer
from antiphon_worker.process.budgets import Attempt
from antiphon_worker.process.children import Children
from antiphon_worker.process.journal import TurnJournal


async def offer_elsewhere(
    inp: LoopInput, cells: Cells, observer: Observer | None, app: App, agent: AgentSpec, attempt: Attempt,
    journal: TurnJournal,
) -> None:  # fmt: skip
    """Let the model, tools and functions call what runs elsewhere, in an attempt at a turn."""
    inp.begin_children = partial(Children, cells, app, attempt, journal)
    if app.children:
        Children(cells, app, attempt, journal).offer(inp)
    if any(isinstance(one, RemoteAgent) for one in inp.tools):
        from antiphon_worker.a2a import bound_tools

        inp.tools = bound_tools(inp.tools, attempt.turn.tenant or None, attempt.request.user)
    if servers := app.servers(agent):
        from antiphon_worker.mcp.turn import offer_tools
        from antiphon_worker.process.changed_tools import ChangedTools

        note, user = ChangedTools(cells, observer).note, attempt.request.user
        await offer_tools(inp, servers, attempt.turn.tenant or None, user, journal.entries, note)
