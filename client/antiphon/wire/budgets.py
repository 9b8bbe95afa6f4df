"""The budgets of one cell and their ledgers: what model calls may use, hold and have used."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from antiphon.errors import CorruptRecord
from antiphon.input.ids import Fence, SessionId, TurnId
from antiphon.model.budget import NANO, Budget, BudgetState
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked, unexpected
from antiphon.wire.records import pairs, readable

HOUR_MS = 3_600_000
WOKEN_AT_ONCE = 500


class Payer(NamedTuple):
    """A scope that pays for a turn: its kind, its name, and the budgets that the App declares for it.

    ``turn_id`` and ``session_id`` identify the turn above a child turn if that turn has the turn and session ledgers.
    """

    scope: str
    name: str
    own: tuple[Budget, ...] = ()
    turn_id: str = ""
    session_id: str = ""


class Call(NamedTuple):
    """A model call of a turn and the most it may use. ``cost`` is in nano-dollars, None without a price.

    ``number`` counts the calls under one fence. Its holds are released after ``lasts_ms`` at the latest.
    """

    turn_id: TurnId
    session_id: SessionId
    fence: Fence
    number: int
    cost: int | None
    tokens: int
    lasts_ms: int


class Reserved(NamedTuple):
    """The call may start. It holds a part of the budgets in these ledgers."""

    ledgers: list[str]


class Busy(NamedTuple):
    """Other calls hold the rest of this ledger: ask again.

    ``away`` are calls in batches that hold a part of it and whose turns are outside the ledger's cell.
    """

    ledger: str = ""
    away: tuple[Call, ...] = ()


class Reached(NamedTuple):
    """A budget of the scope ``name`` is used up. ``ms`` is the time until its next day or month begins, or 0."""

    action: str
    scope: str
    per: str
    unit: str
    limit: float
    used: float
    ms: int
    name: str


class Unpriced(NamedTuple):
    """A cost is limited, but the model has no price."""


class Outdated(NamedTuple):
    """A later attempt at the turn has already asked."""


Answer: TypeAlias = Reserved | Busy | Reached | Unpriced | Outdated


async def reserve(
    cell: Cell, call: Call, payers: Sequence[tuple[Payer, str]], *, switched: bool = False
) -> Answer:
    """Hold the most that a call may use, in all budgets of these payers or in none. Raises ``StoreError``.

    Each payer comes with the part of its ledgers that this cell has: those of ``inner`` budgets (of a turn or session),
    those of ``outer`` budgets, or ``all``.
    """
    answer = await _reserve(cell, call, payers, call.lasts_ms, switched)
    match answer:
        case [b"RESERVED", ledgers]:
            return Reserved([text_of(ledger) for ledger in ledgers])
        case [b"BUSY", ledger, calls]:
            with readable("A ledger of budgets"):
                away = [_call_of(turn, text_of(call)) for turn, call in pairs(calls).items()]
                return Busy(text_of(ledger), tuple(away))
        case [b"BUSY"]:
            return Busy()
        case [b"REACHED", *found]:
            with readable("The answer of the script 'budgets/reserve'"):
                action, scope, per, unit, limit, used, ms, name = map(text_of, found)
                return Reached(
                    action, scope, per, unit, _shown(unit, limit), _shown(unit, used), int(ms), name
                )
        case [b"UNPRICED"]:
            return Unpriced()
        case [b"SUPERSEDED"]:
            return Outdated()
        case _:
            raise unexpected("budgets/reserve", answer)


def _call_of(turn_id: str, held: str) -> Call:
    fence, number, cost, tokens, _ = held.split(" ")
    return Call(TurnId(turn_id), SessionId(""), Fence(fence), int(number), int(cost), int(tokens), 0)


async def ledgers_of(cell: Cell, call: Call, payers: Sequence[tuple[Payer, str]]) -> list[str]:
    """Return the ledgers in which a call may hold something, without holding anything. Raises ``StoreError``."""
    match await _reserve(cell, call, payers, "", switched=False):
        case [b"RESERVED", ledgers]:
            return [text_of(ledger) for ledger in ledgers]
        case answer:
            raise unexpected("budgets/reserve", answer)


async def _reserve(
    cell: Cell, call: Call, payers: Sequence[tuple[Payer, str]], lasts_ms: int | str, switched: bool
) -> list[Any]:
    flat = [
        value
        for payer, part in payers
        for value in (
            payer.scope, payer.name, part, msgspec.json.encode(payer.own) if payer.own else b"",
            payer.turn_id, payer.session_id,
        )
    ]  # fmt: skip
    return await cell.run(
        "budgets/reserve", call.turn_id, call.session_id, call.fence, call.number,
        "" if call.cost is None else call.cost, call.tokens, lasts_ms, "1" if switched else "", *flat,
    )  # fmt: skip


async def capture(
    cell: Cell, call: Call, ledgers: Sequence[str], *, cost: int, tokens: int, estimated: bool = False
) -> None:
    """Settle a call: replace what it holds with what it has used. Repeating it does nothing.

    Raises ``StoreError``.
    """
    answer = await cell.run(
        "budgets/capture",
        call.turn_id,
        call.fence,
        call.number,
        cost,
        tokens,
        "1" if estimated else "",
        *ledgers,
    )
    if answer != [b"CAPTURED"]:
        raise unexpected("budgets/capture", answer)


async def note_waiting(cell: Cell, call: Call, scope: str, name: str) -> bool:
    """Note in a turn's cell whose budget it will wait for, so that a change of that budget wakes it.

    The caller must ask once more afterwards, because a change before the note does not wake the turn. Returns whether
    the turn is still held under this fence. Raises ``StoreError``.
    """
    return await cell.run_held(
        b"NOTED", "budgets/note", call.session_id, call.turn_id, call.fence, f"{scope} {_hash(name)}"
    )


async def wake_waiting(cell: Cell, scope: str, name: str) -> None:
    """Wake the turns of this cell that wait for budgets of a name ('': of all names of the scope), to ask again.

    Raises ``StoreError``.
    """
    kept_by, since = f"{scope} {_hash(name)}" if name else scope, "-inf"
    while since:
        [after] = await cell.run_for(b"WOKEN", "budgets/wake", kept_by, since, WOKEN_AT_ONCE)
        since = text_of(after)


def _hash(name: str) -> str:
    """Return the hash that replaces a name in records that erasing the name does not reach."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def user_of(tenant: str | None, user: str) -> str:
    """Return the name of a user in the ledgers; it differs between tenants even for equal names.

    >>> user_of("acme", "alice") == user_of(None, "alice")
    False
    """
    return f"{tenant}\x1f{user}" if tenant else user


