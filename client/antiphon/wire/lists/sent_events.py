"""The sent events that a cell keeps for turns that will wait for them."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.records import place_of_event, readable

PAGE = 500


class SentEvent(msgspec.Struct):
    """An event as it is stored. What scripts read of it is stored separately."""

    data: Any = None


async def forget_events(cell: Cell, tenant: str) -> int:
    """Forget the events of a tenant. Returns how many there were."""
    count = 0
    while True:
        more, forgotten = await cell.run_for(b"FORGOTTEN", "events/forget_events", tenant, PAGE)
        count += forgotten
        if not more:
            return count


async def kept_events(cell: Cell, tenant: str) -> list[dict[str, Any]]:
    """Return the events of a tenant that the cell keeps, the oldest one first, with ``name``, ``at`` and ``data``."""
    found: list[dict[str, Any]] = []
    for one in await asked(cell.redis.zrange(cell.keys.tenant_events(tenant), 0, -1)):
        event_id, _, event = text_of(one).partition(" ")
        raw = await asked(cell.redis.hget(cell.keys.event_data(event), event_id))
        if raw is None:
            continue
        with readable("An event that was sent"):
            at, _, json = raw.split(b" ", 2)
            opened = cell.seal.open(place_of_event(event), "sent", json)
            sent = msgspec.json.decode(opened, type=SentEvent)
            found.append({"name": event.partition(" ")[0], "at": int(at), "data": sent.data})
    return found
