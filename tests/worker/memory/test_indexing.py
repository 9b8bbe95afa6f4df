"""Finished turns are indexed exactly once, whoever dies meanwhile, and what was deleted is forgotten."""

import asyncio

import pytest
from support.cells import START_MS, open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.memories import FailingStore, app_with, host, passages_in

from antiphon.client import AsyncClient
from antiphon.encryption.values import Values
from antiphon.errors import StoreUnavailable
from antiphon.input.ids import SessionId
from antiphon.input.request import TurnRequest
from antiphon.memory import Memory, WordEmbeddings
from antiphon.model import Message, Response, encode
from antiphon.wire.lists.memories import TakenSession, has_taken_over, waiting_sessions
from antiphon_worker.app import App
from antiphon_worker.memory import documents, indexer
from antiphon_worker.memory.documents import Documents
from antiphon_worker.memory.indexer import REFUSED_SECONDS, Indexer

LEASE_SECONDS = Documents.lease_seconds


@pytest.fixture
def store(tmp_path):
    return FailingStore(tmp_path / "memory")


@pytest.fixture
def memory(store):
    return Memory(store)


async def say(cell, turn, session="s", text="tea", **options):
    """A turn that has finished, as a worker ends it."""
    request = TurnRequest([Message.user(text)]).to_json()
    claimed = await cell.started(turn, session, request, **options)
    asked, said = Message.user(text), Message.assistant(f"You said: {text}")
    for message in (asked, said):
        message.turn_id, message.created = turn, START_MS
    said.agent = "host"
    response = encode(Response(text=said.text, messages=[said], turn_id=turn, session_id=session))
    await cell.end(claimed, messages=[encode(asked), encode(said)], response=response, memories="memory")


async def indexed(cell, memory):
    indexer = Indexer(cell, memory)
    while await indexer.index_some():
        pass


async def standing_still(cell, memory, store):
    """An indexer that stands still while it writes the turn t1, and the event that lets it go on."""
    await cell.set_clock(START_MS)
    await say(cell, "t1")
    store.gate = asyncio.Event()
    late = asyncio.create_task(Indexer(cell, memory).index_some())
    await store.reached.wait()
    gate, store.gate = store.gate, None
    return late, gate


async def remembered(cell, session="s"):
    return {
        name.decode(): value.decode()
        for name, value in (await cell.redis.hgetall(cell.keys.remembered(session))).items()
    }


async def test_a_finished_turn_stands_in_the_index_soon_after_its_end(client, redis_url, memory):
    async with running_worker(redis_url, app_with(memory)):
        turn = await client.submit("s", "I drink green tea.", agent="host", tenant="acme")
        await turn.result(20)
        await wait_until_async(lambda: len(passages_in(memory)) == 1)
        assert passages_in(memory) == ["User: I drink green tea.\nAssistant: You said: I drink green tea."]
        (found,) = memory.store.similarity_search("tea", 1)
        about = found.metadata
        assert (about["session_id"], about["turn_id"], about["agent"]) == ("s", turn.id, "host")
        assert about["scope"] == memory.scope_key("ant", "acme", "host", "s")


async def test_turns_of_agents_without_a_memory_leave_no_key(redis_url, memory):
    app = App(agents=[host(memory), host(None, name="other")])
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        await (await client.submit("s", "Hello", agent="other")).result(20)
        async with open_cell(redis_url) as cell:
            assert await cell.redis.keys("ant:*remembered*") == await cell.redis.keys("ant:unindexed*") == []


async def test_an_indexer_that_dies_anywhere_leaves_each_passage_once(cell, memory, store):
    await cell.set_clock(START_MS)
    await say(cell, "t1")
    store.gate = asyncio.Event()
    dying = asyncio.create_task(Indexer(cell, memory).index_some())
    await store.reached.wait()
    dying.cancel()  # before the store has it
    await asyncio.gather(dying, return_exceptions=True)
    store.gate = None
    assert not await Indexer(cell, memory).index_some(), "another worker holds it until its lease ends"
    await cell.wait(int(LEASE_SECONDS * 1000) + 1)

    settling = Indexer(cell, memory)
    settling._settle = _killed
    with pytest.raises(Killed):
        await settling.index_some()  # behind the store's write, before that of Redis
    assert len(passages_in(memory)) == 1
    await cell.wait(int(LEASE_SECONDS * 1000) + 1)
    await indexed(cell, memory)
    assert len(store.written) == 2, "it was written again"
    assert len(passages_in(memory)) == 1, "as the same document"
    assert await waiting_sessions(cell, "memory") == 0
    assert (await remembered(cell))["memory/t1"].startswith("1:")


class Killed(BaseException):
    pass


async def _killed(plan):
    raise Killed


async def test_a_store_that_is_down_for_a_day_loses_nothing(redis_url, memory, store, monkeypatch):
    monkeypatch.setattr("antiphon_worker.memory.indexer.FIRST_RETRY_SECONDS", 0.0)
    async with open_cell(redis_url) as cell:
        await cell.set_clock(START_MS)
        store.failing = True
        for hour in range(24):
            await say(cell, f"t{hour}", f"s{hour}", text=f"tea {hour}")
            await Indexer(cell, memory).index_some()
            await cell.wait(3600_000)
        assert passages_in(memory) == []
        store.failing = False
        await indexed(cell, memory)
        assert len(passages_in(memory)) == 24
        assert await waiting_sessions(cell, "memory") == 0


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Killed(), SystemExit(2)])
async def test_a_store_that_raises_what_is_no_error_does_not_end_the_indexer(
    redis_url, memory, store, error, monkeypatch
):
    monkeypatch.setattr("antiphon_worker.memory.indexer.FIRST_RETRY_SECONDS", 0.0)
    async with open_cell(redis_url) as cell:
        await cell.set_clock(START_MS)
        store.failing, store.error = True, error
        await say(cell, "t1")
        assert await Indexer(cell, memory).index_some()
        store.failing = False
        await cell.wait(1)
        await indexed(cell, memory)
        assert len(passages_in(memory)) == 1


async def test_a_session_that_the_store_refuses_holds_up_no_other(cell, memory, store):
    await cell.set_clock(START_MS)
    store.refuses = "poison"
    for number, text in enumerate(["tea", "poison", "water"]):
        await say(cell, f"t{number}", f"s{number}", text=text)
    await indexed(cell, memory)
    assert len(passages_in(memory)) == 2
    store.refuses = ""
    await cell.wait(int(REFUSED_SECONDS * 1000) + 1)
    await indexed(cell, memory)
    assert len(passages_in(memory)) == 3


async def test_a_deleted_session_leaves_the_index(client, memory, cell):
    await say(cell, "t1")
    await say(cell, "t2", "other")
    await indexed(cell, memory)
    await client.session("s").delete()
    await indexed(cell, memory)
    assert len(passages_in(memory)) == 1
    assert await remembered(cell) == {}
    assert not await cell.redis.exists(cell.keys.remembered("s"), cell.keys.unindexed("memory"))


async def test_a_session_that_is_deleted_while_it_is_indexed_leaves_the_index(client, memory, store, cell):
    await say(cell, "t1")
    store.gate = asyncio.Event()
    writing = asyncio.create_task(Indexer(cell, memory).index_some())
    await store.reached.wait()
    await client.session("s").delete()
    store.gate.set()
    await writing
    await indexed(cell, memory)
    assert passages_in(memory) == []


async def test_a_late_write_of_a_worker_that_stood_still_is_undone(client, memory, store, cell):
    late, gate = await standing_still(cell, memory, store)
    await client.session("s").delete()
    await cell.wait(int(LEASE_SECONDS * 1000) + 1)
    await indexed(cell, memory)  # another worker forgets it
    gate.set()
    await late
    assert len(store.written) == 1
    assert passages_in(memory) == []


async def test_a_rewound_history_leaves_the_index_as_far_as_it_was_cut(redis_url, memory, store):
    app = app_with(memory)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        session = client.session("s", agent="host")
        for text in ("one", "two", "three"):
            await session.run(text)
        await wait_until_async(lambda: len(passages_in(memory)) == 3)
        messages = await session.messages()
        await session.rewind(to=messages[2].id)  # the question "two" stays, its answer goes
        await wait_until_async(lambda: len(passages_in(memory)) == 1)
        await session.run("four")
        await wait_until_async(lambda: len(passages_in(memory)) == 2)
        assert "three" not in "".join(passages_in(memory))


async def test_an_answer_that_is_given_again_takes_the_place_of_the_first(redis_url, memory):
    app = app_with(memory)
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        session = client.session("s", agent="host")
        await session.run("Hello")
        await wait_until_async(lambda: len(passages_in(memory)) == 1)
        first = memory.store.similarity_search("Hello", 1)[0].metadata["turn_id"]
        await (await session.regenerate()).result(20)
        await wait_until_async(
            lambda: (
                [one.metadata["turn_id"] for one in memory.store.similarity_search("Hello", 5)]
                not in ([], [first])
            )
        )
        (only,) = memory.store.similarity_search("Hello", 5)
        assert only.page_content == "User: Hello\nAssistant: You said: Hello"


async def test_a_damaged_key_harms_its_own_session_alone(cell, memory, caplog):
    await say(cell, "t1", "good")
    await say(cell, "t2", "bad")
    await cell.redis.set(cell.keys.remembered("bad"), "damage")
    await say(cell, "t3", "bad")  # its turns still end
    await indexed(cell, memory)
    assert len(passages_in(memory)) == 1
    assert "session bad cannot be indexed" in caplog.text


