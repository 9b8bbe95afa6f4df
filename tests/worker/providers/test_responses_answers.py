"""Answers of the Responses API, item by item."""

from typing import Any

import pytest
from support.services.conversation import ask, message_item, reasoning, response_events, result, texts
from support.services.wire_server import Reply, json_reply, sse

from antiphon.errors import (
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
)
from antiphon.model import Item, Reasoning, Refusal, Text, ToolCall, Usage
from antiphon_worker.providers.base import ItemPart, ReasoningPiece, RefusalPiece, ToolCallPiece


async def listen(*items: Any, **fields: Any) -> list[Any]:
    return await ask("openai", Reply([sse(response_events(*items, **fields), named=True)]))


def reasoning_item(*pieces: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    summary = [{"type": "summary_text", "text": piece} for piece in pieces]
    item = {"id": "rs_1", "type": "reasoning", "summary": summary, "encrypted_content": "enc", **fields}
    deltas = [
        {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": piece}
        for piece in pieces
    ]
    return item, deltas


def function_call(
    call_id: str, name: str, *pieces: str, **fields: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    item = {
        "id": f"fc_{call_id}",
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
    }
    deltas = [{"type": "response.function_call_arguments.delta", "delta": piece} for piece in pieces]
    return {**item, "arguments": "".join(pieces), **fields}, deltas


async def test_reasoning_text_and_parallel_tool_calls_stay_in_order():
    heard = await listen(
        reasoning_item("Hm, ", "well."),
        message_item("I look."),
        function_call("call_1", "weather", '{"city":', ' "Oslo"}'),
        function_call("call_2", "time"),
    )
    assert result(heard).message.parts == [
        Reasoning("Hm, well.", reasoning_item("Hm, ", "well.")[0]),
        Text("I look."),
        ToolCall("call_1", "weather", {"city": "Oslo"}, '{"city": "Oslo"}'),
        ToolCall("call_2", "time"),
    ]
    assert texts(heard, ReasoningPiece) == ["Hm, ", "well."]
    assert [p for p in heard if isinstance(p, ToolCallPiece)] == [
        ToolCallPiece("call_1", "weather", ""),
        ToolCallPiece("call_1", "", '{"city":'),
        ToolCallPiece("call_1", "", ' "Oslo"}'),
        ToolCallPiece("call_2", "time", ""),
    ]
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == ("tool_use", "completed")


async def test_the_phase_of_a_message_is_kept_for_the_next_request():
    heard = await listen(
        message_item("Looking.", phase="commentary"), message_item("Found.", phase="final_answer")
    )
    assert result(heard).message.parts == [
        Text("Looking.", item={"phase": "commentary"}),
        Text("Found.", item={"phase": "final_answer"}),
    ]


async def test_server_tools_are_items_kept_whole():
    search = {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    }
    progress = [{"type": "response.web_search_call.searching", "item_id": "ws_1"}]
    heard = await listen((search, progress), message_item("So."))
    assert result(heard).message.parts == [Item("openai", search), Text("So.")]
    assert [p.item for p in heard if isinstance(p, ItemPart)] == [search]


async def test_citations_stand_with_their_text():
    cited = {"type": "url_citation", "url": "u", "start_index": 0, "end_index": 2}
    item, deltas = message_item("So it is")
    item["content"][0]["annotations"] = [cited]
    event = {"type": "response.output_text.annotation.added", "content_index": 0, "annotation": cited}
    heard = await listen((item, [*deltas, event]))
    assert result(heard).message.parts == [Text("So it is", [cited])]
    assert [p.item for p in heard if isinstance(p, ItemPart)] == [cited]


async def test_a_refusal_is_a_refusal():
    item, _ = message_item("")
    item["content"] = [{"type": "refusal", "refusal": "I cannot."}]
    heard = await listen(
        (item, [{"type": "response.refusal.delta", "delta": piece} for piece in ("I can", "not.")])
    )
    assert texts(heard, RefusalPiece) == ["I can", "not."]
    assert result(heard).message.parts == [Refusal("I cannot.")]
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == ("refusal", "completed")


async def test_open_reasoning_is_heard_as_well():
    item = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    heard = await listen(
        (item, [{"type": "response.reasoning_text.delta", "delta": "Hm."}]), message_item("Yes")
    )
    assert texts(heard, ReasoningPiece) == ["Hm."]
    assert reasoning(result(heard).message) == "Hm."


async def test_a_custom_tool_call_has_its_text_as_input():
    item = {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1"}
    deltas = [{"type": "response.custom_tool_call_input.delta", "delta": piece} for piece in ("SELECT", " 1")]
    heard = await listen((item, deltas))
    assert result(heard).message.parts == [ToolCall("call_1", "sql", {"input": "SELECT 1"}, None, item)]


async def test_what_no_delta_brought_is_said_when_it_is_done():
    heard = await listen(
        (message_item("Hello")[0], []),
        (function_call("call_1", "f", '{"x":1}')[0], []),
        (reasoning_item("Hm")[0], []),
    )
    assert texts(heard) == ["Hello"]
    assert texts(heard, ReasoningPiece) == ["Hm"]
    assert [p.arguments for p in heard if isinstance(p, ToolCallPiece)] == ["", '{"x":1}']
    ending = [
        {"type": "response.completed", "response": response_events(message_item("Hello"))[-1]["response"]}
    ]
    assert texts(await ask("openai", Reply([sse(ending, named=True)]))) == ["Hello"]


async def test_a_response_that_repeats_no_output_is_made_of_its_items():
    events = response_events(message_item("Hello"), function_call("call_1", "f", "{}"), output=[])
    heard = await ask("openai", Reply([sse(events, named=True)]))
    assert result(heard).message.parts == [Text("Hello"), ToolCall("call_1", "f")]
    undone = [event for event in events if event["type"] != "response.output_item.done"]
    heard = await ask("openai", Reply([sse(undone, named=True)]))
    assert result(heard).message.parts == [Text("Hello"), ToolCall("call_1", "f")]


async def test_tokens_are_counted():
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 5},
    }
    assert result(await listen(message_item("x"), usage=usage)).usage == Usage(9, 7, 4, 2, 5)
    assert result(await listen(message_item("x"), usage=None)).usage == Usage()


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        ("max_output_tokens", "max_tokens"),
        ("content_filter", "content_filter"),
        ("something_new", "limit"),
        (None, "limit"),
    ],
)
async def test_an_incomplete_response_says_why(reason, stop_reason):
    details = None if reason is None else {"reason": reason}
    heard = await listen(message_item("Hel"), ending="response.incomplete", incomplete_details=details)
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == (stop_reason, "incomplete")
    assert result(heard).message.text == "Hel"


