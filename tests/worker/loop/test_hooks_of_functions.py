"""Hooks before and after the model calls, tools and steps of turn functions, in order, and through crashes."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.crashing_turn import Turn

from antiphon import Agent, Message
from antiphon.errors import TurnFailed
from antiphon.events import TextDelta, TurnRetrying
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.hooks import (
    Answer,
    Ask,
    Block,
    ModelEnd,
    ModelStart,
    Replace,
    StepEnd,
    StepStart,
    ToolEnd,
    ToolStart,
    TurnEnd,
    TurnStart,
    hook,
)
from antiphon.model import Item, Text, ToolCall, Usage

PAY = ToolCall("c1", "pay", {"cents": 500})


def paying(*, ran=None, seen=None, changes=True, text="Done."):
    """A function that asks a model, pays as it says, and asks again."""
    ran = Counter() if ran is None else ran

    async def run(turn):
        async def first(request):
            ran["model"] += 1
            if seen is not None:
                seen.append(request)
            return ModelAnswer(Message.assistant([Text("Let me pay."), PAY]), Usage(10, 2), "tool_use", "any")

        async def second():
            await turn.text(text)
            return ModelAnswer(Message.assistant(text), Usage(10, 2))

        async def pay(context, arguments):
            ran["pay"] += 1
            return await context.step("charge", lambda: f"paid {arguments['cents']}")

        async def pay_as_asked(context):
            ran["pay"] += 1
            return "paid as asked"

        said = await turn.model_call(first)
        for call in said.message.tool_calls:
            await turn.tool_call(call.call_id, pay if changes else pay_as_asked)
        await turn.model_call(second)

    return run


def session_of(function, *hooks):
    return Agent(TurnFunction(function), "any", hooks=hooks).session()


def results(response):
    return [call.result for call in response.tool_calls]


def test_hooks_run_before_and_after_each_call_in_order():
    seen = []

    def first(
        moment: TurnStart | ModelStart | ModelEnd | ToolStart | StepStart | StepEnd | ToolEnd | TurnEnd,
    ):
        seen.append(type(moment).__name__)

    async def second(moment: ModelStart | ToolEnd):
        seen.append(f"second {type(moment).__name__}")

    response = session_of(paying(), first, second).run("Pay")
    assert (response.text, results(response)) == ("Done.", ["paid 500"])
    assert seen == [
        "TurnStart", "ModelStart", "second ModelStart", "ModelEnd", "ToolStart", "StepStart", "StepEnd", "ToolEnd",
        "second ToolEnd", "ModelStart", "second ModelStart", "ModelEnd", "TurnEnd",
    ]  # fmt: skip


def test_a_function_asks_its_model_as_hooks_have_changed_the_request():
    seen = []

    def cheaper(call: ModelStart):
        if call.step == 1:
            return Replace(model="small", system="Be brief.", params={"seed": 1})
        return None

    session_of(paying(seen=seen), cheaper).run("Pay")
    [request] = seen
    assert (request.model, request.system, request.params) == ("small", "Be brief.", {"seed": 1})
    assert [message.text for message in request.messages] == ["Pay"]


def test_the_messages_of_a_call_are_those_of_the_turn():
    seen = []

    def see(call: ModelStart):
        seen.append([message.role for message in call.messages])

    session_of(paying(), see).run("Pay")
    assert seen == [["user"], ["user", "assistant", "tool"]]


@pytest.mark.parametrize("changes", [True, False])
def test_replaced_arguments_run_or_block_the_call(changes):
    """A function that does not take them has no way to run with them: its hook has failed."""

    def less(call: ToolStart):
        return Replace(arguments={"cents": 1})

    ran = Counter()
    response = session_of(paying(ran=ran, changes=changes), less).run("Pay")
    [result] = results(response)
    assert result == ("paid 1" if changes else "A check of this tool call failed, so it was stopped.")
    assert ran["pay"] == (1 if changes else 0)


def test_what_a_function_does_not_take_fails_the_hook_that_replaces_it():
    def other(call: ModelStart):
        return Replace(model="small") if call.step == 2 else None

    with pytest.raises(TurnFailed) as failed:
        session_of(paying(), other).run("Pay")
    assert failed.value.code == "hook_failed"


@pytest.mark.parametrize("moment", [ModelStart, ModelEnd])
def test_a_blocked_model_call_ends_the_turn_also_where_the_function_catches_it(moment):
    def block(call):
        return Block("Not today.")

    block.__annotations__["call"] = moment

    async def run(turn):
        async def ask():
            return ModelAnswer(Message.assistant("Hello"))

        try:
            await turn.model_call(ask)
        except TurnFailed:
            return "I answer all the same."

    with pytest.raises(TurnFailed, match="Not today") as failed:
        session_of(run, block).run("Hi")
    assert failed.value.code == "blocked"


def test_a_function_goes_on_where_it_catches_an_error_of_its_own_model():
    async def run(turn):
        async def fails():
            raise ConnectionError

        async def answers():
            return ModelAnswer(Message.assistant("Hello"))

        try:
            await turn.model_call(fails)
        except ConnectionError:
            await turn.model_call(answers)

    assert session_of(run).run("Hi").text == "Hello"


def test_hooks_answer_for_a_model_and_for_a_tool():
    def answers(call: ModelStart | ToolStart):
        return Answer("Ours.") if isinstance(call, ToolStart) or call.step == 2 else None

    ran = Counter()
    response = session_of(paying(ran=ran), answers).run("Pay")
    assert (response.text, results(response), ran["pay"]) == ("Ours.", ["Ours."], 0)


def test_a_blocked_tool_does_not_run_and_its_result_is_the_reason():
    def block(call: ToolStart):
        return Block("Too much.")

    def shout(call: ToolEnd):
        return Replace(result=call.result.upper())

    ran = Counter()
    response = session_of(paying(ran=ran), block).run("Pay")
    assert (results(response), ran["pay"]) == (["Too much."], 0)
    assert results(session_of(paying(), shout).run("Pay")) == ["PAID 500"]


def test_a_replaced_answer_leaves_no_original():
    number = "4711029384756"
    said = f"Card {number}"

    async def run(turn):
        async def ask():
            await turn.text(said)
            return ModelAnswer(Message.assistant([Text(said), Item("theirs", {"text": said})]))

        return (await turn.model_call(ask)).message.text

    def redact(answer: ModelEnd):
        return Replace(text=answer.text.replace(number, "[card]"))

    session = session_of(run, redact)
    events = list(session.stream("Hi"))
    assert [event.code for event in events if isinstance(event, TurnRetrying)] == ["withdrawn"]
    assert number not in str(session.messages)
    assert session.messages[-1].text == "Card [card]"


def test_a_held_answer_is_streamed_when_its_hook_has_agreed():
    @hook(hold=True)
    def redact(answer: ModelEnd):
        return Replace(text=answer.text.replace("4711", "[card]"))

    events = list(session_of(paying(text="Card 4711"), redact).stream("Hi"))
    deltas = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert deltas == "Let me pay.Card [card]"
    assert not [event for event in events if isinstance(event, TurnRetrying)]


def test_model_calls_inside_a_tool_run_hooks_too():
    seen = []

    def see(moment: ModelStart | ModelEnd):
        seen.append(type(moment).__name__)
        if len(seen) == 4:
            return Block("No more.")
        return None

    async def run(turn):
        async def call():
            return ModelAnswer(Message.assistant([PAY]), stop_reason="tool_use")

        async def inner():
            return ModelAnswer(Message.assistant("Inner"))

        async def pay(context):
            return (await turn.model_call(inner)).message.text

        await turn.model_call(call)
        await turn.tool_call("c1", pay)

    with pytest.raises(TurnFailed, match=r"No more\."):
        session_of(run, see).run("Hi")
    assert seen == ["ModelStart", "ModelEnd"] * 2


def test_a_hook_that_takes_too_long_blocks_or_is_passed_over():
    @hook(timeout=0.01, on_error="continue")
    async def slow(call: ToolStart):
        await asyncio.Event().wait()

    assert results(session_of(paying(), slow).run("Pay")) == ["paid 500"]
    with pytest.raises(TurnFailed) as failed:
        session_of(paying(), hook(timeout=0.01)(_never)).run("Pay")
    assert failed.value.code == "hook_failed"


async def _never(call: ModelStart):
    await asyncio.Event().wait()


@pytest.mark.parametrize("crash_at", range(20))
async def test_a_person_is_asked_once_and_the_call_runs_with_the_arguments_of_the_hook(crash_at):
    asked, ran = Counter(), Counter()

    def large(call: ToolStart):
        asked["hook"] += 1
        return Ask()

    def less(call: ToolStart):
        return Replace(arguments={"cents": 100})

    turn = Turn(function=paying(ran=ran), hooks=[large, less], crash_at=crash_at)
    found = await turn.run()
    [call] = turn.waited[:1]
    assert (call.kind, call.arguments) == ("approval", {"cents": 100})
    assert [one.text for one in found.messages[-2].tool_results] == ["paid 100"]
    assert asked["hook"] <= 2
    assert Counter(turn.recorded()) == {"charge": 1}
    if not crash_at:
        assert (asked["hook"], ran["pay"], ran["model"]) == (1, 1, 1)


def test_hooks_that_a_function_cannot_run_fail_its_turns():
    """The nodes of a graph call models and tools by themselves."""

    class Graph(TurnFunction):
        runs_hooks = False

    def check(call: ToolStart):
        return Block("No.")

    def see(turn: TurnEnd):
        return None

    agent = Agent(Graph(paying(), "graph"), "any", hooks=[check])
    with pytest.raises(
        TurnFailed, match="The turns of 'graph' run no hooks of model calls and tools"
    ) as failed:
        agent.session().run("Pay")
    assert failed.value.code == "turn_function"
    assert Agent(Graph(paying(), "graph"), "any", hooks=[see]).session().run("Pay").text == "Done."
