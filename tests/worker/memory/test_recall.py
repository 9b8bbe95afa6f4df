"""What is recalled: within its scope, beside the newest input, within its budget, and never what was deleted."""

import asyncio

import pytest
from bench.counting import CountingProxy
from support.cells import open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.memories import FailingStore, app_with, host, passages_in

from antiphon.client import AsyncClient
from antiphon.errors import SettingsError, UsageError
from antiphon.memory import Memory, WordEmbeddings
from antiphon.model import Image, Message, Text, ToolCall
from antiphon.testing import script
from antiphon.window import Window, estimated_tokens
from antiphon_worker.app import App
from antiphon_worker.memory.recall import NOTE
from antiphon_worker.providers.scripted import ScriptedProvider

pytestmark = pytest.mark.one_server


@pytest.fixture
def store(tmp_path):
    return FailingStore(tmp_path / "memory")


def app_of(memory, lines, **options):
    return App(
        agents=[host(memory, provider="played", **options)], providers={"played": ScriptedProvider(lines)}
    )


async def said(client, text, session="s", tenant=None, agent="host"):
    return await (await client.submit(session, text, agent=agent, tenant=tenant)).result(20)


def recalled(request):
    """What the model was shown of earlier conversations, and where."""
    return [index for index, message in enumerate(request.messages) if message.text.startswith(NOTE)]


async def settled(redis_url, memory):
    async with open_cell(redis_url) as cell:
        await wait_until_async(lambda: _nothing_waits(cell, memory))


async def _nothing_waits(cell, memory):
    return await cell.redis.zcard(cell.keys.unindexed(memory.name)) == 0


async def test_at_the_start_passages_stand_between_the_history_and_the_newest_input(redis_url, store):
    memory = Memory(store, scope="tenant", recall="start")
    lines = script(*["Yes."] * 4)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await settled(redis_url, memory)
        await said(client, "Hello", "s2", "acme")
        await said(client, "What is my cat called?", "s2", "acme")
        history = await client.session("s2").messages()
    request = lines.requests[-1]
    assert recalled(request) == [2]
    assert [one.text for one in request.messages[:2]] == ["Hello", "Yes."], (
        "the cached beginning stays as it is"
    )
    assert "My cat is called Mia." in request.messages[2].text
    assert request.messages[2].role == "user", "what users said has no authority"
    assert request.messages[3].text == "What is my cat called?"
    assert not any(NOTE in one.text for one in history), "it is not stored"


async def test_recall_from_a_folder_waits_for_no_thread(redis_url, store, monkeypatch):
    memory = Memory(store, scope="tenant", recall="start")
    lines = script(*["Yes."] * 2)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await settled(redis_url, memory)
        monkeypatch.setattr(store, "_nearest", _away)
        await said(client, "What is my cat called?", "s2", "acme")
    assert recalled(lines.requests[-1]) == [0]


async def test_recall_takes_the_tenant_from_the_claim(redis_url, redis, store):
    memory = Memory(store, scope="tenant", recall="start")
    lines = script(*["Yes."] * 3)
    async with AsyncClient(redis_url) as client:
        with CountingProxy(int(redis_url.rpartition(":")[2].partition("/")[0])) as way:
            async with running_worker(way.url, app_of(memory, lines)):
                await said(client, "My cat is called Mia.", "s1", "acme")
                await settled(redis_url, memory)
                way.reset()
                await said(client, "What is my cat called?", "s2", "acme")
                sent = list(way.sent)
    assert recalled(lines.requests[-1])
    assert any(b"ant:remembered:" in data for data in sent)
    assert not any(b"HGET" in data and b"tenant" in data for data in sent)


async def test_the_tool_finds_what_the_model_asks_for(redis_url, store):
    memory = Memory(store, scope="tenant")
    lines = script("Noted.", [ToolCall("c1", "recall", {"query": "name of the cat"})], "It is Mia.")
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await settled(redis_url, memory)
        response = await said(client, "What is it called?", "s2", "acme")
    assert [tool.name for tool in lines.requests[1].tools] == ["recall"]
    assert "My cat is called Mia." in response.tool_calls[0].result
    assert response.text == "It is Mia."


@pytest.mark.parametrize(
    ("scope", "session", "agent", "tenant", "found"),
    [
        ("session", "s1", "host", "acme", True), ("session", "s2", "host", "acme", False),
        ("agent", "s2", "host", "acme", True), ("agent", "s2", "other", "acme", False),
        ("tenant", "s2", "other", "acme", True), ("tenant", "s2", "host", "rival", False),
        ("tenant", "s2", "host", None, False), ("agent", "s2", "host", "rival", False),
    ],
)  # fmt: skip
async def test_a_memory_never_crosses_its_scope(redis_url, store, scope, session, agent, tenant, found):
    memory = Memory(store, scope=scope, recall="start")
    lines = script(*["Yes."] * 3)
    agents = [host(memory, name=name, provider="played", window=1) for name in ("host", "other")]
    app = App(agents=agents, providers={"played": ScriptedProvider(lines)})
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await said(client, "A word between.", "s1", "acme")
        await settled(redis_url, memory)
        await said(client, "What is my cat called?", session, tenant, agent)
    assert bool(recalled(lines.requests[-1])) is found


