"""An agent of pydantic-ai inside a turn, and message histories in both directions."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, ModelRetry, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from antiphon import Message
from antiphon.errors import ProviderOverloaded, TurnFailed
from antiphon.ext.pydantic_ai import PydanticAIRunner, messages_of, model_messages
from antiphon.model import File, Image, Retry, Text, ToolCall, ToolResult


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


@pytest.mark.parametrize("deferred", [{"requires_approval": True}, {"external": True}], ids=str)
def test_a_deferred_tool_fails_the_turn_and_is_no_answer(runtime, use, deferred):
    model, _ = scripted([ToolCallPart("pay", {"euros": 3}, "c1")])
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval="requires_approval" in deferred)
    def pay(euros: int) -> str:
        raise CallDeferred

    use(PydanticAIRunner(agent))
    session = runtime.agent().session("s")
    with pytest.raises(TurnFailed, match=r"deferred.*: pay") as failed:
        session.run("Pay")
    assert failed.value.code == "turn_function"
    assert session.messages == []


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
