"""A session changes its model in mid-conversation: what one service said is a valid history for the others."""

from typing import Any

import pytest
from support.services.conversation import KINDS, request, sent

from antiphon.model import Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult, decode_message
from antiphon_worker.providers.openai_chat.provider import chat_call

THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [],
    "encrypted_content": "enc",
    "content": None,
    "status": None,
}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
CITED = {"type": "url_citation", "url": "u"}


def by(provider: str, *parts: Any) -> Message:
    message = Message("assistant", list(parts), provider=provider, model="a-model-2")
    return decode_message(message.to_json())


def marked(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in block.items() if name != "cache_control"} for block in content]


def turn(provider: str, *before: Any, call_id: str = "call_1") -> list[Message]:
    """A question, an answer with a tool call, its result."""
    answer = by(
        provider, *before, Text("I look."), ToolCall(call_id, "weather", {"city": "Oslo"}, '{"city": "Oslo"}')
    )
    return [Message.user("Rain?"), answer, Message.tool([ToolResult(call_id, "Yes", "weather")])]


TURNS = {
    "openai-chat": turn("openai-chat", Reasoning("Hm.", {"type": "reasoning_content"})),
    "openai": turn("openai", Reasoning("Hm.", REASONING), Item("openai", SEARCH)),
    "anthropic": turn(
        "anthropic", Reasoning("Hm.", THINKING), Reasoning("", {"type": "redacted_thinking", "data": "d"})
    ),
}


@pytest.mark.parametrize("source", KINDS)
async def test_chat_completions_go_on_from_any_service(source):
    messages = (await sent("openai-chat", request(*TURNS[source])))["messages"]
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    answer = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    if source == "openai-chat":
        answer["reasoning_content"] = "Hm."
    assert messages == [
        {"role": "user", "content": "Rain?"},
        answer,
        {"role": "tool", "tool_call_id": "call_1", "content": "Yes"},
    ]


@pytest.mark.parametrize("source", KINDS)
async def test_responses_go_on_from_any_service(source):
    items = (await sent("openai", request(*TURNS[source])))["input"]
    own = (
        [{name: value for name, value in REASONING.items() if value is not None}, SEARCH]
        if source == "openai"
        else []
    )
    content = [{"type": "output_text", "text": "I look."}]
    assert items == [
        {"role": "user", "content": [{"type": "input_text", "text": "Rain?"}]},
        *own,
        {"type": "message", "role": "assistant", "content": content},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "Yes"},
    ]


@pytest.mark.parametrize("source", KINDS)
async def test_messages_go_on_from_any_service(source):
    messages = (await sent("anthropic", request(*TURNS[source])))["messages"]
    own = [THINKING, {"type": "redacted_thinking", "data": "d"}] if source == "anthropic" else []
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == [
        *own,
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    assert marked(messages[2]["content"]) == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "Yes"}
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call_id", ["functions.f:0", "x" * 70, "ü", "0"])
async def test_ids_that_a_service_does_not_accept_are_replaced_alike_in_call_and_result(kind, call_id):
    body = await sent(kind, request(*turn("elsewhere", call_id=call_id)))
    found = [value for name, value in walk(body) if name in ("call_id", "tool_call_id", "tool_use_id")]
    found += [value for name, value in walk(body) if name == "id"]
    assert len(found) == 2
    assert found[0] == found[1]
    assert len(found[0]) <= 40
    assert found[0].replace("_", "").replace("-", "").isalnum()
    assert found[0].isascii()
    assert (found[0] == call_id) == (call_id == "0")


