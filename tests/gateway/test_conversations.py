"""OpenAI's conversations, models, compaction and stored responses, through the official client."""

import openai
import pytest
from support.openai_clients import MODEL, calling, contract_at, open_client, stand

from antiphon import Agent
from antiphon.model import ToolCall
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Key, Keys, hash_of, new_key

pytestmark = pytest.mark.one_server
HI = {"type": "message", "role": "user", "content": "Hi"}


@pytest.fixture
def contract(request):
    """Checks a response or an event against the Open Responses specification."""
    return contract_at(request.config.rootpath)


async def test_a_conversation_is_a_session_and_its_items_are_its_history(redis_url, tmp_path, contract):
    async with stand(redis_url, tmp_path) as (_, _, client):
        begun = await client.conversations.create(items=[HI], metadata={"topic": "x", "who": "me"})
        assert (begun.object, begun.metadata) == ("conversation", {"topic": "x", "who": "me"})
        made = await client.responses.create(model=MODEL, input="And you?", conversation=begun.id)
        assert made.conversation.id == begun.id
        assert "I was shown 2 messages" in made.output_text
        added = await client.conversations.items.create(
            begun.id, items=[{"role": "assistant", "content": "Bye"}, {"role": "user", "content": "Bye"}]
        )
        assert [one.role for one in added.data] == ["assistant", "user"]
        found = [one async for one in client.conversations.items.list(begun.id, order="asc", limit=2)]
        assert [one.role for one in found] == ["user", "user", "assistant", "assistant", "user"]
        assert [one.id for one in found][-2:] == [one.id for one in added.data]
        given = await client.responses.input_items.list(made.id)
        assert [one.id for one in found][1:3] == [given.data[0].id, made.output[0].id]
        newest = await client.conversations.items.list(begun.id, limit=1)
        assert (newest.data[0].id, newest.has_more) == (found[-1].id, True)
        for one in found:
            read = await client.conversations.items.retrieve(one.id, conversation_id=begun.id)
            assert read == one
            contract(read.to_dict(mode="json"), "ItemField")
        changed = await client.conversations.update(begun.id, metadata={"topic": "y"})
        assert changed.metadata == (await client.conversations.retrieve(begun.id)).metadata == {"topic": "y"}
        with pytest.raises(openai.BadRequestError, match="rewind"):
            await client.conversations.items.delete(found[0].id, conversation_id=begun.id)
        for wrong in ("none", found[0].id + "x"):
            with pytest.raises(openai.NotFoundError):
                await client.conversations.items.retrieve(wrong, conversation_id=begun.id)
        with pytest.raises(openai.BadRequestError):
            await client.conversations.items.list(begun.id, after="none")
        assert (await client.conversations.delete(begun.id)).deleted
        for call in (
            client.conversations.retrieve,
            client.conversations.items.list,
            client.conversations.delete,
        ):
            with pytest.raises(openai.NotFoundError):
                await call(begun.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model=MODEL, input="x", previous_response_id=made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)


