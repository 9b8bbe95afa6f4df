"""The scripted provider answers like a service, without one."""

import asyncio

import msgspec
import pytest

from antiphon.errors import ProviderOverloaded, ProviderRejected, ProviderStreamBroken
from antiphon.model import Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult, Usage
from antiphon.testing import answer, script, tool_call
from antiphon_worker.providers.base import (
    ItemPart,
    ModelRequest,
    ReasoningPiece,
    RefusalPiece,
    StepResult,
    TextPiece,
    ToolCallPiece,
)
from antiphon_worker.providers.scripted import ScriptedProvider


def asked(text="Hello", *, params=None, before=()):
    return ModelRequest("any", [*before, Message.user(text)], params=params or {})


async def answered(provider, request=None):
    return [increment async for increment in provider.stream(request or asked())]


async def test_without_a_script_the_words_of_the_user_come_back_one_by_one():
    *pieces, result = await answered(ScriptedProvider(), asked("How are you?"))
    assert [piece.text for piece in pieces] == ["You ", "said: ", "How ", "are ", "you?"]
    assert result.message.text == "You said: How are you?"
    assert (result.stop_reason, result.model) == ("end", "any")


async def test_without_a_script_the_results_of_tools_come_back():
    messages = [Message.user("x"), Message.tool([ToolResult("c", "sunny"), ToolResult("d", "warm")])]
    *_, result = await answered(ScriptedProvider(), ModelRequest("any", messages))
    assert result.message.text == "The tools said: sunny warm"


@pytest.mark.parametrize("text", ["", " ", "one", "  two words \n\n of  many ", "\n"])
async def test_the_pieces_make_up_the_text(text):
    *pieces, result = await answered(ScriptedProvider(script(text)))
    assert "".join(piece.text for piece in pieces) == text
    assert result.message.text == text


async def test_every_part_is_streamed_and_kept():
    parts = [
        Reasoning("hm hm"),
        "Let ",
        "me.",
        tool_call("look", at="Rome"),
        Refusal("no"),
        Item("x", {"a": 1}),
    ]
    *pieces, result = await answered(ScriptedProvider(script(parts)))
    kinds = [ReasoningPiece] * 2 + [TextPiece] * 2 + [ToolCallPiece] * 2 + [RefusalPiece, ItemPart]
    assert [type(piece) for piece in pieces] == kinds
    assert pieces[4:6] == [ToolCallPiece("call_1", "look", ""), ToolCallPiece("call_1", "", '{"at":"Rome"}')]
    call = ToolCall("call_1", "look", {"at": "Rome"})
    kept = [Reasoning("hm hm"), Text("Let me."), call, Refusal("no"), Item("x", {"a": 1})]
    assert result.message == Message("assistant", kept, provider="scripted", model="any")
    assert result.stop_reason == "tool_use"


async def test_long_arguments_come_in_pieces():
    *pieces, result = await answered(ScriptedProvider(script(tool_call("look", at="x" * 100))))
    assert len(pieces) > 3
    assert msgspec.json.decode("".join(piece.arguments for piece in pieces)) == {"at": "x" * 100}
    assert result.message.tool_calls[0].arguments == {"at": "x" * 100}


async def test_call_ids_are_counted_over_the_history():
    before = [Message("assistant", [ToolCall("call_1", "look")]), Message.tool([ToolResult("call_1")])]
    said = [tool_call("look"), ToolCall("mine", "look"), tool_call("look")]
    *_, result = await answered(ScriptedProvider(script(said)), asked(before=before))
    assert [call.call_id for call in result.message.tool_calls] == ["call_2", "mine", "call_4"]


async def test_an_answer_breaks_off_where_the_script_says():
    provider = ScriptedProvider(script(["one two ", ProviderStreamBroken()], ProviderOverloaded(), "whole"))
    seen = []

    async def collect():
        async for increment in provider.stream(asked()):
            seen.append(increment.text)  # noqa: PERF401 - what came before the exception counts

    with pytest.raises(ProviderStreamBroken):
        await collect()
    assert seen == ["one ", "two "]
    with pytest.raises(ProviderOverloaded):
        await answered(provider)
    assert (await answered(provider))[-1].message.text == "whole"


async def test_a_function_in_an_answer_is_awaited_when_the_stream_comes_to_it():
    gate, reached = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider(script(["one ", reached.set, gate.wait, "two"]))
    task = asyncio.create_task(answered(provider))
    await reached.wait()
    assert not task.done()
    gate.set()
    assert (await task)[-1].message.text == "one two"


async def test_pieces_wait_for_the_pace():
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    provider = ScriptedProvider(script("one two", answer("three", delay=5), "four"), delay=0.5, sleep=sleep)
    await answered(provider)
    await answered(provider)
    await answered(provider, asked(params={"pause": 0.1}))
    assert waited == [0.5, 0.5, 5, 0.1]


@pytest.mark.parametrize("delay", ["fast", -1, True, float("nan"), float("inf")])
async def test_a_pace_that_is_none_is_rejected(delay):
    for name in ("pause", "delay"):  # as older releases call it
        with pytest.raises(ProviderRejected, match=f"'{name}' must be a number of seconds"):
            await answered(ScriptedProvider(), asked(params={name: delay}))


async def test_usage_and_stop_reason_are_what_the_script_says_or_made_up():
    said = answer("x" * 39, usage=Usage(7, 8), stop_reason="max_tokens", raw_stop_reason="length", model="m")
    provider = ScriptedProvider(script(said, "x" * 39, Refusal("no")))
    first, second, third = [(await answered(provider))[-1] for _ in range(3)]
    assert (first.usage, first.stop_reason, first.raw_stop_reason, first.model) == (
        Usage(7, 8),
        "max_tokens",
        "length",
        "m",
    )
    assert second.usage == Usage(2, 10)
    assert third.stop_reason == "refusal"


async def test_a_script_can_come_with_the_request_and_answers_by_what_was_said_before():
    said = ["one", [{"type": "text", "text": "two"}, {"type": "tool_call", "call_id": "", "name": "look"}]]
    provider, before = ScriptedProvider(), []
    for expected in ("one", "two"):
        for _attempt in range(2):
            *_, result = await answered(provider, asked(params={"script": said}, before=before))
            assert result.message.text == expected
        before = [*before, result.message]
    assert result.message.tool_calls == [ToolCall("call_1", "look")]
    with pytest.raises(ProviderRejected, match="model call 3: it ends after 2"):
        await answered(provider, asked(params={"script": said}, before=before))


@pytest.mark.parametrize("said", ["text", [3], [[{"type": "other"}]], {}])
async def test_a_script_that_cannot_be_played_is_rejected(said):
    with pytest.raises(ProviderRejected, match="script"):
        await answered(ScriptedProvider(), asked(params={"script": said}))


async def test_each_answer_ends_in_exactly_one_result():
    for provider in (ScriptedProvider(), ScriptedProvider(script(["a", tool_call("b")]))):
        increments = await answered(provider)
        assert [type(each) for each in increments].count(StepResult) == 1
        assert isinstance(increments[-1], StepResult)
        assert provider.name == "scripted"
        await provider.aclose()
