"""Tools that run elsewhere: agents as tools, remote agents, and the tools of MCP servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from antiphon.a2a import RemoteAgent
from antiphon.ext.turns import TurnFunction
from antiphon.input.request import AgentSpec
from antiphon.mcp import MCP, Requester
from antiphon.redis.cells import Cells
from antiphon_worker.app import App
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import DurableResult, JournalEntry, open_children, steps_of
from antiphon_worker.observing.observer import Observer
from antiphon_worker.process.budgets import Attempt
from antiphon_worker.process.children import STOPPED, Children, stop_children
from antiphon_worker.process.journal import TurnJournal
from antiphon_worker.process.lease import Lease
from antiphon_worker.providers.base import Provider

log = logging.getLogger("antiphon.worker")
CANCEL_SECONDS = 5.0
"""How long a request to cancel a task on another system may take, in seconds."""
_cancelling: set[asyncio.Task[None]] = set()


async def offer_elsewhere(
    inp: LoopInput, provider: Provider, cells: Cells, observer: Observer | None, app: App, agent: AgentSpec,
    attempt: Attempt, journal: TurnJournal,
) -> None:  # fmt: skip
    """Let the model, tools and functions of an attempt at a turn call what runs elsewhere."""
    if inp.tools or isinstance(provider, TurnFunction):
        inp.begin_children = partial(Children, cells, app, attempt, journal)
    if app.children:
        Children(cells, app, attempt, journal).offer(inp)
    if inp.tools and any(isinstance(one, RemoteAgent) for one in inp.tools):
        from antiphon_worker.a2a import bound_tools

        inp.tools = bound_tools(inp.tools, attempt.turn.tenant or None, attempt.request.user)
    if servers := app.servers(agent):
        from antiphon_worker.mcp.turn import offer_tools
        from antiphon_worker.process.changed_tools import ChangedTools

        note, user = ChangedTools(cells, observer).note, attempt.request.user
        await offer_tools(inp, servers, attempt.turn.tenant or None, user, journal.entries, note)


async def stop_elsewhere(
    cells: Cells,
    app: App,
    lease: Lease,
    entries: Sequence[JournalEntry],
    tenant: str | None,
    user: str | None,
) -> None:
    """Cancel what a stopped turn has begun elsewhere: its children, and tasks of other systems.

    Other systems are asked once, in the background, and not waited for.
    """
    if children := open_children(entries):
        await stop_children(cells, lease, children, STOPPED)
    calls = {call.call_id: call.name for step in steps_of(entries) for call in step.open_calls}
    for entry in entries:
        match entry:
            case DurableResult(call=call, value={"task": str(name)}) if call in calls:
                if (other := app.other_system(calls[call])) is not None:
                    asked = asyncio.create_task(_cancel(other, Requester(tenant, user, other.name), name))
                    _cancelling.add(asked)
                    asked.add_done_callback(_cancelling.discard)
            case _:
                pass


async def _cancel(other: RemoteAgent | MCP, requester: Requester, name: str) -> None:
    """Ask another system to cancel a task. The task may continue."""
    try:
        async with asyncio.timeout(CANCEL_SECONDS):
            if isinstance(other, RemoteAgent):
                from antiphon_worker.a2a import cancel_task

                await cancel_task(other, requester, name)
            else:
                from antiphon_worker.mcp.servers import server
                from antiphon_worker.mcp.tasks import cancel_task

                await cancel_task(server(other).use(requester), name)
    except Exception as exc:  # noqa: BLE001 - the turn has ended, and its end must not depend on others
        log.info(
            "a task of %s may go on: %s",
            other.name,
            type(exc).__name__,
            extra={"action": "task_not_cancelled"},
        )