async def test_a_conversation_is_begun_once_for_a_key_and_takes_results_of_tools(redis_url):
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]

    def answers(request):
        results = [one for message in request.messages for one in message.tool_results]
        return f"I saw {results[-1].text}" if results else [ToolCall("call_1", "look", {})]

    async with calling(redis_url, answers) as (_, client):
        headers = {"Idempotency-Key": "k"}
        made = [await client.conversations.create(items=[HI], extra_headers=headers) for _ in range(2)]
        assert made[0] == made[1]
        items = [one async for one in client.conversations.items.list(made[0].id)]
        assert len(items) == 1
        asks = {"model": "scripted/any", "tools": tools, "conversation": made[0].id}
        first = await client.responses.create(**asks, input="Look")
        picture = [
            {"type": "input_text", "text": "a tree"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA"},
        ]
        result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": picture}
        second = await client.responses.create(**asks, input=[result])
        assert (second.id, second.output_text) == (f"{first.id}.1", "I saw a tree")
        assert second.previous_response_id == first.id
        given = await client.responses.input_items.list(second.id)
        assert [(one.type, one.output[1].image_url) for one in given.data] == [
            ("function_call_output", "data:image/png;base64,AA")
        ]
        kinds = [one.type async for one in client.conversations.items.list(made[0].id, order="asc")]
        assert kinds == ["message", "message", "function_call", "function_call_output", "message"]
        with pytest.raises(openai.BadRequestError, match="No tool call waits"):
            await client.responses.create(**asks, input=[result])


async def test_the_models_are_the_agents_of_the_workers_and_the_providers_that_they_allow(redis_url):
    agents = [Agent(provider="scripted", model="any", name=name) for name in ("support", "clerk")]
    async with calling(redis_url, lambda _: "Hi", agents) as (_, client):
        found = [model async for model in await client.models.list()]
        assert [(one.id, one.owned_by) for one in found] == [
            ("clerk", "antiphon"), ("support", "antiphon"), ("scripted/*", "scripted"),
        ]  # fmt: skip
        for name in ("clerk", "scripted/any"):
            assert (await client.models.retrieve(name)).id == name
            assert (await client.responses.create(model=name, input="x")).output_text == "Hi"
        for name in ("nobody", "openai/gpt-5"):
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(name)
            for asks in (
                client.responses.create(model=name, input="x"),
                client.responses.compact(model=name, input="x"),
                client.chat.completions.create(model=name, messages=[{"role": "user", "content": "x"}]),
            ):
                with pytest.raises(
                    openai.NotFoundError, match=f"The model '{name}' does not exist"
                ) as caught:
                    await asks
                assert caught.value.code == "model_not_found"
            stream = await client.responses.create(model=name, input="x", stream=True)
            failed = [event async for event in stream][-1].response
            assert (failed.status, failed.error.code) == ("failed", "model_not_found")
            again = await client.responses.retrieve(failed.id)
            assert (again.status, again.error) == ("failed", failed.error)


async def test_the_models_are_those_that_the_workers_allow(redis_url):
    async with calling(redis_url, lambda _: "Hi", models=["small", "large"]) as (_, client):
        found = [model.id async for model in await client.models.list()]
        assert found == ["scripted/large", "scripted/small"]
        assert (await client.models.retrieve("scripted/small")).id == "scripted/small"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("scripted/any")
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.responses.create(model="scripted/any", input="x")


async def test_a_compacted_conversation_goes_on_with_its_summary(redis_url, contract):
    def answers(request):
        asked = request.messages[-1].text
        if asked.startswith("Summarize"):
            return f"{len(request.messages)} messages, tools: {request.params.get('tool_choice')}"
        return " / ".join(f"{one.role}: {one.text}" for one in request.messages)

    agent = Agent(provider="scripted", model="any", name="clerk")
    async with calling(redis_url, answers, [agent]) as (api, client):
        first = await client.responses.create(model="scripted/any", input="My name is Alice")
        short = await client.responses.compact(
            model="scripted/any", previous_response_id=first.id, input="I like tea"
        )
        said = [one.content[0].text for one in short.output[:-1]]
        assert (said, short.output[-1].type) == (["My name is Alice", "I like tea"], "compaction")
        assert "messages" not in short.output[-1].encrypted_content
        body = {"model": "scripted/any", "previous_response_id": first.id, "input": "I like tea"}
        found = await api.post("/v1/responses/compact", body)
        contract(found)
        output = found["output"]
        second = await client.responses.create(model="scripted/any", input=[*output, HI])
        assert "4 messages, tools: None" in second.output_text
        named = await client.responses.compact(model="clerk", input="x")
        again = await client.responses.create(model="clerk", input=[named.output[-1].to_dict(), HI])
        assert "2 messages, tools: none" in again.output_text
        with pytest.raises(openai.BadRequestError, match="nothing to compact"):
            await client.responses.compact(model="clerk")
        with pytest.raises(openai.NotFoundError, match="Unknown response"):
            await client.responses.compact(model="clerk", previous_response_id="resp_none")
        key = new_key()
        other = Access(Keys({"b": Key(hash=hash_of(key), tenant="b")}), secret="s" * 32)
        async with open_client(redis_url, key, access=other) as (_, stranger):
            with pytest.raises(openai.BadRequestError, match="is from another deployment"):
                await stranger.responses.create(model="clerk", input=[output[-1], HI])


async def test_a_response_that_is_deleted_or_not_stored_cannot_be_read(redis_url, tmp_path):
    async with stand(redis_url, tmp_path) as (ensemble, _, client):
        made = await client.responses.create(model=MODEL, input="one")
        second = await client.responses.create(model=MODEL, input="two", previous_response_id=made.id)
        await client.responses.delete(made.id)
        running = await client.responses.create(model=MODEL, input="go gate:never", background=True)
        await ensemble.waits("never")
        await client.responses.delete(running.id)
        for name in (made.id, running.id):
            for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete,
                         client.responses.input_items.list):  # fmt: skip
                with pytest.raises(openai.NotFoundError):
                    await call(name)
            with pytest.raises(openai.NotFoundError, match="Unknown response"):
                await client.responses.create(model=MODEL, input="x", previous_response_id=name)
        third = await client.responses.create(model=MODEL, input="three", previous_response_id=second.id)
        assert "I was shown 5 messages" in third.output_text, "what it said stays in its conversation"
        unstored = await client.responses.create(model=MODEL, input="x", store=False)
        assert unstored.store is False
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unstored.id)
        (cell,) = ensemble.client.connections.cells
        assert await cell.redis.pttl(cell.keys.history(unstored.conversation.id)) <= 3_600_000
        after = await client.responses.create(
            model=MODEL, input="y", store=False, previous_response_id=unstored.id
        )
        assert "I was shown 3 messages" in after.output_text
