"""Delivers signed completion events to webhooks.

1. One script turns new completion events into deliveries of the webhooks that want them, so none is created twice.
2. A webhook with due deliveries is held by one worker for a limited time.
3. A delivery that the endpoint acknowledges is noted immediately. Others are retried later, for a day.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from antiphon.errors import AgentError, KeyMissing, SealBroken, StoreError
from antiphon.events import Event
from antiphon.model import encode
from antiphon.redis.all_events import is_agent, read_events
from antiphon.text import text_of, time_text
from antiphon.wire.cell import Cell
from antiphon.wire.lists.notices import Notice, agents_of, tenants_of
from antiphon.wire.lists.webhooks import (
    DamagedWebhook,
    Delivery,
    Taken,
    What,
    release_webhook,
    settle,
    take_webhook,
)
from antiphon_worker.deliveries import TIMEOUT_SECONDS, verdict
from antiphon_worker.pushes import Pusher

if TYPE_CHECKING:
    from antiphon_worker.providers.http.posting import Poster


SECRET_PREFIX = "whsec_"


def message_of(event: Event) -> bytes:
    """Return the body: type, timestamp, and the event as published. It is the same in every try."""
    head = f'{{"type":"{event.type}","timestamp":"{time_text(event.at)}","data":'
    return head.encode() + encode(event) + b"}"


def signed_headers(secrets: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message sent now (``at``, in seconds), with a signature for each secret."""
    signed = f"{message_id}.{at}.".encode() + body
    signatures = [
        base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()
        for secret in secrets.split()
    ]
    return {
        "content-type": "application/json",
        "user-agent": "antiphon",
        "webhook-id": message_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }


def _key(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix(SECRET_PREFIX))


log = logging.getLogger("antiphon.webhooks")

PAUSE_SECONDS = 1.0
LEASE_SECONDS = 20.0
LOST_SECONDS = 2.0
"""How long a webhook is left alone after its worker was lost, in seconds."""
AT_ONCE = 10
"""How many requests to one endpoint run concurrently."""
OUTAGE_PAUSE_SECONDS = 0.2
LEAVE_SECONDS = 3.0


