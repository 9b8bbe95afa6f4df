"""Turns that wait for an event as a worker would leave them, made without one."""

from antiphon.client import AsyncClient
from antiphon.model import Wait
from antiphon.wire.suspension import suspend


async def waiting_turn(
    client: AsyncClient, session: str, tenant: str | None = None, event: str = "paid"
) -> str:
    """Submit a turn, let it wait for an event of this name, and return its id."""
    turn = await client.submit(session, "Go", agent="any", tenant=tenant)
    cell = client.connections.cell_of_turn(turn.id)
    claims = await cell.claim(
        "w", f"token-{session}", lease_ms=10_000, limit=1, queues=["antiphon"], only=turn.id
    )
    wait = Wait("c1", f"event {event}", "event", 3600.0, event=event)
    assert await suspend(cell, claims.turns[0], [wait], bodies=[]) == ""
    return turn.id
