"""Sends push notifications about single turns over A2A: the new state of the turn's task."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from antiphon.errors import StoreError
from antiphon.model import encode
from antiphon.text import time_text
from antiphon.wire.cell import Cell
from antiphon.wire.pushes import Due, Push, settle_push, take_pushes
from antiphon_worker.deliveries import GIVEN_UP_SECONDS, TIMEOUT_SECONDS, seconds_until_next, verdict

if TYPE_CHECKING:
    from antiphon_worker.providers.http.posting import Poster

log = logging.getLogger("antiphon.webhooks")

STATES = {
    "turn_finished": "TASK_STATE_COMPLETED", "turn_failed": "TASK_STATE_FAILED",
    "turn_cancelled": "TASK_STATE_CANCELED", "turn_suspended": "TASK_STATE_INPUT_REQUIRED",
}  # fmt: skip
"""The states of a task, by the types of the events that cause them."""
MEDIA_TYPE = "application/a2a+json"
LEASE_SECONDS = 30.0
MOST_BATCHES = 20
AT_ONCE = 10
"""How many requests to one endpoint a worker may run concurrently."""
PATIENCE_SECONDS = 1.0
"""How long a notification waits for others to the same endpoint, in seconds; then it is retried later."""
OUTAGE_PAUSE_SECONDS = 0.2


def message_of(due: Due) -> bytes:
    """Return the body: an update of the task's status. It is the same in every try."""
    status = {"state": STATES[due.kind], "timestamp": time_text(due.at)}
    update = {"taskId": due.turn_id, "contextId": due.session_id, "status": status}
    return encode({"statusUpdate": update})


def headers_of(push: Push) -> dict[str, str]:
    """Return the headers. Clients in different languages look for the token under different names."""
    headers = {"content-type": MEDIA_TYPE, "user-agent": "antiphon"}
    if push.token:
        headers |= {"x-a2a-notification-token": push.token, "a2a-notification-token": push.token}
    if push.scheme and push.credentials:
        headers["authorization"] = f"{push.scheme} {push.credentials}"
    return headers


def endpoint_of(url: str) -> str:
    """Return the host and port of a URL in a normal form."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    with suppress(ValueError):  # it is a name
        host = str(ip_address(host))
    return f"{host} {parts.port or (443 if parts.scheme == 'https' else 80)}"


class Pusher:
    """Sends due notifications, in tasks of its own. ``again`` is called when one of these tasks has ended."""

    def __init__(self, cell: Cell, poster: Callable[[], Poster], again: Callable[[], None]) -> None:
        self._cell, self._poster, self._again = cell, poster, again
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: Counter[str] = Counter()
        self._freed = asyncio.Condition()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks that are sending."""
        return self._tasks

    async def take_all(self) -> None:
        """Take notifications while some are due. Raises ``StoreError``."""
        while len(self._tasks) < MOST_BATCHES:
            until = time.monotonic() + LEASE_SECONDS - 2 * TIMEOUT_SECONDS
            taken, now, more = await take_pushes(self._cell, int(LEASE_SECONDS * 1000))
            if taken:
                task = asyncio.create_task(self._send_all(taken, now, until), name="antiphon pushes")
                self._tasks.add(task)
                task.add_done_callback(self._done)
            if not more:
                return

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._again()
        if not task.cancelled() and (exc := task.exception()) is not None:
            name = type(exc).__name__  # its text may hold a secret
            log.error("notifications about turns broke: %s", name, extra={"action": "push_broke"})

    async def _send_all(self, taken: list[Due], now: int, until: float) -> None:
        await asyncio.gather(*(self._send(due, now, until) for due in taken))

    async def _send(self, due: Due, now: int, until: float) -> None:
        push, age = due.push, (now - due.since) / 1000
        later = seconds_until_next(age) if age < GIVEN_UP_SECONDS else None
        if push is None:
            log.warning(
                "a notification about turn %s %s", due.turn_id,
                "is left to workers that have its key" if due.locked else "cannot be read",
                extra={"action": "push_locked" if due.locked else "push_unreadable", "turn": due.turn_id},
            )  # fmt: skip
            await self._settle(due, later)
            return
        if due.kind not in push.kinds or due.kind not in STATES:
            await self._settle(due, None)
            return
        origin = endpoint_of(push.url)
        if not await self._may_start(origin, until):
            await self._settle(due, later)
            return
        try:
            posted = await self._poster().post(
                push.url, message_of(due), headers_of(push), private=push.private, timeout=TIMEOUT_SECONDS
            )
        finally:
            await self._ended(origin)
        what, seconds = verdict(posted, age)
        if what != "delivered":
            log.warning(
                "a notification about turn %s: %s, %s", due.turn_id, posted.error or f"answered {posted.status}",
                "given up" if what == "dropped" else f"again in {seconds:.0f} s",
                extra={"action": f"push_{what}", "turn": due.turn_id},
            )  # fmt: skip
        await self._settle(due, seconds if what == "later" else None)

    async def _may_start(self, origin: str, until: float) -> bool:
        """Count one more request to an endpoint, once few are running. Returns False if that takes too long."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._freed:
                await self._freed.wait_for(lambda: self._under_way[origin] < AT_ONCE)
                if time.monotonic() > until:  # another worker may have it before the answer
                    return False
                self._under_way[origin] += 1
        except TimeoutError:
            return False
        return True

    async def _ended(self, origin: str) -> None:
        self._under_way[origin] -= 1
        if not self._under_way[origin]:
            del self._under_way[origin]
        async with self._freed:
            self._freed.notify_all()

    async def _settle(self, due: Due, seconds: float | None) -> None:
        """Write the outcome of a notification, as soon as Redis is reachable."""
        while True:
            try:
                await settle_push(self._cell, due, None if seconds is None else int(seconds * 1000))
                return
            except StoreError as exc:
                if not exc.retryable:
                    raise
                await asyncio.sleep(OUTAGE_PAUSE_SECONDS)