def split_user(name: str) -> tuple[str | None, str]:
    """Return the tenant and the user that ``user_of`` joined.

    >>> split_user(user_of("acme", "alice"))
    ('acme', 'alice')
    """
    tenant, _, user = name.rpartition("\x1f")
    return tenant or None, user


async def scopes_with_budgets(cell: Cell, scopes: Sequence[str]) -> set[str]:
    """Return which of these scopes have stored budgets. Raises ``StoreError``."""
    pipe = cell.redis.pipeline(transaction=False)
    for scope in scopes:
        pipe.exists(cell.keys.budgets(scope))
    found = await asked(pipe.execute())
    return {scope for scope, exists in zip(scopes, found, strict=True) if exists}


async def write_budgets(cell: Cell, scope: str, name: str, budgets: Sequence[Budget] | None) -> None:
    """Store the budgets of a name ('': of all names without their own); None removes them."""
    key = cell.keys.budgets(scope)
    if budgets is None:
        await asked(cell.redis.hdel(key, name))
    else:
        await asked(cell.redis.hset(key, name, msgspec.json.encode(budgets).decode()))


async def stored_budgets(cell: Cell, scope: str, name: str) -> list[Budget]:
    """Read the budgets that apply to a name: its own, or those for all names. Raises ``StoreError``."""
    own, default = await asked(cell.redis.hmget(cell.keys.budgets(scope), name, ""))
    return decode_budgets(own or default or b"[]")


def decode_budgets(data: bytes) -> list[Budget]:
    """Read stored budgets. Raises ``CorruptRecord``."""
    try:
        return msgspec.json.decode(data, type=list[Budget])
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise CorruptRecord(f"Stored budgets cannot be read: {exc}.") from exc


def ledger_of(scope: str, name: str, budget: Budget) -> str:
    """Return the ledger of a budget; '' for a budget per turn, or per session of another scope."""
    if budget.per in ("day", "month"):
        return f"{scope}:{budget.per}:{name}"
    return f"session::{name}" if budget.per == scope == "session" else ""


