"""Answers of the Messages API, block by block."""

from typing import Any

import pytest
from support.services.conversation import ask, message_events, reasoning, result, text_block, texts
from support.services.wire_server import Reply, json_reply, sse

from antiphon.errors import (
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
    ProviderUnauthorized,
)
from antiphon.model import Item, Reasoning, Text, ToolCall, Usage
from antiphon_worker.providers.base import ItemPart, ReasoningPiece, ToolCallPiece


async def listen(*blocks: Any, **fields: Any) -> list[Any]:
    return await ask("anthropic", Reply([sse(message_events(*blocks, **fields), named=True)]))


def tool_use(
    call_id: str, name: str, *pieces: str, **fields: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}, **fields}
    return block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def thinking(signature: str, *pieces: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    return {"type": "thinking", "thinking": "", "signature": ""}, [
        *deltas,
        {"type": "signature_delta", "signature": signature},
    ]


async def test_thinking_text_and_parallel_tool_calls_stay_in_order():
    heard = await listen(
        thinking("sig", "Hm, ", "well."),
        text_block("I look."),
        tool_use("toolu_1", "weather", "", '{"city":', ' "Oslo"}'),
        tool_use("toolu_2", "time"),
        stop="tool_use",
    )
    assert result(heard).message.parts == [
        Reasoning("Hm, well.", {"type": "thinking", "thinking": "Hm, well.", "signature": "sig"}),
        Text("I look."),
        ToolCall("toolu_1", "weather", {"city": "Oslo"}, '{"city": "Oslo"}'),
        ToolCall("toolu_2", "time"),
    ]
    assert texts(heard, ReasoningPiece) == ["Hm, ", "well."]
    assert [p for p in heard if isinstance(p, ToolCallPiece)] == [
        ToolCallPiece("toolu_1", "weather", ""),
        ToolCallPiece("toolu_1", "", '{"city":'),
        ToolCallPiece("toolu_1", "", ' "Oslo"}'),
        ToolCallPiece("toolu_2", "time", ""),
    ]
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == ("tool_use", "tool_use")


async def test_redacted_thinking_is_kept_as_it_is():
    block = {"type": "redacted_thinking", "data": "opaque"}
    heard = await listen((block, []), text_block("Yes."))
    assert result(heard).message.parts == [Reasoning("", block), Text("Yes.")]


async def test_server_tools_and_their_results_are_items_kept_whole():
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srv_1",
        "content": [{"type": "web_search_result", "url": "u"}],
    }
    heard = await listen(
        (use, [{"type": "input_json_delta", "partial_json": '{"query": "x"}'}]),
        (found, []),
        text_block("So."),
    )
    whole = {**use, "input": {"query": "x"}}
    assert result(heard).message.parts == [Item("anthropic", whole), Item("anthropic", found), Text("So.")]
    assert [p.item for p in heard if isinstance(p, ItemPart)] == [whole, found]
    assert not [p for p in heard if isinstance(p, ToolCallPiece)]


async def test_citations_stand_with_their_text():
    cited = {"type": "web_search_result_location", "url": "u", "cited_text": "t"}
    block, deltas = text_block("So it is")
    heard = await listen((block, [{"type": "citations_delta", "citation": cited}, *deltas]))
    assert result(heard).message.parts == [Text("So it is", [cited])]
    assert [p.item for p in heard if isinstance(p, ItemPart)] == [cited]


async def test_blocks_and_deltas_of_kinds_to_come_are_kept():
    block = {"type": "compaction", "content": ""}
    deltas = [
        {"type": "compaction_delta", "content": "sum"},
        {"type": "compaction_delta", "content": "mary", "n": 1},
    ]
    heard = await listen((block, deltas), text_block("So."))
    assert result(heard).message.parts[0] == Item(
        "anthropic", {"type": "compaction", "content": "summary", "n": 1}
    )


async def test_what_else_a_tool_call_brings_is_kept_for_the_next_request():
    heard = await listen(tool_use("toolu_1", "f", "{}", caller={"type": "direct"}), stop="tool_use")
    assert result(heard).message.parts == [
        ToolCall("toolu_1", "f", item={"type": "tool_use", "caller": {"type": "direct"}})
    ]


