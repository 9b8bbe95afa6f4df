"""The Agents SDK's ``Runner`` inside a turn: over HTTP against the model server, and with scripted models."""

import asyncio
from base64 import b64encode

import pytest
from agents import Agent as SDKAgent
from agents import (
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    SessionSettings,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
    handoff,
)
from agents import Usage as SDKUsage
from agents.memory import Session as SDKSession
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.response_usage import InputTokensDetails
from redis import Redis

from antiphon import Agent, Message
from antiphon.errors import ProviderOverloaded, StoreUnavailable, TurnFailed, UsageError, WrongTenant
from antiphon.ext.openai_agents import AgentsRunner, AntiphonSession
from antiphon.model import Retry, Text, ToolCall, ToolResult
from antiphon.tools import Context


class Busy(RuntimeError):
    status_code = 503


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

    calls = [function_call("look", {"n": n}, call_id=f"c{n}") for n in (1, 2)]
    model = ScriptedModel([calls, Busy("busy"), [assistant_message("Done.")]])
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


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "x",
}
CALLS = [
    {"type": "function_call", "id": f"fc_{n}", "call_id": f"c{n}", "name": "look", "arguments": '{"n": 1}'}
    for n in (1, 2)
]
RESULTS = [{"type": "function_call_output", "call_id": f"c{n}", "output": f"seen {n}"} for n in (1, 2)]
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "phase": "final_answer",
    "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
}
ODD = [
    {"role": "developer", "content": "Be brief 😀 ' OR 1=1; -- \t"},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "See"},
            {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        ],
    },
    {"type": "item_reference", "id": "x"},
    {"type": "computer_call_output", "call_id": "c9", "output": {"type": "computer_screenshot"}},
]
ITEMS = [{"role": "user", "content": "Look twice"}, REASONING, *CALLS, *RESULTS, ANSWER, *ODD]


@pytest.fixture
def session(runtime):
    """Makes sessions of the SDK where the runtime of the test keeps them."""
    url = getattr(runtime, "url", None)
    return lambda session_id="s", **options: AntiphonSession(session_id, redis=url, **options)


async def test_a_large_picture_comes_back_although_the_session_stores_it_apart(session):
    url = f"data:image/png;base64,{b64encode(bytes(30_000)).decode()}"
    content = [{"type": "input_image", "image_url": url, "detail": "low"}]
    await session().add_items([{"role": "user", "content": content}])
    [item] = await session().get_items()
    assert item["content"] == content
    assert (await session().get_items(1)) == [item]
    assert await session().pop_item() == item


async def test_items_come_back_as_they_were_added(session):
    found = session()
    assert isinstance(found, SDKSession)
    await found.add_items(ITEMS)
    assert await found.get_items() == ITEMS
    assert [await found.get_items(n) for n in (0, 1, 5, 99)] == [[], ITEMS[-1:], ITEMS[-5:], ITEMS]
    assert await session().get_items() == ITEMS
    assert await session("other").get_items() == []
    popped = [await found.pop_item() for _ in ITEMS]
    assert popped == ITEMS[::-1]
    assert await found.pop_item() is None
    assert await session("new").pop_item() is None
    await found.add_items(ITEMS[:1])
    await found.clear_session()
    assert await found.get_items() == []


async def test_what_items_say_is_read_by_people_and_by_other_models(runtime, session):
    await session().add_items(ITEMS[:7])
    ours = await runtime.agent().session("s").messages_async()
    assert [message.role for message in ours] == ["user", "assistant", "tool", "assistant"]
    assert [call.call_id for call in ours[1].tool_calls] == ["c1", "c2"]
    assert [result.text for result in ours[2].tool_results] == ["seen 1", "seen 2"]
    assert (ours[0].text, ours[3].text) == ("Look twice", "Done.")


async def test_the_sdk_reads_what_our_turns_have_said(runtime, session):
    ours = runtime.agent().session("s")
    await ours.run_async("Hello")
    await runtime.aclose()  # its connections of this loop
    await ours.add_message_async(
        Message.assistant([Text("Look:"), ToolCall("c1", "look", {"n": 1})]),
        Message.tool([ToolResult("c1", "seen", "look")]),
    )
    found = session()
    items = await found.get_items()
    assert items[0] == {"role": "user", "content": "Hello"}
    assert [item.get("type") for item in items[1:]] == [
        "message", "message", "function_call", "function_call_output",
    ]  # fmt: skip
    assert await found.pop_item() == {"type": "function_call_output", "call_id": "c1", "output": "seen"}
    assert (await found.pop_item())["arguments"] == '{"n":1}'
    assert [message.text for message in await ours.messages_async()] == [
        "Hello", "You said: Hello", "Look:",
    ]  # fmt: skip


async def test_each_of_many_that_pop_gets_another_item(session):
    await session().add_items([{"role": "user", "content": str(n)} for n in range(12)])
    popped = await asyncio.gather(*(session().pop_item() for _ in range(14)))
    found = [item["content"] for item in popped if item]
    assert sorted(found, key=int) == [str(n) for n in range(12)]
    assert await session().get_items() == []


