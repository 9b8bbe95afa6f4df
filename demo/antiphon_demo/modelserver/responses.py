"""OpenAI's Responses: ``POST /v1/responses``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_demo.modelserver.answers import Ask, Conversation, Reply
from antiphon_demo.modelserver.chat import arguments_pieces, bearer, openai_error
from antiphon_demo.modelserver.directives import Call
from antiphon_demo.modelserver.formats import at, encode, event, new_id, text_of


class Responses:
    path = "/v1/responses"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer(headers)

    def read(self, body: dict[str, Any]) -> Ask:
        conversation = Conversation()
        given: str | list[dict[str, Any]] = body.get("input") or []
        previous = ""
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
            kind = item.get("type", "message")
            if kind == "message":
                conversation.add(item.get("role", ""), text_of(item.get("content")))
            elif kind == "function_call_output":
                conversation.add_result(text_of(item.get("output")))
            elif kind == "function_call" and previous != "function_call":
                conversation.add_calls()
            previous = kind
        tools: list[dict[str, Any]] = body.get("tools") or []
        return Ask(
            body.get("model", ""),
            conversation,
            frozenset(tool["name"] for tool in tools if tool.get("type") == "function"),
            at(body, "text", "format", "schema"),
            body.get("max_output_tokens"),
            body.get("stream") is True,
        )

    def whole(self, reply: Reply) -> dict[str, Any]:
        output = [_call_item(call, new_id("fc_"), new_id("call_")) for call in reply.calls]
        if not reply.calls:
            output = [_message_item(new_id("msg_"), reply.text)]
        return _finished(_envelope(reply), reply, output)

    def stream(self, reply: Reply, ask: Ask, stamp: bool) -> Iterator[bytes]:
        numbered = _Numbered()
        envelope = _envelope(reply)
        opening = numbered("response.created", response=envelope) + numbered(
            "response.in_progress", response=envelope
        )
        output: list[dict[str, Any]] = []
        if reply.calls:
            yield opening
            for index, call in enumerate(reply.calls):
                yield from _call_events(numbered, index, call, output)
        else:
            yield from _message_events(numbered, opening, reply.spoken(stamp), output)
        kind = "response.incomplete" if reply.stop == "max_tokens" else "response.completed"
        yield numbered(kind, response=_finished(envelope, reply, output))

    def error(self, status: int, message: str) -> dict[str, Any]:
        return openai_error(status, message)

    def stream_error(self) -> bytes:
        error = {
            "code": "server_error",
            "message": "The server had an error while it answered.",
            "param": None,
        }
        return event("error", {"type": "error", "sequence_number": 0, **error})


class _Numbered:
    """Events with the sequence numbers of one stream."""

    def __init__(self) -> None:
        self.last = -1

    def __call__(self, kind: str, **fields: Any) -> bytes:
        self.last += 1
        return event(kind, {"type": kind, "sequence_number": self.last, **fields})


def _message_events(
    numbered: _Numbered, opening: bytes, pieces: Iterator[str], output: list[dict[str, Any]]
) -> Iterator[bytes]:
    item_id = new_id("msg_")
    place = {"item_id": item_id, "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
    started = {**_message_item(item_id, ""), "status": "in_progress", "content": []}
    yield (
        opening
        + numbered("response.output_item.added", output_index=0, item=started)
        + numbered("response.content_part.added", **place, part=empty)
    )
    text: list[str] = []
    kind = "response.output_text.delta"
    head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind.encode(), kind.encode())
    middle = b',%b,"delta":' % encode(place)[1:-1]
    for piece in pieces:
        text.append(piece)
        numbered.last += 1
        yield b'%b%d%b%b,"logprobs":[]}\n\n' % (head, numbered.last, middle, encode(piece))
    done = _message_item(item_id, "".join(text))
    output.append(done)
    yield (
        numbered("response.output_text.done", **place, text="".join(text), logprobs=[])
        + numbered("response.content_part.done", **place, part=done["content"][0])
        + numbered("response.output_item.done", output_index=0, item=done)
    )


def _call_events(
    numbered: _Numbered, index: int, call: Call, output: list[dict[str, Any]]
) -> Iterator[bytes]:
    done = _call_item(call, new_id("fc_"), new_id("call_"))
    output.append(done)
    started = {**done, "status": "in_progress", "arguments": ""}
    place = {"item_id": done["id"], "output_index": index}
    yield numbered("response.output_item.added", output_index=index, item=started)
    for piece in arguments_pieces(call.arguments):
        yield numbered("response.function_call_arguments.delta", **place, delta=piece)
    yield numbered(
        "response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments
    ) + numbered("response.output_item.done", output_index=index, item=done)


def _message_item(item_id: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {"id": item_id, "type": "message", "status": "completed", "content": [part], "role": "assistant"}


def _call_item(call: Call, item_id: str, call_id: str) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "function_call",
        "status": "completed",
        "arguments": call.arguments,
        "call_id": call_id,
        "name": call.name,
    }


def _envelope(reply: Reply) -> dict[str, Any]:
    return {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None,
    }


def _finished(envelope: dict[str, Any], reply: Reply, output: list[dict[str, Any]]) -> dict[str, Any]:
    cut = reply.stop == "max_tokens"
    return {
        **envelope,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }
