"""A function runs the turn: with our lease, stream, journal, limits and cancel."""

import asyncio
import contextlib

import pytest
from support.eventually import patience, wait_until_async

from antiphon import Agent, Message
from antiphon.errors import (
    InvalidOutput,
    LimitReached,
    ProviderOverloaded,
    StepLimitReached,
    TurnFailed,
)
from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.input.request import NewerRecord, refuse_newer
from antiphon.model import Decision, OpenCall, Retry, Text, ToolCall, Usage
from antiphon.model.usage import Limits
from antiphon_worker.loop.steps import CallsOpened, StepEntry, decode_entry, encode_entry, tools_to_run


def answer(text, *calls):
    parts = [Text(text)] if text else []
    return ModelAnswer(
        Message.assistant([*parts, *calls]), Usage(10, 2), "tool_use" if calls else "end", "m-1"
    )


def asks(turn, text, *calls):
    async def ask():
        for word in text.split():
            await turn.text(word + " ")
        return answer(text, *calls)

    return turn.model_call(ask)


CALLS = [ToolCall("c1", "look", {"n": 1}), ToolCall("c2", "look", {"n": 2})]


async def looks(turn):
    """A small agent loop: two calls side by side, then the answer."""
    said = await asks(turn, "Let me see.", *CALLS)

    async def look(context, call):
        context.progress("looking")
        context.variables["seen"] = context.variables.get("seen", 0) + 1
        return {"seen": call.arguments["n"]}

    results = await asyncio.gather(
        *(
            turn.tool_call(call.call_id, lambda c, call=call: look(c, call))
            for call in said.message.tool_calls
        )
    )
    await asks(turn, "Seen: " + " ".join(result.text for result in results))


