"""Whose budgets pay for a turn: those of its session, tenant, user and agent, and for a child also of the turns above.

A child has the tenant and the user of its parent. What it adds are the parent's session and agent, and the budgets of
each turn and session, which count the parent and all below it together.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from antiphon.input.request import AgentSpec, PayingTurn, TurnRequest
from antiphon.model.budget import Budget
from antiphon.redis.budgets import home_of
from antiphon.redis.cells import Cells
from antiphon.wire.budgets import Payer, user_of
from antiphon.wire.cell import Cell
from antiphon.wire.records import ClaimedTurn


def paying_turns(
    turn: ClaimedTurn, request: TurnRequest, agent: AgentSpec | None, own: Sequence[Budget] | None
) -> list[PayingTurn]:
    """Return the turns that pay for a turn: those above it, and last itself.

    ``own`` are the budgets that the App declares for the agent; None for one that came with the turn.
    """
    name = "" if own is None or agent is None else agent.name or ""
    above = request.parent.paying if request.parent else []
    return [*above, PayingTurn(turn.session_id, turn.turn_id, name, list(own or ()))]


def payers_of(
    turn: ClaimedTurn, request: TurnRequest, paying: Sequence[PayingTurn], stored: Container[str]
) -> list[Payer]:
    """Return the payers of a turn, of scopes for which budgets are stored or declared."""
    *above, itself = paying
    user = user_of(turn.tenant, request.user) if request.user else ""
    found = [payer for one in above for payer in _payers(one, turn.tenant, user, one.turn_id, one.session_id)]
    found += _payers(itself, turn.tenant, user)
    return [payer for payer in found if payer.name and (payer.own or payer.scope in stored)]


def _payers(paying: PayingTurn, tenant: str, user: str, *place: str) -> list[Payer]:
    """Return what pays for a turn; ``place`` are the turn and the session of one above a child."""
    return [
        Payer("session", paying.session_id, (), *place),
        Payer("tenant", tenant, (), *place),
        Payer("user", user, (), *place),
        Payer("agent", paying.agent, tuple(paying.budgets), *place),
    ]


def ledgers_by_cell(
    cells: Cells, here: Cell, payers: Sequence[Payer]
) -> list[tuple[Cell, list[tuple[Payer, str]]]]:
    """Return which cell has which ledgers of the payers, in an order that is the same for all turns."""
    found: dict[str, tuple[Cell, list[tuple[Payer, str]]]] = {}
    for payer in payers:
        inner = cells.of_session(payer.session_id) if payer.session_id else here
        outer = inner if payer.scope == "session" else home_of(cells, payer.scope, payer.name)
        parts = [(inner, "all")] if outer.name == inner.name else [(inner, "inner"), (outer, "outer")]
        for cell, part in parts:
            found.setdefault(cell.name, (cell, []))[1].append((payer, part))
    return [found[name] for name in sorted(found)]
