"""Answers that services give in ways of their own: nothing that they say is lost, and nothing is invented."""

import json
from typing import Any

import pytest
from support.services.conversation import (
    KINDS,
    ask,
    chat,
    message_events,
    reasoning,
    request,
    response_events,
    result,
    sent,
    texts,
)
from support.services.conversation import body as body_of
from support.services.wire_server import Reply, json_reply

from antiphon.errors import ProviderError, ProviderStreamBroken
from antiphon.model import Item, Message, Text, ToolCall, Usage
from antiphon_worker.providers.base import ReasoningPiece, StepResult, ToolSpec
from antiphon_worker.providers.errors import retry_after

LOOK_UP = ToolSpec("look_up", "Look it up.", {"type": "object", "properties": {}})
REAL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"q":"Paris"}'}}
ZERO: dict[str, Any] = {
    "custom": {"name": "", "input": ""},
    "function_call": {"name": "", "arguments": ""},
    "audio": {"id": "", "data": "", "transcript": "", "expires_at": 0},
}


def whole(message: dict[str, Any], **choice: Any) -> Reply:
    """An answer of Chat Completions in one piece."""
    given = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop", **choice}
    return json_reply({"id": "c", "object": "chat.completion", "model": "a-model-2", "choices": [given]})


async def heard(reply: Reply, kind: str = "openai-chat") -> StepResult:
    return result(await ask(kind, reply, asked=request(tools=[LOOK_UP])))


def calls(answer: StepResult) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in answer.message.tool_calls]


@pytest.mark.parametrize("custom", [{}, None, {"name": "", "input": ""}, {"name": None}])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_zero_value_beside_a_real_call_takes_nothing_from_it(custom, streamed):
    call = {**REAL, "index": 0, "custom": custom}
    message = {
        "content": "",
        "tool_calls": [call],
        "function_call": ZERO["function_call"],
        "audio": ZERO["audio"],
    }
    reply = (
        Reply([body_of("openai-chat", chat(message, finish="tool_calls"))]) if streamed else whole(message)
    )
    answer = await heard(reply)
    assert calls(answer) == [("look_up", {"q": "Paris"})]
    assert answer.message.parts == answer.message.tool_calls, "there is no sound, and no second call"
    assert answer.stop_reason == "tool_use"


async def test_a_real_custom_call_is_taken_although_its_function_is_empty():
    call = {
        "id": "c",
        "type": "custom",
        "custom": {"name": "look_up", "input": "Paris"},
        "function": {"name": ""},
    }
    assert calls(await heard(whole({"tool_calls": [call]}))) == [("look_up", {"input": "Paris"})]


async def test_zero_values_alone_are_no_call():
    answer = await heard(whole({"content": "Hi", **ZERO}))
    assert (answer.message.parts, answer.stop_reason) == ([Text("Hi")], "end")


@pytest.mark.parametrize(
    "delta", [{}, {"content": ""}, {"role": "assistant", "content": None, "tool_calls": []}, ZERO, None]
)
async def test_a_message_beside_an_empty_piece_is_heard(delta):
    answer = await heard(whole({"content": "Hello"}, delta=delta))
    assert answer.message.text == "Hello"


async def test_a_message_beside_a_piece_that_says_something_is_not_heard_twice():
    answer = await heard(whole({"content": "Hello"}, delta={"content": "Hello"}))
    assert answer.message.text == "Hello"


ANSWER: dict[str, Any] = {"type": "refund", "euros": 3.5, "text": "Zoë"}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "content", [ANSWER, {"nested": {"list": [1, None, {}]}}, {"text": "no type"}, {}], ids=str
)
async def test_an_answer_that_a_service_has_decoded_is_its_json(content, streamed):
    message = {"content": content}
    heard_of = await heard(Reply([body_of("openai-chat", chat(message))]) if streamed else whole(message))
    assert json.loads(heard_of.message.text) == content


@pytest.mark.parametrize("streamed", [False, True])
async def test_content_that_is_one_part_outside_a_list_is_that_part(streamed):
    message = {"content": {"type": "text", "text": "Hello"}}
    heard_of = await heard(Reply([body_of("openai-chat", chat(message))]) if streamed else whole(message))
    assert heard_of.message.parts == [Text("Hello")]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["anthropic", "openai-responses"])