def walk(value: Any) -> Any:
    if isinstance(value, dict):
        for name, entry in value.items():
            yield name, entry
            yield from walk(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from walk(entry)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_without_its_result_gets_one_and_a_result_without_its_call_is_left_out(kind):
    history = [
        Message.tool([ToolResult("call_0", "of a call that is cut off")]),
        Message.user("Rain?"),
        by(kind, ToolCall("call_1", "a"), ToolCall("call_2", "b")),
        Message.tool([ToolResult("call_2", "done"), ToolResult("call_3", "of nobody")]),
        Message.user("Well?"),
    ]
    text = str(await sent(kind, request(*history)))
    assert "cut off" not in text
    assert "of nobody" not in text
    assert text.count("call_1") == 2
    assert text.count("call_2") == 2
    assert "has no result" in text


async def test_an_answer_cut_off_within_its_tool_call_can_be_sent_on():
    torn = by("openai", ToolCall.from_text("call_1", "f", '{"torn'))
    history = [Message.user("?"), torn, Message.tool([ToolResult("call_1", "no", is_error=True)])]
    assert (await sent("anthropic", request(*history)))["messages"][1]["content"][0]["input"] == {}
    assert (await sent("openai", request(*history)))["input"][1]["arguments"] == "{}"
    chat = (await sent("openai-chat", request(*history)))["messages"][1]
    assert chat["tool_calls"][0]["function"]["arguments"] == "{}"


async def test_refusals_go_on_as_what_was_said():
    history = [Message.user("?"), by("openai", Refusal("I cannot.")), Message.user("Why?")]
    assert (await sent("openai-chat", request(*history)))["messages"][1] == {
        "role": "assistant",
        "content": "I cannot.",
    }
    assert (await sent("anthropic", request(*history)))["messages"][1]["content"] == [
        {"type": "text", "text": "I cannot."}
    ]
    said = (await sent("openai", request(*history)))["input"][1]
    assert said["content"] == [{"type": "refusal", "refusal": "I cannot."}]


async def test_citations_go_back_to_their_service_alone():
    for kind, elsewhere in (("anthropic", "openai"), ("openai", "anthropic")):
        history = [Message.user("?"), by(kind, Text("So.", [CITED])), Message.user("And?")]
        assert "url_citation" in str(await sent(kind, request(*history)))
        assert "url_citation" not in str(await sent(elsewhere, request(*history)))
        assert "url_citation" not in str(await sent("openai-chat", request(*history)))


async def test_the_phase_of_a_message_goes_back_to_its_service():
    history = [Message.user("?"), by("openai", Text("Hm", [], {"phase": "commentary"})), Message.user("And?")]
    assert (await sent("openai", request(*history)))["input"][1]["phase"] == "commentary"
    assert "commentary" not in str(await sent("anthropic", request(*history)))


async def test_reasoning_that_nobody_can_read_any_more_stays_behind():
    open_reasoning = {**REASONING, "encrypted_content": None}
    history = [
        Message.user("?"),
        by("openai", Reasoning("Hm", open_reasoning), Text("So.")),
        Message.user("And?"),
    ]
    assert "rs_1" not in str(await sent("openai", request(*history)))


async def test_a_custom_tool_call_goes_back_as_one():
    item = {"id": "ct_1", "type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "SELECT 1"}
    call = ToolCall("call_1", "sql", {"input": "SELECT 1"}, None, item)
    history = [Message.user("?"), by("openai", call), Message.tool([ToolResult("call_1", "1")])]
    items = (await sent("openai", request(*history)))["input"]
    assert items[1] == item
    assert items[2] == {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"}
    chat_call = ToolCall("call_1", "sql", {"input": "SELECT 1"}, None, {"type": "custom"})
    history = [Message.user("?"), by("openai-chat", chat_call), Message.tool([ToolResult("call_1", "1")])]
    chat = (await sent("openai-chat", request(*history)))["messages"][1]
    assert chat["tool_calls"] == [
        {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    ]


async def test_chat_reasoning_goes_back_unchanged_in_later_turns():
    history = [*TURNS["openai-chat"], by("openai-chat", Text("It rains.")), Message.user("Thanks")]
    during = (await sent("openai-chat", request(*TURNS["openai-chat"])))["messages"]
    later = (await sent("openai-chat", request(*history)))["messages"]
    assert "reasoning_content" in str(during)
    assert later[: len(during)] == during


async def test_a_server_that_rejects_earlier_reasoning_gets_that_of_the_turn_alone():
    history = [*TURNS["openai-chat"], by("openai-chat", Text("It rains.")), Message.user("Thanks")]

    def reasoning_in(messages):
        asked = request(*messages)
        call = chat_call(
            asked, "openai-chat", limit_name="max_tokens", include_usage=True, earlier_reasoning=False
        )
        return b"reasoning_content" in call.body

    assert reasoning_in(TURNS["openai-chat"])
    assert not reasoning_in(history)


async def test_encrypted_details_of_reasoning_go_back_in_later_turns():
    details = {
        "type": "reasoning_details",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}],
    }
    history = [
        Message.user("?"),
        by("openai-chat", Reasoning("Hm", details), Text("So.")),
        Message.user("And?"),
    ]
    answer = (await sent("openai-chat", request(*history)))["messages"][1]
    assert answer["reasoning_details"] == details["reasoning_details"]


async def test_thinking_parts_go_back_as_parts():
    answer = by("openai-chat", Reasoning("Hm", {"type": "thinking"}), Text("So."), ToolCall("call_1", "f"))
    history = [Message.user("?"), answer, Message.tool([ToolResult("call_1", "1")])]
    assert (await sent("openai-chat", request(*history)))["messages"][1]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "text", "text": "So."},
    ]


async def test_what_is_one_side_s_turn_is_one_message_for_anthropic():
    history = [
        Message.assistant("Cut off at its beginning"),
        *turn("anthropic"),
        Message.user("And?"),
        Message.system("Be kind."),
        Message.assistant(""),
        Message.user("Please"),
    ]
    messages = (await sent("anthropic", request(*history)))["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert [block["type"] for block in messages[-1]["content"]] == ["tool_result", "text", "text", "text"]
    assert "Be kind." in messages[-1]["content"][2]["text"]


async def test_the_beginning_of_an_answer_may_be_given():
    history = [Message.user("A poem"), Message.assistant("Roses are ")]
    messages = (await sent("anthropic", request(*history)))["messages"]
    assert marked(messages[-1]["content"]) == [{"type": "text", "text": "Roses are"}]


async def test_instructions_within_the_history_stay_where_they_are():
    history = [Message.user("A"), Message.assistant("B"), Message.system("Be kind."), Message.user("C")]
    assert (await sent("openai-chat", request(*history)))["messages"][2] == {
        "role": "system",
        "content": "Be kind.",
    }
    assert (await sent("openai", request(*history)))["input"][2] == {
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be kind."}],
    }
