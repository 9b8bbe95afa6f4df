"""Logs at startup which Redis is unreachable, and when it is reachable again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from antiphon.errors import StoreError, StoreUnsupported
from antiphon.wire.connection.open import open_redis, redact
from antiphon.wire.errors import asked

log = logging.getLogger("antiphon.gateway")

AGAIN_SECONDS = 1.0


@asynccontextmanager
async def reaching(urls: Iterable[str]) -> AsyncGenerator[None]:
    """Try each Redis until it has answered once, while this lasts. Ends with ``StoreUnsupported`` if one refuses us."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_reach(url)) for url in urls]
            yield
            for task in tasks:
                task.cancel()
    except* StoreUnsupported as refused:
        raise refused.exceptions[0] from None


async def _reach(url: str) -> None:
    began = time.monotonic()
    async with open_redis(url, retries=0) as redis:
        failure = await _failure(redis)
        if failure is None:
            return
        log.warning(
            "%s: %s Requests fail until it answers; trying again.", redact(url), failure,
            extra={"action": "outage_began"},
        )  # fmt: skip
        while await _failure(redis) is not None:  # noqa: ASYNC110 - what is waited for is in another process
            await asyncio.sleep(AGAIN_SECONDS)
        log.info(
            "%s: Redis answers after %.1f s", redact(url), time.monotonic() - began,
            extra={"action": "outage_ended"},
        )  # fmt: skip


async def _failure(redis: Any) -> StoreError | None:
    """Why this Redis does not answer, or None if it does. Raises ``StoreUnsupported``."""
    try:
        await asked(redis.ping())
    except StoreUnsupported:
        raise
    except StoreError as exc:
        return exc
    return None