async def test_another_embedding_model_takes_over_when_it_has_everything(redis_url, memory, store, tmp_path):
    newer_store = FailingStore(tmp_path / "newer")
    newer = Memory(newer_store, name="newer", scope="tenant", recall="start", replaces=memory)
    async with open_cell(redis_url) as cell:
        await say(cell, "t1", "gone", text="tea", tenant="acme")
        await say(cell, "t2", "kept", text="coffee", tenant="acme")
        await indexed(cell, memory)
        # Of the first session, only the former memory knows anything: it has expired, and so has its turn.
        await cell.redis.delete(cell.keys.session("gone"), cell.keys.history("gone"), cell.keys.turn("t1"))
        newer_store.failing = True
        failing = Indexer(cell, newer)
        failing._pause = 0.0
        await failing.index_some()
        assert not await has_taken_over(cell, "newer")
        newer_store.failing = False
        await cell.redis.zadd(cell.keys.unindexed("newer"), {"gone": 0, "kept": 0})
        indexer = Indexer(cell, newer)
        await wait_until_async(lambda: _taken_over(indexer, cell))
        assert sorted(passages_in(newer)) == sorted(passages_in(memory))
        (found,) = newer.store.similarity_search("tea", 1)
        assert found.metadata["scope"] == newer.scope_key("ant", "acme", "host", "gone")


async def test_turns_that_only_a_store_without_ids_has_are_told_and_not_taken_over(
    redis_url, memory, store, tmp_path, monkeypatch, caplog
):
    newer = Memory(str(tmp_path / "newer"), WordEmbeddings(), name="newer", scope="tenant", replaces=memory)

    async def unable(ids):
        raise NotImplementedError

    monkeypatch.setattr(store, "aget_by_ids", unable)
    async with open_cell(redis_url) as cell:
        for turn, session in (("t1", "gone"), ("t2", "lost"), ("t3", "kept")):
            await say(cell, turn, session, text=turn)
        await indexed(cell, memory)
        for turn, session in (("t1", "gone"), ("t2", "lost")):
            await cell.redis.delete(
                cell.keys.session(session), cell.keys.history(session), cell.keys.turn(turn)
            )
        indexer = Indexer(cell, newer)
        await wait_until_async(lambda: _taken_over(indexer, cell))
    assert len(passages_in(newer)) == 1
    told = [one for one in caplog.records if getattr(one, "action", "") == "memory_left_behind"]
    assert len(told) == 1
    assert "memory memory" in told[0].getMessage()


async def test_a_former_store_that_does_not_answer_is_asked_again(memory, store, tmp_path, monkeypatch):
    newer = Memory(str(tmp_path / "newer"), WordEmbeddings(), name="newer", scope="tenant", replaces=memory)

    async def silent(ids):
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "aget_by_ids", silent)
    monkeypatch.setattr(documents, "STORE_SECONDS", 0.01)
    with pytest.raises(StoreUnavailable, match="is unavailable: TimeoutError"):
        await asyncio.wait_for(
            Documents("ant", newer, Values(None)).former(TakenSession(SessionId("s"), "1"), "t1"), 10
        )


async def _taken_over(indexer, cell):
    await indexer.index_some()
    return await has_taken_over(cell, "newer")


async def test_a_late_write_takes_nothing_from_the_worker_that_writes_the_same(
    cell, memory, store, monkeypatch
):
    late, gate = await standing_still(cell, memory, store)
    await cell.wait(int(LEASE_SECONDS * 1000) + 1)
    holder, written, settling = Indexer(cell, memory), asyncio.Event(), asyncio.Event()
    settle = holder._settle

    async def held(plan):
        written.set()
        await settling.wait()
        await settle(plan)

    holder._settle = held
    indexing = asyncio.create_task(holder.index_some())
    await written.wait()  # it has written, and Redis does not know it yet
    asked, real = asyncio.Event(), indexer.settle_session

    async def told(*arguments):
        answer = await real(*arguments)
        asked.set()
        return answer

    monkeypatch.setattr(indexer, "settle_session", told)
    gate.set()
    await asked.wait()  # the late one has heard that it lost the session
    settling.set()
    await asyncio.gather(indexing, late)
    assert len(passages_in(memory)) == 1


@pytest.mark.parametrize("away", ["redis", "store"])
async def test_a_late_write_is_undone_although_redis_or_the_store_is_away_then(
    client, memory, store, monkeypatch, away, cell
):
    late, gate = await standing_still(cell, memory, store)
    await client.session("s").delete()
    await cell.wait(int(LEASE_SECONDS * 1000) + 1)
    await indexed(cell, memory)
    failed, delete, settle = [], store.adelete, indexer.settle_session

    async def away_once(call, *arguments):
        if not failed:
            failed.append(call)
            raise StoreUnavailable("It cannot be reached now.")
        return await call(*arguments)

    if away == "redis":
        monkeypatch.setattr(indexer, "settle_session", lambda *given: away_once(settle, *given))
    else:
        monkeypatch.setattr(
            store, "adelete", lambda *given: away_once(delete, *given) if given[0] else delete(*given)
        )
    gate.set()
    await late
    assert failed
    assert passages_in(memory) == []
