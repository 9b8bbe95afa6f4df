"""Budgets: each model call of a turn reserves what it may use at most before it starts, and is settled after it.

A turn without budgets skips all this and uses its provider directly. Otherwise ``PaidProvider`` wraps the provider,
so that every model call of the turn passes through it, including those of summaries and fallbacks.

- A call may use at most its input, counted as one token for each byte, and its ``max_tokens``. A call without
  ``max_tokens`` is sent with a limit: an unlimited call could not be reserved.
- While calls of other turns hold the rest of a budget, a call waits briefly, and then its turn is requeued for some
  seconds: a call that may fit later is not refused.
- A stopped call counts with the usage that its service has reported, or else with an estimate. The holds of a dead
  worker count as used when its turn is tried again, or when another call needs them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import suppress
from itertools import count
from math import ceil, isfinite
from typing import Any, cast

import msgspec

from antiphon.errors import (
    AgentError,
    BudgetReached,
    ProviderError,
    StoreError,
    StoreUnavailable,
    UnknownPrice,
)
from antiphon.events import BudgetReachedEvent
from antiphon.ext.turns import TurnFunction
from antiphon.input.ids import Fence
from antiphon.input.request import AgentSpec, PayingTurn, TurnRequest
from antiphon.model import TERMINAL
from antiphon.model.budget import BUDGET_SCOPES, NANO, Budget
from antiphon.model.usage import Usage
from antiphon.redis.budgets import home_of
from antiphon.redis.cells import Cells
from antiphon.text import text_of
from antiphon.wire.budgets import (
    Busy,
    Call,
    Outdated,
    Payer,
    Reached,
    Reserved,
    Unpriced,
    capture,
    ledgers_of,
    note_waiting,
    reserve,
    scopes_with_budgets,
    user_of,
)
from antiphon.wire.cell import Cell
from antiphon.wire.lists.reading import fields_of
from antiphon.wire.records import ClaimedTurn
from antiphon_worker.app import App
from antiphon_worker.loop.call_limits import most_of, with_an_end
from antiphon_worker.loop.costs import Price, Prices, stopped_usage
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import Sink, answered
from antiphon_worker.process.journal import patiently
from antiphon_worker.process.lease import Lease, Stop, StopSignal
from antiphon_worker.process.requests import keeping
from antiphon_worker.providers.base import Increment, ModelRequest, Outlet, Provider, StepResult

PAUSES = (0.05, 0.1, 0.2, 0.4)
"""How long a call waits while others hold the rest of a budget, in seconds."""
BACK_SECONDS = (1.0, 3.0)
LONGEST_SECONDS = 600.0
"""How often a suspended turn asks again: changes to the budgets of an App are not noted in Redis."""
LOOK_SECONDS = 5.0
LONGEST_CALL_MS = 24 * 3_600_000


class Held(AgentError):
    """The turn is to be requeued: its call may start later."""

    def __init__(
        self, message: str | None = None, *, code: str = "", retry_after: float = 0.0, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.code = code or self.code
        self.retry_after = retry_after


class Cheaper(ProviderError):
    """A fallback of the agent is to answer in place of this model."""

    def __init__(self, message: str | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.code = BudgetReached.code  # callers see the code of the public error


class Budgets:
    """What one worker process knows about stored budgets: which scopes have any."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._found: dict[str, frozenset[str]] = {}  # by cell, as it was last read
        self._stored: frozenset[str] | None = None  # not read yet

    async def run(self) -> None:
        """Look up which scopes have budgets, repeatedly, until cancelled. Raises ``StoreError``."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Look them up once. Raises ``StoreError``, but skips unavailable cells: all have the same budgets."""
        cells = [cell for cell in self._cells if cell.has_disk]
        await asyncio.gather(*map(self._look_at, cells))
        if cells and not self._found:
            raise StoreUnavailable("The stored budgets cannot be read from any cell.")
        self._stored = frozenset[str]().union(*self._found.values())

    async def _look_at(self, cell: Cell) -> None:
        with suppress(StoreUnavailable):
            self._found[cell.name] = frozenset(await scopes_with_budgets(cell, BUDGET_SCOPES))

    async def charged(
        self,
        provider: Provider,
        inp: LoopInput,
        agent: AgentSpec,
        app: App,
        attempt: Attempt,
    ) -> Provider:
        """Return the provider, or a wrapper of it that charges the budgets of a turn. Raises ``StoreError``.

        The App may declare budgets for the agent, but not for an inline agent, which could have any name. The
        fallbacks in ``inp`` are charged too. If the App keeps requests, the wrapped providers also keep them.
        """
        if app.keep_requests:
            provider = keeping(provider, inp, attempt)
        own = app.budgets(agent)
        if self._stored is None:
            await patiently(attempt.lease, self.look)
        attempt.agent, attempt.own = agent, own
        if not self._stored and not own and attempt.request.parent is None:
            return provider
        payers = payers_of(attempt.turn, attempt.request, attempt.paying, self._stored or ())
        if not payers:
            return provider
        purse = Purse(self._cells, payers, attempt)
        if isinstance(provider, TurnFunction):
            inner = inp.charge
            inp.charge = lambda one: PaidProvider(inner(one) if inner else one, purse)
            return provider
        if inp.fallback is not None:
            inp.fallback = inp.fallback.through(lambda one: PaidProvider(one, purse, switched=True))
        return PaidProvider(provider, purse)


