"""The limits of tenants, which stand in Redis so that all clients and workers go by the same ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.values import is_a
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked

__all__ = ["TenantLimits", "set_tenant_limits", "tenant_limits"]

MOST = {"in_flight": 1_000_000, "waiting": 1_000_000, "per_minute": 10_000}


class TenantLimits(Struct):
    """How many turns a tenant may have in one Redis. None is no limit.

    ``in_flight`` turns stand in a queue or run; further ones wait. ``waiting`` turns are accepted and not in flight,
    delayed ones among them, and ``per_minute`` turns are submitted in any 60 seconds; further ones are refused with
    ``TenantLimit``.
    """

    in_flight: int | None = None
    waiting: int | None = None
    per_minute: int | None = None


async def set_tenant_limits(cells: Iterable[Cell], tenant: str, limits: TenantLimits) -> None:
    """Set all limits of a tenant, or with '' their defaults, in each cell. Raises ``UsageError``, ``StoreError``."""
    numbers = {name: _checked(name, getattr(limits, name)) for name in MOST}
    for cell in cells:
        pipe = cell.redis.pipeline(transaction=True)
        for name, number in numbers.items():
            if number is None:
                pipe.hdel(cell.keys.limits, f"{name}:{tenant}")
            else:
                pipe.hset(cell.keys.limits, f"{name}:{tenant}", number)
        await asked(pipe.execute())


async def tenant_limits(cell: Cell, tenant: str) -> TenantLimits:
    """The limits that a tenant has in a cell: its own, and the defaults where it has none. Raises ``StoreError``."""
    fields = [f"{name}:{whose}" for name in MOST for whose in (tenant, "")]
    found: list[Any] = await asked(cell.redis.hmget(cell.keys.limits, fields))
    pairs = zip(found[::2], found[1::2], strict=True)
    return TenantLimits(
        *(None if (own or default) is None else int(own or default) for own, default in pairs)
    )


def _checked(name: str, number: int | None) -> int | None:
    if number is None:
        return None
    if not is_a(number, int) or isinstance(number, bool) or not 1 <= number <= MOST[name]:
        raise UsageError(f"{name}= must be a number from 1 to {MOST[name]}, or None, not {number!r}.")
    return number
