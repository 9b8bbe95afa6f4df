"""Agents of pydantic-ai keep their conversations on Redis; its scripts have tests of their own."""

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import ConversationConflict
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests

from antiphon.errors import StoreUnavailable
from antiphon.ext.pydantic_ai import AntiphonConversationStore
from antiphon.wire.scripts import load_script


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
