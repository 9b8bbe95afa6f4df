"""Sending events to the turns that wait for them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.errors import UsageError
from antiphon.input.ids import event_name, tenant_id
from antiphon.input.limits import LIMITS, check_depth, check_size
from antiphon.input.values import is_a
from antiphon.model import encode
from antiphon.redis.schedules import start_turns
from antiphon.wire.cell import Cell
from antiphon.wire.lists.sent_events import SentEvent
from antiphon.wire.records import place_of_event

BATCH = 200
MOST_BATCHES = 1_000
MOST_KEY_CHARACTERS = 1_000


async def send_event(
    cells: Iterable[Cell], name: str, data: Any = None, *, key: str | None = None, tenant: str | None = None
) -> int:
    """Send an event to every cell. Return how many turns it has reached, or started if none waits.

    Each cell keeps it for turns that will wait for it. Repeating the call with the same ``key`` sends it to
    the cells that have not received it. Raises ``InvalidId``, ``UsageError``, ``LimitReached`` and ``StoreError``.
    """
    name, where, cells = event_name(name), "" if tenant is None else tenant_id(tenant), [*cells]
    event_id, body = _id_of(name, where, key), _encoded(name, data)
    return await _reach(cells, name, where, event_id, body) or await start_turns(
        cells, name, where, event_id, msgspec.json.decode(body, type=SentEvent).data
    )


async def tell_waiting(cell: Cell, name: str, *, key: str, tenant: str | None) -> None:
    """Send an internal event to a cell. It starts no turn, whatever the schedules. Raises ``StoreError``."""
    where = tenant or ""
    await _reach([cell], name, where, _id_of(name, where, key), _encoded(name, None))


async def _reach(cells: list[Cell], name: str, tenant: str, event_id: str, body: bytes) -> int:
    sent = [_send(cell, name, tenant, event_id, body) for cell in cells]
    found = await asyncio.gather(*sent, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return sum(one for one in found if isinstance(one, int))


async def _send(cell: Cell, name: str, tenant: str, event_id: str, body: bytes) -> int:
    place = place_of_event(f"{name} {tenant}" if tenant else name)
    sealed, most = cell.seal.seal(place, "sent", body), LIMITS.tenant_events
    turns = 0
    for _ in range(MOST_BATCHES):
        turns, more = await cell.run_for(b"SENT", "events/send", name, tenant, event_id, sealed, most, BATCH)
        if not more:
            break
    return turns


def _id_of(name: str, tenant: str, key: str | None) -> str:
    if key is None:
        return secrets.token_hex(16)
    if not is_a(key, str) or not 1 <= len(key) <= MOST_KEY_CHARACTERS:
        raise UsageError(
            f"key= must be text of 1 to {MOST_KEY_CHARACTERS} characters, not {str(key)[:80]!r}."
        )
    return hashlib.sha256(msgspec.json.encode([name, tenant, key])).hexdigest()[:32]


def _encoded(name: str, data: Any) -> bytes:
    what = f"The data of the event {name!r}"
    try:
        encoded = encode(SentEvent(data))
        check_size("event_bytes", len(encoded), f"{what} in bytes")
        found = msgspec.json.decode(encoded)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{what} cannot be written as JSON: {exc}.") from exc
    check_depth(found, what)
    return encoded
