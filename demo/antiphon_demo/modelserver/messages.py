"""Anthropic's Messages: ``POST /v1/messages``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from antiphon_demo.modelserver.answers import Ask, Conversation, Reply
from antiphon_demo.modelserver.chat import arguments_pieces, bearer
from antiphon_demo.modelserver.directives import Call
from antiphon_demo.modelserver.formats import at, encode, event, new_id, text_of

_STOP = {"end": "end_turn", "max_tokens": "max_tokens", "tool_use": "tool_use"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_PING = event("ping", {"type": "ping"})


class Messages:
    path = "/v1/messages"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or bearer(headers)

    def read(self, body: dict[str, Any]) -> Ask:
        conversation = Conversation()
        for message in body.get("messages", []):
            content = message.get("content")
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
            for block in blocks:
                if block.get("type") == "tool_result":
                    conversation.add_result(text_of(block.get("content")))
            said = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
            conversation.add(message.get("role", ""), said)
            if any(block.get("type") == "tool_use" for block in blocks):
                conversation.add_calls()
        tools: list[dict[str, Any]] = body.get("tools") or []
        return Ask(
            body.get("model", ""),
            conversation,
            frozenset(tool["name"] for tool in tools if "name" in tool),
            at(body, "output_config", "format", "schema") or at(body, "output_format", "schema"),
            body.get("max_tokens"),
            body.get("stream") is True,
        )

    def whole(self, reply: Reply) -> dict[str, Any]:
        content: list[dict[str, Any]] = [_tool_use(call, _decoded(call)) for call in reply.calls]
        if not reply.calls:
            content = [{"type": "text", "text": reply.text, "citations": None}]
        return {
            **_envelope(reply),
            "content": content,
            "stop_reason": _STOP[reply.stop],
            "usage": _usage(reply, reply.output_tokens),
        }

    def stream(self, reply: Reply, ask: Ask, stamp: bool) -> Iterator[bytes]:
        opening = event(
            "message_start",
            {"type": "message_start", "message": {**_envelope(reply), "usage": _usage(reply, 1)}},
        )
        if reply.calls:
            yield opening + _PING
            stop = b""
            for index, call in enumerate(reply.calls):
                yield from _call_events(index, call)
        else:
            yield opening + _start(0, {"type": "text", "text": ""}) + _PING
            head, tail = _delta(0, {"type": "text_delta", "text": "\0"}).split(rb'"\u0000"')
            for piece in reply.spoken(stamp):
                yield b"%b%b%b" % (head, encode(piece), tail)
            stop = _stop(0)
        yield (
            stop
            + event(
                "message_delta",
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": _STOP[reply.stop], "stop_sequence": None},
                    "usage": _usage(reply, reply.output_tokens),
                },
            )
            + event("message_stop", {"type": "message_stop"})
        )

    def error(self, status: int, message: str) -> dict[str, Any]:
        kind = _KINDS.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": new_id("req_")}

    def stream_error(self) -> bytes:
        return event("error", self.error(529, "Overloaded"))


def _call_events(index: int, call: Call) -> Iterator[bytes]:
    yield _start(index, _tool_use(call, {}))
    for piece in arguments_pieces(call.arguments):
        yield _delta(index, {"type": "input_json_delta", "partial_json": piece})
    yield _stop(index)


def _start(index: int, block: dict[str, Any]) -> bytes:
    return event(
        "content_block_start", {"type": "content_block_start", "index": index, "content_block": block}
    )


def _delta(index: int, delta: dict[str, Any]) -> bytes:
    return event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})


def _stop(index: int) -> bytes:
    return event("content_block_stop", {"type": "content_block_stop", "index": index})


def _tool_use(call: Call, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": new_id("toolu_"), "name": call.name, "input": arguments}


def _decoded(call: Call) -> Any:
    """Return the arguments as a value, because this format allows broken JSON only in streams."""
    try:
        return msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return {}


def _envelope(reply: Reply) -> dict[str, Any]:
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(reply: Reply, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": reply.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }
