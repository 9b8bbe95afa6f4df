"""OpenAI's Chat Completions interface: the official client reads it, and nothing of a request is left unsaid."""

import openai
import pytest
from support.gateway import open_gateway
from support.openai_clients import MODEL, calling, stand
from support.stage import FIRST_WORDS

from antiphon import Agent
from antiphon.events import (
    StepFinished,
    TextDelta,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnRetrying,
    TurnStarted,
)
from antiphon.model import Message, Response, ToolCall, Usage
from antiphon_gateway.openai.chat import Completion

pytestmark = pytest.mark.one_server

HELLO = [{"role": "user", "content": "Hello"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


async def gathered(stream):
    """The chunks of a stream, and the text that they make."""
    chunks = [chunk async for chunk in stream]
    return chunks, "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)


async def test_the_official_client_makes_and_streams_completions(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, client):
        made = await client.chat.completions.create(model=MODEL, messages=HELLO, metadata={"a": "b"})
        assert made.choices[0].message.content.startswith(FIRST_WORDS)
        assert (made.choices[0].finish_reason, made.model, made.object) == ("stop", MODEL, "chat.completion")
        assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens == 2
        told = [
            {"role": "developer", "content": "Be brief."}, *HELLO, {"role": "assistant", "content": "Hi"},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ]  # fmt: skip
        stream = await client.chat.completions.create(
            model=MODEL, messages=told, stream=True, stream_options={"include_usage": True}
        )
        chunks, text = await gathered(stream)
        assert "I was shown 4 messages" in text
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [one.choices[0].finish_reason for one in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
        assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 2)
        assert {one.id for one in chunks} == {chunks[0].id}
        sessions = (await api.get("/sessions"))["sessions"]
        assert len(sessions) == 2, "each request is a session of its own"
        (cell,) = ensemble.client.connections.cells
        lives = [await cell.redis.pttl(cell.keys.history(one["session_id"])) for one in sessions]
        assert all(0 < ms <= 3_600_000 for ms in lives), "which is kept for an hour"


async def test_the_same_key_is_answered_once(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, _, client):
        headers = {"Idempotency-Key": "one"}
        first = await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=headers)
        again = await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers=headers)
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, extra_headers=headers, stream=True
        )
        assert first == again
        assert (await gathered(stream))[1] == first.choices[0].message.content
        assert len(ensemble.stage.notes("said")) == 1
        with pytest.raises(openai.ConflictError):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Else"}], extra_headers=headers
            )


async def test_tools_of_the_caller_are_asked_for_and_their_results_come_with_the_next_request(redis_url):
    seen = []

    def answers(request):
        seen.append(request)
        results = [one.text for message in request.messages for one in message.tool_results]
        calls = [ToolCall("call_1", "look", {"at": "it"}), ToolCall("call_2", "look", {})]
        return f"I saw {results}" if results else ["Let me see.", *calls]

    asks = {"model": "scripted/any", "tools": [LOOK], "tool_choice": "auto"}
    async with calling(redis_url, answers) as (api, client):
        first = await client.chat.completions.create(**asks, messages=HELLO)
        assert first.choices[0].finish_reason == "tool_calls"
        message = first.choices[0].message
        assert (message.content, [one.id for one in message.tool_calls]) == (
            "Let me see.",
            ["call_1", "call_2"],
        )
        assert message.tool_calls[0].function.arguments == '{"at":"it"}'
        stream = await client.chat.completions.create(**asks, messages=HELLO, stream=True)
        chunks, text = await gathered(stream)
        asked = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
        assert (text, [(one.index, one.id) for one in asked]) == (
            "Let me see.",
            [(0, "call_1"), (1, "call_2")],
        )
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert (await api.get("/waiting"))["turns"] == [], "nobody waits for the results"
        results = [
            {"role": "tool", "tool_call_id": one.id, "content": "a tree"} for one in message.tool_calls
        ]
        said = message.model_dump(exclude_none=True)
        second = await client.chat.completions.create(**asks, messages=[*HELLO, said, *results])
        assert second.choices[0].message.content == "I saw ['a tree', 'a tree']"
        await client.chat.completions.create(
            **{**asks, "tool_choice": "none"}, messages=[*HELLO, said, *results]
        )
        assert ([tool.name for tool in seen[-2].tools], seen[-1].tools) == (["look"], [])
        with pytest.raises(openai.BadRequestError, match="no result follows"):
            await client.chat.completions.create(**asks, messages=[*HELLO, said, results[0]])


async def test_what_workers_run_is_not_shown_and_parameters_reach_the_model(redis_url):
    seen = []

    def weather(city: str) -> str:
        """Tell the weather."""
        return "sunny"

    def answers(request):
        seen.append(request)
        asked = any(message.tool_results for message in request.messages)
        return "It is sunny." if asked else ["Wait.", ToolCall("w", "weather", {"city": "Rome"})]

    agent = Agent(provider="scripted", model="any", name="clerk", tools=[weather])
    async with calling(redis_url, answers, [agent]) as (_, client):
        asks = {
            "temperature": 0.25, "stop": ["x"], "seed": 7, "max_completion_tokens": 99, "verbosity": "low",
            "reasoning_effort": "low", "parallel_tool_calls": False, "user": "u", "logit_bias": {"1": 2},
        }  # fmt: skip
        made = await client.chat.completions.create(model="clerk", messages=HELLO, **asks)
        assert made.choices[0].message.content == "Wait.\n\nIt is sunny."
        assert made.choices[0].message.tool_calls is None
        assert seen[0].params == {
            "temperature": 0.25, "stop": ["x"], "seed": 7, "max_tokens": 99, "verbosity": "low",
            "reasoning": {"effort": "low"}, "parallel_tool_calls": False, "user": "u", "logit_bias": {"1": 2},
        }  # fmt: skip
        chunks, text = await gathered(
            await client.chat.completions.create(model="clerk", messages=HELLO, stream=True)
        )
        assert text == made.choices[0].message.content
        assert all(chunk.choices[0].delta.tool_calls is None for chunk in chunks)


async def test_structured_output_comes_checked_and_alone(redis_url):
    answers = iter(["no JSON", '{"city": "Rome"}', '{"city": "Rome"}', '{"any": 1}'])
    schema = {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
    async with calling(redis_url, lambda _: next(answers)) as (_, client):
        for stream in (False, True):
            made = await client.chat.completions.create(
                model="scripted/any", messages=HELLO, response_format=form, stream=stream
            )
            text = (await gathered(made))[1] if stream else made.choices[0].message.content
            assert text == '{"city": "Rome"}', "without the answer that did not fit"
        made = await client.chat.completions.create(
            model="scripted/any", messages=HELLO, response_format={"type": "json_object"}
        )
        assert made.choices[0].message.content == '{"any": 1}'


async def test_a_turn_that_fails_is_an_error_that_is_not_tried_again(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, client):
        trying = client.with_options(max_retries=2)
        with pytest.raises(openai.BadRequestError, match="The stage refuses") as caught:
            await trying.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "fail:rejected"}]
            )
        assert caught.value.code == "provider_rejected"
        with pytest.raises(openai.NotFoundError, match="nobody"):
            await trying.chat.completions.create(model="nobody", messages=HELLO)
        with pytest.raises(openai.APIError, match="The stage refuses"):
            await gathered(
                await trying.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "fail:rejected"}], stream=True
                )
            )
        assert len((await api.get("/sessions"))["sessions"]) == 3


def streamed(events, **options):
    made = Completion("t", "m", 1, **{"streamed": True, "checked": False, "usage": False, **options})
    chunks = [chunk for event in events for chunk in made.of(event)]
    return made, "".join(one["choices"][0]["delta"].get("content", "") for one in chunks)


def test_what_is_said_again_is_not_sent_again_and_what_is_said_differently_is_an_error():
    begin = [TurnQueued(), TurnStarted(step=1), TextDelta(text="one", step=1), StepFinished(step=1, usage=Usage(1, 1)),
             TextDelta(text="two th", step=2), TurnRetrying(step=2)]  # fmt: skip
    answer = Response("two three", messages=[Message.assistant("one"), Message.assistant("two three")])
    same = [TextDelta(text="tw", step=2), TextDelta(text="o three", step=2), StepFinished(step=2),
            TurnFinished(response=answer)]  # fmt: skip
    made, text = streamed([*begin, *same])
    assert (made.failure, text) == (None, "one\n\ntwo three")
    assert made.whole()["choices"][0]["message"]["content"] == text
    for other in ([TextDelta(text="three", step=2)], [TextDelta(text="two", step=2), StepFinished(step=2)]):
        made, text = streamed([*begin, *other])
        assert (made.over, text) == (True, "one\n\ntwo th")
        assert made.error()["error"]["code"] == "answer_changed"
    other = Response("four", messages=[Message.assistant("one"), Message.assistant("four")])
    made, _ = streamed(
        [*begin, TextDelta(text="four", step=2), StepFinished(step=2), TurnFinished(response=other)],
        streamed=False,
    )
    assert made.whole()["choices"][0]["message"]["content"] == "one\n\nfour"
    made, _ = streamed([*begin, TurnFailedEvent(code="turn_failed", message="No.")])
    assert made.failure is not None


async def test_what_a_field_cannot_mean_is_refused_with_a_sentence(redis_url):
    async with open_gateway(redis_url) as (api, _):
        for wrong in (
            {"n": 2}, {"logprobs": "x"}, {"top_logprobs": 22}, {"store": True}, {"modalities": ["audio"]},
            {"functions": [{"name": "f"}]}, {"function_call": "auto"}, {"prediction": {"type": "content"}},
            {"web_search_options": {}}, {"audio": {}}, {"moderation": {}}, {"stream_options": {"include_usage": True}},
            {"max_tokens": 5, "max_completion_tokens": 5}, {"tools": [{"type": "custom"}]}, {"temperature": 3},
            {"tool_choice": "required"}, {"response_format": {"type": "xml"}}, {"messages": "Hello"}, {"best_of": 2},
            {"messages": [{"role": "user", "content": "x", "name": "Bob"}]}, {"messages": [{"content": "x"}]},
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, {"messages": []},
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, {"metadata": {"a": "b" * 513}},
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}]},
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": 7}]}]},
        ):  # fmt: skip
            body = {"model": MODEL, "messages": HELLO, **wrong}
            found = (await api.post("/v1/chat/completions", body, 400))["error"]
            assert found["message"].endswith((".", "…", "?")), (wrong, found)
            assert next(iter(wrong)) in (found["param"], *found["message"].split()), (wrong, found)
