"""Anthropic's Message Batches: an order of requests, and its results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping
from datetime import datetime
from typing import Any

import msgspec

from antiphon_worker.providers.batches import BatchAnswer, BatchEndpoint, BatchState, Found, Requests
from antiphon_worker.providers.http.connection import Call

PATH, PAGES, PAGE = "/v1/messages/batches", 10, 100
RUNNING = ("in_progress", "canceling")
CLOCKS_DIFFER_SECONDS = 60.0


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"{}")
    error: Any = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


class _Batch(msgspec.Struct):
    id: str
    processing_status: str = ""
    created_at: datetime | None = None
    request_counts: dict[str, int] | None = None


class _Page(msgspec.Struct):
    data: list[_Batch] | None = None
    has_more: bool | None = False


class AnthropicBatches(BatchEndpoint):
    """The service stores no labels: a batch of the same size and time may be the one, which its results show."""

    async def order(self, label: str, path: str, requests: Requests, headers: Mapping[str, str]) -> Call:
        """Return the call that sends the batch."""
        items = b",".join(b'{"custom_id":"%s","params":%s}' % (one.encode(), body) for one, body in requests)
        return Call(PATH, b'{"requests":[' + items + b"]}", dict(headers))

    async def find(self, label: str, count: int, since: float, others: Container[str]) -> Found | None:
        """Return a batch of this size that was sent since, which may be the one. The latest are listed first."""
        query: dict[str, Any] = {"limit": PAGE}
        for _ in range(PAGES):
            page = await self._json(Call(PATH, b"", query=query, method="GET"), _Page)
            for batch in page.data or ():
                if batch.created_at is None:
                    continue
                if batch.created_at.timestamp() < since - CLOCKS_DIFFER_SECONDS:
                    return None
                if sum((batch.request_counts or {}).values()) == count and batch.id not in others:
                    return Found(batch.id, False)
            if not page.has_more or not page.data:
                break
            query["after_id"] = page.data[-1].id
        return None

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress of a batch."""
        batch = await self._json(Call(f"{PATH}/{batch_id}", b"", method="GET"), _Batch)
        if batch.processing_status in RUNNING:
            return BatchState("running")
        return BatchState("ended" if batch.processing_status == "ended" else "checked")

    async def answers(self, batch_id: str, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Read the results, in any order."""
        async for answer in self._each(Call(f"{PATH}/{batch_id}/results", b"", method="GET"), self._answer):
            yield answer

    def _answer(self, line: bytes) -> BatchAnswer:
        found = self._decoded(line, _Line)
        if found.result.type == "succeeded":
            return BatchAnswer(found.custom_id, bytes(found.result.message))
        return BatchAnswer(found.custom_id, error=f"{found.result.type} {found.result.error or ''}".strip())

    async def cancel(self, batch_id: str) -> None:
        """Ask the service to cancel the rest of a batch."""
        await self._call(Call(f"{PATH}/{batch_id}/cancel", b""))

    async def forget(self, batch_id: str, state: BatchState) -> None:
        """Delete the batch with its results."""
        await self._delete(f"{PATH}/{batch_id}")