async def test_a_store_that_ignores_the_filter_crosses_no_scope(redis_url, store):
    memory = Memory(store, scope="tenant", recall="start", filter=lambda scope: {})
    lines = script(*["Yes."] * 2)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await settled(redis_url, memory)
        await said(client, "What is my cat called?", "s2", "rival")
    assert recalled(lines.requests[-1]) == []


async def test_what_was_deleted_is_not_recalled_even_while_the_store_still_has_it(
    redis_url, store, monkeypatch
):
    memory = Memory(store, scope="tenant", recall="start")
    lines = script(*["Yes."] * 3)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        await said(client, "My cat is called Mia.", "s1", "acme")
        await settled(redis_url, memory)
        store.adelete = _away
        await client.session("s1").delete()
        await said(client, "What is my cat called?", "s2", "acme")
        assert len(passages_in(memory)) >= 1
    assert recalled(lines.requests[-1]) == []


async def _away(*args, **options):
    raise ConnectionError("the store is away")


async def test_of_its_own_session_a_turn_recalls_what_its_window_leaves_out(redis_url, store):
    memory = Memory(store, recall="start", count=2)
    lines = script(*["Yes."] * 4)
    async with (
        AsyncClient(redis_url) as client,
        running_worker(redis_url, app_of(memory, lines, window=Window(turns=1))),
    ):
        for text in ("My cat is called Mia.", "It rains.", "My dog is called Rex."):
            await said(client, text)
            await settled(redis_url, memory)
        await said(client, "What is my dog or cat called?")
    (place,) = recalled(lines.requests[-1])
    note = lines.requests[-1].messages[place].text
    assert "Mia" in note
    assert "Rex" not in note, "the window shows it"


async def test_passages_keep_to_their_budget(redis_url, store):
    memory = Memory(store, scope="tenant", recall="start", tokens=100, count=50)
    lines = script(*["Yes."] * 9)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        for number in range(8):
            await said(client, f"My cat number {number} " + "is soft " * 10, f"s{number}", "acme")
        await settled(redis_url, memory)
        await said(client, "cat", "s", "acme")
    (place,) = recalled(lines.requests[-1])
    note = lines.requests[-1].messages[place].text.removeprefix(NOTE)
    assert 50 < estimated_tokens([Message.user(note)]) <= 110


@pytest.mark.parametrize("recall", ["start", "tool"])
async def test_a_store_that_hangs_or_fails_fails_no_turn(redis_url, store, recall, caplog):
    memory = Memory(store, recall=recall, timeout=0.05)
    answers = ["Yes."] if recall == "start" else [[ToolCall("c1", "recall", {"query": "cat"})], "Yes."]
    errors = {_away: "ConnectionError", _hang: "TimeoutError", _cancelled: "CancelledError"}
    for broken, raised in errors.items():
        store.asimilarity_search = broken
        lines = script(*answers)
        async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
            turn = await client.submit(f"s{broken.__name__}", "cat?", agent="host")
            response = await turn.result(20)
            failed = [event async for event in turn.stream() if event.type == "recall_failed"]
        assert [(one.memory, one.error) for one in failed] == [("memory", raised)]
        assert response.text == "Yes."
        if recall == "tool":
            assert response.tool_calls[0].is_error
    assert "did not answer a turn" in caplog.text


async def _hang(*args, **options):
    await asyncio.Event().wait()


async def _cancelled(*args, **options):
    raise asyncio.CancelledError


async def test_input_without_text_asks_nothing(redis_url, store):
    store.asimilarity_search = _away
    memory = Memory(store, recall="start")
    lines = script("Yes.")
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app_of(memory, lines)):
        picture = Message.user([Image(url="https://example.com/a.png"), Text(" ")])
        await (await client.submit("s", [picture], agent="host")).result(20)
    assert recalled(lines.requests[-1]) == []


def test_an_agent_with_a_memory_runs_on_workers_alone(store):
    agent = host(Memory(store))
    for use in (agent.session, agent.spec):
        with pytest.raises(UsageError, match="runs only on workers"):
            use()


def test_what_cannot_be_a_memory_is_refused(store, tmp_path):
    for wrong in (
        lambda: Memory(store, scope="world"), lambda: Memory(store, name="a b"), lambda: Memory(store, recall="never"),
        lambda: Memory(store, tokens=0), lambda: Memory(5), lambda: Memory(tmp_path), lambda: Memory(tmp_path, 5),
        lambda: Memory(store, WordEmbeddings()), lambda: Memory(store, replaces=Memory(store)), lambda: host("x"),
    ):  # fmt: skip
        with pytest.raises(UsageError):
            wrong()


def test_an_app_shares_one_memory_by_its_name(store):
    memory = Memory(store)
    assert App(agents=[host(memory), host(memory, name="b")]).memories.tools == ["recall"]
    with pytest.raises(SettingsError, match="Two memories"):
        App(agents=[host(memory), host(Memory(store), name="b")])
    with pytest.raises(SettingsError, match="memory="):
        App(memory=5)


def test_a_tool_of_the_agent_may_not_have_the_name_of_the_memorys(store):
    def recall(query: str) -> str:
        """Look."""
        return query

    with pytest.raises(SettingsError, match="recall"):
        app_with(Memory(store), tools=[recall])


def test_the_apps_memory_is_that_of_agents_without_one(store):
    memory = Memory(store)
    app = App(agents=[host(None)], memory=memory)
    assert app.memories.of(app.agent("host")) is memory
