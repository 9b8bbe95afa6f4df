"""Makes the model calls of a turn in batches.

Each step is requested once, and the turn is suspended until its answer arrives. If a batch does not answer a step, or
not in time, the service's usual endpoint does.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import cast

import msgspec

from antiphon.errors import ProviderError, UsageError
from antiphon.input.ids import Fence
from antiphon.model import Decision, Wait
from antiphon.model.usage import Usage
from antiphon.wire.batches import ACCOUNTS, ANSWER, ERROR, KEPT_MS, Group, collect, leave
from antiphon_worker.loop.call_limits import with_an_end
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.step_events import answered
from antiphon_worker.loop.steps import StepBatched, batched_step
from antiphon_worker.loop.toolbox import StepWaits
from antiphon_worker.process.budgets import Attempt, BatchedHold, PaidProvider
from antiphon_worker.process.journal import TurnJournal, patiently
from antiphon_worker.process.lease import Stop, StopSignal
from antiphon_worker.process.requests import KeepingProvider
from antiphon_worker.providers.base import Increment, ModelRequest, Outlet, Provider, StepResult
from antiphon_worker.providers.batches import BatchEndpoint, batched_body
from antiphon_worker.providers.service import ModelService
from antiphon_worker.providers.stream.increments import AnswerStream
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.batches")

KEPT_HEADERS = ("anthropic-beta",)
"""Headers that change the meaning of a request; they are the same for all requests of a batch."""


def in_batches(
    provider: Provider, inp: LoopInput, attempt: Attempt, journal: TurnJournal, over: Mapping[str, Decision],
    settings: Settings,
) -> Provider:  # fmt: skip
    """Return a provider that answers the steps of the turn in batches, and let fallbacks with batches do the same.

    ``over`` contains the waits that have ended. Raises ``UsageError`` for a turn that cannot be answered in batches.
    """
    if not attempt.cell.has_disk:
        raise UsageError('service="batch" needs workers: without redis=, nothing continues the turn later.')
    steps = _Steps(attempt, journal, over, settings)

    def batched(one: Provider, place: int = 0) -> Provider:
        service = one
        while isinstance(service, PaidProvider | KeepingProvider):
            service = service.provider
        if not isinstance(service, ModelService) or (endpoint := service.batches) is None:
            return one
        return BatchedProvider(one, service, endpoint, steps, place)

    found = batched(provider)
    if found is provider:
        raise UsageError(
            'service="batch" needs a model service with batches, such as openai or anthropic, '
            f"and {provider.name} has none."
        )
    if inp.fallback is not None:
        inp.fallback = inp.fallback.placed(batched)
    return found


class BatchedProvider:
    """A model service whose answers to the steps of one turn come from its batches.

    ``usual`` makes the calls that are not steps, and those that a batch does not answer. It is the ``service``, or a
    provider that charges the calls of the service. ``place`` is the place of the model among the agent's fallbacks.
    """

    def __init__(
        self, usual: Provider, service: ModelService, endpoint: BatchEndpoint, steps: _Steps, place: int
    ) -> None:
        self.usual = usual
        self.service = service
        self.endpoint = endpoint
        self.steps = steps
        self.place = place

    @property
    def name(self) -> str:
        return self.usual.name

    def stream(self, request: ModelRequest) -> AsyncIterator[Increment]:
        """Return the call, for ``answered``."""
        if not request.step:
            return self.usual.stream(request)
        return cast("AsyncIterator[Increment]", _BatchedCall(self, request))

    async def aclose(self) -> None:
        await self.usual.aclose()


class _BatchedCall:
    def __init__(self, batched: BatchedProvider, request: ModelRequest) -> None:
        self._batched = batched
        self._request = request
        self._usual: AsyncIterator[Increment] | None = None

    @property
    def counted(self) -> Usage:
        """What the service has counted so far."""
        return getattr(self._usual, "counted", Usage())

    async def into(self, outlet: Outlet) -> StepResult:
        """Put the answer into the outlet. Raises ``StepWaits`` if the batch has not answered yet."""
        usual = self._batched.usual
        step = _BatchedStep(self._batched, self._request)
        over = await step.over()
        said = (over and over.arguments) or {}
        error = said.get(ERROR) or "no batch has answered it in time"
        if said.get(ANSWER):
            try:
                return await step.answer(said[ANSWER].encode(), outlet)
            except ProviderError as exc:
                error = exc.message
        turn = self._batched.steps.turn_id
        log.info(
            "turn %s: step %d goes to the usual endpoint: %s", turn, self._request.step, error,
            extra={"action": "batch_fallback", "turn": turn},
        )  # fmt: skip
        await step.give_up(answered=bool(said))
        self._usual = stream = usual.stream(self._request)
        return await answered(stream, outlet)


class _Sent(msgspec.Struct):
    body: bytes


class _BatchedStep:
    """One step requested in a batch, and its hold on the turn's budgets."""

    def __init__(self, batched: BatchedProvider, request: ModelRequest) -> None:
        self._steps = batched.steps
        self._place = batched.place
        self._part = batched.endpoint.price
        self._paid = batched.usual if isinstance(batched.usual, PaidProvider) else None
        inner = batched.usual if self._paid is None else self._paid.provider
        self._keeping = inner if isinstance(inner, KeepingProvider) else None
        request = request if self._paid is None else with_an_end(request)
        params = {name: value for name, value in request.params.items() if name != "background"}
        self._request = msgspec.structs.replace(request, keeper=None, gate=None, params=params)
        self._stream: AnswerStream = batched.service.stream(self._request)
        call = self._stream.call
        headers = {
            name.lower(): value for name, value in call.headers.items() if name.lower() in KEPT_HEADERS
        }
        account = self._steps.account(batched.service)
        self._group = Group(
            batched.service.name, call.path, request.model, tuple(sorted(headers.items())), account
        )
        self._asked: StepBatched | None = None

    async def over(self) -> Decision | None:
        """Return the decision about the step. Raises ``StepWaits`` if its answer is still awaited."""
        asked = self._asked = await self._steps.asked(self._request.step, self._place, self._group)
        wait = Wait("", f"batch#{asked.step}.{asked.id[:8]}", "batch")
        if wait.id in self._steps.decisions:
            return self._steps.decisions[wait.id]
        if self._paid is not None:
            held = self._held(asked)
            await self._paid.purse.hold(self._request, switched=self._paid.switched, batched=held)
        sent = _Sent(batched_body(self._stream.body))
        if self._keeping is not None:
            await self._keeping.keep(self._request, sent, asked.step)
        await self._steps.collect(asked, wait, sent.body)
        raise StepWaits(wait)

    async def answer(self, body: bytes, outlet: Outlet) -> StepResult:
        """Put the answer of the batch into the outlet, and settle its cost. Raises ``ProviderError``."""
        assert self._asked is not None
        result = await self._stream.from_whole(body, outlet)
        price = self._steps.prices.price(result.model) or self._steps.prices.price(self._request.model)
        usual = price.of(result.usage) if price is not None and result.usage.cost is None else None
        if usual is not None:
            result.usage = msgspec.structs.replace(result.usage, cost=usual * self._part)
        if self._paid is not None:
            hold = await self._paid.purse.held(self._request, self._held(self._asked))
            await self._paid.purse.settle_answer(hold, self._request, result)
        return result

    async def give_up(self, *, answered: bool) -> None:
        """Drop the batch's answer. If the service may charge for it, its hold counts as used."""
        assert self._asked is not None
        sent = False if answered else await self._steps.leave(self._asked)
        if self._paid is not None and not sent:
            hold = await self._paid.purse.held(self._request, self._held(self._asked))
            await self._paid.purse.settle(hold, 0, 0)

    def _held(self, asked: StepBatched) -> BatchedHold:
        return BatchedHold(Fence(asked.fence), self._part, self._steps.lasts_ms)


