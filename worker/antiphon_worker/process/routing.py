"""Asks the App's router which agent, model and queue a turn takes, once for each run, before the turn begins.

The choice is written to the journal first: later attempts find it there and do not ask again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from antiphon.errors import CorruptRecord, UsageError
from antiphon.events import AgentChanged
from antiphon.input.request import AgentSpec
from antiphon.routing import ROUTER_FAILED, Route, Router, Routing, checked_route
from antiphon.telemetry import log_fault
from antiphon.tools.threads import Threads
from antiphon.wire.records import ClaimedTurn
from antiphon.wire.revisions import last_route, write_route
from antiphon_worker.loop.steps import Routed, Steered, encode_entry
from antiphon_worker.loop.toolbox import is_stop
from antiphon_worker.process.budgets import Attempt, Held
from antiphon_worker.process.history import asked_agent, variables_of_session
from antiphon_worker.process.journal import TurnJournal, patiently
from antiphon_worker.process.lease import Stop, StopSignal
from antiphon_worker.process.publisher import TurnSink

log = logging.getLogger("antiphon.routing")

ROUTER_SECONDS = 10.0
MOVED = "routed"
LONGEST_WHY = 200
"""How many characters of an error about a router's result are shown: it may repeat a value of any size."""

_THREADS = Threads(limit=16)


async def choose_route(attempt: Attempt, router: Router, journal: TurnJournal, sink: TurnSink) -> None:
    """Write the router's choice into the journal of a turn that has not begun. Does nothing for all other turns.

    Turns of sub-agents and of inline agents are not routed. Raises ``Held`` for a turn that has moved to another
    queue.
    """
    if not all(isinstance(entry, Steered) for entry in journal.entries):
        return
    asked = asked_agent(attempt.turn, attempt.request)
    if attempt.request.parent is not None or isinstance(asked, AgentSpec):
        return
    route = await _answer(attempt, router, asked)
    if route is None:
        return
    await _write(attempt, journal, sink, route, asked or "")
    if route.queue not in (None, attempt.turn.queue):
        raise Held(f"Its router has moved it to the queue {route.queue}.", code=MOVED)


async def _answer(attempt: Attempt, router: Router, asked: str | None) -> Route | None:
    """Return the router's choice. If it fails, hangs or returns an invalid value, the turn runs as submitted."""
    turn, request = attempt.turn, attempt.request
    previous = await patiently(attempt.lease, lambda: _previous(attempt))
    routing = Routing(
        turn.session_id, turn.turn_id, turn.queue, request.messages, asked, turn.tenant or None, request.user,
        request.metadata, variables_of_session(turn), previous,
    )  # fmt: skip
    try:
        async with asyncio.timeout(ROUTER_SECONDS):
            chosen: Any = await _THREADS.ask(router, routing)
    except BaseException as exc:
        if is_stop(exc):
            raise
        return _failed(turn, exc, f"it raised {type(exc).__name__}")
    try:
        return checked_route(chosen)
    except UsageError as exc:
        return _failed(turn, exc, exc.message.rstrip("."))
    except Exception as exc:  # noqa: BLE001 - the returned value may raise anything, for example in __repr__
        return _failed(turn, exc, f"what it returned raised {type(exc).__name__}")


def _failed(turn: ClaimedTurn, exc: BaseException, why: str) -> Route:
    """Log the failure of a router, and return the route of a turn that runs as it was submitted."""
    log_fault(
        log, exc, "the router of the App failed for turn %s, which runs as submitted", turn.turn_id,
        action="router_failed", session=turn.session_id, turn=turn.turn_id,
    )  # fmt: skip
    return Route(reason=f"{ROUTER_FAILED} ({why[:LONGEST_WHY]}): the turn runs as submitted.")


async def _previous(attempt: Attempt) -> Route | None:
    try:
        return await last_route(attempt.cell, attempt.turn.session_id)
    except CorruptRecord:
        return None  # a damaged record of something else must not block a turn


async def _write(attempt: Attempt, journal: TurnJournal, sink: TurnSink, route: Route, asked: str) -> None:
    turn = attempt.turn
    entry = Routed(route.agent, route.model)
    event = AgentChanged(
        agent=route.agent or asked, model=route.model or "", queue=route.queue or "", reason=route.reason
    )
    bodies = [*await sink.settle(), sink.body(event)]
    written = await patiently(
        attempt.lease,
        lambda: write_route(attempt.cell, turn, route, entry=encode_entry(entry), bodies=bodies),
    )
    if not written:
        attempt.lease.end(Stop.SUPERSEDED, at_once=False)
        raise StopSignal(Stop.SUPERSEDED)
    journal.entries.append(entry)