class Attempt(msgspec.Struct):
    """The part of an attempt at a turn that budgets need. ``seconds`` is its time limit, from when it ``began``.

    ``numbers`` counts its model calls, whichever agent makes them, and ``kept`` the kept requests. ``agent`` is the
    agent in charge, with its ``own`` budgets.
    """

    cell: Cell
    turn: ClaimedTurn
    request: TurnRequest
    lease: Lease
    sink: Sink
    prices: Prices
    seconds: float
    numbers: Iterator[int] = msgspec.field(default_factory=lambda: count(1))
    kept: Iterator[int] = msgspec.field(default_factory=lambda: count(1))
    agent: AgentSpec | None = None
    own: Sequence[Budget] | None = None
    began: float = msgspec.field(default_factory=time.monotonic)

    @property
    def paying(self) -> list[PayingTurn]:
        """The turns whose budgets pay for it: those above it, then the turn itself."""
        return paying_turns(self.turn, self.request, self.agent, self.own)


class Hold(msgspec.Struct):
    """The hold of one model call, by cell."""

    call: Call
    ledgers: list[tuple[Cell, list[str]]]


class BatchedHold(msgspec.Struct):
    """The hold of a batched call: at most for ``lasts_ms``, under its own fence, at this ``part`` of the price."""

    fence: Fence
    part: float
    lasts_ms: int


