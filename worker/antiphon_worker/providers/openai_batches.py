"""OpenAI's Batch API, and that of compatible services: files of requests and of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from antiphon.errors import ProviderError
from antiphon_worker.providers.batches import BatchAnswer, BatchEndpoint, BatchState, Found, Requests
from antiphon_worker.providers.http.connection import Call, Upload
from antiphon_worker.providers.openai_sdk import is_openai

RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
FULL = ("token_limit_exceeded", "request_limit_exceeded")
"""Codes of a batch that was refused because too much is waiting already."""
LABEL = "antiphon"
KEPT_SECONDS = 2 * 24 * 3600
"""The service deletes the files after this time, should no worker do it."""
PAGES, PAGE = 10, 100


class _Response(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"{}")


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: dict[str, Any] | None = None


_line = msgspec.json.Decoder(_Line)


class OpenAIBatches(BatchEndpoint):
    """The metadata of a batch has its label, by which it is found again."""

    async def order(self, label: str, path: str, requests: Requests, headers: Mapping[str, str]) -> Call:
        """Upload the requests, and return the call that sends the batch."""
        lines = b"".join(
            b'{"custom_id":"%s","method":"POST","url":"/v1%s","body":%s}\n'
            % (one.encode(), path.encode(), body)
            for one, body in requests
        )
        own = is_openai(self._connection.options.base_url)
        ends = {"anchor": "created_at", "seconds": KEPT_SECONDS} if own else None
        fields: dict[str, Any] = {"purpose": "batch"} | ({"expires_after": ends} if ends else {})
        upload = Upload(f"{label}.jsonl", lines, fields)
        file = await self._json(Call("/files", b"", upload=upload))
        order = {
            "input_file_id": file["id"],
            "endpoint": f"/v1{path}",
            "completion_window": "24h",
            "metadata": {LABEL: label},
            **({"output_expires_after": ends} if ends else {}),
        }
        return Call("/batches", msgspec.json.encode(order))

    async def find(self, label: str, count: int, since: float, others: Container[str]) -> Found | None:
        """Return the batch with this label."""
        query: dict[str, Any] = {"limit": PAGE}
        for _ in range(PAGES):
            page = await self._json(Call("/batches", b"", query=query, method="GET"))
            for batch in page.get("data") or ():
                if (batch.get("metadata") or {}).get(LABEL) == label:
                    return Found(str(batch["id"]), True)
            if not page.get("has_more") or not page.get("data"):
                break
            query["after"] = page["data"][-1]["id"]
        return None

    async def state(self, batch_id: str) -> BatchState:
        """Return how far a batch is."""
        batch = await self._json(Call(f"/batches/{batch_id}", b"", method="GET"))
        if batch.get("status") in RUNNING:
            return BatchState("checked" if batch["status"] == "validating" else "running")
        errors: list[dict[str, Any]] = (batch.get("errors") or {}).get("data") or []
        files: list[str] = [batch[name] for name in ("output_file_id", "error_file_id") if batch.get(name)]
        full = any(one.get("code") in FULL for one in errors) and not files
        said = "; ".join(f"{one.get('message') or one.get('code')}" for one in errors[:3])
        return BatchState(
            "full" if full else "ended", said or f"The batch is {batch.get('status')}.",
            [*files, batch["input_file_id"]],
        )  # fmt: skip

    async def answers(self, batch_id: str, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Read the answers, and then the errors."""
        for file in state.files[:-1]:
            async for line in self._lines(Call(f"/files/{file}/content", b"", method="GET")):
                yield self._answer(line)

    def _answer(self, line: bytes) -> BatchAnswer:
        try:
            found = _line.decode(line)
        except (msgspec.MsgspecError, UnicodeError) as exc:
            raise self._broken(exc) from exc
        response = found.response
        if response is not None and response.status_code == 200:
            return BatchAnswer(found.custom_id, bytes(response.body))
        said = found.error or (msgspec.json.decode(response.body) if response else None)
        return BatchAnswer(found.custom_id, error=str(said))

    async def cancel(self, batch_id: str) -> None:
        """Ask the service to run no more of a batch."""
        await self._json(Call(f"/batches/{batch_id}/cancel", b"{}"))

    async def forget(self, batch_id: str, state: BatchState) -> None:
        """Delete the files of the batch. The service keeps the batch itself, which holds nothing of them."""
        for file in state.files:
            with suppress(ProviderError):
                await self._json(Call(f"/files/{file}", b"", method="DELETE"))
