"""Sends batched steps to model services, and delivers their answers. A batch is held by one worker at a time.

1. Steps are collected by provider and model; when they are due, one script makes a batch of them.
2. The batch is sent under a label, and its id is noted. If the worker dies in between, the batch is looked up by its
   label before it is sent again.
3. A sent batch is polled. Once it has ended, each answer is delivered to its turn. A step without an answer gets an
   error: its turn uses the usual endpoint.
4. When all turns have their answers, the batch is deleted at the service, then here.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from antiphon.errors import AgentError, CorruptRecord, ProviderError, ProviderUnauthorized, StoreError
from antiphon.wire.batches import (
    ACCOUNTS,
    LABEL_BYTES,
    UNSURE,
    TakenBatch,
    deliver,
    known_batches,
    note,
    providers_with_batches,
    requests_of,
    take_batch,
)
from antiphon.wire.cell import Cell
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.batches import BatchEndpoint, BatchState, Found, Unreadable
from antiphon_worker.providers.service import ModelService
from antiphon_worker.settings import Settings

log = logging.getLogger("antiphon.batches")

LEASE_SECONDS = 300.0
"""How long a worker may take to send a batch or read its answers, in seconds, before another one may take it."""
IDLE_SECONDS, BUSY_SECONDS = 5.0, 1.0
FULL_SECONDS = 300.0
"""How long a batch waits, in seconds, after the service refused it because too much is waiting there."""
READ_AT_ONCE = 50
MOST_UNREAD = 3
"""After this many unreadable answers about a batch, its turns go to the usual endpoint."""
GONE = 404
"""The status of a batch that the service does not have. Other errors may pass before the turns' deadlines."""


