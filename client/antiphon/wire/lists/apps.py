"""What turns may ask the workers of a cell for: the agents and providers that their Apps have."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Struct, field

from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.keys import rq_key

__all__ = ["FIELD", "Offer", "offers"]

FIELD = "ant_app"
"""The field of a worker's record with the names of what its App has."""


class Offer(Struct):
    """What one App has: its ``agents``, and the ``providers`` of agents that come with turns (``*`` is any).

    ``models`` are those that such agents may name, None for any. ``more`` is true where names were left out.
    """

    prefix: str
    agents: list[str] = field(default_factory=list)
    providers: list[str] = field(default_factory=list)
    models: list[str] | None = None
    more: bool = False


async def offers(cell: Cell) -> list[Offer]:
    """Return what the live workers of a cell offer, each App once. Raises ``StoreError``."""
    members = await asked(cell.redis.smembers(rq_key("rq_workers")))
    pipe = cell.redis.pipeline(transaction=False)
    for member in members:
        pipe.hget(member, FIELD)
    found: list[Offer] = []
    for record in {*await asked(pipe.execute())} if members else ():
        with suppress(msgspec.MsgspecError, UnicodeError):
            offer = msgspec.json.decode(record or b"", type=Offer)
            if offer.prefix == cell.keys.prefix:
                found.append(offer)
    return found