async def test_a_text_that_a_service_has_decoded_is_its_json_in_every_format(kind, streamed):
    if kind == "anthropic":
        deltas = [{"type": "text_delta", "text": ANSWER}] if streamed else []
        events = message_events(({"type": "text", "text": "" if streamed else ANSWER}, deltas))
    else:
        item = {"type": "message", "content": [{"type": "output_text", "text": ANSWER}]}
        deltas = [{"type": "response.output_text.delta", "delta": ANSWER}] if streamed else []
        events = response_events((item, deltas))
    answer = await heard(Reply([body_of(kind, events)]), kind)
    assert json.loads(answer.message.text) == ANSWER


def nameless(kind: str, arguments: str, text: str = "") -> Reply:
    """An answer that asks for a tool without a name."""
    if kind == "openai-chat":
        call = {"index": 0, "id": "c", "function": {"name": "", "arguments": arguments}}
        return Reply([body_of(kind, chat({"content": text}, {"tool_calls": [call]}, finish="tool_calls"))])
    if kind == "anthropic":
        block = {"type": "tool_use", "id": "c", "name": "", "input": {}}
        said = [({"type": "text", "text": text}, [])] if text else []
        call_block = (block, [{"type": "input_json_delta", "partial_json": arguments}])
        return Reply([body_of(kind, message_events(*said, call_block, stop="tool_use"))])
    item = {"type": "function_call", "id": "i", "call_id": "c", "name": "", "arguments": arguments}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    said = [({"type": "message", "role": "assistant", "content": content}, [])] if text else []
    return Reply([body_of(kind, response_events(*said, (item, [])))])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_without_a_name_is_no_call(kind):
    answer = await heard(nameless(kind, '{"q":1}', "Let me see."), kind)
    assert (answer.message.text, answer.message.tool_calls, answer.stop_reason) == ("Let me see.", [], "end")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_only_asks_for_a_tool_without_a_name_is_broken(kind):
    with pytest.raises(ProviderStreamBroken, match="without a name") as raised:
        await heard(nameless(kind, '{"q":1}'), kind)
    assert raised.value.retryable


@pytest.mark.parametrize("kind", KINDS)
async def test_a_phantom_call_alone_is_an_empty_answer(kind):
    answer = await heard(nameless(kind, ""), kind)
    assert (answer.message.parts, answer.stop_reason) == ([], "end")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after-ms": "0", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "0", "retry-after": "soon"}, 0.0),
        ({"retry-after-ms": "0"}, 0.0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after-ms": "250", "retry-after": "0"}, 0.25),
    ],
)
def test_a_wait_of_nothing_is_no_wait_where_another_header_asks_for_one(headers, seconds):
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("reported", "dollars"),
    [
        ({"cost": 0.0125}, 0.0125),
        ({"cost": {"input_tokens_cost": 0.001, "total_cost": 0.006}}, 0.006),
        ({"cost": {"usd": 0.0125, "currency": "USD"}}, 0.0125),
        ({"cost": {"usd": {}}}, None),
        ({"cost_in_usd_ticks": 37_756_000}, 0.0037756),
        ({"cost": 0}, 0.0),
        ({"cost": "much"}, None),
        ({"cost": {"total_cost": None}}, None),
        ({"cost": True}, None),
        ({}, None),
    ],
    ids=str,
)
async def test_what_a_call_has_cost_is_known_where_the_service_says_so(kind, reported, dollars):
    text = {"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hi"}]
    if kind == "openai-chat":
        events = chat({"content": "Hi"}, usage={"prompt_tokens": 1, "completion_tokens": 2, **reported})
    elif kind == "anthropic":
        events = message_events(text, usage={"output_tokens": 2, **reported})
    else:
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
        events = response_events((item, []), usage={"input_tokens": 1, "output_tokens": 2, **reported})
    answer = await heard(Reply([body_of(kind, events)]), kind)
    assert answer.usage.cost == dollars


def test_costs_add_up_and_stay_unknown_where_none_is_known():
    assert (Usage(cost=0.5) + Usage() + Usage(cost=0.25)).cost == 0.75
    assert (Usage() + Usage()).cost is None


DETAILS = [
    {"type": "reasoning.text", "index": 0, "text": "First "},
    {"type": "reasoning.text", "index": 0, "text": "this."},
    {"type": "reasoning.summary", "index": 1, "summary": " In short."},
    {"type": "reasoning.encrypted", "index": 2, "data": "b3BhcXVl"},
]


async def test_reasoning_that_stands_in_its_details_alone_is_text_too():
    deltas = [{"reasoning_details": [detail]} for detail in DETAILS]
    increments = await ask("openai-chat", Reply([body_of("openai-chat", chat(*deltas, {"content": "Hi"}))]))
    answer = result(increments)
    assert texts(increments, ReasoningPiece) == ["First ", "this.", " In short."]
    assert reasoning(answer.message) == "First this. In short."
    assert answer.message.text == "Hi"
    item = answer.message.parts[0].item
    assert [block["type"] for block in item["reasoning_details"]] == [d["type"] for d in DETAILS[1:]]


