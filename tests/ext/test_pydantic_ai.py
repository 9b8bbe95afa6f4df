"""An agent of pydantic-ai inside a turn, and message histories in both directions."""

from contextlib import asynccontextmanager

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    ExternalToolset,
    ModelRetry,
    RunContext,
    ToolDefinition,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage
from support.eventually import wait_until

from antiphon import Message
from antiphon.errors import ProviderOverloaded, StoreUnavailable
from antiphon.ext.pydantic_ai import AntiphonConversationStore, PydanticAIRunner, messages_of, model_messages
from antiphon.model import File, Image, Retry, Text, ToolCall, ToolResult
from antiphon.wire.scripts import load_script


def test_an_agent_over_http_streams_and_keeps_what_it_says(runtime, use, models):
    model = OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=models.openai_url, api_key="any"))
    agent = Agent(model, deps_type=object)

    @agent.tool
    def weather(context: RunContext, city: str) -> dict:
        context.deps.variables["city"] = city
        return {"weather": f"Sunny in {city}"}

    use(PydanticAIRunner(agent))
    session = runtime.agent().session("s")
    events = list(session.stream('call:weather {"city": "Paris"} length:5'))
    kinds = list(dict.fromkeys(event.type for event in events))
    assert [kind for kind in kinds if kind != "turn_queued"] == [
        "turn_started", "tool_call_delta", "step_finished", "tool_call", "tool_result", "text_delta",
        "variables_changed", "turn_finished",
    ]  # fmt: skip
    response = events[-1].response
    assert response.tool_calls[0].result == '{"weather":"Sunny in Paris"}'
    assert response.text == "".join(event.text for event in events if event.type == "text_delta")
    assert response.usage.input_tokens > 0
    assert session.run("And now? length:3").text
    assert [message.role for message in session.messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert messages_of(model_messages(session.messages))[1].tool_calls[0].arguments == {"city": "Paris"}
    with pytest.raises(ProviderOverloaded):
        runtime.agent(retry=Retry(seconds=0)).session("t").run("fault:529")


class Busy(RuntimeError):
    status_code = 503


def scripted(*answers):
    """A model whose calls are answered in turn, and that streams them."""
    left, asked = list(answers), []

    async def stream(messages, info):
        asked.append(messages)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for index, part in enumerate(answer):
            if isinstance(part, str):
                yield part
            else:
                yield {
                    index: DeltaToolCall(
                        part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id
                    )
                }

    model = FunctionModel(stream_function=stream)
    return model, asked


def test_what_a_service_read_from_and_wrote_to_its_cache_is_counted(runtime, use):
    class Caching(FunctionModel):
        @asynccontextmanager
        async def request_stream(self, *args, **options):
            async with super().request_stream(*args, **options) as response:
                response._usage = RequestUsage(cache_read_tokens=3, cache_write_tokens=5)
                yield response

    async def stream(messages, info):
        yield "Hello"

    use(PydanticAIRunner(Agent(Caching(stream_function=stream))))
    usage = runtime.agent().session("s").run("Hi").usage
    assert (usage.cached_input_tokens, usage.cache_write_tokens) == (3, 5)


def test_a_crash_repeats_no_answer_and_no_result(runtime, use):
    ran = []
    calls = [ToolCallPart("look", {"n": n}, f"c{n}") for n in (1, 2)]
    model, asked = scripted(calls, Busy("busy"), ["Done."])
    agent = Agent(model)

    @agent.tool_plain
    def look(n: int) -> str:
        ran.append(n)
        return f"seen {n}"

    use(PydanticAIRunner(agent))
    events = list(runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s").stream("Look"))
    response = events[-1].response
    assert (response.text, sorted(ran), len(asked)) == ("Done.", [1, 2], 3)
    assert [one.result for one in response.tool_calls] == ["seen 1", "seen 2"]
    assert len([event for event in events if event.type == "tool_call"]) == 2


def test_an_output_type_and_a_retry(runtime, use):
    class City(BaseModel):
        name: str

    model, _ = scripted(
        [ToolCallPart("look", {"n": 0}, "c1")],
        [ToolCallPart("look", {"n": 1}, "c2")],
        [ToolCallPart("final_result", {"name": "Paris"}, "c3")],
    )
    agent = Agent(model, output_type=City)

    @agent.tool_plain
    def look(n: int) -> str:
        if not n:
            raise ModelRetry("Not zero.")
        return "seen"

    use(PydanticAIRunner(agent))
    response = runtime.agent().session("s").run("Go")
    assert response.text == '{"name":"Paris"}'
    results = [one.result for one in response.tool_calls]
    assert "Not zero." in results[0]
    assert results[1] == "seen"
    assert "not known" not in results[2]


def paying(*answers, **options):
    """An agent whose tools wait: one for an approval, by its rule and by its code, and two for a result."""
    ran = []
    model, asked = scripted(*answers)
    desk = ExternalToolset([ToolDefinition(name="scan", parameters_json_schema={"type": "object"})])
    agent = Agent(model, toolsets=[desk], **options)

    @agent.tool_plain(requires_approval=True)
    def pay(euros: int) -> str:
        ran.append(("pay", euros))
        return f"paid {euros}"

    @agent.tool
    def refund(context: RunContext, euros: int) -> str:
        ran.append(("refund", context.tool_call_approved))
        if not context.tool_call_approved:
            raise ApprovalRequired
        return f"refunded {euros}"

    @agent.tool_plain
    def start(job: str) -> str:
        ran.append(("start", job))
        raise CallDeferred

    @agent.tool_plain
    def look() -> str:
        ran.append(("look", 0))
        return "seen"

    return agent, ran, asked


ALL = [
    ToolCallPart("pay", {"euros": 3}, "c1"),
    ToolCallPart("refund", {"euros": 4}, "c2"),
    ToolCallPart("start", {"job": "print"}, "c3"),
    ToolCallPart("scan", {"shelf": 7}, "c4"),
    ToolCallPart("look", {}, "c5"),
]


@pytest.mark.parametrize("output", [str, [str, DeferredToolRequests]], ids=["text", "deferred"])
def test_deferred_tools_suspend_the_turn_until_all_are_decided(runtime, use, output):
    agent, ran, asked = paying(ALL, ["Done."], output_type=output)
    use(PydanticAIRunner(agent))
    session = runtime.agent().session("s")
    seen = []

    def approve(call):
        seen.append((call.name, call.kind, call.arguments))
        return {"euros": 2} if call.name == "pay" else True

    def result(call):
        seen.append((call.name, call.kind, call.arguments))
        return {"shelf": "empty"} if call.name == "scan" else "printed"

    response = session.run("Go", on_approval=approve, on_tool=result)
    assert sorted(seen) == [
        ("pay", "approval", {"euros": 3}), ("refund", "approval", {"euros": 4}),
        ("scan", "tool", {"shelf": 7}), ("start", "tool", {"job": "print"}),
    ]  # fmt: skip
    assert response.text == "Done."
    results = {one.name: one.result for one in response.tool_calls}
    assert results.pop("pay").endswith('changed the arguments to {"euros":2}]\npaid 2')
    assert results == {
        "refund": "refunded 4",
        "start": "printed",
        "scan": '{"shelf":"empty"}',
        "look": "seen",
    }
    # What a tool did before it waited is not done again.
    assert sorted(ran) == [("look", 0), ("pay", 2), ("refund", False), ("refund", True), ("start", "print")]
    assert len(asked) == 2
    told = [part for part in asked[1][-1].parts if isinstance(part, ToolReturnPart)]
    assert {part.tool_name: part.outcome for part in told} == dict.fromkeys(
        ["pay", "refund", "start", "scan", "look"], "success"
    )
    assert [message.role for message in session.messages] == ["user", "assistant", "tool", "assistant"]
    assert {one.call_id: one.kind for one in session.messages[2].decisions} == {
        "c1": "approve", "c2": "approve", "c3": "result", "c4": "result",
    }  # fmt: skip


def test_a_rejection_and_an_error_are_results_that_the_model_reads(runtime, use):
    agent, ran, asked = paying(ALL, ["I see."])
    use(PydanticAIRunner(agent))

    def fail(call):
        raise RuntimeError("out of paper")

    response = runtime.agent().session("s").run("Go", on_approval=lambda call: "Too much.", on_tool=fail)
    results = {one.name: (one.is_error, one.result) for one in response.tool_calls}
    assert all("rejected the call: Too much." in results[name][1] for name in ("pay", "refund"))
    assert results["scan"] == (True, "RuntimeError: out of paper")
    assert sorted(ran) == [("look", 0), ("refund", False), ("start", "print")]
    told = {part.tool_name: part for part in asked[1][-1].parts if isinstance(part, ToolReturnPart)}
    assert "Too much." in told["pay"].model_response_str()
    assert told["pay"].outcome == "denied"
    assert told["scan"].outcome == "failed"


def test_a_turn_waits_twice_and_a_failed_attempt_repeats_nothing(runtime, use):
    first, second = [ALL[0], ALL[2]], [ToolCallPart("pay", {"euros": 9}, "c9")]
    agent, ran, asked = paying(first, Busy("busy"), second, Busy("busy"), ["Done."])
    use(PydanticAIRunner(agent))
    session = runtime.agent(retry=Retry(seconds=30, delay=0.01)).session("s")
    response = session.run("Go", on_approval=lambda call: True, on_tool=lambda call: "printed")
    assert response.text == "Done."
    assert [one.result for one in response.tool_calls] == ["paid 3", "printed", "paid 9"]
    assert ran == [("start", "print"), ("pay", 3), ("pay", 9)]
    assert len(asked) == 5


def test_a_handler_of_the_agent_decides_first(runtime, use):
    agent, ran, _ = paying(
        [ALL[0], ALL[3]],
        ["Done."],
        capabilities=[HandleDeferredToolCalls(lambda _, requests: requests.build_results(approve_all=True))],
    )
    use(PydanticAIRunner(agent))
    asked = []
    response = runtime.agent().session("s").run("Go", on_tool=lambda call: asked.append(call.name) or "empty")
    assert (response.text, asked, ran) == ("Done.", ["scan"], [("pay", 3)])


def test_a_turn_that_is_cancelled_while_it_waits_tells_what_it_has_done(runtime, use):
    agent, ran, _ = paying(ALL)
    use(PydanticAIRunner(agent))
    session = runtime.agent().session("s")
    turn = session.submit("Go")
    wait_until(lambda: turn.status() == "suspended", description="the turn waits")
    assert sorted(call.name for call in turn.info().calls) == ["pay", "refund", "scan", "start"]
    turn.cancel()
    wait_until(lambda: turn.status() == "cancelled", description="the turn is cancelled")
    results = {one.name: one.text for message in turn.info().messages for one in message.tool_results}
    assert results["look"] == "seen"
    assert "waited for a decision" in results["pay"]
    assert ("pay", 3) not in ran


def test_calls_with_the_same_id_in_two_steps_have_their_results(runtime, use):
    model, asked = scripted(
        [ToolCallPart("look", {"n": 1}, "call_0")],
        [ToolCallPart("look", {"n": 2}, "call_0")],
        ["Done."],
        ["Yes."],
    )
    agent = Agent(model)

    @agent.tool_plain
    def look(n: int) -> str:
        return f"seen {n}"

    use(PydanticAIRunner(agent))
    session = runtime.agent().session("s")
    assert [one.result for one in session.run("Look").tool_calls] == ["seen 1", "seen 2"]
    session.run("And?")
    ids = [
        part.tool_call_id for message in asked[-1] for part in message.parts if hasattr(part, "tool_call_id")
    ]
    assert ids == ["call_0", "call_0", "call_0_2", "call_0_2"]


def test_histories_in_both_directions():
    ours = [
        Message.system("Be brief."),
        Message.user(
            [Text("See"), Image(url="https://example.com/a.png"), File(data="QQ==", media_type="text/plain")]
        ),
        Message.assistant([Text("Let me look."), ToolCall("c1", "look", {"n": 1})]),
        Message.tool([ToolResult("c1", "seen", "look")]),
        Message.assistant("Done."),
    ]
    theirs = model_messages(ours)
    assert theirs[-1] == ModelResponse(parts=[TextPart("Done.")], timestamp=theirs[-1].timestamp)
    back = messages_of(theirs)
    assert [message.role for message in back] == [message.role for message in ours]
    assert back[1] == ours[1]
    assert back[2].tool_calls == ours[2].tool_calls
    assert back[3] == ours[3]
    assert [one.text for one in messages_of(model_messages(back))] == [one.text for one in back]


@pytest.fixture
def store(redis_url):
    return AntiphonConversationStore(redis_url, ttl=100)


async def test_a_conversation_comes_back_whole(store, redis_url):
    picture = BinaryContent(bytes(range(256)), media_type="application/pdf")
    messages = [
        ModelRequest(parts=[UserPromptPart(["See 😀", picture])], instructions="Be brief."),
        ModelResponse(parts=[TextPart("Let me look."), ToolCallPart("look", {"n": 1}, "c1")]),
    ]
    waits = DeferredToolRequests(calls=[ToolCallPart("look", {"n": 1}, "c1")], metadata={"c1": {"why": "x"}})
    conversation = Conversation(messages=messages, conversation_id="c", deferred_tool_requests=waits)
    conversation.usage.input_tokens = 7
    entries = await store.save(conversation, scope="acme")
    found = await AntiphonConversationStore(redis_url).load("c", scope="acme")
    assert (found.messages, found.deferred_tool_requests, found.usage) == (
        messages,
        waits,
        conversation.usage,
    )
    assert (found.revision, found.new_message_index) == (conversation.revision, 2)
    assert await store.load_entries("c") == entries
    assert await store.read_entry(entries[0].id) == entries[0]
    assert [message.kind for message in (await store.load("c", limit=1)).messages] == ["response"]
    assert await store.load("c", scope="other") is None
    assert await store.load("nobody") is None
    await store.aclose()


async def test_agents_go_on_where_they_were(store):
    for _ in range(2):
        conversation = await store.load("c") or Conversation(conversation_id="c")
        result = await Agent(TestModel()).run("Hello", conversation=conversation)
        await store.save(result)
    found = await store.load("c")
    assert len(found.messages) == 4
    assert found.usage.requests == 2
    await store.aclose()


async def test_an_error_of_the_server_is_ours():
    with pytest.raises(StoreUnavailable):
        await AntiphonConversationStore("redis://127.0.0.1:1/0").load("c")


async def test_a_deletion_whose_reply_is_lost_is_no_conflict(redis_url, proxy):
    store = AntiphonConversationStore(proxy.url)
    conversation = Conversation(messages=[ModelResponse(parts=[TextPart("Hi.")])], conversation_id="c")
    await store.save(conversation)
    with pytest.raises(ConversationConflict):
        await store.delete_record("c", expected_revision="another")
    proxy.drop_reply(load_script("conversations/delete").sha.encode())
    await store.delete_record("c", expected_revision=conversation.revision)
    assert proxy.lost_replies == 1
    assert await store.load("c") is None
    with pytest.raises(ConversationConflict):
        await store.delete_record("c", expected_revision=conversation.revision)
    await store.aclose()


async def test_a_save_whose_reply_is_lost_is_no_conflict(redis_url, proxy):
    store = AntiphonConversationStore(proxy.url)
    conversation = Conversation(messages=[ModelResponse(parts=[TextPart("Hi.")])], conversation_id="c")
    await store.save(conversation)
    conversation.messages.append(ModelResponse(parts=[TextPart("Anything else?")]))
    proxy.drop_reply(load_script("conversations/write").sha.encode())
    await store.save(conversation)
    assert proxy.lost_replies == 1
    conversation.messages.append(ModelResponse(parts=[TextPart("Bye.")]))
    await store.save(conversation)
    assert len((await store.load("c")).messages) == 3
    await store.aclose()
