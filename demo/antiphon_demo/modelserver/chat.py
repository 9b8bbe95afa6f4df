"""OpenAI's Chat Completions: ``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from antiphon_demo.modelserver.answers import Ask, Conversation, Reply
from antiphon_demo.modelserver.formats import at, encode, new_id, text_of

_FINISH = {"end": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
STREAM_ERROR = "The server had an error while it answered."
_END = b"data: [DONE]\n\n"
# The arguments of a tool call arrive in pieces of this many characters.
ARGUMENTS_PIECE = 12


class Chat:
    path = "/v1/chat/completions"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return bearer(headers)

    def read(self, body: dict[str, Any]) -> Ask:
        conversation = Conversation()
        for message in body.get("messages", []):
            role = message.get("role")
            if role == "tool":
                conversation.add_result(text_of(message.get("content")))
                continue
            conversation.add(role, text_of(message.get("content")))
            if message.get("tool_calls"):
                conversation.add_calls()
        tools: list[dict[str, Any]] = body.get("tools") or []
        return Ask(
            body.get("model", ""),
            conversation,
            frozenset(tool["function"]["name"] for tool in tools if "function" in tool),
            at(body, "response_format", "json_schema", "schema"),
            body.get("max_completion_tokens") or body.get("max_tokens"),
            body.get("stream") is True,
            at(body, "stream_options", "include_usage") is True,
        )

    def whole(self, reply: Reply) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": new_id("call_"),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[reply.stop]}
        return {
            **_envelope(reply, "chat.completion"),
            "choices": [choice],
            "usage": _usage(reply),
        }

    def stream(self, reply: Reply, ask: Ask, stamp: bool) -> Iterator[bytes]:
        envelope = _envelope(reply, "chat.completion.chunk")

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return b"data: %b\n\n" % encode({**envelope, "choices": [choice]})

        yield chunk({"role": "assistant", "content": "", "refusal": None})
        head, tail = chunk({"content": "\0"}).split(rb'"\u0000"')
        for piece in reply.spoken(stamp):
            yield b"%b%b%b" % (head, encode(piece), tail)
        for index, call in enumerate(reply.calls):
            function = {"name": call.name, "arguments": ""}
            first = {"index": index, "id": new_id("call_"), "type": "function", "function": function}
            yield chunk({"tool_calls": [first]})
            for piece in arguments_pieces(call.arguments):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        end = chunk({}, _FINISH[reply.stop])
        if ask.stream_usage:
            end += b"data: %b\n\n" % encode({**envelope, "choices": [], "usage": _usage(reply)})
        yield end + _END

    def error(self, status: int, message: str) -> dict[str, Any]:
        return openai_error(status, message)

    def stream_error(self) -> bytes:
        return b"data: %b\n\n" % encode(openai_error(500, STREAM_ERROR))


def bearer(headers: Mapping[str, str]) -> str | None:
    """Return the key of an ``Authorization`` header."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def openai_error(status: int, message: str) -> dict[str, Any]:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    kind = "requests" if status == 429 else kind
    return {"error": {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}}


def arguments_pieces(arguments: str) -> Iterator[str]:
    for start in range(0, len(arguments), ARGUMENTS_PIECE):
        yield arguments[start : start + ARGUMENTS_PIECE]


def _envelope(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": new_id("chatcmpl-"),
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
        "service_tier": "default",
        "system_fingerprint": None,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