async def test_reasoning_that_stands_in_two_fields_is_heard_once():
    deltas = [{"reasoning": "First.", "reasoning_details": [{"type": "reasoning.text", "text": "First."}]}]
    answer = await heard(Reply([body_of("openai-chat", chat(*deltas, deltas[0] | {"reasoning": None}))]))
    assert reasoning(answer.message) == "First."


async def test_sources_beside_an_answer_are_kept():
    sources = {
        "citations": ["https://a.example"],
        "search_results": [{"title": "A", "url": "https://a.example"}],
    }
    events = chat({"content": "Hello"}, {"content": " world"}, **sources)
    answer = await heard(Reply([body_of("openai-chat", events)]))
    assert answer.message.parts == [Text("Hello world", item=sources)]


async def test_probabilities_are_kept_with_the_text():
    events = chat(*({"content": piece} for piece in "abcdefgh"))
    for event, piece in zip(events, "abcdefgh", strict=False):
        event["choices"][0]["logprobs"] = {"content": [{"token": piece, "logprob": -0.1}], "refusal": None}
    answer = await heard(Reply([body_of("openai-chat", events)]))
    (text,) = answer.message.parts
    assert [entry["token"] for entry in text.item["logprobs"]["content"]] == list("abcdefgh")
    again = await sent("openai-chat", request(Message.user("Hello?"), answer.message, Message.user("And?")))
    assert again["messages"][1] == {"role": "assistant", "content": "abcdefgh"}


async def test_probabilities_of_the_responses_api_are_kept_and_not_sent_back():
    content = [
        {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": [{"token": "Hi", "logprob": 0}]}
    ]
    item = {"type": "message", "role": "assistant", "phase": "final", "content": content}
    answer = await heard(Reply([body_of("openai", response_events((item, [])))]), "openai")
    assert answer.message.parts[0].item == {"phase": "final", "logprobs": content[0]["logprobs"]}
    again = await sent("openai", request(Message.user("Hello?"), answer.message, Message.user("And?")))
    assert again["input"][1]["phase"] == "final"
    assert "logprob" not in str(again)


async def test_tools_that_the_service_ran_are_kept():
    first = {"index": 0, "type": "python", "arguments": "1+1", "output": None}
    deltas = [{"executed_tools": [first]}, {"executed_tools": [{**first, "output": "2"}]}, {"content": "Two"}]
    answer = await heard(Reply([body_of("openai-chat", chat(*deltas))]))
    (item,) = [part for part in answer.message.parts if isinstance(part, Item)]
    assert item.item == {"type": "executed_tools", "executed_tools": [{**first, "output": "2"}]}
    assert answer.stop_reason == "end"


async def test_the_signature_of_a_thought_goes_back_with_its_call_to_the_same_service_only():
    signed = {"google": {"thought_signature": "c2lnbmVk"}}
    call = {**REAL, "index": 0, "extra_content": signed}
    answer = await heard(Reply([body_of("openai-chat", chat({"tool_calls": [call]}, finish="tool_calls"))]))
    (asked,) = answer.message.tool_calls
    assert isinstance(asked, ToolCall)
    history = request(Message.user("Hello?"), answer.message)
    assert (await sent("openai-chat", history))["messages"][1]["tool_calls"][0]["extra_content"] == signed
    assert "signature" not in str(await sent("openai-chat", history, name="another"))


HALF = rb"half \ud800 a character"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "reply",
    [
        Reply([b'{"error":{"type":"a\\udc00","message":"' + HALF + b'"}}'], 400, "application/json"),
        Reply([b'{"detail":"' + HALF + b'"}'], 500, "application/json"),
        Reply([b'event: error\ndata: {"type":"error","error":{"message":"' + HALF + b'"}}\n\n']),
        Reply([b'{"error":{"message":"' + HALF + b'"}}'], 200, "application/json"),
        Reply([b"half \xed\xa0\x80 a character"], 502, "text/plain"),
    ],
    ids=["refusal", "detail", "event", "json", "bytes"],
)
async def test_an_error_with_half_a_character_is_one_that_can_be_read(kind, reply):
    with pytest.raises(ProviderError) as raised:
        await ask(kind, reply)
    assert "half" in raised.value.message
    assert raised.value.message.encode().decode() == raised.value.message