class Deliverer:
    """Checks once a second, and immediately if there is more to do."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._poster: Poster | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._again = asyncio.Event()
        self._pusher = Pusher(cell, self._post_office, self._again.set)
        self._stopping = False
        self._warned = False

    async def run(self) -> None:
        """Deliver until cancelled. Requests that are still running then get a moment to end."""
        try:
            while True:
                self._again.clear()
                await self._take_all()
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_SECONDS):
                        await self._again.wait()
        except ImportError:
            log.warning(
                "webhooks are left to workers with the packages of antiphon[worker]",
                extra={"action": "webhooks_left"},
            )
        finally:
            self._stopping = True
            await self._leave()

    async def _take_all(self) -> None:
        """Take webhooks while some have due deliveries."""
        try:
            while True:
                until = time.monotonic() + LEASE_SECONDS - TIMEOUT_SECONDS
                taken, handed = await take_webhook(
                    self._cell, int(LEASE_SECONDS * 1000), int(LOST_SECONDS * 1000)
                )
                if handed.missed:
                    log.error(
                        "webhooks were not told of all ends behind %s: no worker has looked for too long",
                        handed.missed,
                        extra={"action": "webhooks_missed"},
                    )  # fmt: skip
                if isinstance(taken, DamagedWebhook):
                    log.error("webhook %s is damaged: %s", *taken, extra={"action": "webhook_damaged"})
                elif taken is not None:
                    task = asyncio.create_task(
                        self._deliver(self._post_office(), taken, until), name="antiphon webhook"
                    )
                    self._tasks.add(task)
                    task.add_done_callback(self._done)
                elif not handed.more:
                    if handed.pushes:
                        await self._pusher.take_all()
                    return
        except (KeyMissing, SealBroken) as exc:
            if not self._warned:
                log.error(
                    "a webhook is left to others: %s", exc.message, extra={"action": "webhook_unreadable"}
                )
            self._warned = True
        except StoreError as exc:
            if not exc.retryable:
                raise
            return  # the consumer logs the error

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._again.set()
        if not task.cancelled() and (exc := task.exception()) is not None:
            name = type(exc).__name__  # its text may hold a secret
            log.error("deliveries to a webhook broke: %s", name, extra={"action": "webhook_broke"})

    def _post_office(self) -> Poster:
        if self._poster is None:
            from antiphon_worker.providers.http.posting import Poster

            self._poster = Poster()
        return self._poster

    async def _deliver(self, poster: Poster, taken: Taken, until: float) -> None:
        """Deliver what is due to one webhook, then release it."""
        try:
            wanted = await self._wanted(taken)
            while wanted and not self._stopping:
                some, wanted = wanted[:AT_ONCE], wanted[AT_ONCE:]  # events may be long: read a few at a time
                events = await self._events([each.notice for each in some])
                if time.monotonic() > until:
                    break  # another worker may hold the webhook before these are answered
                await asyncio.gather(
                    *(self._deliver_one(poster, taken, each, events.get(each.notice.id)) for each in some)
                )
            await release_webhook(self._cell, taken)
        except StoreError:
            return  # its lease ends

    async def _events(self, notices: list[Notice]) -> dict[str, Event]:
        """Read events with the tenants of their turns, which the entries of deliveries lack."""
        tenants = await tenants_of(self._cell, [one.turn_id for one in notices])
        known = [one._replace(tenant=tenant) for one, tenant in zip(notices, tenants, strict=True)]
        return await read_events(self._cell, known)

    async def _wanted(self, taken: Taken) -> list[Delivery]:
        """Return the deliveries for turns of the webhook's agent, if it names one; settle the others as skipped."""
        agent, due = text_of(taken.fields.get("agent")), taken.deliveries
        if not agent:
            return due
        stored = await agents_of(self._cell, [each.notice for each in due])
        wanted = [each for each, raw in zip(due, stored, strict=True) if is_agent(raw, agent)]
        others = [each for each in due if each not in wanted]
        await asyncio.gather(*(settle(self._cell, taken, each, "skipped") for each in others))
        return wanted

    async def _deliver_one(
        self, poster: Poster, taken: Taken, delivery: Delivery, event: Event | None
    ) -> None:
        if event is None:
            await self._settle(taken, delivery, "dropped", 0, "the event is no longer kept")
            return
        body, secrets = message_of(event), text_of(taken.fields.get("secret"))
        headers = signed_headers(secrets, f"{event.turn_id}-{event.seq}", int(time.time()), body)
        url, private = text_of(taken.fields.get("url")), bool(taken.fields.get("private"))
        posted = await poster.post(url, body, headers, private=private, timeout=TIMEOUT_SECONDS)
        what, seconds = verdict(posted, (taken.now - delivery.at) / 1000)
        error = "" if what == "delivered" else posted.error or f"answered {posted.status}"
        if error:
            log.log(
                logging.ERROR if what == "dropped" else logging.WARNING, "webhook %s: %s, turn %s: %s", taken.name,
                error, event.turn_id, "given up" if what == "dropped" else f"again in {seconds:.0f} s",
                extra={"action": f"webhook_{what}", "turn": event.turn_id},
            )  # fmt: skip
        await self._settle(taken, delivery, what, int(seconds * 1000), error)

    async def _settle(self, taken: Taken, delivery: Delivery, what: What, ms: int, error: str) -> None:
        """Write the outcome of a delivery, as soon as Redis is reachable."""
        while True:
            try:
                await settle(self._cell, taken, delivery, what, ms, error)
                return
            except StoreError as exc:
                if not exc.retryable:
                    raise
                await asyncio.sleep(OUTAGE_PAUSE_SECONDS)

    async def _leave(self) -> None:
        tasks = self._tasks | self._pusher.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, AgentError):
                log.warning("a webhook could not be released: %s", outcome, extra={"action": "outage"})
        if self._poster is not None:
            await self._poster.aclose()
