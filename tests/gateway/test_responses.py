"""OpenAI's Responses interface: the official client reads it, and all answers and events fit the specification."""

import asyncio

import openai
import pytest
from support.eventually import patience
from support.gateway import STAGE, keys, open_gateway
from support.openai_clients import MODEL, calling, contract_at, open_client, stand
from support.stage import FIRST_WORDS

from antiphon import AsyncClient
from antiphon.events import (
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnRetrying,
    TurnStarted,
    TurnSuspended,
)
from antiphon.model import Message, OpenCall, Reasoning, Response, Text, ToolCall, ToolResult
from antiphon.session.turn_info import TurnInfo
from antiphon_gateway.access.access import Access
from antiphon_gateway.openai.stream import ResponseStream, resource

pytestmark = pytest.mark.one_server


@pytest.fixture
def contract(request):
    """Checks a response or an event against the Open Responses specification."""
    return contract_at(request.config.rootpath)


ANSWER = [
    Message("assistant", [Reasoning("hm"), Text("a"), ToolCall("c", "n", {"x": 1})]),
    Message("tool", [ToolResult("c", "r")]),
    Message("assistant", [Text("b")]),
]
EVENTS = [
    TurnQueued(), TurnStarted(step=1), ReasoningDelta(text="hm", step=1), TextDelta(text="a", step=1),
    ToolCallDelta(call_id="c", name="n", arguments='{"x"', step=1),
    ToolCallDelta(call_id="c", arguments=":1}", step=1),
    ToolCallEvent(call_id="c", name="n", arguments={"x": 1}, step=1),
    StepFinished(step=1), ToolResultEvent(call_id="c", name="n", result="r", step=1), TextDelta(text="b", step=2),
    StepFinished(step=2), TurnFinished(response=Response("b", messages=ANSWER), at=5000),
]  # fmt: skip


def streamed(events):
    made = ResponseStream(resource(TurnInfo("t", "s", "queued", created=1000)), "t")
    return [one for event in events for one in made.of(event)]


