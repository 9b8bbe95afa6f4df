"""The batch endpoints of OpenAI and Anthropic in miniature, with their usual endpoints.

Responses about files and batches are built from the types of the SDKs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from anthropic.types.messages import DeletedMessageBatch, MessageBatch, MessageBatchIndividualResponse
from openai.types import Batch, FileDeleted, FileObject
from support.services.server import Server

Body: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Body], Body]


class Refused(Exception):
    """The service refuses one request with this status."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


def said_by(kind: str, text: str, *calls: tuple[str, Body]) -> Body:
    """Return a whole answer of a service: this text, or these tool calls. It has used 1,000 and 100 tokens."""
    named = [(f"call_{name}_{number}", name, given) for number, (name, given) in enumerate(calls)]
    return {"openai": _response, "openai-chat": _completion, "anthropic": _message}[kind](text, named)


def _response(text: str, calls: list[tuple[str, str, Body]]) -> Body:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output: list[Body] = [
        {
            "type": "function_call",
            "id": f"f{one}",
            "call_id": one,
            "name": name,
            "arguments": json.dumps(given),
        }
        for one, name, given in calls
    ]
    said = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}
    usage = {"input_tokens": 1000, "output_tokens": 100}
    base = {"id": "resp_1", "object": "response", "status": "completed", "model": "m"}
    return {**base, "output": output or [said], "usage": usage}


def _completion(text: str, calls: list[tuple[str, str, Body]]) -> Body:
    message: Body = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": one, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for one, name, given in calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    base = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**base, "choices": [choice], "usage": usage}


def _message(text: str, calls: list[tuple[str, str, Body]]) -> Body:
    blocks: list[Body] = [{"type": "text", "text": text}] if text else []
    blocks += [{"type": "tool_use", "id": one, "name": name, "input": given} for one, name, given in calls]
    base = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks}
    usage = {"input_tokens": 1000, "output_tokens": 100}
    return {**base, "stop_reason": "tool_use" if calls else "end_turn", "usage": usage}


