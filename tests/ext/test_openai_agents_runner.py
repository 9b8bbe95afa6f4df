"""The Agents SDK's ``Runner`` inside a turn: over HTTP against the model server, and with scripted models."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent as SDKAgent
from agents import FunctionTool, RunContextWrapper, RunHooks, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from antiphon.errors import ProviderOverloaded, TurnFailed
from antiphon.ext.openai_agents import AgentsRunner
from antiphon.model import Retry
from antiphon.tools import Context


@function_tool
def weather(context: RunContextWrapper[Context], city: str) -> str:
    """Say how the weather is."""
    context.context.variables["city"] = city
    return f"Sunny in {city}"


def test_a_run_over_http_streams_and_keeps_what_it_says(runtime, use, models):
    use(AgentsRunner(SDKAgent(name="w", model="gpt-4o", tools=[weather])))
    session = runtime.agent().session("s")
    events = list(session.stream('call:weather {"city": "Paris"} length:5'))
    kinds = [event.type for event in events]
    deltas = kinds.count("text_delta")
    assert deltas >= 1
    assert [kind for kind in dict.fromkeys(kinds) if kind != "turn_queued"] == [
        "turn_started", "tool_call_delta", "step_finished", "tool_call", "tool_result", "text_delta",
        "variables_changed", "turn_finished",
    ]  # fmt: skip
    response = events[-1].response
    assert response.tool_calls[0].result == "Sunny in Paris"
    assert response.text == "".join(event.text for event in events if event.type == "text_delta")
    assert response.usage.input_tokens > 0
    assert session.variables == {"city": "Paris"}
    assert session.run("And now? length:3").text
    assert [message.role for message in session.messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip


def test_an_error_of_the_service_is_ours(runtime, use, models):
    use(AgentsRunner(SDKAgent(name="w", model="gpt-4o")))
    with pytest.raises(ProviderOverloaded, match="529"):
        runtime.agent(retry=Retry(seconds=0)).session("s").run("fault:529")


def scripted(*steps):
    return ScriptedModel(list(steps))


def test_a_crash_repeats_no_answer_and_no_result(runtime, use):
    ran = []

    @function_tool
    def look(n: int) -> str:
        ran.append(n)
        return f"seen {n}"

    class Failing(RuntimeError):
        status_code = 503

    calls = [function_call("look", {"n": n}, call_id=f"c{n}") for n in (1, 2)]
    model = ScriptedModel([calls, Failing("busy"), [assistant_message("Done.")]])
    use(AgentsRunner(SDKAgent(name="a", model=model, tools=[look])))
    response = runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s").run("Look")
    assert (response.text, sorted(ran), len(model.calls)) == ("Done.", [1, 2], 3)
    assert [one.result for one in response.tool_calls] == ["seen 1", "seen 2"]
    assert [item.get("output") for item in model.calls[-1].input if item.get("type") == "function_call_output"] == [
        "seen 1", "seen 2",
    ]  # fmt: skip


def test_a_handoff_and_an_agent_as_a_tool(runtime, use):
    inner = SDKAgent(name="inner", model=scripted([assistant_message("inner words")]))
    second = SDKAgent(
        name="second",
        model=scripted(
            [function_call("ask", {"input": "x"}, call_id="c2")],
            [assistant_message("From the second.")],
        ),
        tools=[inner.as_tool("ask", "Ask the inner one.")],
    )
    first = SDKAgent(
        name="first",
        model=scripted([function_call("transfer_to_second", {}, call_id="c1")]),
        handoffs=[second],
    )
    heard = []

    class Hooks(RunHooks):
        async def on_agent_start(self, context, agent):
            heard.append(agent.name)

    use(AgentsRunner(first, hooks=Hooks()))
    response = runtime.agent().session("s").run("Go")
    assert response.text == "From the second."
    assert [(one.name, one.result) for one in response.tool_calls] == [
        ("transfer_to_second", '{"assistant": "second"}'), ("ask", "inner words"),
    ]  # fmt: skip
    assert heard == ["first", "second"]


def test_a_tool_may_end_the_run(runtime, use):
    agent = SDKAgent(
        name="a",
        model=scripted([function_call("weather", {"city": "Rome"}, call_id="c1")]),
        tools=[weather],
        tool_use_behavior="stop_on_first_tool",
    )
    use(AgentsRunner(agent))
    session = runtime.agent().session("s")
    assert session.run("Go").text == "Sunny in Rome"
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]


def test_an_approval_of_the_sdk_fails_the_turn(runtime, use):
    careful = FunctionTool(
        "pay", "Pay.", {"type": "object", "properties": {}}, lambda *_: asyncio.sleep(0), needs_approval=True
    )
    agent = SDKAgent(name="a", model=scripted([function_call("pay", {}, call_id="c1")]), tools=[careful])
    use(AgentsRunner(agent))
    with pytest.raises(TurnFailed, match="approval"):
        runtime.agent().session("s").run("Go")


async def test_outside_a_turn_the_agent_is_as_it_was(runtime, use):
    from agents import Runner

    model = scripted([assistant_message("One.")], [assistant_message("Two.")])
    agent = SDKAgent(name="a", model=model, tools=[weather])
    runner = AgentsRunner(agent)
    use(runner)
    await asyncio.to_thread(runtime.agent().session("s").run, "Go")
    assert (await Runner.run(agent, "Go")).final_output == "Two."