class Purse:
    """The budgets that one attempt at a turn draws on."""

    def __init__(self, cells: Cells, payers: Sequence[Payer], attempt: Attempt) -> None:
        self._attempt = attempt
        self._cells = cells
        self._parts = ledgers_by_cell(cells, attempt.cell, payers)
        self._told: set[tuple[str, str, str]] = set()

    async def hold(
        self, request: ModelRequest, *, switched: bool, batched: BatchedHold | None = None
    ) -> Hold:
        """Reserve what a call may use. Raises ``BudgetReached``, ``Cheaper``, ``Held``, ``UnknownPrice``.

        The hold of a ``batched`` call outlives the attempt; reserving it again changes nothing.
        """
        call = self._call(request) if batched is None else self._batched_call(request, batched)
        pauses, noted = iter(PAUSES), ("", "")
        while True:
            answer = await self._reserve(call, switched)
            match answer:
                case Hold():
                    return answer
                case Reached(action="suspend") if (answer.scope, answer.name) != noted:
                    await self._note(call, answer)
                    noted = answer.scope, answer.name
                case Reached():
                    raise self._reached(answer)
                case Outdated():
                    raise self._superseded()
                case Unpriced():
                    raise UnknownPrice(
                        f"The model {request.model} has no price, so that its cost cannot be charged to a budget: give "
                        "the worker's App(prices=…) its price, or use budgets of tokens."
                    )
                case Busy():
                    await self._pause(pauses)

    async def _pause(self, pauses: Iterator[float]) -> None:
        """Wait while other calls hold the rest. Raises ``Held`` after the last pause."""
        pause = next(pauses, None)
        if pause is None:
            raise Held(
                "Model calls of other turns have reserved what is left of a budget.",
                code="budget_held", retry_after=random.uniform(*BACK_SECONDS),
            )  # fmt: skip
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))

    async def _note(self, call: Call, found: Reached) -> None:
        """Note that the turn will wait for a change of a scope's budgets. Then ask again: it may have come first."""
        cell, call = self._attempt.cell, call._replace(fence=self._attempt.turn.fence)
        if not await patiently(
            self._attempt.lease, lambda: note_waiting(cell, call, found.scope, found.name)
        ):
            raise self._superseded()

    def _superseded(self) -> StopSignal:
        self._attempt.lease.end(Stop.SUPERSEDED, at_once=False)
        return StopSignal(Stop.SUPERSEDED)

    def _call(self, request: ModelRequest) -> Call:
        turn, price = self._attempt.turn, self._attempt.prices.price(request.model)
        tokens_in, tokens_out = most_of(request)
        most = None if price is None else _nano(_most_cost(price, tokens_in, tokens_out))
        seconds = self._attempt.seconds
        lasts = int(seconds * 1000) if isfinite(seconds) else LONGEST_CALL_MS
        return Call(
            turn.turn_id,
            turn.session_id,
            turn.fence,
            next(self._attempt.numbers),
            most,
            tokens_in + tokens_out,
            lasts,
        )

    def _batched_call(self, request: ModelRequest, batched: BatchedHold) -> Call:
        call = self._call(request)
        cost = None if call.cost is None else ceil(call.cost * batched.part)
        return call._replace(fence=batched.fence, number=0, cost=cost, lasts_ms=batched.lasts_ms)

    async def held(self, request: ModelRequest, batched: BatchedHold) -> Hold:
        """Return the hold of a batched call, to settle it. It may already be settled or counted."""
        call = self._batched_call(request, batched)
        hold = Hold(call, [])
        for cell, payers in self._parts:
            ledgers = await patiently(
                self._attempt.lease, lambda cell=cell, payers=payers: ledgers_of(cell, call, payers)
            )
            hold.ledgers.append((cell, ledgers))
        return hold

    async def _reserve(self, call: Call, switched: bool) -> Hold | Busy | Reached | Unpriced | Outdated:
        """Reserve in each cell that has one of the ledgers. If one refuses, nothing is held."""
        hold = Hold(call, [])
        for cell, payers in self._parts:
            answer = await patiently(
                self._attempt.lease,
                lambda cell=cell, payers=payers: reserve(cell, call, payers, switched=switched),
            )
            if not isinstance(answer, Reserved):
                await self.settle(hold, 0, 0)
                if isinstance(answer, Busy):
                    await count_ended(self._cells, cell, answer)
                return answer
            hold.ledgers.append((cell, answer.ledgers))
        return hold

    def _reached(self, found: Reached) -> AgentError:
        said = f"The budget of {_amount(found.unit, found.limit)} {_whose(found)} is used up"
        if (key := (found.action, found.scope, found.per)) not in self._told:
            self._told.add(key)
            self._attempt.sink.put(
                BudgetReachedEvent(
                    scope=found.scope,
                    per=found.per,
                    unit=found.unit,
                    limit=found.limit,
                    used=found.used,
                    action=found.action,
                )
            )
        if found.action == "fallback":
            return Cheaper(f"{said}.")
        if found.action == "suspend":
            seconds = min(found.ms / 1000 or LONGEST_SECONDS, LONGEST_SECONDS)
            return Held(f"{said}: the turn waits.", code=BudgetReached.code, retry_after=seconds)
        return BudgetReached(f"{said}.", limit=f"{found.scope}_{found.unit}_per_{found.per}")

    async def settle(self, hold: Hold, cost: int, tokens: int, *, estimated: bool = False) -> None:
        """Replace the hold of a call by what it has used."""
        for cell, ledgers in hold.ledgers:
            await patiently(
                self._attempt.lease,
                lambda cell=cell, ledgers=ledgers: capture(
                    cell, hold.call, ledgers, cost=cost, tokens=tokens, estimated=estimated
                ),
            )

    async def settle_answer(self, hold: Hold, request: ModelRequest, result: StepResult) -> None:
        """Settle a call that was answered."""
        await self.settle(hold, *self._used(hold, result.usage, result.model, request.model))

    async def settle_stopped(self, hold: Hold, request: ModelRequest, stream: object, outlet: object) -> None:
        """Settle a stopped call if Redis is reachable now; otherwise its hold counts as used later."""
        usage = stopped_usage(request, stream, outlet)
        with suppress(StoreError, StopSignal):
            for cell, ledgers in hold.ledgers:
                cost, tokens = self._used(hold, usage, request.model)
                await capture(cell, hold.call, ledgers, cost=cost, tokens=tokens, estimated=True)

    def _used(self, hold: Hold, usage: Usage, *models: str) -> tuple[int, int]:
        """Return nano-dollars and tokens. Usage without a valid cost costs what was held for it."""
        prices = [price for model in models if (price := self._attempt.prices.price(model))]
        cost = usage.cost if usage.cost is not None or not prices else prices[0].of(usage)
        if cost is None or not isfinite(cost) or cost < 0:
            return hold.call.cost or 0, max(usage.tokens, 0)
        return _nano(cost), max(usage.tokens, 0)