ERRORS = [
    ({"code": "server_error", "message": "Words"}, ProviderOverloaded),
    ({"code": "rate_limit_exceeded", "message": "Words"}, ProviderRateLimited),
    ({"code": "invalid_prompt", "message": "Words"}, ProviderRejected),
    ({"code": "image_too_large", "message": "Words"}, ProviderRejected),
    ({"code": "vector_store_timeout", "message": "Words"}, None),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS)
async def test_a_failed_response_is_an_error(error, expected):
    with pytest.raises(expected or Exception, match="Words"):
        await listen(message_item("x"), ending="response.failed", error=error)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "rate_limit_exceeded", "message": "Words", "param": None},
        {"type": "error", "error": {"type": "rate_limit_exceeded", "message": "Words"}},
    ],
)
async def test_an_error_among_the_events_is_an_error(event):
    events = [*response_events(message_item("Hi"))[:3], event]
    with pytest.raises(ProviderRateLimited, match="Words") as raised:
        await ask("openai", Reply([sse(events, named=True)], headers={"x-request-id": "req_5"}))
    assert raised.value.request_id == "req_5"


@pytest.mark.parametrize("status", ["cancelled", "in_progress", "queued"])
async def test_a_response_that_did_not_end_is_broken(status):
    reply = json_reply({"object": "response", "status": status, "output": []})
    with pytest.raises(ProviderStreamBroken, match=status):
        await ask("openai", reply)


async def test_an_answer_in_one_piece_has_all_the_same_parts():
    response = response_events(
        reasoning_item("Hm"), message_item("Yes"), function_call("call_1", "f", '{"x":1}')
    )[-1]["response"]
    heard = await ask("openai", json_reply(response))
    assert reasoning(result(heard).message) == "Hm"
    assert result(heard).message.text == "Yes"
    assert result(heard).message.tool_calls == [ToolCall("call_1", "f", {"x": 1})]
    assert texts(heard) == ["Yes"]


async def test_events_to_come_are_passed_over():
    events = response_events(message_item("Hi"))
    events[2:2] = [
        {"type": "response.something_new.delta", "delta": {"x": 1}, "output_index": 0},
        {"type": "keepalive"},
    ]
    assert result(await ask("openai", Reply([sse(events, named=True)]))).message.text == "Hi"
