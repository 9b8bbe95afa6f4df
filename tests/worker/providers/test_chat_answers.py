"""Chat Completions as OpenAI and the many servers that speak it send them."""

from typing import Any

import pytest
from support.services.conversation import ask, chat, reasoning, request, result, texts
from support.services.wire_server import Reply, json_reply, sse

from antiphon.errors import (
    ProviderError,
    ProviderOverloaded,
    ProviderRateLimited,
    ProviderRejected,
    ProviderStreamBroken,
)
from antiphon.model import Item, Reasoning, Refusal, Text, ToolCall, Usage
from antiphon_worker.providers.base import (
    ItemPart,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    ToolCallPiece,
    ToolSpec,
)


async def answer(*deltas: dict[str, Any], **fields: Any) -> StepResult:
    return result(await listen(*deltas, **fields))


async def listen(*deltas: dict[str, Any], asked: Any = None, **fields: Any) -> list[Any]:
    return await ask("openai-chat", Reply([sse(chat(*deltas, **fields), done=True)]), asked=asked)


def call(index: int | None, call_id: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    delta = {"index": index, "id": call_id, "type": "function", "function": function}
    return {key: value for key, value in delta.items() if value is not None}


def calls(*deltas: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(deltas)}


async def test_parallel_tool_calls_come_in_pieces():
    heard = await listen(
        {"role": "assistant", "content": None},
        calls(call(0, "call_a", "weather", "")),
        calls(call(0, None, None, '{"city":')),
        calls(call(0, None, None, ' "Oslo"}')),
        calls(call(1, "call_b", "time", "")),
        calls(call(1, None, None, "{}")),
        finish="tool_calls",
    )
    assert [p for p in heard if isinstance(p, ToolCallPiece)] == [
        ToolCallPiece("call_a", "weather", ""),
        ToolCallPiece("call_a", "", '{"city":'),
        ToolCallPiece("call_a", "", ' "Oslo"}'),
        ToolCallPiece("call_b", "time", ""),
        ToolCallPiece("call_b", "", "{}"),
    ]
    assert result(heard).message.parts == [
        ToolCall("call_a", "weather", {"city": "Oslo"}, '{"city": "Oslo"}'),
        ToolCall("call_b", "time", {}),
    ]
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == ("tool_use", "tool_calls")


@pytest.mark.parametrize(
    "deltas",
    [
        [calls(call(None, "a", "f", '{"x":1}')), calls(call(None, "b", "f", '{"x":2}'))],
        [calls(call(0, "a", "f", '{"x":1}')), calls(call(0, "b", "f", '{"x":2}'))],
        [calls(call(0, "a", "f", '{"x":1}'), call(1, "b", "f", '{"x":2}'))],
        [
            calls(call(None, "a", "f", '{"x"')),
            calls(call(None, None, None, ":1}")),
            calls(call(None, "b", "f", '{"x":2}')),
        ],
        [calls(call(0, "a", "f", {"x": 1})), calls(call(1, "b", "f", {"x": 2}))],
        [calls(call(1, "b", "f", '{"x":2}')), calls(call(0, "a", "f", '{"x":1}'))],
    ],
    ids=["no index", "always index 0", "one chunk", "no index in pieces", "arguments as objects", "reversed"],
)
async def test_servers_tell_tool_calls_apart_in_several_ways(deltas):
    parts = (await answer(*deltas, finish="tool_calls")).message.tool_calls
    assert sorted((c.call_id, c.arguments["x"]) for c in parts) == [("a", 1), ("b", 2)]


async def test_a_new_id_with_every_piece_is_one_call_all_the_same():
    pieces = [calls(call(0, f"chatcmpl-tool-{i}", "f", piece)) for i, piece in enumerate(['{"', 'x":', "1}"])]
    parts = (
        await answer(
            *pieces,
            finish="tool_calls",
        )
    ).message.tool_calls
    assert [(c.call_id, c.arguments) for c in parts] == [("chatcmpl-tool-0", {"x": 1})]


async def test_a_name_that_is_repeated_is_told_from_one_in_pieces_by_the_tools_offered():
    tool = ToolSpec("look_up", "", {"type": "object"})
    repeated = [calls(call(0, "a", "look_up", "")), calls(call(0, "a", "look_up", "{}"))]
    heard = await listen(*repeated, asked=request(tools=[tool]))
    assert [c.name for c in result(heard).message.tool_calls] == ["look_up"]
    pieces = [calls(call(0, "a", "look", "")), calls(call(0, "a", "_up", "{}"))]
    heard = await listen(*pieces, asked=request(tools=[tool]))
    assert [c.name for c in result(heard).message.tool_calls] == ["look_up"]


@pytest.mark.parametrize("arguments", [None, "", "{}", "null"])
async def test_a_call_without_arguments_has_none(arguments):
    parts = (await answer(calls(call(0, "a", "f", arguments)), finish="tool_calls")).message.tool_calls
    assert [(c.name, c.arguments, c.invalid) for c in parts] == [("f", {}, False)]


async def test_arguments_that_are_no_json_are_kept_for_the_loop_to_complain():
    (made,) = (await answer(calls(call(0, "a", "f", "{torn")), finish="length")).message.tool_calls
    assert (made.arguments, made.raw, made.invalid) == ({}, "{torn", True)


async def test_a_call_without_an_id_gets_one():
    parts = (await answer(calls(call(0, None, "f", "{}"), call(1, None, "g", "{}")))).message.tool_calls
    assert [c.name for c in parts] == ["f", "g"]
    assert len({c.call_id for c in parts} - {""}) == 2


async def test_the_legacy_function_call_is_a_tool_call():
    heard = await listen(
        {"function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"x":1}'}},
        finish="function_call",
    )
    (made,) = result(heard).message.tool_calls
    assert (made.name, made.arguments, result(heard).stop_reason) == ("f", {"x": 1}, "tool_use")
    assert made.call_id


async def test_a_custom_tool_call_has_its_text_as_input():
    first = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}
    (made,) = (await answer(calls(first), calls({"index": 0, "custom": {"input": " 1"}}))).message.tool_calls
    assert (made.name, made.arguments) == ("sql", {"input": "SELECT 1"})


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_comes_under_two_names(field):
    heard = await listen({field: "Let me "}, {field: "see."}, {"content": "Yes."})
    assert texts(heard, ReasoningPiece) == ["Let me ", "see."]
    assert [type(part) for part in result(heard).message.parts] == [Reasoning, Text]
    assert reasoning(result(heard).message) == "Let me see."


async def test_reasoning_under_both_names_is_heard_once():
    heard = await listen({"reasoning": "Hm.", "reasoning_content": "Hm."}, {"content": "Yes."})
    assert reasoning(result(heard).message) == "Hm."


async def test_thinking_among_the_parts_of_the_content_is_reasoning():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. "}]}
    heard = await listen(
        {"content": [thought]}, {"content": [{"type": "text", "text": "Yes"}]}, {"content": "."}
    )
    assert reasoning(result(heard).message) == "Hm. "
    assert result(heard).message.text == "Yes."


async def test_reasoning_details_are_kept_whole():
    details = [
        {"type": "reasoning.text", "index": 0, "text": "A", "format": "f"},
        {"type": "reasoning.text", "index": 0, "text": "B", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]
    heard = await listen(*({"reasoning": "x", "reasoning_details": [d]} for d in details), {"content": "Yes"})
    (part,) = [p for p in result(heard).message.parts if isinstance(p, Reasoning)]
    assert part.item is not None
    assert part.item["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "AB", "format": "f", "signature": "sig"},
        {"type": "reasoning.encrypted", "index": 1, "data": "xyz"},
    ]


async def test_a_refusal_is_a_refusal():
    heard = await listen({"refusal": "I can"}, {"refusal": "not."})
    assert texts(heard, RefusalPiece) == ["I can", "not."]
    assert result(heard).message.parts == [Refusal("I cannot.")]
    assert (result(heard).stop_reason, result(heard).raw_stop_reason) == ("refusal", "stop")


async def test_citations_stand_with_their_text():
    cited = {"type": "url_citation", "url_citation": {"url": "https://example.org", "start_index": 0}}
    heard = await listen({"content": "As said"}, {"annotations": [cited]}, {"content": " there."})
    assert result(heard).message.parts == [Text("As said there.", [cited])]
    assert [p.item for p in heard if isinstance(p, ItemPart)] == [cited]


async def test_images_and_sound_are_items():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    heard = await listen(
        {"images": [image]},
        {"audio": {"id": "au_1", "transcript": "Hel", "data": "AA"}},
        {"audio": {"transcript": "lo", "data": "BB"}},
    )
    items = [part.item for part in result(heard).message.parts if isinstance(part, Item)]
    assert items == [image, {"type": "audio", "id": "au_1", "transcript": "Hello", "data": "AABB"}]


USAGES = [
    ({"prompt_tokens": 5, "completion_tokens": 7}, Usage(5, 7)),
    (
        {
            "prompt_tokens": 5,
            "completion_tokens": 7,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        Usage(5, 7),
    ),
    (
        {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}},
        Usage(5, 7, 3),
    ),
    ({"prompt_tokens": 5, "completion_tokens": 7, "prompt_cache_hit_tokens": 3}, Usage(5, 7, 3)),
    ({"prompt_tokens": 5, "completion_tokens": 7, "cached_tokens": 3}, Usage(5, 7, 3)),
    (
        {"prompt_tokens": 5, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 4}},
        Usage(5, 7, 0, 0, 4),
    ),
    ({"prompt_tokens": 5, "completion_tokens": 7, "cost": 0.25}, Usage(5, 7, cost=0.25)),
    ({"prompt_tokens": "5", "completion_tokens": 7.0}, Usage(5, 7)),
    ({"prompt_tokens": None, "completion_tokens": []}, Usage()),
]


@pytest.mark.parametrize(("usage", "expected"), USAGES)
async def test_tokens_are_counted_wherever_they_stand(usage, expected):
    base = {"object": "chat.completion.chunk", "model": "m"}
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    places = [
        [{**base, "choices": [choice]}, {**base, "choices": [], "usage": usage}],
        [{**base, "choices": [choice], "usage": usage}],
        [{**base, "choices": [choice]}, {**base, "usage": usage}],
        [{**base, "choices": [{**choice, "usage": usage}]}],
        [{**base, "choices": [choice], "x_groq": {"id": "req", "usage": usage}}],
        [{**base, "choices": [choice], "usage": usage}, {**base, "choices": [], "usage": None}],
    ]
    for events in places:
        heard = await ask("openai-chat", Reply([sse(events, done=True)]))
        assert result(heard).usage == expected


@pytest.mark.parametrize(
    ("finish", "stop_reason"),
    [
        ("stop", "end"),
        ("length", "max_tokens"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_use"),
        ("eos", "end"),
        ("STOP", "end"),
        (None, "end"),
    ],
)
async def test_finish_reasons_have_our_names(finish, stop_reason):
    answered = await answer({"content": "x"}, finish=finish)
    assert (answered.stop_reason, answered.raw_stop_reason) == (stop_reason, finish)


async def test_tool_calls_that_a_server_ends_with_stop_are_for_us_to_run():
    assert (await answer(calls(call(0, "a", "f", "{}")), finish="stop")).stop_reason == "tool_use"


async def test_of_several_choices_the_first_is_heard():
    chunks = [
        {"choices": [{"index": i, "delta": {"content": text}, "finish_reason": None}]}
        for i, text in [(1, "no"), (0, "y"), (1, "pe"), (0, "es")]
    ]
    ends = [{"choices": [{"index": i, "delta": {}, "finish_reason": "stop"}]} for i in (1, 0)]
    assert result(await ask("openai-chat", Reply([sse(chunks + ends, done=True)]))).message.text == "yes"


async def test_chunks_without_a_choice_are_passed_over():
    azure = {"choices": [], "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}]}
    late = {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"check_offset": 1}}]}
    heard = await ask("openai-chat", Reply([sse([azure, *chat({"content": "Hi"}), late], done=True)]))
    assert result(heard).message.text == "Hi"