def test_the_items_of_the_stream_are_those_of_the_response(contract):
    found = streamed(EVENTS)
    for one in found:
        contract(one)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    assert [one["type"] for one in found][:3] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    done = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    last = found[-1]
    assert last["type"] == "response.completed"
    assert done == last["response"]["output"]
    assert [item["type"] for item in done] == [
        "reasoning", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    contract(last["response"])


def test_each_of_several_calls_is_one_item_and_a_retry_keeps_the_items_of_earlier_steps():
    calls = [{"call_id": name, "name": "n", "step": 1} for name in ("c", "d")]
    begin = [
        TurnQueued(), TurnStarted(step=1), *(ToolCallDelta(**call, arguments="{}") for call in calls),
        StepFinished(step=1), *(ToolCallEvent(**call) for call in calls),
        *(ToolResultEvent(**call, result="r") for call in calls), TurnRetrying(step=2),
    ]  # fmt: skip
    asked = TurnSuspended(calls=[OpenCall(call_id="e", name="n", kind="tool")])
    found = streamed([*begin, asked])
    added = [one["item"] for one in found if one["type"] == "response.output_item.added"]
    assert [one["call_id"] for one in added] == ["c", "d", "c", "d", "e"]
    assert [one["call_id"] for one in found[-1]["response"]["output"]] == ["c", "d", "c", "d", "e"]


def test_a_retry_a_refusal_a_failure_and_a_stop_fit_the_specification(contract):
    begin = [TurnQueued(), TurnStarted(step=1), RefusalDelta(text="no", step=1)]
    for end, kind in (
        (TurnFailedEvent(code="x", message="y"), "response.failed"),
        (TurnCancelledEvent(reason="z"), "response.incomplete"),
        (TurnFinished(response=Response(stop_reason="max_tokens")), "response.incomplete"),
    ):
        found = streamed([*begin, TurnRetrying(step=1), TextDelta(text="a", step=1), end])
        for one in found:
            contract(one)
        assert found[-1]["type"] == kind
        items = [one["item"]["status"] for one in found if one["type"] == "response.output_item.done"]
        assert items == ["incomplete", "incomplete"]


async def test_the_official_client_makes_streams_and_reads_responses(redis_url, tmp_path, contract):
    async with stand(redis_url, tmp_path) as (_, api, client):
        made = await client.responses.create(model=MODEL, input="Hello", temperature=0.5, metadata={"a": "b"})
        assert (made.status, made.metadata, made.temperature) == ("completed", {"a": "b"}, 0.5)
        assert made.output_text.startswith(FIRST_WORDS)
        assert made.usage.total_tokens == 2
        contract(await api.get(f"/v1/responses/{made.id}"))
        items = await client.responses.input_items.list(made.id)
        assert items.data[0].content[0].text == "Hello"
        seen = [event async for event in await client.responses.create(model=MODEL, input="Go", stream=True)]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        for event in seen:
            contract(event.to_dict(mode="json"))
        text = "".join(event.delta for event in seen if event.type == "response.output_text.delta")
        assert text == seen[-1].response.output_text
        name = seen[-1].response.id
        for place in (0, len(seen) // 2, len(seen) - 2):
            rest = [
                event
                async for event in await client.responses.retrieve(name, stream=True, starting_after=place)
            ]
            assert [event.sequence_number for event in rest] == list(range(place + 1, len(seen)))


async def test_a_conversation_goes_on_from_any_response_of_it(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (_, api, client):
        first = await client.responses.create(model=MODEL, input="one")
        second = await client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        other = await client.responses.create(model=MODEL, input="three", previous_response_id=first.id)
        assert "I was shown 3 messages" in second.output_text
        assert "I was shown 3 messages" in other.output_text, "a copy that ends with the first response"
        assert second.conversation.id == first.conversation.id != other.conversation.id
        named = await client.responses.create(model=MODEL, input="x", conversation="mine")
        assert (await api.get("/sessions/mine"))["messages"] == 2
        assert named.conversation.id == "mine"
        history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"},
                   {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]  # fmt: skip
        assert (
            "I was shown 4 messages"
            in (await client.responses.create(model=MODEL, input=history)).output_text
        )
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")


async def test_of_two_requests_that_follow_one_response_at_once_one_goes_on_in_a_copy(
    redis_url, tmp_path, monkeypatch
):
    """The second one reads the conversation before the first one continues it, and continues it when that has ended."""
    snapshot, has_read, goes_on = AsyncClient.snapshot, asyncio.Event(), asyncio.Event()

    async def late(self, *given, **more):
        found = await snapshot(self, *given, **more)
        has_read.set()
        await goes_on.wait()
        return found

    async with stand(redis_url, tmp_path) as (_, api, client):
        first = await client.responses.create(model=MODEL, input="one")
        monkeypatch.setattr(AsyncClient, "snapshot", late)
        asks = client.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        second = asyncio.ensure_future(asks)
        await asyncio.wait_for(has_read.wait(), patience(10))
        monkeypatch.setattr(AsyncClient, "snapshot", snapshot)
        quicker = await client.responses.create(model=MODEL, input="three", previous_response_id=first.id)
        goes_on.set()
        late_one = await second
        assert "I was shown 3 messages" in quicker.output_text
        assert "I was shown 3 messages" in late_one.output_text, "it does not see the other one's question"
        assert quicker.conversation.id == first.conversation.id != late_one.conversation.id
        assert (await api.get(f"/sessions/{first.conversation.id}"))["messages"] == 4


async def test_a_response_in_the_background_is_cancelled_and_a_failed_one_says_why(
    redis_url, tmp_path, contract
):
    async with stand(redis_url, tmp_path) as (ensemble, api, client):
        begun = await client.responses.create(model=MODEL, input="go gate:never", background=True)
        assert begun.status in ("queued", "in_progress")
        await ensemble.waits("never")
        stopped = await client.responses.cancel(begun.id)
        assert (stopped.status, stopped.output_text) == ("cancelled", FIRST_WORDS)
        failed = await client.responses.create(model=MODEL, input="fail:rejected")
        assert (failed.status, failed.error.code) == ("failed", "provider_rejected")
        contract(await api.get(f"/v1/responses/{failed.id}"))


async def test_a_response_that_waits_for_an_approval_returns_that_and_continues_after_it(
    redis_url, tmp_path, contract
):
    async with stand(redis_url, tmp_path) as (_, api, client):
        asks = {"model": "stage", "input": "tool:guarded"}
        made = await client.responses.create(**asks)
        path = f"/v1/responses/{made.id}"
        assert (made.status, made.incomplete_details.reason) == ("in_progress", "approval_required")
        assert (made.output[-1].type, made.output[-1].name) == ("function_call", "guarded")
        assert await api.get(path) == made.to_dict(mode="json")
        contract(await api.get(path))
        decide = f"/turns/{made.id.removeprefix('resp_')}/calls/{made.output[-1].call_id}"
        await api.post(f"{decide}/approve", {}, 204)
        await api.result(made.id.removeprefix("resp_"))
        ended = await client.responses.retrieve(made.id)
        assert (ended.status, ended.incomplete_details, len(ended.output)) == ("completed", None, 3)
        seen = []
        async for event in await client.responses.create(**asks, stream=True):
            seen.append(event)
            contract(event.to_dict(mode="json"))
            if event.type == "response.in_progress" and event.response.incomplete_details:
                call, turn = event.response.output[-1].call_id, event.response.id.removeprefix("resp_")
                await api.post(f"/turns/{turn}/calls/{call}/reject", {"reason": "No."}, 204)
        assert (seen[-1].type, seen[-1].response.incomplete_details) == ("response.completed", None)
        assert [one.sequence_number for one in seen] == list(range(len(seen)))


async def test_a_response_that_waits_is_read_without_waiting_for_events_of_later_turns(
    redis_url, tmp_path, monkeypatch
):
    monkeypatch.setattr("antiphon_gateway.openai.stored.READ_SECONDS", 3600.0)
    async with stand(redis_url, tmp_path) as (_, api, client):
        made = await client.responses.create(model="stage", input="tool:guarded", conversation="s")
        await api.submit("s", "And now?")
        assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        await api.call("DELETE", "/sessions/s")


async def test_tools_of_the_caller_end_a_response_and_their_results_begin_the_next(redis_url, contract):
    tools = [
        {
            "type": "function",
            "name": "look",
            "parameters": {"type": "object", "properties": {}},
            "strict": None,
        }
    ]
    asks = {"model": "scripted/any", "tools": tools}
    call = ToolCall("call_1", "look", {})

    def answers(request):
        results = [one.text for message in request.messages for one in message.tool_results]
        return f"I saw {results[0]}" if results else ["Let me see.", call]

    async with calling(redis_url, answers) as (api, client):
        first = await client.responses.create(**asks, input="Look")
        assert [item.type for item in first.output] == ["message", "function_call"], first.error
        assert (first.status, first.output[1].call_id) == ("completed", "call_1")
        contract(await api.get(f"/v1/responses/{first.id}"))
        result = [{"type": "function_call_output", "call_id": "call_1", "output": "a tree"}]
        second = await client.responses.create(**asks, input=result, previous_response_id=first.id)
        assert (second.output_text, second.id) == ("I saw a tree", f"{first.id}.1")
        assert (await client.responses.retrieve(first.id)).output == first.output
        assert (await client.responses.retrieve(second.id)).output == second.output
        seen = [event async for event in await client.responses.retrieve(second.id, stream=True)]
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert seen[-1].response.output == second.output
        for event in seen:
            contract(event.to_dict(mode="json"))
        again = await client.responses.create(**asks, input=result, previous_response_id=first.id)
        assert (again.id, again.output) == (second.id, second.output), "a request whose answer was lost"
        for wrong in (
            {"input": [{**result[0], "output": "a house"}]}, {"input": [{**result[0], "call_id": "call_9"}]},
            {"input": result, "temperature": 0.5}, {"input": "What else?"},
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(**{**asks, **wrong}, previous_response_id=first.id)
        third = await client.responses.create(**asks, input="And?", previous_response_id=second.id)
        assert third.output_text == "I saw a tree"


async def test_an_item_is_named_instead_of_sent_again_where_its_caller_may_read_it(redis_url, tmp_path):
    known, secrets = keys(**{name: {"tenant": name} for name in ("mine", "other")})
    async with (
        stand(redis_url, tmp_path),
        open_client(redis_url, secrets["mine"], access=Access(known)) as (api, client),
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=secrets["other"], max_retries=0) as stranger,
    ):
        begun = await client.conversations.create(items=[{"role": "user", "content": "one"}])
        added = (await client.conversations.items.list(begun.id)).data[0].id
        made = await client.responses.create(model=MODEL, input="two", conversation=begun.id)
        names = [(await client.responses.input_items.list(made.id)).data[0].id, made.output[0].id]
        short = await client.responses.compact(model=MODEL, previous_response_id=made.id)
        names.append(short.output[-1].id)
        items = [{"type": "item_reference", "id": name} for name in names]
        ask = {"role": "user", "content": "three"}
        again = await client.responses.create(model=MODEL, input=[*items, ask])
        assert "I was shown 4 messages" in again.output_text
        named = [{"type": "item_reference", "id": added}, ask]
        more = await client.responses.create(model=MODEL, input=named, previous_response_id=made.id)
        assert "I was shown 5 messages" in more.output_text
        unstored = await client.responses.create(model=MODEL, input="x", store=False)
        for who, name in ((client, unstored.output[0].id), (client, added), (stranger, names[1])):
            with pytest.raises(openai.NotFoundError, match="unknown item"):
                await who.responses.create(model=MODEL, input=[{"type": "item_reference", "id": name}, ask])
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError, match="unknown item"):
            await client.responses.create(model=MODEL, input=[items[1], ask])


async def test_a_response_includes_encrypted_reasoning_and_the_probabilities_of_tokens(redis_url, contract):
    seen, tokens = [], [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}]
    thought = Reasoning("nobody else reads this", {"type": "thinking", "signature": "s"})

    def answers(request):
        seen.append(request)
        return [thought, Text("Hi", item={"logprobs": tokens})]

    async with calling(redis_url, answers) as (_, client):
        wanted = ["reasoning.encrypted_content", "message.output_text.logprobs"]
        asks = {"model": "scripted/any", "input": "x", "include": wanted, "top_logprobs": 2, "store": False}
        made = await client.responses.create(**asks, truncation="auto")
        contract(made.to_dict(mode="json"))
        assert seen[-1].params == {"logprobs": True, "top_logprobs": 2}
        assert made.output[1].content[0].logprobs[0].logprob == -0.5
        assert (made.top_logprobs, made.truncation) == (2, "auto")
        back = [one.to_dict(mode="json") for one in made.output]
        assert thought.text not in back[0]["encrypted_content"]
        await client.responses.create(model="scripted/any", input=[*back, {"role": "user", "content": "y"}])
        assert seen[-1].messages[0].parts[0] == thought, "the model service gets its own block back"
        async for event in await client.responses.create(**asks, stream=True):
            if event.type == "response.output_item.done" and event.item.type == "reasoning":
                back[0] = event.item.to_dict(mode="json")
        await client.responses.create(model="scripted/any", input=[*back, {"role": "user", "content": "y"}])
        assert seen[-1].messages[0].parts[0] == thought
        foreign = [{**back[0], "encrypted_content": "gAAAA"}, {"role": "user", "content": "y"}]
        with pytest.raises(openai.BadRequestError, match="leave the item out"):
            await client.responses.create(model="scripted/any", input=foreign)
        asks = {"model": "scripted/any", "messages": [{"role": "user", "content": "x"}]}
        whole = await client.chat.completions.create(**asks, logprobs=True, top_logprobs=1)
        assert whole.choices[0].logprobs.content[0].token == "Hi"
        assert seen[-1].params == {"logprobs": True, "top_logprobs": 1}
        stream = await client.chat.completions.create(**asks, logprobs=True, stream=True)
        found = [one.choices[0].logprobs async for one in stream]
        assert found[-1].content[0].logprob == -0.5


async def test_reasoning_is_included_where_a_response_or_a_conversation_is_read_later(redis_url):
    seen, thought = [], Reasoning("hm", {"type": "thinking", "signature": "s"})

    def answers(request):
        seen.append(request)
        return [thought, Text("Hi")]

    async with calling(redis_url, answers) as (_, client):
        made = await client.responses.create(model="scripted/any", input="x", conversation="mine")
        assert "encrypted_content" not in made.output[0].to_dict()
        wanted = {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}
        events = [event async for event in await client.responses.retrieve(made.id, stream=True, **wanted)]
        listed = await client.conversations.items.list("mine", order="asc", **wanted)
        where = {"conversation_id": "mine", **wanted}
        for item in (
            (await client.responses.retrieve(made.id, **wanted)).output[0],
            events[-1].response.output[0], listed.data[1],
            await client.conversations.items.retrieve(made.output[0].id, **where),
        ):  # fmt: skip
            back = item.to_dict(mode="json")
            ask = [back, {"role": "user", "content": "y"}]
            again = await client.responses.create(model="scripted/any", input=ask)
            assert seen[-1].messages[0].parts[0] == thought, "the model service gets its own block back"
            given = (await client.responses.input_items.list(again.id, order="asc", **wanted)).data[0]
            ask[0] = given.to_dict(mode="json")
            await client.responses.create(model="scripted/any", input=ask)
            assert seen[-1].messages[0].parts[0] == thought
            added = await client.conversations.items.create("mine", items=[ask[0]], **wanted)
            assert added.data[0].encrypted_content
        with pytest.raises(openai.BadRequestError, match=r"include: 'file_search_call\.results' is not"):
            await client.responses.retrieve(made.id, include=["file_search_call.results"])


async def test_what_a_field_cannot_mean_is_refused_with_a_sentence(redis_url):
    call = {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "r"}
    message = {"role": "user", "content": "x"}
    async with open_gateway(redis_url) as (api, _):
        for wrong, param in (
            ({"tools": [{"type": "web_search"}]}, "tools"), ({"store": False, "background": True}, "store"),
            ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools"),
            ({"truncation": "half"}, "truncation"), ({"include": ["file_search_call.results"]}, "include"),
            ({"top_logprobs": 21}, "top_logprobs"), ({"reasoning": {"mode": "pro"}}, "reasoning"),
            ({"image": {}}, "image"),
            ({"text": {"format": {"type": "grammar"}}}, "text"), ({"max_tool_calls": 0}, "max_tool_calls"),
            ({"prompt": {"id": "x"}}, "prompt"), ({"temperature": "hot"}, "temperature"), ({"top_p": 2}, "top_p"),
            ({"instructions": 7}, "instructions"), ({"model": "stage/*"}, "model"),
            ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
            ({"conversation": {"id": "a", "x": "y"}}, "conversation"), ({"metadata": {"a" * 65: "b"}}, "metadata"),
            ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice"),
            ({"tool_choice": "required"}, "tool_choice"), ({"stream_options": {"x": True}}, "stream_options"),
            ({"input": None}, "input"), ({"input": []}, "input"), ({"input": [{}]}, "input"), ({"input": [7]}, None),
            ({"input": [{"type": "mcp_call", "id": "x"}]}, "input"), ({"input": [call]}, "input"),
            ({"input": [result]}, "input"), ({"input": [result, message]}, "input"),
            ({"input": [call, message]}, "input"),
            ({"input": [call, result, result]}, "input"), ({"input": [{**message, "colour": "red"}]}, "input"),
            ({"input": [{**message, "role": "critic"}]}, "input"),
            ({"input": [{**message, "content": [{"type": "input_audio"}]}]}, "input"),
            ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input"),
            ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input"),
        ):  # fmt: skip
            found = (await api.post("/v1/responses", {"model": MODEL, "input": "x", **wrong}, 400))["error"]
            assert found["message"].endswith((".", "…", "?")), wrong
            assert found["param"] in (param, "input"), (wrong, found)
        unknown = {"type": "item_reference", "id": "msg_none_1_0"}
        for items in ([unknown], [{"id": "msg_none_1_0"}], [message, {"type": "item_reference"}]):
            error = (await api.post("/v1/responses", {"model": MODEL, "input": items}, 404))["error"]
            assert (error["code"], error["param"]) == ("item_not_found", "input")
        assert (await api.get("/v1/responses/none", 404))["error"]["code"] == "turn_not_found"
        assert STAGE["provider"] == MODEL.partition("/")[0]


async def test_the_tokens_of_an_input_are_estimated_without_a_turn(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, api, client):
        count = client.responses.input_tokens.count
        short = await count(model=MODEL, input="Hello")
        assert (short.object, short.input_tokens) == ("response.input_tokens", 6)
        tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
        for more in ({"instructions": "Be brief."}, {"tools": [tool]}, {"input": "Hello, and good morning."}):
            assert (await count(**{"model": MODEL, "input": "Hello", **more})).input_tokens > 6
        made = await client.responses.create(model=MODEL, input="A long question about everything")
        asked = len(ensemble.stage.notes("asked"))
        for where in ({"previous_response_id": made.id}, {"conversation": made.conversation.id}):
            assert (await count(model=MODEL, input="Hello", **where)).input_tokens > 20
        assert len(ensemble.stage.notes("asked")) == asked
        assert (await api.get(f"/sessions/{made.conversation.id}"))["messages"] == 2
        error = (await api.post("/v1/responses/input_tokens", {"personality": "friendly"}, 400))["error"]
        assert error["param"] == "personality"