async def test_text_that_a_block_starts_with_is_text():
    heard = await listen(({"type": "text", "text": "He"}, [{"type": "text_delta", "text": "llo"}]))
    assert texts(heard) == ["He", "llo"]
    assert result(heard).message.text == "Hello"


async def test_arguments_that_a_block_starts_with_are_arguments():
    heard = await listen(tool_use("toolu_1", "f", input={"x": 1}), stop="tool_use")
    assert result(heard).message.tool_calls == [ToolCall("toolu_1", "f", {"x": 1})]
    assert [p.arguments for p in heard if isinstance(p, ToolCallPiece)] == ['{"x":1}']


async def test_cached_tokens_count_as_input():
    start = {
        "input_tokens": 3,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 20,
        "output_tokens": 1,
    }
    events = message_events(
        text_block("x"),
        usage={"output_tokens": 9, "input_tokens": None, "output_tokens_details": {"thinking_tokens": 4}},
    )
    events[0]["message"]["usage"] = start
    heard = await ask("anthropic", Reply([sse(events, named=True)]))
    assert result(heard).usage == Usage(33, 9, 10, 20, 4)


@pytest.mark.parametrize(
    ("stop", "stop_reason"),
    [
        ("end_turn", "end"),
        ("max_tokens", "max_tokens"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refusal"),
        ("pause_turn", "tool_use"),
        ("model_context_window_exceeded", "max_tokens"),
        ("something_new", "end"),
    ],
)
async def test_stop_reasons_have_our_names(stop, stop_reason):
    heard = await listen(text_block("x"), stop=stop)
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == (stop_reason, stop)


async def test_pings_and_events_to_come_are_passed_over():
    events = message_events(text_block("Hi"))
    events[2:2] = [{"type": "ping"}, {"type": "something_new", "index": 0}]
    assert result(await ask("anthropic", Reply([sse(events, named=True)]))).message.text == "Hi"


async def test_a_stop_reason_without_message_stop_is_an_end():
    events = message_events(text_block("Hi"))[:-1]
    assert result(await ask("anthropic", Reply([sse(events, named=True)]))).message.text == "Hi"
    with pytest.raises(ProviderStreamBroken):
        await ask("anthropic", Reply([sse(events[:-1], named=True)]))


async def test_events_without_their_names_are_understood():
    assert result(await ask("anthropic", Reply([sse(message_events(text_block("Hi")))]))).message.text == "Hi"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ProviderOverloaded),
        ("api_error", ProviderOverloaded),
        ("rate_limit_error", ProviderRateLimited),
        ("invalid_request_error", ProviderRejected),
        ("authentication_error", ProviderUnauthorized),
        ("permission_error", ProviderUnauthorized),
        ("not_found_error", ProviderRejected),
        ("request_too_large", ProviderRejected),
        ("billing_error", ProviderRejected),
    ],
)
async def test_an_error_among_the_events_is_an_error(kind, error):
    events = message_events(text_block("Hi"))[:3]
    events.append({"type": "error", "error": {"type": kind, "message": "Words"}})
    with pytest.raises(error, match="Words") as raised:
        await ask("anthropic", Reply([sse(events, named=True)], headers={"request-id": "req_5"}))
    assert raised.value.request_id == "req_5"


async def test_an_answer_in_one_piece_has_all_the_same_parts():
    content = [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        {"type": "text", "text": "Yes", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    reply = json_reply(
        {"type": "message", "model": "m", "content": content, "stop_reason": "tool_use", "usage": usage}
    )
    answered = result(await ask("anthropic", reply))
    assert reasoning(answered.message) == "Hm"
    assert answered.message.text == "Yes"
    assert answered.message.tool_calls == [ToolCall("toolu_1", "f", {"x": 1})]
    assert answered.message.parts[3] == Item("anthropic", content[3])
    assert (answered.usage, answered.stop_reason) == (Usage(1, 2), "tool_use")


async def test_a_request_id_that_stands_in_the_body_alone_is_found():
    told = {"type": "error", "error": {"type": "api_error", "message": "Words"}, "request_id": "req_body"}
    with pytest.raises(ProviderOverloaded, match="req_body") as raised:
        await ask("anthropic", json_reply(told, 500))
    assert raised.value.request_id == "req_body"
