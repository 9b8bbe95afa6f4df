"""``AntiphonSession`` keeps the contract of the Agents SDK's sessions, in this process and on Redis."""

import asyncio

import pytest
from agents import Agent as SDKAgent
from agents import RunConfig, Runner, SessionSettings
from agents.memory import Session as SDKSession
from agents.testing import ScriptedModel, assistant_message, function_call
from redis import Redis

from antiphon import Agent, Message
from antiphon.errors import StoreUnavailable, WrongTenant
from antiphon.ext.openai_agents import AntiphonSession
from antiphon.model import Text, ToolCall, ToolResult

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


def test_it_works_under_run_sync_and_from_other_loops(session):
    found = session()
    for _ in range(2):
        model = ScriptedModel([[assistant_message("Hi")]])
        Runner.run_sync(SDKAgent(name="a", model=model), "Hello", session=found)
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