async def test_a_reason_without_done_is_an_end_and_done_without_a_reason_too():
    finished = sse(chat({"content": "Hi"}))
    assert result(await ask("openai-chat", Reply([finished]))).message.text == "Hi"
    unfinished = sse(chat({"content": "Hi"}, finish=None), done=True)
    assert result(await ask("openai-chat", Reply([unfinished]))).message.text == "Hi"
    with pytest.raises(ProviderStreamBroken):
        await ask("openai-chat", Reply([sse(chat({"content": "Hi"}, finish=None))]))


async def test_fields_of_unusual_types_are_read_all_the_same():
    odd = {
        "choices": [
            {
                "index": "0",
                "delta": {
                    "content": 7,
                    "tool_calls": [{"index": "0", "id": 12, "function": {"name": "f", "arguments": ""}}],
                },
            }
        ],
        "created": "x",
    }
    heard = await ask("openai-chat", Reply([sse([odd, *chat({"content": "!"}, model=None)], done=True)]))
    assert result(heard).message.text == "7!"
    assert result(heard).message.tool_calls == [ToolCall("12", "f")]
    assert result(heard).model == "a-model"


async def test_an_answer_in_one_piece_has_all_the_same_parts():
    said = {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Hm",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    }
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
    reply = json_reply(
        {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    )
    answered = result(await ask("openai-chat", reply))
    assert answered.message.text == "Yes"
    assert reasoning(answered.message) == "Hm"
    assert [c.call_id for c in answered.message.tool_calls] == ["a", "b"]
    assert answered.usage == Usage(1, 2)


ERRORS = [
    ({"error": {"message": "Slow down", "type": "rate_limit_exceeded"}}, ProviderRateLimited),
    ({"error": {"message": "Slow down", "code": 429}}, ProviderRateLimited),
    ({"error": {"message": "No", "type": "invalid_request_error", "code": "x"}}, ProviderRejected),
    ({"error": {"message": "Oh", "type": "server_error"}}, ProviderOverloaded),
    ({"error": {"message": "Oh", "code": "502"}}, ProviderOverloaded),
    ({"error": "just words"}, ProviderOverloaded),
    ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, ProviderRejected),
    (
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": ""},
                    "finish_reason": "error",
                    "error": {"code": 502, "message": "Up"},
                }
            ]
        },
        ProviderOverloaded,
    ),
]


@pytest.mark.parametrize(("event", "error"), ERRORS)
async def test_an_error_among_the_chunks_is_an_error(event, error):
    reply = Reply([sse([*chat({"content": "Hi"})[:1], event])], headers={"x-request-id": "req_5"})
    with pytest.raises(error) as raised:
        await ask("openai-chat", reply)
    assert raised.value.request_id == "req_5"


async def test_an_error_event_is_an_error_whatever_it_brings():
    with pytest.raises(ProviderError, match="words"):
        await ask("openai-chat", Reply([b'event: error\ndata: {"message":"words"}\n\n']))


async def test_no_quota_is_not_worth_another_try():
    reply = json_reply(
        {"error": {"message": "No quota", "type": "insufficient_quota", "code": "insufficient_quota"}}, 429
    )
    with pytest.raises(ProviderRateLimited, match="plan and billing") as raised:
        await ask("openai-chat", reply)
    assert not raised.value.retryable