async def test_what_one_caller_adds_stays_together(session):
    async def add(name):
        await session().add_items([{"role": "user", "content": f"{name}{n}"} for n in range(4)])

    await asyncio.gather(*(add(name) for name in "abcdef"))
    texts = [item["content"] for item in await session().get_items()]
    assert all(texts[n][0] == texts[n - n % 4][0] and texts[n][1] == str(n % 4) for n in range(24))


async def test_a_pop_that_is_cancelled_is_waited_for(session):
    found = session()
    await found.add_items(ITEMS[:2])
    task = asyncio.ensure_future(found.pop_item())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await found.get_items() in (ITEMS[:1], ITEMS[:2])
    await found.add_items([ITEMS[-1]])
    assert await found.pop_item() == ITEMS[-1]


@pytest.mark.filterwarnings(
    "ignore:asynchronous generator:ResourceWarning"
)  # the SDK goes on with a loop it shut down
def test_it_works_under_run_sync_and_from_other_loops(session):
    found = session()
    for _ in range(2):
        model = ScriptedModel([[assistant_message("Hi")]])
        Runner.run_sync(SDKAgent(name="a", model=model), "Hello", session=found)
    asyncio.get_event_loop_policy().get_event_loop().close()  # the SDK leaves it open
    assert len(asyncio.run(found.get_items())) == 4


async def test_a_runner_keeps_its_calls_and_finds_them(session):
    from agents import function_tool

    @function_tool
    def look(n: int) -> str:
        return f"seen {n}"

    model = ScriptedModel(
        [
            [function_call("look", {"n": 1}, call_id="c1")],
            [assistant_message("One.")],
            [assistant_message("Two.")],
        ]
    )
    agent = SDKAgent(name="a", model=model, tools=[look])
    assert (await Runner.run(agent, "Look", session=session())).final_output == "One."
    limited = RunConfig(session_settings=SessionSettings(limit=1))
    assert (await Runner.run(agent, "Again", session=session(), run_config=limited)).final_output == "Two."
    assert len(model.calls[-1].input) == 2
    kinds = [item.get("type", "message") for item in await session().get_items()]
    assert kinds == ["message", "function_call", "function_call_output", *["message"] * 3]


async def test_settings_limit_what_is_read(session):
    found = session(session_settings={"limit": 2})
    await found.add_items(ITEMS)
    assert await found.get_items() == ITEMS[-2:]
    assert await found.get_items(3) == ITEMS[-3:]
    with pytest.raises(TypeError, match="most"):
        session(session_settings={"most": 2})


async def test_a_tenant_holds(session):
    await session(tenant="acme").add_items(ITEMS[:1])
    for use in (session(tenant="other").pop_item, session(tenant="other").get_items):
        with pytest.raises(WrongTenant):
            await use()


async def test_a_ttl_counts_from_each_change(workers_runtime):
    url = workers_runtime.url
    await AntiphonSession("s", redis=url, ttl=100).add_items(ITEMS)
    with Redis.from_url(url) as redis:
        lives = [redis.ttl(key) for key in ["ant:history:s", "ant:events:s"]]
        assert all(90 < life <= 100 for life in lives)
        await AntiphonSession("s", redis=url, ttl=900).pop_item()
        assert all(890 < redis.ttl(key) <= 900 for key in ["ant:history:s", "ant:events:s"])


async def test_an_error_of_the_server_is_ours():
    with pytest.raises(StoreUnavailable):
        await AntiphonSession("s", redis="redis://127.0.0.1:1/0").get_items()


async def test_subscribers_hear_what_is_popped(workers_runtime):
    from antiphon.client import AsyncClient

    url = workers_runtime.url
    found = AntiphonSession("s", redis=url)
    await found.add_items([*ITEMS[:1], *CALLS])
    await found.pop_item()
    async with AsyncClient(url) as client:
        page = await client.snapshot("s")
        assert [len(message.tool_calls) for message in page.messages] == [0, 1]
    assert [
        len(m.tool_calls) for m in await Agent("scripted", "any", redis=url).session("s").messages_async()
    ] == [0, 1]


def test_the_agent_of_a_handoff_stays_although_the_attempt_after_it_failed(runtime, use):
    first, second = SDKAgent(name="first"), SDKAgent(name="second")
    first.handoffs = [second]
    first.model = scripted([function_call("transfer_to_second", {}, call_id="c1")])
    second.model = scripted(
        Busy("busy"), [assistant_message("Second.")], [assistant_message("Second again.")]
    )
    use(AgentsRunner(first, after_handoff="stay"))
    session = runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s")
    assert [session.run(text).text for text in ("one", "two")] == ["Second.", "Second again."]


def test_calls_with_the_same_id_in_two_steps_have_their_results(runtime, use):
    @function_tool
    def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    model = scripted(
        [function_call("look", {"n": 1}, call_id="call_0")],
        [function_call("look", {"n": 2}, call_id="call_0")],
        [assistant_message("Done.")],
        [assistant_message("Yes.")],
    )
    use(AgentsRunner(SDKAgent(name="first", model=model, tools=[look])))
    session = runtime.agent().session("s")
    assert [one.result for one in session.run("Look").tool_calls] == ["seen 1", "seen 2"]
    session.run("And?")
    sent = [item["call_id"] for item in model.calls[-1].input if "call_id" in item]
    assert sent == ["call_0", "call_0", "call_0_2", "call_0_2"]