class Batcher:
    """Checks every few seconds, and every second while there are batches."""

    def __init__(
        self,
        cell: Cell,
        names: Sequence[str],
        provider: Callable[[str], Awaitable[Provider]],
        settings: Settings,
    ) -> None:
        self._cell = cell
        self._names = frozenset(names)
        self._provider = provider
        self._accounts: dict[
            str, list[str]
        ] = {}  # of providers with batches here; none for one without a key
        self._settings = settings

    async def run(self) -> None:
        """Send and deliver until cancelled."""
        while True:
            more = await self._take_all()
            pause = min(BUSY_SECONDS, self._settings.batch_poll) if more else IDLE_SECONDS
            await asyncio.sleep(pause)

    async def _take_all(self) -> bool:
        """Take batches while some are due. Returns whether any will be due later."""
        try:
            while True:
                accounts = [account for found in self._accounts.values() for account in found]
                batch, more = await take_batch(
                    self._cell, secrets.token_hex(LABEL_BYTES), accounts,
                    lease_ms=int(LEASE_SECONDS * 1000), size=self._settings.batch_size,
                )  # fmt: skip
                if batch is not None:
                    await self._work(batch)
                elif not more or not await self._learn():
                    return more
        except CorruptRecord as exc:
            log.error("a batch is left alone: %s", exc.message, extra={"action": "batch_damaged"})
            return True
        except StoreError as exc:
            if not exc.retryable:
                raise
            return True  # the consumer logs the error

    async def _learn(self) -> bool:
        """Open the providers with batches here that are not open yet. Returns whether there are any."""
        new = (await providers_with_batches(self._cell) & self._names) - self._accounts.keys()
        for name in new:
            self._accounts[name] = await self._accounts_of(name)
        return bool(new)

    async def _accounts_of(self, name: str) -> list[str]:
        """Return the accounts of a provider whose batches this worker can send and read."""
        try:
            found = await self._provider(name)
            if not isinstance(found, ModelService):
                return []
            return [f"{name} {one}" for one in self._cell.seal.digests(ACCOUNTS, found.account())]
        except AgentError as exc:
            log.info(
                "this worker leaves batches of %s to others: %s", name, exc.message,
                extra={"action": "batches_left"},
            )  # fmt: skip
            return []

    async def _work(self, batch: TakenBatch) -> None:
        """Do the next task of a batch. After an error of the service, the batch is retried later or ended."""
        try:
            endpoint = await self._endpoint(batch.group.provider)
            if batch.service_id:
                await self._look(batch, endpoint)
            else:
                await self._send(batch, endpoint)
        except StoreError:
            raise
        except AgentError as exc:
            log.warning(
                "batch %s of %s: %s", batch.label, batch.group.provider, exc.message,
                extra={"action": "batch_failed", "batch": batch.label},
            )  # fmt: skip
            await self._after(batch, exc)

    async def _after(self, batch: TakenBatch, error: AgentError) -> None:
        gone = getattr(error, "status", None) == GONE
        for_now = isinstance(error, ProviderUnauthorized) or not isinstance(error, ProviderError)
        if batch.unsure and gone:  # another process has sent and deleted it
            await note(self._cell, batch, "another", batch.sent_as)
        elif isinstance(error, Unreadable):
            await note(self._cell, batch, "unread", seconds=self._settings.batch_poll)
        elif error.retryable or for_now or (batch.service_id and not gone):
            await note(self._cell, batch, "later", seconds=self._settings.batch_poll)
        else:
            await self._end(batch, error.message)

    async def _endpoint(self, provider: str) -> BatchEndpoint:
        found = await self._provider(provider)
        endpoint = found.batches if isinstance(found, ModelService) else None
        if endpoint is None:
            raise ProviderError(f"The provider {provider} of this worker has no batches.", retryable=True)
        return endpoint

    async def _send(self, batch: TakenBatch, endpoint: BatchEndpoint) -> None:
        """Send a batch and note its id, unless an earlier worker already sent it before it died."""
        if batch.sending and (found := await self._found(batch, endpoint)) is not None:
            await self._sent(batch, found.id if found.sure else UNSURE + found.id)
            return
        if batch.unread >= MOST_UNREAD:
            await self._end(batch, "The answers of the service about its batch cannot be read.")
            return
        requests = await self._requests(batch)
        if not requests:
            await note(self._cell, batch, "over")
            return
        order = await endpoint.order(batch.label, batch.group.path, requests, dict(batch.group.headers))
        if await note(self._cell, batch, "sending", len(requests), seconds=LEASE_SECONDS):
            await self._sent(batch, await endpoint.create(order))

    async def _sent(self, batch: TakenBatch, service_id: str) -> None:
        log.info(
            "batch %s of %d steps was sent to %s as %s", batch.label, len(batch.steps), batch.group.provider,
            service_id, extra={"action": "batch_sent", "batch": batch.label},
        )  # fmt: skip
        await note(self._cell, batch, "sent", service_id, seconds=self._settings.batch_poll)

    async def _found(self, batch: TakenBatch, endpoint: BatchEndpoint) -> Found | None:
        """Look for a batch that another worker may have sent before it died."""
        others = await known_batches(self._cell) | batch.others
        return await endpoint.find(batch.label, batch.sending, batch.created / 1000, others)

    async def _requests(self, batch: TakenBatch) -> list[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        for first in range(0, len(batch.steps), READ_AT_ONCE):
            found += await requests_of(self._cell, batch.steps[first : first + READ_AT_ONCE])
        return found

    async def _look(self, batch: TakenBatch, endpoint: BatchEndpoint) -> None:
        state = await endpoint.state(batch.sent_as)
        match state.status:
            case "ended" if batch.steps or batch.unsure:
                await self._deliver(batch, endpoint, state)
            case "ended":
                await self._forget(batch, endpoint, state)
            case "full":
                await note(self._cell, batch, "again", seconds=FULL_SECONDS)
            case "checked":
                await note(self._cell, batch, "later", seconds=self._settings.batch_poll)
            case "running" if batch.unsure:
                await note(self._cell, batch, "later", seconds=self._settings.batch_poll)
            case "running":
                if not batch.steps:
                    with suppress(ProviderError):
                        await endpoint.cancel(batch.sent_as)  # no turn waits for it anymore
                await note(self._cell, batch, "running", seconds=self._settings.batch_poll)

    async def _deliver(self, batch: TakenBatch, endpoint: BatchEndpoint, state: BatchState) -> None:
        """Deliver the answers of an ended batch, and delete it once all turns have theirs."""
        left, ours, done = set(batch.steps), not batch.unsure, True
        try:
            async for answer in endpoint.answers(batch.sent_as, state):
                if not ours and answer.id in batch.all_steps:
                    ours = await note(self._cell, batch, "sent", batch.sent_as, seconds=LEASE_SECONDS)
                    if not ours:
                        return  # another worker holds it by now
                if answer.id in left:
                    left.discard(answer.id)
                    text = answer.body.decode("utf-8", "replace")
                    done &= await deliver(self._cell, answer.id, answer=text, error=answer.error) != "LATER"
        except Unreadable:
            if left and batch.unread < MOST_UNREAD:
                raise
        if not ours:
            await note(self._cell, batch, "another", batch.sent_as)
            return
        done &= await self._refuse(left, state.error or "The batch has no answer to it.")
        if done:
            await self._forget(batch, endpoint, state)
        else:
            await note(self._cell, batch, "later", seconds=self._settings.batch_poll)

    async def _forget(self, batch: TakenBatch, endpoint: BatchEndpoint, state: BatchState) -> None:
        """Delete a batch at the service, then here, so that a crash in between does no harm."""
        await endpoint.forget(batch.sent_as, state)
        await note(self._cell, batch, "over")

    async def _refuse(self, steps: Iterable[str], error: str) -> bool:
        """Send the turns of these steps to the usual endpoint. Returns False if some are not suspended yet."""
        return all([await deliver(self._cell, step, error=error) != "LATER" for step in steps])

    async def _end(self, batch: TakenBatch, error: str) -> None:
        """Send the turns of a batch that the service does not have to the usual endpoint."""
        if await self._refuse(batch.steps, error):
            await note(self._cell, batch, "over")
        else:
            await note(self._cell, batch, "later", seconds=self._settings.batch_poll)
