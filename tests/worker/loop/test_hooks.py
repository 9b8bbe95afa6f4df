"""Hooks before and after turns, model calls, tools and steps: in this process, on workers, and through crashes."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import nullcontext, suppress

import pytest
from support.crashing_turn import Turn

from antiphon import Agent, Message
from antiphon.errors import (
    AgentError,
    ProviderOverloaded,
    ProviderRejected,
    StepFailed,
    TurnFailed,
    UsageError,
)
from antiphon.events import StepRecorded, TextDelta, TurnRetrying
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.hooks import (
    Answer,
    Ask,
    Block,
    Hook,
    ModelEnd,
    ModelStart,
    Replace,
    StepEnd,
    StepStart,
    ToolEnd,
    ToolStart,
    TurnEnd,
    TurnFailure,
    TurnStart,
    hook,
)
from antiphon.input.request import KNOWN, NewerRecord
from antiphon.model import CallerTool, Retry, Timeouts, ToolCall
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker import App
from antiphon_worker.loop.steps import HookedCall, HookedInput, decode_entry, encode_entry

REFUND = [tool_call("refund", cents=500), "Done."]


@tool
def refund(cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents}"


def results(response):
    return [call.result for call in response.tool_calls]


# What hooks return.


def test_a_blocked_turn_fails_before_the_model_is_called(runtime):
    def check(turn: TurnStart):
        return Block(f"Not {turn.text!r}.")

    asked = []
    runtime.use(script(asked.append, repeat=True))
    with pytest.raises(TurnFailed, match="Not 'Hello'") as failed:
        runtime.agent(hooks=[check]).session().run("Hello")
    assert (failed.value.code, asked) == ("blocked", [])
    assert (
        failed.value.user_message
        == "The assistant cannot answer this message. Please change it and try again."
    )


def test_the_model_and_the_history_get_the_input_as_it_was_replaced(runtime):
    def clean(turn: TurnStart):
        return Replace(input=turn.text.replace("4711", "[number]"))

    session = runtime.agent(hooks=[clean]).session()
    assert session.run("Order 4711").text == "You said: Order [number]"
    assert next(message.text for message in session.messages) == "Order [number]"


def test_a_hook_answers_in_place_of_the_model(runtime):
    def closed(call: ModelStart):
        return Answer("We are closed.")

    asked = []
    runtime.use(script(asked.append, repeat=True))
    response = runtime.agent(hooks=[closed]).session().run("Hello")
    assert (response.text, response.usage.tokens, asked) == ("We are closed.", 0, [])


def test_the_request_of_the_model_is_replaced(runtime):
    def route(call: ModelStart):
        return Replace(
            model="large",
            system="Be brief.",
            params={"seed": 1},
            messages=[*call.messages[:-1], Message.user("Bye")],
        )

    seen = []

    def answer(request):
        seen.append((request.model, request.system, request.params, request.messages[-1].text))
        return "Hi"

    runtime.use(script(answer))
    session = runtime.agent(hooks=[route]).session()
    assert session.run("Hello").model == "large"
    assert seen == [("large", "Be brief.", {"seed": 1}, "Bye")]
    assert session.messages[0].text == "Hello"


def test_an_answer_is_replaced_for_the_history_and_withdrawn_from_readers(runtime):
    def clean(answer: ModelEnd):
        return Replace(text=answer.text.replace("secret", "[…]"))

    runtime.use(script("A secret."))
    session = runtime.agent(hooks=[clean]).session()
    with session.stream("Hello") as stream:
        events = list(stream)
    kinds = [
        (type(event), getattr(event, "text", ""))
        for event in events
        if isinstance(event, TextDelta | TurnRetrying)
    ]
    read = []
    for kind, text in kinds:
        read = [] if kind is TurnRetrying else [*read, text]
    assert "".join(read) == "A […]."
    assert kinds[0][1].startswith("A")
    assert session.messages[-1].text == "A […]."


@pytest.mark.parametrize(
    "verdict", [Block("No."), Replace(text="Clean."), None], ids=["block", "replace", "allow"]
)
def test_a_held_answer_is_streamed_when_its_hook_has_agreed(runtime, verdict):
    @hook(hold=True)
    def check(answer: ModelEnd):
        return verdict

    runtime.use(script("A secret."))
    session = runtime.agent(hooks=[check]).session()
    said, blocked = [], isinstance(verdict, Block)
    with pytest.raises(TurnFailed) if blocked else nullcontext(), session.stream("Hello") as stream:
        for event in stream:
            assert not isinstance(event, TurnRetrying)
            said += [event.text] if isinstance(event, TextDelta) else []
    expected = "A secret." if verdict is None else "" if blocked else "Clean."
    assert "".join(said) == expected


def test_a_blocked_answer_leaves_no_text_and_its_cost_counts(runtime):
    def check(answer: ModelEnd):
        return Block("No.")

    runtime.use(script("A secret."))
    session = runtime.agent(hooks=[check]).session()
    with pytest.raises(TurnFailed, match=r"No\."):
        session.run("Hello")
    assert session.messages == []
    assert session.usage.tokens > 0


def test_a_blocked_answer_of_a_turn_leaves_no_text(runtime):
    seen = []

    def check(turn: TurnEnd):
        seen.append((turn.text, results(turn)))
        return Block("No.")

    runtime.use(script(*REFUND))
    session = runtime.agent(tools=[refund], hooks=[check]).session()
    with pytest.raises(TurnFailed, match=r"No\."):
        session.run("Hello")
    assert seen == [("Done.", ["refunded 500"])]
    assert "Done." not in [message.text for message in session.messages]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Block("Not today."), ("Not today.", True)),
        (Answer("refunded before"), ("refunded before", False)),
        (Replace(arguments={"cents": 1}), ("refunded 1", False)),
        (None, ("refunded 500", False)),
    ],
    ids=["block", "answer", "replace", "allow"],
)
def test_a_tool_call_is_blocked_answered_or_changed(runtime, verdict, expected):
    def check(call: ToolStart):
        return verdict

    runtime.use(script(*REFUND))
    [call] = runtime.agent(tools=[refund], hooks=[check]).session().run("Go").tool_calls
    assert (call.result, call.is_error) == expected


def test_a_person_is_asked_about_the_arguments_that_run(runtime):
    asked = Counter()

    def half(call: ToolStart):
        asked["half"] += 1
        return Replace(arguments={"cents": call.arguments["cents"] // 2})

    def large(call: ToolStart):
        asked["large"] += 1
        return Ask() if call.arguments["cents"] > 100 else None

    runtime.use(script(*REFUND))
    session = runtime.agent(tools=[refund], hooks=[half, large]).session()
    shown = []

    def approve(call):
        shown.append(call.arguments)
        return True

    assert results(session.run("Go", on_approval=approve)) == ["refunded 250"]
    assert (shown, asked) == ([{"cents": 250}], {"half": 1, "large": 1})


def test_a_person_may_refuse_and_another_hook_may_still_block(runtime):
    def ask(call: ToolStart):
        return Ask()

    def block(call: ToolStart):
        return Block("Never.") if call.arguments["cents"] > 1000 else None

    runtime.use(script([tool_call("refund", cents=500), tool_call("refund", cents=5000)], "Done."))
    session = runtime.agent(tools=[refund], hooks=[ask, block]).session()
    refused, blocked = results(session.run("Go", on_approval=lambda call: "Too much."))
    assert "Too much." in refused
    assert blocked == "Never."


@pytest.mark.parametrize(
    "verdict", [Replace(result="[removed]"), Block("[blocked]")], ids=["replace", "block"]
)
def test_the_result_of_a_tool_is_replaced_for_the_model(runtime, verdict):
    def clean(call: ToolEnd):
        assert (call.name, call.arguments, call.result) == ("refund", {"cents": 500}, "refunded 500")
        return verdict

    runtime.use(
        script(tool_call("refund", cents=500), lambda request: request.messages[-1].tool_results[0].text)
    )
    response = runtime.agent(tools=[refund], hooks=[clean]).session().run("Go")
    assert response.text == results(response)[0] in ("[removed]", "[blocked]")


def test_steps_are_blocked_and_their_values_replaced(runtime):
    @tool
    async def order(context: Context) -> str:
        kept = await context.step("kept", dict, number=1)
        try:
            await context.step("never", dict)
        except StepFailed as exc:
            return f"{kept} {exc.message}"
        return "?"

    def start(step: StepStart):
        return Block("Not this step.") if step.name == "never" else None

    def end(step: StepEnd):
        return Replace(value={**step.value, "audited": True})

    runtime.use(script(tool_call("order"), "Done."))
    [result] = results(runtime.agent(tools=[order], hooks=[start, end]).session().run("Go"))
    assert result == "{'number': 1, 'audited': True} Not this step."


def test_hooks_run_in_order_and_read_the_context(runtime):
    order = []

    def first(call: ToolStart | ToolEnd):
        order.append(("first", type(call).__name__))

    async def second(call: ToolStart):
        order.append(
            ("second", call.context.variables, threading.current_thread() is threading.main_thread())
        )
        return Replace(arguments={"cents": call.arguments["cents"] + 1})

    def third(call: ToolStart):
        order.append(("third", call.arguments, call.context.session_id))

    runtime.use(script(*REFUND))
    session = runtime.agent(tools=[refund], hooks=[first, second, third]).session(
        "s1", variables={"plan": "free"}
    )
    session.run("Go")
    assert order[0] == ("first", "ToolStart")
    assert order[1][:2] == ("second", {"plan": "free"})
    assert order[2:] == [("third", {"cents": 501}, "s1"), ("first", "ToolEnd")]
    assert dict(session.variables) == {"plan": "free"}


def test_hooks_of_the_app_run_before_those_of_the_agent():
    def of_app(turn: TurnStart): ...
    def of_agent(turn: TurnStart): ...

    one = Agent("scripted", "any", name="one", hooks=[of_agent])
    app = App(agents=[one, Agent("scripted", "any", name="two")], hooks=[of_app])
    assert [hook.name for hook in app.hooks(app.agent("one"))] == ["of_app", "of_agent"]
    assert [hook.name for hook in app.hooks(app.agent("two"))] == ["of_app"]
    assert [hook.name for hook in App(hooks=[of_app]).hooks(Agent("scripted", "any").spec())] == ["of_app"]


def test_what_a_hook_does_to_its_copies_changes_nothing(runtime):
    def spoil(call: ModelStart):
        call.context.variables["changed"] = True
        call.messages[-1].parts.clear()
        call.messages.clear()

    session = runtime.agent(hooks=[spoil]).session()
    assert session.run("Hello").text == "You said: Hello"
    assert dict(session.variables) == {}


# Hooks that fail.


def raising(turn: TurnStart):
    raise ValueError("secret")


def nonsense(turn: TurnStart):
    return "no verdict"


def not_here(turn: TurnStart):
    return Ask()


def unknown(turn: TurnStart):
    return Replace(model="x")


def empty(turn: TurnStart):
    return Replace(input="")


async def hanging(turn: TurnStart):
    await asyncio.Event().wait()


def stuck(turn: TurnStart):
    RELEASED.wait(20)


RELEASED = threading.Event()
FAILING = [
    raising,
    nonsense,
    not_here,
    unknown,
    empty,
    Hook(hanging, timeout=0.05),
    Hook(stuck, timeout=0.05),
]


@pytest.mark.parametrize("failing", FAILING, ids=lambda one: getattr(one, "name", None) or one.__name__)
def test_a_hook_that_fails_blocks_and_reveals_nothing(runtime, failing):
    RELEASED.clear()
    with pytest.raises(TurnFailed) as failed:
        runtime.agent(hooks=[failing]).session().run("Hello")
    RELEASED.set()
    assert failed.value.code == "hook_failed"
    assert failed.value.message == "A check of this turn failed, so it was stopped."


@pytest.mark.parametrize("verdict", [Replace(system=7), Block(7)], ids=["replace", "block"])
def test_the_log_states_what_a_hook_returned_in_place_of_text(verdict, caplog):
    def wrong(call: ModelStart):
        return verdict

    caplog.set_level("DEBUG", "antiphon")
    with pytest.raises(TurnFailed):
        Agent(script("Hello."), "any", hooks=[wrong]).session().run("Hello")
    assert "TypeError: text is expected, not int" in caplog.text


@pytest.mark.parametrize("failing", FAILING[:6], ids=lambda one: getattr(one, "name", None) or one.__name__)
def test_a_hook_that_is_to_continue_counts_as_one_that_returned_nothing(runtime, failing):
    function = failing.function if isinstance(failing, Hook) else failing
    going_on = Hook(function, timeout=0.05 if isinstance(failing, Hook) else 30, on_error="continue")
    assert runtime.agent(hooks=[going_on]).session().run("Hello").text == "You said: Hello"


def test_a_failed_hook_of_a_tool_call_is_an_error_that_the_model_reads(runtime):
    def broken(call: ToolStart):
        raise RuntimeError("secret")

    runtime.use(script(*REFUND))
    [call] = runtime.agent(tools=[refund], hooks=[broken]).session().run("Go").tool_calls
    assert (call.result, call.is_error) == (
        "A check of this tool call failed, so it was stopped.",
        True,
    )


def test_time_limits_of_the_service_do_not_count_hooks(runtime):
    async def slow(call: ModelStart | ModelEnd):
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.3)

    agent = runtime.agent(hooks=[slow], timeouts=Timeouts(first_token=0.1, between_tokens=0.1))
    assert agent.session().run("Hello").text == "You said: Hello"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("audit", "must be a list of functions, not 'audit'"),
        (["audit"], "must be a list of functions, not of 'audit'"),
        ([lambda turn: None], "must be annotated with when it runs: TurnStart, TurnEnd"),
        ([print], "must be annotated"),
    ],
)
def test_what_is_no_hook_is_refused_at_once(given, said):
    with pytest.raises(UsageError, match=said):
        Agent("scripted", "any", hooks=given)
    with pytest.raises(UsageError, match=said):
        App(hooks=given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": 0}, "must be a positive number of seconds"),
        ({"timeout": None}, "must be a number of seconds, not None"),
        ({"on_error": "raise"}, 'must be "block" or "continue"'),
        ({"hold": True}, "is only for hooks that take a ModelEnd"),
    ],
)
def test_wrong_options_of_a_hook_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        hook(**options)(raising)


def test_an_agent_with_hooks_is_not_sent_with_a_turn():
    with pytest.raises(UsageError, match="functions that cannot be sent to a worker"):
        Agent("scripted", "any", hooks=[raising]).spec()


# Through crashes.


@pytest.mark.parametrize("crash_at", range(16))
async def test_what_hooks_decided_about_a_finished_step_is_not_decided_again(crash_at):
    """The hooks would decide differently each time they are asked."""
    decided = Counter()

    def start(call: ToolStart):
        decided["start"] += 1
        return [Replace(arguments={"cents": decided["start"]}), Ask()][call.name == "second"]

    def end(call: ToolEnd):
        decided["end"] += 1
        return Replace(result=f"{call.result} ({decided['end']})")

    def model(answer: ModelEnd):
        decided["model"] += 1
        return Replace(text=f"Answer {decided['model']}")

    def answer(request):
        calls = [tool_call("refund", cents=500), tool_call("second")]
        return "Done." if request.messages[-1].role == "tool" else ["Text", *calls]

    second = tool(name="second")(lambda: "second ran")
    lines = script(answer, repeat=True)
    turn = Turn(refund, second, lines=lines, crash_at=crash_at, hooks=[start, end, model])
    found = await turn.run()
    kept = {entry.call_id: entry.arguments for entry in turn.entries if isinstance(entry, HookedCall)}
    first = next(message for message in found.messages if message.tool_calls)
    first_id = first.tool_calls[0].call_id
    assert first.text == turn.entries[0].message.text
    assert len(kept) == 2
    ran = next(message for message in found.messages if message.tool_results).tool_results
    assert ran[0].text.startswith(f"refunded {kept[first_id]['cents']} (")
    assert {one.call_id for one in turn.waited} == {first.tool_calls[1].call_id}


@pytest.mark.parametrize("crash_at", range(12))
async def test_hooks_of_a_finished_step_do_not_run_again(crash_at):
    ran = Counter()

    @tool
    async def order(context: Context) -> str:
        async def pay():
            ran["pay"] += 1
            return ran["pay"]

        found = await context.step("pay", pay)
        await context.sleep(7200)
        return f"paid {found}"

    def end(step: StepEnd):
        ran["end"] += 1
        return Replace(value=step.value * 100 + ran["end"])

    def answer(request):
        return "Done." if request.messages[-1].role == "tool" else tool_call("order")

    turn = Turn(order, lines=script(answer, repeat=True), crash_at=crash_at, hooks=[end])
    found = await turn.run()
    [recorded] = [event for event in turn.events if isinstance(event, StepRecorded) and event.name == "pay"]
    assert not recorded.is_error
    [value] = [entry.value for entry in turn.entries if getattr(entry, "name", "") == "pay"]
    assert f"paid {value}" in [result.text for message in found.messages for result in message.tool_results]
    assert ran["end"] == ran["pay"] <= (2 if crash_at else 1)


@pytest.mark.parametrize("entry", [HookedInput([]), HookedCall(1, "c", {})], ids=["input", "call"])
def test_an_older_release_leaves_a_turn_that_hooks_have_changed(monkeypatch, entry):
    data = encode_entry(entry)
    assert decode_entry(data) == entry
    monkeypatch.setitem(KNOWN, "journal entry", 2)
    with pytest.raises(NewerRecord):
        decode_entry(data)


# Turn functions.


def function_agent(hooks):
    async def run(turn):
        async def ask():
            return ModelAnswer(Message.assistant("Hello"))

        await turn.context.step("pay", dict)
        await turn.model_call(ask)

    return Agent(TurnFunction(run), "any", hooks=hooks)


def test_hooks_of_turns_and_steps_apply_to_turn_functions():
    seen = []

    def see(moment: TurnStart | TurnEnd | StepStart | StepEnd):
        seen.append(type(moment).__name__)

    assert function_agent([see]).session().run("Hi").text == "Hello"
    assert seen == ["TurnStart", "StepStart", "StepEnd", "TurnEnd"]


# Retries and costs.


def test_the_input_of_a_turn_is_decided_once_for_all_its_attempts(runtime):
    asked = Counter()

    def number(turn: TurnStart):
        asked["start"] += 1
        return Replace(input=f"{turn.text} {asked['start']}")

    def answer(request):
        return request.messages[-1].text

    runtime.use(script(ProviderOverloaded(), answer, answer))
    session = runtime.agent(hooks=[number], retry=Retry(times=1, delay=0)).session()
    assert session.run("Hello").text == "Hello 1"
    assert [message.text for message in session.messages] == ["Hello 1", "Hello 1"]
    assert session.run("Hello").text == "Hello 2"


def test_a_hook_runs_for_the_call_of_a_fallback_too(runtime):
    models = []

    def see(call: ModelStart):
        models.append(call.model)

    runtime.use(script(ProviderOverloaded(), "Hi"))
    session = runtime.agent(
        "first", hooks=[see], fallback=["scripted/second"], retry=Retry(times=0)
    ).session()
    session.run("Hello")
    assert models == ["first", "second"]


def test_the_answer_of_a_turn_with_a_schema_is_what_hooks_have_made_of_it(runtime):
    def raise_it(answer: ModelEnd):
        return Replace(text=answer.text.replace("1", "2"))

    runtime.use(script('{"number": 1}'))
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    assert runtime.agent(hooks=[raise_it]).session().run("Go", schema=schema).output == {"number": 2}


@pytest.mark.parametrize("status", ["client", "invalid"])
def test_calls_that_hooks_cannot_judge_go_their_way(runtime, status):
    """A client-side tool may be blocked, and a call without valid arguments never reaches a hook."""
    seen = []

    def block(call: ToolStart):
        seen.append(call.name)
        return Block("No.")

    if status == "invalid":
        runtime.use(script(ToolCall("c1", "refund", {}, raw="{"), "Done."))
        [call] = runtime.agent(tools=[refund], hooks=[block]).session().run("Go").tool_calls
        assert "not a JSON object" in call.result
        assert seen == []
        return
    runtime.use(script(tool_call("locate"), "Done."))
    agent = runtime.agent(caller_tools=[CallerTool("locate", "Locate.", {"type": "object"})], hooks=[block])
    [call] = agent.session().run("Go").tool_calls
    assert (call.result, seen) == ("No.", ["locate"])


async def hangs():
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (ProviderRejected("No."), "provider_rejected"),
        (lambda request: 1 / 0, "internal_error"),
        (answer(hangs, "Late."), "turn_timed_out"),
    ],
    ids=["of a service", "of our own", "of time"],
)
def test_hooks_take_note_of_a_turn_that_fails(fails, code):
    seen = []

    def note(turn: TurnFailure):
        seen.append((turn.code, turn.agent, turn.context.turn_id))
        return Block("A hook cannot change it.")

    def breaks(turn: TurnFailure):
        raise RuntimeError

    agent = Agent(script("Hello.", fails), "any", name="a", hooks=[breaks, note])
    session = agent.session()
    assert session.run("Hi").text == "Hello."
    assert seen == []
    turn = session.submit("Again", timeout=0.5)
    with pytest.raises(AgentError) as raised:
        turn.result()
    assert seen == [(raised.value.code, "a", turn.id)]
    assert seen[0][0] == code


def test_hooks_take_note_of_an_answer_that_a_hook_blocks_and_not_of_a_retry():
    seen = []

    def note(turn: TurnFailure):
        seen.append((turn.code, turn.error))

    def block(turn: TurnEnd):
        return Block("Not this.")

    agent = Agent(
        script(ProviderOverloaded("Later."), "Hello."),
        "any",
        hooks=[note, block],
        retry=Retry(times=1, delay=0),
    )
    with pytest.raises(TurnFailed, match="Not this"):
        agent.session().run("Hi")
    assert seen == [("blocked", "Not this.")]
