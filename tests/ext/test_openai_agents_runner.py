"""The Agents SDK's ``Runner`` inside a turn: over HTTP against the model server, and with scripted models."""

import asyncio

import pytest
from agents import Agent as SDKAgent
from agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunContextWrapper,
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
    handoff,
)
from agents import Usage as SDKUsage
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.response_usage import InputTokensDetails

from antiphon.errors import ProviderOverloaded, TurnFailed, UsageError
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


def test_cache_writes_are_counted(runtime, use):
    details = InputTokensDetails(cached_tokens=3, cache_write_tokens=5)
    used = SDKUsage(
        requests=1, input_tokens=9, output_tokens=2, total_tokens=11, input_tokens_details=details
    )
    model = scripted([assistant_message("Hello")])
    model.set_default_usage(used)
    use(AgentsRunner(SDKAgent(name="a", model=model)))
    usage = runtime.agent().session("s").run("Hi").usage
    assert (usage.cached_input_tokens, usage.cache_write_tokens) == (3, 5)


@pytest.mark.parametrize("kind", ["input", "output", "tool input", "tool output"])
def test_a_guardrail_fails_the_turn_with_its_own_code_and_details(runtime, use, kind):
    async def homework(*_):
        return GuardrailFunctionOutput({"topic": "algebra", "by": object}, tripwire_triggered=True)

    async def of_tool(_):
        return ToolGuardrailFunctionOutput.raise_exception({"topic": "algebra"})

    tool = function_tool(lambda: "x", name_override="look", description_override="Look.")
    if kind == "tool input":
        tool.tool_input_guardrails = [ToolInputGuardrail(of_tool, name="homework")]
    if kind == "tool output":
        tool.tool_output_guardrails = [ToolOutputGuardrail(of_tool, name="homework")]
    agent = SDKAgent(
        name="a",
        tools=[tool],
        model=scripted(
            *[[function_call("look", {}, call_id="c1")]] * kind.startswith("tool"),
            [assistant_message("Hello")],
        ),
        input_guardrails=[InputGuardrail(homework)] if kind == "input" else [],
        output_guardrails=[OutputGuardrail(homework)] if kind == "output" else [],
    )
    use(AgentsRunner(agent))
    session = runtime.agent().session("s")
    with pytest.raises(TurnFailed, match=f"The {kind} guardrail 'homework' .*algebra") as failed:
        session.run("x + 1 = 2?")
    assert failed.value.code == "guardrail_tripwire"
    assert session.messages == []


@pytest.mark.parametrize("made", [lambda agent: agent, handoff], ids=["agent", "handoff"])
@pytest.mark.parametrize(
    ("after_handoff", "answers"),
    [
        ("return", ["Second.", "First again.", "First at last."]),
        ("stay", ["Second.", "Second again.", "First again."]),
    ],
)
def test_after_a_handoff_the_agent_stays_or_returns(runtime, use, made, after_handoff, answers):
    first, second = SDKAgent(name="first"), SDKAgent(name="second")
    first.handoffs, second.handoffs = [made(second)], [made(first)]
    back = [] if after_handoff == "return" else [[function_call("transfer_to_first", {}, call_id="c2")]]
    first.model = scripted(
        [function_call("transfer_to_second", {}, call_id="c1")],
        [assistant_message("First again.")],
        [assistant_message("First at last.")],
    )
    second.model = scripted([assistant_message("Second.")], [assistant_message("Second again.")], *back)
    use(AgentsRunner(first, after_handoff=after_handoff))
    session = runtime.agent().session("s")
    assert [session.run(text).text for text in ("one", "two", "three")] == answers
    if after_handoff == "stay":
        assert session.run("four").text == "First at last.", "the one that took over again stays as well"


def test_an_agent_that_is_no_longer_there_leaves_the_turn_to_the_first(runtime, use):
    second = SDKAgent(name="second", model=scripted([assistant_message("Second.")]))
    first = SDKAgent(name="first", handoffs=[second])
    first.model = scripted(
        [function_call("transfer_to_second", {}, call_id="c1")], [assistant_message("First.")]
    )
    use(AgentsRunner(first, after_handoff="stay"))
    session = runtime.agent().session("s")
    assert session.run("one").text == "Second."
    first.handoffs = []
    assert session.run("two").text == "First."
    with pytest.raises(UsageError, match="after_handoff= must be"):
        AgentsRunner(first, after_handoff="go")  # type: ignore[arg-type]
