"""What counts the answers of a gateway, if somebody asked for metrics. Without it, nothing is done for them."""

from __future__ import annotations

import time
from typing import Any, Protocol

from antiphon_gateway.http.streams import EventStream

__all__ = ["CountedStream", "Counting"]


class Counting(Protocol):
    """Counts what a gateway answers and sends."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None: ...
    def refused(self, limit: str) -> None: ...
    def sent(self, chunk: bytes, began: float) -> None: ...


class CountedStream(EventStream):
    """A stream whose messages are counted."""

    def __init__(self, *args: Any, counting: Counting, **more: Any) -> None:
        super().__init__(*args, **more)
        self._counting = counting
        self._began = time.time()

    async def _write(self, message: bytes) -> None:
        await super()._write(message)
        self._counting.sent(message, self._began)