async def read_ledgers(cell: Cell, wanted: Iterable[tuple[str, Budget]]) -> list[BudgetState]:
    """Read how much of each budget is used, from its ledger ('' if it does not have one). Raises ``StoreError``."""
    budgets = [*wanted]
    pipe = cell.redis.pipeline(transaction=False)
    pipe.time()
    for ledger, budget in budgets:
        if ledger:
            names = ["from", budget.unit, f"held_{budget.unit}", f"estimated_{budget.unit}"]
            pipe.hmget(cell.keys.spent(ledger), names)
    (seconds, _), *found = await asked(pipe.execute())
    read = iter(found)
    return [
        _state(budget, next(read), seconds * 1000) if ledger else BudgetState(budget)
        for ledger, budget in budgets
    ]


def _state(budget: Budget, found: Sequence[bytes | None], now: int) -> BudgetState:
    begun, used, held, estimated = map(number, found)
    ends = window_end(budget.per, begun)
    if ends is not None and ends <= now:
        return BudgetState(budget)
    used, held, estimated = (_shown(budget.unit, str(part)) for part in (used, held, estimated))
    return BudgetState(budget, used, held, estimated, ends if begun else None)


def window_end(per: str, begun: int) -> int | None:
    """Return when the day or month that began at ``begun`` ends, in ms; None for other budgets."""
    if per == "day":
        return begun + 24 * HOUR_MS
    if per != "month":
        return None
    from datetime import UTC, datetime

    first = datetime.fromtimestamp(begun / 1000, UTC)
    later = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(later.timestamp() * 1000)


def _shown(unit: str, value: str) -> float:
    return int(value) / NANO if unit == "cost" else int(value)


SCOPES = ("tenant", "agent")
"""The scopes in metrics, for which there are too many users and sessions."""
MOST_NAMES = 50
MOST_ROUNDS = 100
_GLOB = re.compile(r"([*?\[\]\\^-])")


class NamedBudget(NamedTuple):
    """A budget of a tenant or an agent, and how much of it is used as counted by this cell."""

    scope: str
    name: str
    state: BudgetState


async def named_budgets(cell: Cell) -> list[NamedBudget]:
    """Read the budgets of up to 50 tenants and 50 agents that have budgets of their own. Raises ``StoreError``."""
    found = await asyncio.gather(*(_of_scope(cell, scope) for scope in SCOPES))
    return [one for budgets in found for one in budgets]


async def _of_scope(cell: Cell, scope: str) -> list[NamedBudget]:
    stored, _ = await scan_budgets(cell, scope)
    first = {name: stored[name] for name in sorted(filter(None, stored))[:MOST_NAMES]}
    wanted = [
        (name, budget, ledger)
        for name, budgets in first.items()
        for budget in budgets
        if (ledger := ledger_of(scope, name, budget))
    ]
    states = await read_ledgers(cell, ((ledger, budget) for _, budget, ledger in wanted))
    return [NamedBudget(scope, name, state) for (name, *_), state in zip(wanted, states, strict=True)]


async def scan_budgets(
    cell: Cell, scope: str, cursor: int = 0, *, prefix: str = ""
) -> tuple[dict[str, list[Budget]], int]:
    """Read about 50 names of a scope with their budgets, and the cursor for the next ones, which is 0 at the end.

    If few names begin with ``prefix``, a page may be empty before the end. Raises ``StoreError`` and ``CorruptRecord``.
    """
    pattern, found = _GLOB.sub(r"\\\1", prefix) + "*", dict[bytes, bytes]()
    for _ in range(MOST_ROUNDS):
        cursor, some = await asked(
            cell.redis.hscan(cell.keys.budgets(scope), cursor, match=pattern, count=MOST_NAMES)
        )
        found |= some
        if not cursor or found:
            break
    return {text_of(name): decode_budgets(budgets) for name, budgets in found.items()}, int(cursor)


def with_ledgers(scope: str, name: str, budgets: Iterable[Budget]) -> list[tuple[str, Budget]]:
    """Return the budgets of a name with their ledgers: '' without a ledger or a name."""
    return [(ledger_of(scope, name, budget) if name else "", budget) for budget in budgets]
