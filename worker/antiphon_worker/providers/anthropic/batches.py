"""Anthropic's Message Batches: an order of requests, and its results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from antiphon.errors import ProviderError
from antiphon_worker.providers.batches import BatchAnswer, BatchEndpoint, BatchState, Found, Requests
from antiphon_worker.providers.http.connection import Call

PATH, PAGE = "/v1/messages/batches", 100
CLOCKS_DIFFER_SECONDS = 60.0


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw(b"{}")
    error: Any = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


_line = msgspec.json.Decoder(_Line)


class AnthropicBatches(BatchEndpoint):
    """The service keeps no label of a batch: one of the same size and time may be meant, and its results tell."""

    async def order(self, label: str, path: str, requests: Requests, headers: Mapping[str, str]) -> Call:
        """Return the call that sends the batch."""
        items = b",".join(b'{"custom_id":"%s","params":%s}' % (one.encode(), body) for one, body in requests)
        return Call(PATH, b'{"requests":[' + items + b"]}", dict(headers))

    async def find(self, label: str, count: int, since: float, others: Container[str]) -> Found | None:
        """Return a batch of this size that was sent since, which may be the one."""
        page = await self._json(Call(PATH, b"", query={"limit": PAGE}, method="GET"))
        for batch in page.get("data") or ():
            made = datetime.fromisoformat(batch["created_at"]).timestamp()
            counts: dict[str, int] = batch.get("request_counts") or {}
            total = sum(counts.values())
            if made >= since - CLOCKS_DIFFER_SECONDS and total == count and batch["id"] not in others:
                return Found(str(batch["id"]), False)
        return None

    async def state(self, batch_id: str) -> BatchState:
        """Return how far a batch is."""
        batch = await self._json(Call(f"{PATH}/{batch_id}", b"", method="GET"))
        return BatchState("ended" if batch.get("processing_status") == "ended" else "running")

    async def answers(self, batch_id: str, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Read the results, in any order."""
        async for line in self._lines(Call(f"{PATH}/{batch_id}/results", b"", method="GET")):
            try:
                found = _line.decode(line)
            except (msgspec.MsgspecError, UnicodeError) as exc:
                raise self._broken(exc) from exc
            result = found.result
            if result.type == "succeeded":
                yield BatchAnswer(found.custom_id, bytes(result.message))
            else:
                yield BatchAnswer(found.custom_id, error=f"{result.type} {result.error or ''}".strip())

    async def cancel(self, batch_id: str) -> None:
        """Ask the service to run no more of a batch."""
        await self._json(Call(f"{PATH}/{batch_id}/cancel", b""))

    async def forget(self, batch_id: str, state: BatchState) -> None:
        """Delete the batch with its results."""
        with suppress(ProviderError):
            await self._json(Call(f"{PATH}/{batch_id}", b"", method="DELETE"))
