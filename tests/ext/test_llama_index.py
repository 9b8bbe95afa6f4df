"""A chat store of LlamaIndex over sessions, in this process and on Redis."""

import asyncio
from base64 import b64encode

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.memory import ChatMemoryBuffer

from antiphon import Message
from antiphon.client import AsyncClient
from antiphon.errors import StoreUnavailable, WrongTenant
from antiphon.ext.llama_index import AntiphonChatStore, chat_messages, messages_of
from antiphon.model import File, Image, Text, ToolCall, ToolResult

SAID = [
    ChatMessage("Be brief.", role="system"),
    ChatMessage(
        [
            TextBlock(text="See"),
            ImageBlock(url="https://example.com/a.png"),
            ImageBlock(image=b"iVBORw0KGgo="),
        ]
    ),
    ChatMessage(
        [ThinkingBlock(content="Hm."), TextBlock(text="Let me look.")]
        + [ToolCallBlock(tool_call_id=f"c{n}", tool_name="look", tool_kwargs={"n": n}) for n in (1, 2)],
        role="assistant",
        additional_kwargs={"any": [1]},
    ),
    ChatMessage("one", role="tool", additional_kwargs={"tool_call_id": "c1", "name": "look"}),
    ChatMessage("two", role="tool", additional_kwargs={"tool_call_id": "c2", "name": "look"}),
    ChatMessage("Done.", role="assistant"),
]


def says(*texts):
    return [ChatMessage(text) for text in texts]


def texts(messages):
    return [message.content for message in messages]


@pytest.fixture
def store(runtime):
    """Makes stores where the runtime of the test keeps its sessions."""
    url = getattr(runtime, "url", None)
    return lambda **options: AntiphonChatStore(redis=url, **options)


def test_a_large_picture_comes_back_although_the_session_stores_it_apart(runtime, store):
    picture = ImageBlock(image=b64encode(bytes(range(256)) * 100))
    store().add_message("s", ChatMessage([TextBlock(text="See"), picture]))
    [message] = store().get_messages("s")
    assert message.blocks[1].image == picture.image
    assert store().delete_last_message("s").blocks[1].image == picture.image


def test_messages_come_back_as_they_were_added(runtime, store):
    for message in SAID:
        store().add_message("s", message)
    assert store().get_messages("s") == SAID
    ours = runtime.agent().session("s").messages
    assert [message.role for message in ours] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [call.arguments for call in ours[2].tool_calls] == [{"n": 1}, {"n": 2}]
    assert [result.text for message in ours[3:5] for result in message.tool_results] == ["one", "two"]
    assert store().get_messages("other") == []
    assert store().get_keys() == ["s"]


def test_messages_are_added_and_deleted_at_an_index(store):
    found = store()
    found.set_messages("s", says("a", "c"))
    for idx, text in ((1, "b"), (0, "0"), (99, "d"), (-1, "before d")):
        found.add_message("s", ChatMessage(text), idx)
    assert texts(found.get_messages("s")) == ["0", "a", "b", "c", "before d", "d"]
    assert [found.delete_message("s", idx) for idx in (6, -7)] == [None, None]
    assert texts(found.delete_message("s", idx) for idx in (4, 0, -1)) == ["before d", "0", "d"]
    assert texts(found.get_messages("s")) == ["a", "b", "c"]
    assert found.delete_last_message("s").content == "c"
    assert texts(found.delete_messages("s")) == ["a", "b"]
    assert (found.get_messages("s"), found.get_keys()) == ([], [])
    assert (found.delete_messages("s"), found.delete_last_message("s"), found.delete_message("s", 0)) == (
        None,
        None,
        None,
    )


def test_what_stays_of_a_list_that_is_set_keeps_its_place(runtime, store):
    store().set_messages("s", SAID)
    before = runtime.agent().session("s").messages
    store().set_messages("s", [*SAID[:3], *says("new")])
    after = runtime.agent().session("s").messages
    assert store().get_messages("s") == [*SAID[:3], *says("new")]
    assert [message.id for message in after[:3]] == [message.id for message in before[:3]]
    store().set_messages("s", store().get_messages("s"))
    assert runtime.agent().session("s").messages == after
    store().set_messages("s", [])
    assert store().get_messages("s") == []