class PaidProvider:
    """A provider whose calls are charged to budgets."""

    def __init__(self, provider: Provider, purse: Purse, *, switched: bool = False) -> None:
        self.provider = provider
        self.purse = purse
        self.switched = switched

    @property
    def name(self) -> str:
        return self.provider.name

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Return the call, for ``answered``."""
        return cast("AsyncIterator[Increment]", _PaidCall(self.provider, self.purse, request, self.switched))

    async def aclose(self) -> None:
        await self.provider.aclose()


class _PaidCall:
    def __init__(self, provider: Provider, purse: Purse, request: ModelRequest, switched: bool) -> None:
        self._provider = provider
        self._purse = purse
        self._request = request
        self._switched = switched
        self._stream: AsyncIterator[Increment] | None = None

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return getattr(self._stream, "counted", Usage())

    async def into(self, outlet: Outlet) -> StepResult:
        """Make the call, and put its answer into the outlet."""
        request = with_an_end(self._request)
        hold = await self._purse.hold(request, switched=self._switched)
        self._stream = stream = self._provider.stream(request)
        try:
            result = await answered(stream, outlet)
        except ProviderError:
            begun = getattr(outlet, "received", 0) or self.counted.tokens
            if begun:
                await self._purse.settle_stopped(hold, request, stream, outlet)
            else:
                await self._purse.settle(hold, 0, 0)
            raise
        except BaseException:
            await self._purse.settle_stopped(hold, request, stream, outlet)
            raise
        await self._purse.settle_answer(hold, request, result)
        return result


def _most_cost(price: Price, tokens_in: int, tokens_out: int) -> float:
    """Return what a call costs at most, in dollars: all its input at the highest of the prices."""
    dearest = max(price.input, price.cached_input or 0.0, price.cache_write or 0.0)
    return (tokens_in * dearest + tokens_out * price.output) / 1_000_000


def _nano(dollars: float) -> int:
    return ceil(round(dollars * NANO, 3))


def _amount(unit: str, limit: float) -> str:
    return f"${limit:,.15g}" if unit == "cost" else f"{limit:,.15g} tokens"


def _whose(found: Reached) -> str:
    if found.per == "turn":
        return "of each turn"
    if found.per == "session":
        return "of the session"
    return f"of the {found.scope} for the {found.per}"


async def count_ended(cells: Cells, cell: Cell, busy: Busy) -> None:
    """Count as used what calls of ended or deleted turns hold in a ledger of ``cell``. Skips cells that are down.

    The cell of a ledger cannot see the turns of other cells, so a worker whose call finds no room there checks them.
    """
    homes: dict[str, tuple[Cell, list[Call]]] = {}
    for call in busy.away:
        home = cells.of_turn(call.turn_id)
        homes.setdefault(home.name, (home, []))[1].append(call)
    for home, calls in homes.values():
        with suppress(StoreError):
            found = await fields_of(home, [home.keys.turn(call.turn_id) for call in calls], "status")
            for call, (status,) in zip(calls, found, strict=True):
                if status is None or text_of(status) in TERMINAL:
                    await capture(
                        cell, call, [busy.ledger], cost=call.cost or 0, tokens=call.tokens, estimated=True
                    )


def paying_turns(
    turn: ClaimedTurn, request: TurnRequest, agent: AgentSpec | None, own: Sequence[Budget] | None
) -> list[PayingTurn]:
    """Return the turns that pay for a turn: those above it, then the turn itself.

    A child has the tenant and the user of its parent. The parent adds its session and agent, and the budgets per turn
    and session, which count the parent and all turns below it together.

    ``own`` are the budgets that the App declares for the agent; None for an inline agent.
    """
    name = "" if own is None or agent is None else agent.name or ""
    above = request.parent.paying if request.parent else []
    return [*above, PayingTurn(turn.session_id, turn.turn_id, name, list(own or ()))]


def payers_of(
    turn: ClaimedTurn, request: TurnRequest, paying: Sequence[PayingTurn], stored: Container[str]
) -> list[Payer]:
    """Return the payers of a turn whose scopes have stored or declared budgets."""
    *above, itself = paying
    user = user_of(turn.tenant, request.user) if request.user else ""
    found = [payer for one in above for payer in _payers(one, turn.tenant, user, one.turn_id, one.session_id)]
    found += _payers(itself, turn.tenant, user)
    return [payer for payer in found if payer.name and (payer.own or payer.scope in stored)]


def _payers(paying: PayingTurn, tenant: str, user: str, *place: str) -> list[Payer]:
    """Return the payers of a turn; for a turn above a child, ``place`` is its turn and session."""
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
