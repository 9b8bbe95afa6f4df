"""Requests and responses for the tests of providers."""

from collections.abc import Iterable
from typing import Any

from support.services.wire_server import Reply, WireServer, json_reply, sse

from antiphon.model import Message, Reasoning
from antiphon_worker.providers.anthropic.provider import Anthropic
from antiphon_worker.providers.base import Increment, ModelRequest, StepResult, TextPiece
from antiphon_worker.providers.openai_chat.provider import OpenAIChat
from antiphon_worker.providers.openai_responses.provider import OpenAIResponses
from antiphon_worker.providers.service import ModelService

KINDS = ("openai-chat", "anthropic", "openai")


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest("a-model", list(messages) or [Message.user("Hello?")], **fields)


def serve(kind: str, url: str, **options: Any) -> ModelService:
    """Return a provider of this kind that calls the test's server."""
    options = {"api_key": "sk-test-of-a-key", "max_retries": 0, "timeout": 5.0, **options}
    if kind == "anthropic":
        return Anthropic(base_url=url, **options)
    make = OpenAIChat if kind == "openai-chat" else OpenAIResponses
    return make(base_url=f"{url}/v1", **options)


async def hear(provider: ModelService, asked: ModelRequest | None = None) -> list[Increment]:
    return [increment async for increment in provider.stream(asked or request())]


async def ask(
    kind: str, *replies: Reply, asked: ModelRequest | None = None, **options: Any
) -> list[Increment]:
    """Return the increments of one request to a server with these replies."""
    async with WireServer(*replies) as server:
        provider = serve(kind, server.url, **options)
        try:
            return await hear(provider, asked)
        finally:
            await provider.aclose()


async def sent(kind: str, asked: ModelRequest, **options: Any) -> dict[str, Any]:
    """Return the body of a request as it arrives at the server."""
    async with WireServer(said(kind, "ok")) as server:
        provider = serve(kind, server.url, **options)
        await hear(provider, asked)
        await provider.aclose()
        return server.seen[0].body


def result(increments: list[Increment]) -> StepResult:
    last = increments[-1]
    assert isinstance(last, StepResult)
    return last


def texts(increments: list[Increment], kind: type = TextPiece) -> list[str]:
    return [increment.text for increment in increments if isinstance(increment, kind)]


def reasoning(message: Message) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, Reasoning))


def chat(*deltas: dict[str, Any], finish: str | None = "stop", usage: Any = None, **fields: Any) -> list[Any]:
    """Return the chunks of an answer of Chat Completions."""
    base = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "a-model-2",
        **fields,
    }
    chunks = [{**base, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return chunks if usage is None else [*chunks, {**base, "choices": [], "usage": usage}]


def message_events(
    *blocks: tuple[dict[str, Any], Iterable[dict[str, Any]]], stop: str = "end_turn", usage: Any = None
) -> list[Any]:
    """Return the events of an answer of the Messages API: each block with its deltas."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "a-model-2", "content": []}
    events: list[Any] = [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 5, "output_tokens": 1}}}
    ]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    usage = {"output_tokens": 7} if usage is None else usage
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
    )
    return [*events, {"type": "message_stop"}]


def text_block(*pieces: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]


def response_events(
    *items: tuple[dict[str, Any], Iterable[dict[str, Any]]], ending: str = "response.completed", **fields: Any
) -> list[Any]:
    """Return the events of an answer of the Responses API: each finished item, preceded by its deltas."""
    events: list[Any] = [
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
    ]
    for index, (item, deltas) in enumerate(items):
        bare = {
            k: v for k, v in item.items() if k not in ("content", "arguments", "summary", "encrypted_content")
        }
        events.append({"type": "response.output_item.added", "output_index": index, "item": bare})
        events += [{"output_index": index, **delta} for delta in deltas]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    response = {
        "id": "resp_1",
        "object": "response",
        "model": "a-model-2",
        "status": ending.rpartition(".")[2],
        "output": [item for item, _ in items],
        "usage": {"input_tokens": 5, "output_tokens": 7},
        **fields,
    }
    return [*events, {"type": ending, "response": response}]


def message_item(*pieces: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
        **fields,
    }
    return item, [
        {"type": "response.output_text.delta", "content_index": 0, "delta": piece} for piece in pieces
    ]


def body(kind: str, events: list[Any]) -> bytes:
    return sse(events, named=kind != "openai-chat", done=kind == "openai-chat")


def answer(kind: str, *pieces: str) -> list[Any]:
    """Return the events of a plain text answer."""
    if kind == "openai-chat":
        return chat(*({"content": piece} for piece in pieces))
    return (
        message_events(text_block(*pieces)) if kind == "anthropic" else response_events(message_item(*pieces))
    )


def said(kind: str, *pieces: str, **reply: Any) -> Reply:
    """Return a reply with a plain text answer."""
    return Reply([body(kind, answer(kind, *pieces))], **reply)


def whole(kind: str, text: str) -> Reply:
    """Return the same as one JSON value, as from a server that does not stream."""
    if kind == "openai-chat":
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return json_reply({"id": "c", "object": "chat.completion", "model": "a-model-2", "choices": [choice]})
    if kind == "anthropic":
        fields = {
            "model": "a-model-2",
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return json_reply({"type": "message", "content": [{"type": "text", "text": text}], **fields})
    return json_reply(response_events(message_item(text))[-1]["response"])