def test_a_memory_of_llama_index_and_turns_of_ours_read_each_other(runtime, store):
    memory = ChatMemoryBuffer.from_defaults(chat_store=store(), chat_store_key="s")
    memory.put(ChatMessage("My name is Alice"))
    memory.put(ChatMessage("Hello, Alice", role="assistant"))
    answer = runtime.agent().session("s").run("Who am I?").text
    assert [str(message) for message in memory.get_all()] == [
        "user: My name is Alice", "assistant: Hello, Alice", "user: Who am I?", f"assistant: {answer}",
    ]  # fmt: skip
    memory.reset()
    assert runtime.agent().session("s").messages == []


def test_an_index_counts_each_result_of_our_tool_messages(runtime, store):
    calls = [ToolCall(f"c{n}", "look", {"n": n}) for n in (1, 2, 3)]
    results = [ToolResult(f"c{n}", f"seen {n}", "look") for n in (1, 2, 3)]
    ours = runtime.agent().session("s")
    ours.add_message(Message.assistant(calls), Message.tool(results), Message.assistant("Done."))
    assert texts(store().get_messages("s"))[1:] == ["seen 1", "seen 2", "seen 3", "Done."]
    assert store().delete_message("s", 2).content == "seen 2"
    store().add_message("s", ChatMessage("between"), 2)
    assert texts(store().get_messages("s"))[1:] == ["seen 1", "between", "seen 3", "Done."]
    assert len({message.id for message in ours.messages}) == 5


async def test_changes_side_by_side_are_all_made(runtime, store):
    await store().aset_messages("s", says(*"abcdefghij"))
    taken = await asyncio.gather(
        *(store().adelete_last_message("s") for _ in range(4)),
        *(store().adelete_message("s", 0) for _ in range(4)),
        *(store().async_add_message("s", ChatMessage(text), 1) for text in "xyz"),
    )
    left = texts(await store().aget_messages("s"))
    gone = texts(taken[:8])
    assert sorted([*left, *gone]) == sorted("abcdefghijxyz")
    assert len(left) == 5
    await runtime.aclose()


async def test_a_delete_that_is_cancelled_is_waited_for(runtime, store):
    found = store()
    await found.aset_messages("s", says("a", "b"))
    task = asyncio.ensure_future(found.adelete_last_message("s"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert texts(await found.aget_messages("s")) in (["a"], ["a", "b"])
    await runtime.aclose()


def test_a_tenant_has_its_own_keys(store):
    store(tenant="acme").add_message("s", ChatMessage("a"))
    assert store(tenant="acme").get_keys() == ["s"]
    assert store(tenant="other").get_keys() == []
    for use in (store(tenant="other").get_messages, store(tenant="other").delete_messages):
        with pytest.raises(WrongTenant):
            use("s")


def test_an_error_of_the_server_is_ours():
    with pytest.raises(StoreUnavailable):
        AntiphonChatStore(redis="redis://127.0.0.1:1/0").get_messages("s")


async def test_subscribers_hear_what_changes(workers_runtime):
    found = AntiphonChatStore(redis=workers_runtime.url)
    await found.aset_messages("s", says("a", "b", "c"))
    await found.adelete_message("s", 1)
    await found.aset_messages("s", says("d"))
    async with AsyncClient(workers_runtime.url) as client:
        told = []
        async for event in client.subscribe("s", after=0):
            told.append((event.type, getattr(event, "kept", None)))
            if len(told) == 7:
                break
    assert told == [
        ("message_added", None), ("message_added", None), ("message_added", None),
        ("history_rewound", 1), ("message_added", None),
        ("history_rewound", 0), ("message_added", None),
    ]  # fmt: skip


def test_messages_of_ours_in_both_directions():
    ours = [
        Message.user(
            [Text("See"), Image(url="https://example.com/a.png"), File(data="QQ==", media_type="text/plain")]
        ),
        Message.assistant([Text("Let me look."), ToolCall("c1", "look", {"n": 1})]),
        Message.tool([ToolResult("c1", "seen", "look")]),
        Message.assistant("Done."),
    ]
    back = messages_of(chat_messages(ours))
    assert [message.parts[:-1] for message in back[1:]] == [message.parts for message in ours[1:]]
    assert [type(part) for part in back[0].parts[:-1]] == [Text, Image, File]
    assert chat_messages(back) == chat_messages(ours)
    document = ChatMessage([DocumentBlock(data=b"QQ==", title="a.txt", document_mimetype="text/plain")])
    assert chat_messages(messages_of([document])) == [document]
