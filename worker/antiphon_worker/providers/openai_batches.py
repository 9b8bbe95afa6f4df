"""OpenAI's Batch API, and that of compatible services: files of requests and of answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Mapping
from typing import Any

import msgspec

from antiphon_worker.providers.batches import (
    BatchAnswer,
    BatchEndpoint,
    BatchState,
    Found,
    Named,
    Requests,
    Unreadable,
)
from antiphon_worker.providers.http.connection import Call, Upload
from antiphon_worker.providers.openai_sdk import is_openai

RUNNING, ENDED = ("in_progress", "finalizing", "cancelling"), ("completed", "failed", "expired", "cancelled")
FULL = ("token_limit_exceeded", "request_limit_exceeded")
"""Error codes of a batch that was refused because too much is queued already."""
LABEL = "antiphon"
KEPT_SECONDS = 2 * 24 * 3600
"""The service deletes the files after this time if no worker has."""
PAGES, PAGE = 10, 100


class _Response(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"{}")


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: dict[str, Any] | None = None


class _Problem(msgspec.Struct):
    code: str | None = None
    message: str | None = None


class _Problems(msgspec.Struct):
    data: list[_Problem] | None = None


class _Batch(msgspec.Struct):
    id: str
    status: str = ""
    metadata: dict[str, Any] | None = None
    errors: _Problems | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def problems(self) -> list[_Problem]:
        return (self.errors and self.errors.data) or []


class _Page(msgspec.Struct):
    data: list[_Batch] | None = None
    has_more: bool | None = False


class OpenAIBatches(BatchEndpoint):
    """Finds a batch by its label, which is part of its metadata."""

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
        file = await self._json(Call("/files", b"", upload=upload), Named)
        order = {
            "input_file_id": file.id,
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
            page = await self._json(Call("/batches", b"", query=query, method="GET"), _Page)
            for batch in page.data or ():
                if (batch.metadata or {}).get(LABEL) == label:
                    return Found(batch.id, True)
            if not page.has_more or not page.data:
                break
            query["after"] = page.data[-1].id
        return None

    async def state(self, batch_id: str) -> BatchState:
        """Return the progress of a batch."""
        batch = await self._json(Call(f"/batches/{batch_id}", b"", method="GET"), _Batch)
        if batch.status not in ENDED:
            return BatchState("running" if batch.status in RUNNING else "checked")
        answers = [file for file in (batch.output_file_id, batch.error_file_id) if file]
        full = any(one.code in FULL for one in batch.problems) and not answers
        said = "; ".join(f"{one.message or one.code}" for one in batch.problems[:3])
        return BatchState(
            "full" if full else "ended", said or f"The batch is {batch.status}.", answers,
            [*answers, *([batch.input_file_id] if batch.input_file_id else [])],
        )  # fmt: skip

    async def answers(self, batch_id: str, state: BatchState) -> AsyncIterator[BatchAnswer]:
        """Read the answers, and then the errors."""
        unread: Unreadable | None = None
        for file in state.answers:
            try:
                async for answer in self._each(
                    Call(f"/files/{file}/content", b"", method="GET"), self._answer
                ):
                    yield answer
            except Unreadable as exc:
                unread = exc
        if unread is not None:
            raise unread

    def _answer(self, line: bytes) -> BatchAnswer:
        found = self._decoded(line, _Line)
        response = found.response
        if response is not None and response.status_code == 200:
            return BatchAnswer(found.custom_id, bytes(response.body))
        said = found.error or (response and bytes(response.body).decode("utf-8", "replace"))
        return BatchAnswer(found.custom_id, error=str(said))

    async def cancel(self, batch_id: str) -> None:
        """Ask the service to cancel the rest of a batch."""
        await self._call(Call(f"/batches/{batch_id}/cancel", b"{}"))

    async def forget(self, batch_id: str, state: BatchState) -> None:
        """Delete the files of the batch. The service keeps the batch itself, which contains nothing of them."""
        for file in state.files:
            await self._delete(f"/files/{file}")