class _Steps:
    """What the batched steps of one attempt at a turn share."""

    def __init__(
        self, attempt: Attempt, journal: TurnJournal, decisions: Mapping[str, Decision], settings: Settings
    ) -> None:
        self.decisions = decisions
        self.prices = attempt.prices
        self.turn_id = attempt.turn.turn_id
        self.lasts_ms = int(settings.batch_deadline * 1000) + KEPT_MS
        self._attempt = attempt
        self._journal = journal
        self._settings = settings

    async def asked(self, step: int, place: int, group: Group) -> StepBatched:
        """Return the request of a step to the model at this place. A new one is written to the journal first."""
        known = batched_step(self._journal.entries, step)
        if known is not None and known.place == place and Group.of(known.group).asked == group.asked:
            return known
        until = await self._journal.now() + int(self._settings.batch_deadline * 1000)
        step_id = secrets.token_hex(16)
        fence = f"{self._attempt.turn.fence.partition('-')[0]}~{step_id}"
        entry = StepBatched(step, str(group), step_id, until, fence, place=place)
        await self._journal.append([entry], [])
        return entry

    async def collect(self, asked: StepBatched, wait: Wait, body: bytes) -> None:
        """Submit the step for a batch. Repeating it changes nothing."""
        attempt, settings, group = self._attempt, self._settings, Group.of(asked.group)
        wait.seconds = max(asked.until - await self._journal.now(), 0) / 1000
        held = await patiently(
            attempt.lease,
            lambda: collect(
                attempt.cell, attempt.turn, asked.id, wait.id, group, body,
                seconds=settings.batch_seconds, size=settings.batch_size, lasts=wait.seconds,
            ),
        )  # fmt: skip
        if not held:
            attempt.lease.end(Stop.SUPERSEDED, at_once=False)
            raise StopSignal(Stop.SUPERSEDED)

    async def leave(self, asked: StepBatched) -> bool:
        """Withdraw the step. Return whether it was already in a batch, whose answer is then dropped."""
        group = Group.of(asked.group)
        return await patiently(self._attempt.lease, lambda: leave(self._attempt.cell, asked.id, group))

    def account(self, service: ModelService) -> str:
        """Return the stored digest of the service's account. Raises ``ProviderError`` without a key."""
        return self._attempt.cell.seal.digests(ACCOUNTS, service.account())[0]