def test_a_function_runs_a_turn_with_our_events_and_history(runtime, use):
    use(looks)
    session = runtime.agent().session("s")
    events = list(session.stream("Look twice"))
    kinds = [event.type for event in events]
    assert [kind for kind in kinds if kind not in ("text_delta", "tool_progress", "turn_queued")] == [
        "turn_started", "step_finished", "tool_call", "tool_call", "tool_result", "tool_result", "step_finished",
        "variables_changed", "turn_finished",
    ]  # fmt: skip
    deltas = [(event.step, event.text) for event in events if event.type == "text_delta"]
    assert "".join(text for step, text in deltas if step == 1) == "Let me see. "
    response = events[-1].response
    assert response.text == 'Seen: {"seen":1} {"seen":2}'
    assert [(one.name, one.result) for one in response.tool_calls] == [
        ("look", '{"seen":1}'), ("look", '{"seen":2}'),
    ]  # fmt: skip
    assert (response.usage.input_tokens, response.usage.output_tokens, response.model) == (20, 4, "m-1")
    assert [message.role for message in session.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.variables == {"seen": 2}


def test_it_is_given_the_history_the_prompt_and_the_parameters(runtime, use):
    seen = []

    async def run(turn):
        seen.append(turn)
        return "And " + turn.messages[-1].text

    use(run)
    session = runtime.agent(system="You help {user}.", temperature=0.5).session(
        "s", variables={"user": "Alice"}
    )
    assert (session.run("one")).text == "And one"
    assert (session.run("two", top_p=1)).text == "And two"
    assert [message.text for message in seen[1].messages] == ["one", "And one", "two"]
    assert [message.text for message in seen[1].input] == ["two"]
    assert (seen[1].system, dict(seen[1].params)) == ("You help Alice.", {"temperature": 0.5, "top_p": 1})
    assert seen[1].context.session_id == "s"


def test_another_attempt_gets_what_the_first_has_had(runtime, use):
    asked, ran, fails = [], [], [True]

    async def run(turn):
        async def first():
            asked.append(1)
            return answer("", *CALLS)

        async def second():
            asked.append(2)
            if fails:
                fails.clear()
                error = RuntimeError("the service")
                error.status_code = 503
                raise error
            return answer("Done.")

        said = await turn.model_call(first)
        for call in said.message.tool_calls:

            async def tool(context, call=call):
                ran.append((call.call_id, context.key))
                return "ok"

            assert (await turn.tool_call(call.call_id, tool)).text == "ok"
        await turn.model_call(second)

    use(run)
    response = runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s").run("Go")
    assert (response.text, asked, [one for one, _ in ran]) == ("Done.", [1, 2, 2], ["c1", "c2"])
    assert response.usage.input_tokens == 20


def test_errors_of_services_and_of_the_function_are_told_apart(runtime, use):
    async def refused(turn):
        error = RuntimeError("outer")
        error.__cause__ = inner = RuntimeError("inner")
        inner.status_code, inner.body = 529, {"error": {"type": "overloaded_error", "message": "Busy"}}
        raise error

    async def broken(turn):
        raise KeyError("x")

    use(refused)
    with pytest.raises(ProviderOverloaded, match="Busy"):
        runtime.agent(retry=Retry(seconds=0)).session("s").run("Go")
    use(broken)
    session = runtime.agent().session("s")
    with pytest.raises(TurnFailed, match="KeyError") as failed:
        session.run("Go")
    assert failed.value.code == "turn_function"
    assert session.messages == []


def test_limits_hold(runtime, use):
    async def forever(turn):
        while True:
            await asks(turn, "", ToolCall("", "look"))

    use(forever)
    with pytest.raises(StepLimitReached):
        runtime.agent(max_steps=3).session("s").run("Go")
    with pytest.raises(LimitReached, match="tokens"):
        runtime.agent(limits=Limits(tokens=20)).session("s").run("Go")


async def test_a_cancel_reaches_the_function_and_keeps_its_finished_steps(runtime, use):
    begun, ended = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    async def run(turn):
        said = await asks(turn, "", CALLS[0])

        async def look(context):
            return "seen"

        await turn.tool_call(said.message.tool_calls[0].call_id, look)

        async def ask():
            await turn.text("I say")
            loop.call_soon_threadsafe(begun.set)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        await turn.model_call(ask)

    use(run)
    session = runtime.agent().session("s")
    turn = await session.submit_async("Go")
    await asyncio.wait_for(begun.wait(), patience(20))
    await turn.cancel("enough", keep="partial")
    await wait_until_async(lambda: ended, description="the function was cancelled")
    with pytest.raises(Exception, match="enough"):
        await turn.result(20)
    assert [message.text for message in await session.messages_async()] == ["Go", "", "", "I say"]
    await runtime.aclose()


def test_calls_without_a_result_are_settled(runtime, use):
    async def run(turn):
        await asks(turn, "", *CALLS)
        await turn.settle({"c1": "handed over", "unknown": "x"})
        return "Done."

    use(run)
    response = runtime.agent().session("s").run("Go")
    assert [(one.result, one.is_error) for one in response.tool_calls] == [
        ("handed over", False), ("The result of this call is unknown.", True),
    ]  # fmt: skip
    assert response.text == "Done."


def test_model_calls_inside_a_tool_are_no_steps(runtime, use):
    async def run(turn):
        said = await asks(turn, "", CALLS[0])

        async def agent_as_tool(context):
            return (await asks(turn, "inner words")).message.text

        await turn.tool_call(said.message.tool_calls[0].call_id, agent_as_tool)
        await asks(turn, "outer")

    use(run)
    events = list(runtime.agent().session("s").stream("Go"))
    assert "".join(event.text for event in events if event.type == "text_delta") == "outer "
    assert events[-1].response.tool_calls[0].result == "inner words"
    assert len([event for event in events if event.type == "step_finished"]) == 2


def test_a_schema_is_checked(runtime, use):
    async def run(turn):
        return turn.input[-1].text

    use(run)
    session = runtime.agent().session("s")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert (session.json('{"n": 1}', schema=schema)).output == {"n": 1}
    with pytest.raises(InvalidOutput):
        session.json("no", schema=schema)


def test_what_the_agent_brings_in_vain_is_refused(runtime, use):
    async def run(turn):
        return "Hello"

    use(run)

    def look() -> str:
        return ""

    for options in ({"tools": [look]}, {"fallback": ["openai/any"]}, {"approval": True}):
        with pytest.raises(TurnFailed, match="is not supported with it"):
            runtime.agent(**options).session().run("Go")
    use(lambda turn: asyncio.sleep(0))
    with pytest.raises(TurnFailed, match="returned no answer"):
        runtime.agent().session().run("Go")


def test_an_app_names_it():
    from antiphon_worker.app import App

    function = TurnFunction(looks)
    App(agents=[Agent(provider="looker", model="any", name="l")], providers={"looker": function})
    from antiphon_worker.providers.registry import provider_for

    assert provider_for("looker", {"looker": function}).name == "looker"


def test_a_limit_ends_the_turn_although_the_function_catches_it(runtime, use):
    async def run(turn):
        try:
            while True:
                await asks(turn, "", ToolCall("", "look"))
        except Exception:  # noqa: BLE001
            return "never mind"

    use(run)
    with pytest.raises(StepLimitReached):
        runtime.agent(max_steps=2).session("s").run("Go")


async def pays(turn):
    """A loop whose calls wait, and that swallows what the framework of another might."""
    said = await asks(turn, "", ToolCall("c1", "pay", {"amount": 5}), ToolCall("c2", "scan", {}))
    kinds = {"pay": "approval", "scan": "tool"}
    waiting = [
        OpenCall(one.call_id, one.name, one.arguments, kinds[one.name], 60) for one in said.message.tool_calls
    ]
    with contextlib.suppress(Exception):
        decided = await turn.decided(waiting)
        assert turn.decision("c1") == decided["c1"]
        assert decided["c2"].text == "empty"

        async def pay(context):
            return f"paid {decided['c1'].arguments['amount']}"

        await turn.tool_call("c1", pay)
    assert turn.decision("nobody") is None
    await asks(turn, "Done.")


def test_a_function_waits_for_decisions(runtime, use):
    use(pays)
    session = runtime.agent().session("s")
    seen = []
    response = session.run(
        "Go",
        on_approval=lambda call: seen.append(call) or {"amount": 4},
        on_tool=lambda call: seen.append(call) or "empty",
    )
    assert response.text == "Done."
    assert [(one.name, one.seconds) for one in seen] == [("pay", 60), ("scan", 60)]
    assert [one.result for one in response.tool_calls] == [
        '[the caller changed the arguments to {"amount":4}]\npaid 4', "empty",
    ]  # fmt: skip


def test_only_a_call_of_the_last_answer_can_wait(runtime, use):
    async def run(turn):
        await turn.decided([OpenCall("c9", "pay", {})])

    use(run)
    with pytest.raises(TurnFailed, match="c9 of pay cannot wait") as failed:
        runtime.agent().session("s").run("Go")
    assert failed.value.code == "turn_function"


def test_calls_of_a_function_need_no_tool_of_the_app_and_no_older_worker_takes_them(monkeypatch):
    step = StepEntry(1, Message.assistant([ToolCall("c1", "pay", {})]), Usage(), "tool_use", None, "m")
    waits = CallsOpened(1, ["c1"], version=3)
    approved = {"c1": Decision("c1", "approve")}
    assert tools_to_run([step, CallsOpened(1, ["c1"])], approved) == {"pay"}
    assert tools_to_run([step, waits], approved) == set()
    monkeypatch.setitem(refuse_newer.__globals__["KNOWN"], "journal entry", 2)
    with pytest.raises(NewerRecord):
        decode_entry(encode_entry(waits))


def test_calls_beyond_the_limit_of_the_turn_are_not_run(runtime, use):
    use(looks)
    response = runtime.agent().session("s").run("Look twice", max_tool_calls=1)
    assert [one.is_error for one in response.tool_calls] == [False, True]
    assert "the turn may make 1 tool calls" in response.tool_calls[1].result