class BatchServer(Server):
    """``async with BatchServer(answer) as server``: ``answer`` returns the answer to the body of each request.

    Batches run until ``finish``, or end immediately with ``quick``. ``before`` and ``after`` have functions that run
    before and after a call, ``<method> <path>``: they may raise ``Refused``, or wait.
    """

    def __init__(self, answer: Answer, *, quick: bool = True) -> None:
        super().__init__()
        self.answer = answer
        self.quick = quick
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Body] = {}  # of OpenAI
        self.messages: dict[str, Body] = {}  # of Anthropic
        self.requests: dict[str, list[Body]] = {}  # by batch
        self.usual: list[Body] = []  # requests to the usual endpoints
        self.heard: list[str] = []
        self.before: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}
        self.odd: dict[
            str, Iterator[Callable[[bytes], bytes]]
        ] = {}  # functions that change the answers to a call
        self.failing: dict[str, str] = {}  # by custom id, why a request has no answer
        self._ids = itertools.count(1)

    @property
    def orders(self) -> list[str]:
        """The ids of all batches, in order."""
        return list(self.requests)

    def finish(self, *batches: str, status: str = "completed", error: str = "") -> None:
        """End these batches, or all."""
        for batch_id in batches or self.orders:
            if batch_id in self.batches:
                self._end(batch_id, status, error)
            elif batch_id in self.messages:
                self.messages[batch_id]["processing_status"] = "ended"

    def _end(self, batch_id: str, status: str, error: str) -> None:
        batch = self.batches[batch_id]
        batch["status"] = status
        if error:
            batch["errors"] = {"object": "list", "data": [{"code": error, "message": error}]}
            return
        done, wrong = b"", b""
        for one in self.requests[batch_id]:
            try:
                if why := self.failing.get(one["custom_id"]) or self.failing.get("*"):
                    raise Refused(400, why)
                response: Body = {"status_code": 200, "request_id": "r", "body": self.answer(one["body"])}
            except Refused as exc:
                response = {
                    "status_code": exc.status,
                    "request_id": "r",
                    "body": {"error": {"message": str(exc)}},
                }
            line = {
                "id": f"batch_req_{next(self._ids)}",
                "custom_id": one["custom_id"],
                "response": response,
                "error": None,
            }
            if response["status_code"] == 200:
                done += json.dumps(line).encode() + b"\n"
            else:
                wrong += json.dumps(line).encode() + b"\n"
        for name, data in (("output_file_id", done), ("error_file_id", wrong)):
            if data:
                batch[name] = self._file(data)

    def _file(self, data: bytes) -> str:
        file_id = f"file-{next(self._ids)}"
        self.files[file_id] = data
        return file_id

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.split(" ", 2)
            length = re.search(r"(?i)content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            status, kind, said = await self._served(method, target, body)
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
                % (status, kind.encode(), len(said))
                + said
            )
            await writer.drain()

    async def _served(self, method: str, target: str, body: bytes) -> tuple[int, str, bytes]:
        path, _, query = target.partition("?")
        call = f"{method} {re.sub(r'(batch|msgbatch|file)[-_][0-9]+', '*', path)}"
        self.heard.append(call)
        try:
            await _done(self.before.get(call))
            said = self._called(method, path.strip("/").split("/")[1:], body, parse_qs(query))
            await _done(self.after.get(call))
        except Refused as exc:
            return (
                exc.status,
                "application/json",
                json.dumps({"error": {"type": "e", "message": str(exc)}}).encode(),
            )
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        if (odd := next(self.odd.get(call, iter(())), None)) is not None:
            data = odd(data)
        return 200, "application/octet-stream" if isinstance(said, bytes) else "application/json", data

    def _called(self, method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Any:
        if method == "POST" and path in (["responses"], ["chat", "completions"], ["messages"]):
            self.usual.append(json.loads(body))
            return self.answer(self.usual[-1])
        of_anthropic = path[:1] == ["messages"]
        found = (
            self._of_anthropic(method, path[2:], body, query)
            if of_anthropic
            else self._of_openai(method, path, body, query)
        )
        if found is None:
            raise Refused(404, f"no {method} {'/'.join(path)}")
        return found

    def _of_openai(self, method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Any:
        match method, path:
            case "POST", ["files"]:
                return self._upload(body)
            case "GET", ["files", file, "content"]:
                return self.files.get(file)
            case "DELETE", ["files", file] if self.files.pop(file, None) is not None:
                return FileDeleted(id=file, deleted=True, object="file").model_dump(mode="json")
            case "POST", ["batches"]:
                return self._order(json.loads(body))
            case "GET", ["batches"]:
                page, more = _page(list(self.batches), query, "after")
                return {"object": "list", "data": [self._batch(one) for one in page], "has_more": more}
            case _, ["batches", one, *what] if one in self.batches:
                if what == ["cancel"]:
                    self._end(one, "cancelled", "")
                return self._batch(one)
            case _:
                return None

    def _of_anthropic(self, method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Any:
        match method, path:
            case "POST", []:
                return self._order_messages(json.loads(body))
            case "GET", []:
                page, more = _page(list(self.messages), query, "after_id")
                ends = (
                    {"first_id": page[0], "last_id": page[-1]}
                    if page
                    else {"first_id": None, "last_id": None}
                )
                return {"data": [self._messages(one) for one in page], "has_more": more, **ends}
            case "GET", [one, "results"] if one in self.messages:
                return b"".join(map(self._result, self.requests[one]))
            case "DELETE", [one] if self.messages.pop(one, None) is not None:
                return DeletedMessageBatch(id=one, type="message_batch_deleted").model_dump(mode="json")
            case _, [one, *what] if one in self.messages:
                if what == ["cancel"]:
                    self.messages[one]["processing_status"] = "ended"
                return self._messages(one)
            case _:
                return None

    def _upload(self, body: bytes) -> Body:
        boundary, _, _ = body.partition(b"\r\n")
        parts: dict[str, bytes] = {}
        for part in body.split(boundary)[1:-1]:
            head, _, data = part.removeprefix(b"\r\n").removesuffix(b"\r\n").partition(b"\r\n\r\n")
            name = re.search(rb'name="(\w+)"', head)
            assert name is not None
            parts[name[1].decode()] = data
        assert parts["purpose"] == b"batch"
        file_id = self._file(parts["file"])
        return FileObject(
            id=file_id, bytes=len(parts["file"]), created_at=int(time.time()), filename="f.jsonl", object="file",
            purpose="batch", status="processed",
        ).model_dump(mode="json")  # fmt: skip

    def _order(self, order: Body) -> Body:
        batch_id = f"batch_{next(self._ids)}"
        lines = [json.loads(line) for line in self.files[order["input_file_id"]].splitlines()]
        assert all(one["method"] == "POST" and one["url"] == order["endpoint"] for one in lines)
        assert not any("stream" in one["body"] for one in lines)
        self.requests[batch_id] = lines
        self.batches[batch_id] = {**order, "status": "in_progress", "created_at": int(time.time())}
        if self.quick:
            self.finish(batch_id)
        return self._batch(batch_id)

    def _batch(self, batch_id: str) -> Body:
        return Batch(id=batch_id, object="batch", **self.batches[batch_id]).model_dump(mode="json")

    def _order_messages(self, order: Body) -> Body:
        batch_id = f"msgbatch_{next(self._ids)}"
        self.requests[batch_id] = order["requests"]
        assert not any("stream" in one["params"] for one in order["requests"])
        self.messages[batch_id] = {
            "created_at": datetime.now(UTC), "expires_at": datetime.now(UTC) + timedelta(days=1),
            "processing_status": "in_progress",
        }  # fmt: skip
        if self.quick:
            self.finish(batch_id)
        return self._messages(batch_id)

    def order_of_another(self, count: int) -> str:
        """Add a batch of Anthropic as if another client had sent it, and return its id."""
        params = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
        requests = [{"custom_id": f"other-{number}", "params": params} for number in range(count)]
        return self._order_messages({"requests": requests})["id"]

    def _messages(self, batch_id: str) -> Body:
        count, over = len(self.requests[batch_id]), self.messages[batch_id]["processing_status"] == "ended"
        counts = dict.fromkeys(("canceled", "errored", "expired"), 0)
        counts |= {"processing": 0 if over else count, "succeeded": count if over else 0}
        results = f"{self.url}/v1/messages/batches/{batch_id}/results" if over else None
        return MessageBatch.model_validate(
            {
                "results_url": results,
                "id": batch_id,
                "type": "message_batch",
                "request_counts": counts,
                **self.messages[batch_id],
            }
        ).model_dump(mode="json")

    def _result(self, one: Body) -> bytes:
        try:
            if why := self.failing.get(one["custom_id"]) or self.failing.get("*"):
                raise Refused(400, why)
            result: Body = {"type": "succeeded", "message": self.answer(one["params"])}
        except Refused as exc:
            error = {"type": "invalid_request_error", "message": str(exc)}
            result = {"type": "errored", "error": {"type": "error", "error": error}}
        made = MessageBatchIndividualResponse.model_validate(
            {"custom_id": one["custom_id"], "result": result}
        )
        return made.model_dump_json().encode() + b"\n"


def _page(ids: list[str], query: dict[str, list[str]], after: str) -> tuple[list[str], bool]:
    """Return a page of these, the latest first, and whether there are more."""
    latest, limit = ids[::-1], int(query.get("limit", ["20"])[0])
    start = latest.index(query[after][0]) + 1 if after in query else 0
    return latest[start : start + limit], len(latest) > start + limit


async def _done(function: Callable[[], Any] | None) -> None:
    found = function() if function is not None else None
    if asyncio.iscoroutine(found):
        await found
