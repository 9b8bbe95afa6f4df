"""Facts are distilled once from each turn, whoever dies meanwhile; people change them; they go with their sources."""

import asyncio

import msgspec
import pytest
from support.cells import START_MS, open_cell
from support.eventually import wait_until_async
from support.here import running_worker
from support.memories import host, passages_in

from antiphon.client import AsyncClient, Client
from antiphon.errors import (
    CorruptRecord,
    LimitReached,
    NotFound,
    ProviderOverloaded,
    SettingsError,
    UsageError,
    WrongTenant,
)
from antiphon.input.request import TurnRequest
from antiphon.memory import FactModel, FaissStore, Memory, WordEmbeddings
from antiphon.model import Message, Response, encode
from antiphon.redis import facts as many_facts
from antiphon.redis.cells import Cells
from antiphon.testing import script, tool_call
from antiphon.wire.lists.memories import NOT_HELD, StoredFact, read_facts, take_sessions, waiting_sessions
from antiphon.wire.scripts import load_script
from antiphon_worker.app import App
from antiphon_worker.memory import indexer
from antiphon_worker.memory.facts import Distiller
from antiphon_worker.memory.indexer import Indexer
from antiphon_worker.providers.scripted import ScriptedProvider

CURSOR = "+memory"


class Model:
    """Distils what ``says`` has for a text of the turns: facts as (id, text), and ids that are forgotten."""

    def __init__(self):
        self.lines = script(self._answer, repeat=True)
        self.provider = ScriptedProvider(self.lines)
        self.says = {}
        self.failing = False
        self.gate = None
        self.reached = asyncio.Event()

    async def open(self, name):
        assert name == "distils"
        return self.provider

    async def _answer(self, request):
        asked = request.messages[0].text.partition("\n\n")[2]
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.failing:
            raise ProviderOverloaded("try later")
        answer = {"facts": [], "forgotten": []}
        for number, turn in enumerate(asked.split("\n\nTurn "), 1):
            for word, said in self.says.items():
                if f"User: {word}" in turn:
                    if isinstance(said, str):
                        return said
                    facts, forgotten = said
                    answer["facts"] += [{"id": one, "text": text, "turn": number} for one, text in facts]
                    answer["forgotten"] += forgotten
        return answer


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def memory(tmp_path):
    store = FaissStore(tmp_path / "memory", WordEmbeddings())
    return Memory(store, scope="tenant", recall="start", facts=FactModel("distils", "small"))


def distiller(cell, memory, model):
    return Indexer(cell, Distiller(memory, memory.facts, Cells([cell]), model.open))


async def distilled(cell, memory, model):
    one = distiller(cell, memory, model)
    while await one.index_some():
        pass


async def distilled_by_one_that_dies(cell, memory, model):
    """Facts are written, and nobody is told."""
    dying = distiller(cell, memory, model)

    async def killed(plan):
        raise asyncio.CancelledError

    dying._settle = killed
    with pytest.raises(asyncio.CancelledError):
        await dying.index_some()
    assert await cell.redis.keys("ant:facts:*") != []


async def say(cell, turn, text, session="s", tenant="acme", at=START_MS):
    """A turn that has finished, as a worker ends it."""
    claimed = await cell.started(turn, session, TurnRequest([Message.user(text)]).to_json(), tenant=tenant)
    asked, said = Message.user(text), Message.assistant("Noted.")
    for message in (asked, said):
        message.turn_id, message.created = turn, at
    said.agent = "host"
    response = encode(Response(text=said.text, messages=[said], turn_id=turn, session_id=session))
    await cell.end(claimed, messages=[encode(asked), encode(said)], response=response, memories=CURSOR)


async def listed(client, **whose):
    return [fact.text async for fact in client.memory(**{"tenant": "acme", **whose})]


async def by_text(client):
    return sorted([one async for one in client.memory(tenant="acme")], key=lambda fact: fact.text)


async def test_a_model_distils_facts_and_the_next_turn_is_shown_them(redis_url, memory, model):
    model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
    lines = script("Noted.", "In Bonn.")
    app = App(
        agents=[host(memory, provider="played")],
        providers={"played": ScriptedProvider(lines), "distils": model.provider},
    )
    async with (
        AsyncClient(redis_url) as client, running_worker(redis_url, app), open_cell(redis_url) as cell,
    ):  # fmt: skip
        turn = await client.submit("s", "I moved to Bonn.", agent="host", tenant="acme")
        await turn.result(20)
        await wait_until_async(lambda: _settled(cell))
        (fact,) = [one async for one in client.memory(tenant="acme")]
        assert (fact.text, fact.by, fact.sources) == ("Lives in Bonn.", "model", [("s", turn.id)])
        await (await client.submit("other", "Where do I live?", agent="host", tenant="acme")).result(20)
        note, asked = lines.requests[-1].messages
        assert "What is known:\n- Lives in Bonn." in note.text
        assert "I moved to Bonn." in note.text, "passages stand beside the facts"
        assert asked.text == "Where do I live?"
        assert await listed(client, tenant="rival") == []
        assert await listed(client, tenant=None) == []
        history = await client.session("other").messages()
        assert not any("Lives in Bonn" in message.text for message in history)
    assert model.lines.requests[0].output is not None
    assert model.lines.requests[0].model == "small"


async def _settled(cell):
    return not await waiting_sessions(cell, CURSOR) and not await waiting_sessions(cell, "memory")


async def test_the_tool_shows_facts_and_passages(redis_url, tmp_path, model):
    memory = Memory(
        str(tmp_path / "m"), WordEmbeddings(), scope="tenant", facts=FactModel("distils", "small")
    )
    lines = script([tool_call("recall", query="nuts")], "No nuts.")
    app = App(
        agents=[host(memory, provider="played")],
        providers={"played": ScriptedProvider(lines), "distils": model.provider},
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        await client.memory(tenant="acme").add("Is allergic to nuts.")
        await (await client.submit("s", "A cake?", agent="host", tenant="acme")).result(20)
    result = lines.requests[-1].messages[-1].parts[0]
    assert "Is allergic to nuts." in str(result.content)


async def test_facts_take_at_most_half_of_the_tokens(redis_url, tmp_path, model):
    memory = Memory(
        str(tmp_path / "m"), WordEmbeddings(), scope="tenant", recall="start", tokens=200,
        facts=FactModel("distils", "small"),
    )  # fmt: skip
    lines = script("Yes.")
    app = App(
        agents=[host(memory, provider="played")],
        providers={"played": ScriptedProvider(lines), "distils": model.provider},
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        for number in range(20):
            await client.memory(tenant="acme").add(f"Fact {number} " + "word " * 12)
        await (await client.submit("s", "Hello", agent="host", tenant="acme")).result(20)
    shown = lines.requests[-1].messages[0].text
    assert 0 < shown.count("- Fact") < 8
    assert "Fact 19" in shown, "the newest first"


async def test_facts_are_corrected_and_forgotten_and_go_with_their_sources(client, memory, model, cell):
    await cell.set_clock(START_MS)
    model.says = {"I moved to Bonn": ([("", "Lives in Bonn."), ("", "Is called Mia.")], [])}
    await say(cell, "t1", "I moved to Bonn, says Mia.", "s1")
    await distilled(cell, memory, model)
    name, bonn = await by_text(client)
    model.says = {"Now Rome": ([(bonn.id, "Lives in Rome.")], [name.id])}
    await say(cell, "t2", "Now Rome. Forget my name.", "s2", at=START_MS + 10)
    await distilled(cell, memory, model)
    (rome,) = [one async for one in client.memory(tenant="acme")]
    assert (rome.id, rome.text, rome.sources) == (bonn.id, "Lives in Rome.", [("s2", "t2")])
    assert "Lives in Bonn." in model.lines.requests[-1].messages[0].text
    await client.session("s2").delete()
    assert await listed(client) == ["Lives in Bonn."], "before any worker has looked"
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn."]
    assert not [key for key in await cell.redis.keys("ant:facts:*") if b"Rome" in await _all(cell, key)]
    await client.session("s1").clear()
    assert await listed(client) == []
    await distilled(cell, memory, model)
    assert await cell.redis.keys("ant:facts:*") == []
    assert len(model.lines.requests) == 2, "each turn was distilled once"


async def _all(cell, key):
    return b"".join((await cell.redis.hgetall(key)).values())


async def test_a_deleted_turn_is_not_shown_to_the_model_that_distils(client, memory, model, cell):
    model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
    await say(cell, "t1", "I moved to Bonn.", "s1")
    await distilled(cell, memory, model)
    (bonn,) = [one async for one in client.memory(tenant="acme")]
    await client.session("s1").delete()
    model.says = {"Hello": ([(bonn.id, "Lives in Bonn, still.")], [])}
    await cell.redis.zadd(cell.keys.unindexed(CURSOR), {"s1": 2**52})  # no worker has looked at it yet
    await say(cell, "t2", "Hello", "s2")
    await distilled(cell, memory, model)
    assert "Bonn" not in model.lines.requests[-1].messages[0].text
    assert await listed(client) == ["Lives in Bonn, still."], "a new fact, of the new turn"
    await cell.redis.zadd(cell.keys.unindexed(CURSOR), {"s1": 0})
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn, still."]


async def test_a_worker_that_dies_behind_its_write_leaves_each_fact_once(client, memory, model, cell):
    await cell.set_clock(START_MS)
    model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
    await say(cell, "t1", "I moved to Bonn.")
    await distilled_by_one_that_dies(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn."], "the turn has finished, and is not deleted"
    assert not await distiller(cell, memory, model).index_some(), "it is another worker's"
    await cell.wait(int(Distiller.lease_seconds * 1000) + 1)
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn."]
    assert len(model.lines.requests) == 1


async def test_what_a_worker_wrote_that_died_goes_with_its_session(client, memory, model, cell):
    await cell.set_clock(START_MS)
    model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
    await say(cell, "t1", "I moved to Bonn.")
    await distilled_by_one_that_dies(cell, memory, model)
    await client.session("s").delete()
    assert await listed(client) == []
    await cell.wait(int(Distiller.lease_seconds * 1000) + 1)
    await distilled(cell, memory, model)
    assert await cell.redis.keys("ant:facts:*") == []
    assert not await cell.redis.exists(cell.keys.remembered("s"))


async def test_a_worker_that_lost_its_session_asks_no_model(cell, memory, model):
    await cell.set_clock(START_MS)
    await say(cell, "t1", "I moved to Bonn.")
    (late,) = await take_sessions(cell, CURSOR, 1, 1)
    await cell.wait(2)
    await distilled(cell, memory, model)
    asked = len(model.lines.requests)
    one = distiller(cell, memory, model)
    await one._carry_out(await one._plans([late]))
    assert len(model.lines.requests) == asked


async def test_a_model_that_is_down_delays_facts_and_nothing_else(redis_url, memory, model, monkeypatch):
    monkeypatch.setattr(indexer, "FIRST_RETRY_SECONDS", 0.0)
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await cell.set_clock(START_MS)
        model.failing = True
        model.says = {f"one {n}.": ([("", f"Fact {n}.")], []) for n in range(5)}
        for number in range(5):
            await say(cell, f"t{number}", f"one {number}.", f"s{number}")
            await distiller(cell, memory, model).index_some()
            await cell.wait(3600_000)
        assert await listed(client) == []
        assert await waiting_sessions(cell, CURSOR) == 5
        model.failing = False
        await distilled(cell, memory, model)
        assert sorted(await listed(client)) == [f"Fact {n}." for n in range(5)]


async def test_passages_are_indexed_while_the_model_of_facts_is_down(redis_url, memory, model):
    model.failing = True
    app = App(
        agents=[host(memory, provider="played")],
        providers={"played": ScriptedProvider(script("Noted.")), "distils": model.provider},
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app):
        await (await client.submit("s", "I moved.", agent="host", tenant="acme")).result(20)
        await wait_until_async(lambda: len(passages_in(memory)) == 1)


@pytest.mark.parametrize("answer", ["I have nothing to say.", '{"facts": 7}', ""])
async def test_an_answer_that_cannot_be_used_is_no_fact(client, memory, model, answer, caplog, cell):
    model.says = {"I moved": answer}
    await say(cell, "t1", "I moved to Bonn.")
    await distilled(cell, memory, model)
    assert await listed(client) == []
    assert await waiting_sessions(cell, CURSOR) == 0
    assert "were not distilled" in caplog.text


async def test_what_a_person_does_wins_over_what_was_said_before(client, memory, model, cell):
    await cell.set_clock(START_MS)
    facts = client.memory(tenant="acme")
    model.says = {"I moved": ([("", "Lives in Bonn."), ("", "Is called Mia.")], [])}
    await say(cell, "t1", "I moved to Bonn, says Mia.")
    await distilled(cell, memory, model)
    mia, bonn = await by_text(client)
    edited = await facts.edit(bonn.id, "Lives in Bonn-Beuel.")
    assert (edited.by, edited.sources) == ("person", [])
    await facts.delete(mia.id)
    await cell.redis.hdel(cell.keys.remembered("s"), f"{CURSOR}/t1")  # as if it were to be distilled again
    await cell.redis.hset(cell.keys.remembered("s"), f"@new/{CURSOR}", "t1 ")
    await cell.redis.zadd(cell.keys.unindexed(CURSOR), {"s": 0})
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn-Beuel."]
    model.says = {"An old": ([(bonn.id, "Lives in Berlin.")], [bonn.id])}
    await say(cell, "t2", "An old turn", "s2", at=1)
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn-Beuel."], "said before the person wrote"
    later = await cell.server_ms() + 10_000
    model.says = {"I moved again": ([(bonn.id, "Lives in Rome.")], [])}
    await say(cell, "t3", "I moved again", "s3", at=later)
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Rome."], "said after it"
    await client.session("s").delete()
    await client.session("s3").delete()
    await distilled(cell, memory, model)
    assert await listed(client) == ["Lives in Bonn-Beuel."], "what a person wrote stays"
    (key,) = await cell.redis.keys("ant:facts:*")
    assert b"Mia" not in await _all(cell, key)


async def test_a_person_who_edits_while_the_model_answers_is_not_overwritten(client, memory, model, cell):
    await cell.set_clock(START_MS)
    facts = client.memory(tenant="acme")
    fact = await facts.add("Likes tea.")
    model.says = {"Coffee": ([(fact.id, "Likes coffee."), ("", "Is tired.")], [])}
    model.gate = asyncio.Event()
    await say(cell, "t1", "Coffee, please.", at=await cell.server_ms() + 5)
    distilling = asyncio.create_task(distilled(cell, memory, model))
    await model.reached.wait()
    await cell.wait(1000)
    await facts.delete(fact.id)
    await facts.add("Likes water.")
    model.gate.set()
    await distilling
    assert sorted(await listed(client)) == ["Is tired.", "Likes water."]


@pytest.mark.parametrize("facts_stand", ["beside the session", "on another server"])
async def test_nothing_stays_of_a_late_write(facts_stand, redis_url, memory, model, monkeypatch):
    if facts_stand == "on another server":
        # That one cannot check who holds the session: the late worker undoes what it wrote.
        monkeypatch.setattr(Distiller, "_held", lambda *_: NOT_HELD)
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await cell.set_clock(START_MS)
        model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
        model.gate = asyncio.Event()
        await say(cell, "t1", "I moved to Bonn.")
        late = asyncio.create_task(distiller(cell, memory, model).index_some())
        await model.reached.wait()
        await client.session("s").delete()
        await cell.wait(int(Distiller.lease_seconds * 1000) + 1)
        gate, model.gate = model.gate, None
        await distilled(cell, memory, model)
        gate.set()
        await late
        assert await cell.redis.keys("ant:facts:*") == []
        assert await listed(client) == []


async def test_scopes_of_an_agent_and_of_a_session(redis_url, tmp_path, model):
    model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        for scope in ("agent", "session"):
            facts = FactModel("distils", "small", name=scope)
            memory = Memory(str(tmp_path / scope), WordEmbeddings(), scope=scope, facts=facts)
            one = Indexer(cell, Distiller(memory, facts, Cells([cell]), model.open))
            await say(cell, f"t-{scope}", "I moved to Bonn.")
            await cell.redis.zadd(cell.keys.unindexed(f"+{scope}"), {"s": 0})
            await cell.redis.hset(cell.keys.remembered("s"), f"@new/+{scope}", f"t-{scope} ")
            await one.index_some()
        assert await listed(client, name="agent", agent="host") == ["Lives in Bonn."]
        assert await listed(client, name="agent", agent="other") == []
        assert await listed(client, name="session", session="s") == ["Lives in Bonn."]
        assert await listed(client, name="session", session="s", tenant=None) == ["Lives in Bonn."]
        with pytest.raises(WrongTenant):
            await listed(client, name="session", session="s", tenant="rival")
        with pytest.raises(UsageError, match="Pass either agent= or session="):
            client.memory(agent="host", session="s")


def test_people_list_add_edit_and_delete(redis_url):
    with Client(redis_url) as client:
        facts = client.memory(tenant="acme")
        nuts = facts.add("  Is allergic to nuts. ")
        assert facts.edit(nuts.id, "Is allergic to hazelnuts.").id == nuts.id
        assert [(one.text, one.by) for one in facts] == [("Is allergic to hazelnuts.", "person")]
        facts.delete(nuts.id)
        assert [*facts] == []
        for unknown in (lambda: facts.delete(nuts.id), lambda: facts.edit(nuts.id, "x")):
            with pytest.raises(NotFound):
                unknown()
        for text in ("", " ", "x" * 1001, 7):
            with pytest.raises(UsageError, match="A fact is a text"):
                facts.add(text)
        with pytest.raises(UsageError, match="name="):
            client.memory("a b")


async def test_facts_of_one_scope_stand_in_one_cell(redis_url):
    async with AsyncClient([redis_url, redis_url.replace("/0", "/1")]) as client:
        for number in range(40):  # so many are never all in one cell, whatever port the server has
            await client.memory(tenant=f"t{number}").add("Likes tea.")
        counts = [len(await cell.redis.keys("ant:facts:*")) for cell in client.connections.cells]
        assert sum(counts) == 40
        assert min(counts) > 0
        assert await listed(client, tenant="t3") == ["Likes tea."]
        for cell in client.connections.cells:
            await cell.redis.delete(*await cell.redis.keys("ant:*"))


async def test_a_damaged_fact_is_an_error_for_what_distils_and_silence_for_turns(redis_url, memory, model):
    lines = script("Yes.")
    app = App(
        agents=[host(memory, provider="played")],
        providers={"played": ScriptedProvider(lines), "distils": model.provider},
    )
    async with AsyncClient(redis_url) as client, running_worker(redis_url, app), open_cell(redis_url) as cell:
        await client.memory(tenant="acme").add("Likes tea.")
        (key,) = await cell.redis.keys("ant:facts:*")
        await cell.redis.hset(key, "bad", "damage")
        with pytest.raises(Exception, match="cannot be read"):
            await read_facts(cell, key.decode().rpartition(":")[2])
        turn = await client.submit("s", "Hello", agent="host", tenant="acme")
        assert (await turn.result(20)).text == "Yes."
        await cell.redis.hdel(key, "bad")


async def test_a_damaged_fact_hides_no_other_one_from_people_who_can_delete_it(client, cell):
    facts = client.memory(tenant="acme")
    tea = await facts.add("Likes tea.")
    (key,) = await cell.redis.keys("ant:facts:*")
    moved = await cell.redis.hget(key, tea.id)
    empty = msgspec.json.encode(StoredFact("none", 1, []))
    await cell.redis.hset(key, mapping={"bad": "damage", "other": moved, "none": empty})
    known = {one.id: one async for one in facts}
    assert known[tea.id] == tea
    assert {name for name, one in known.items() if one.error} == {"bad", "other", "none"}
    assert known["bad"].error.startswith("The fact 'bad' cannot be read: ")
    assert (await facts.add("Likes cake.")).error is None
    with pytest.raises(CorruptRecord, match="'bad' cannot be read"):
        await facts.edit("bad", "Likes coffee.")
    for name in ("bad", "none", "other"):
        await facts.delete(name)
        with pytest.raises(NotFound):
            await facts.delete(name)
    assert await listed(client, tenant="acme") == ["Likes tea.", "Likes cake."]


def test_two_memories_need_two_names_of_facts(tmp_path):
    def with_facts(name, facts):
        return Memory(str(tmp_path / name), WordEmbeddings(), name=name, facts=facts)

    one = with_facts("a", FactModel("scripted", "any"))
    with pytest.raises(SettingsError, match="facts of the name 'memory'"):
        App(agents=[host(one), host(with_facts("b", FactModel("scripted", "any")), name="other")])
    App(agents=[host(one), host(with_facts("b", FactModel("scripted", "any", name="b")), name="other")])
    for wrong in ({"provider": ""}, {"model": 7}, {"most": 0}, {"name": "+"}):
        with pytest.raises(UsageError):
            FactModel(**{"provider": "scripted", "model": "any", **wrong})
    with pytest.raises(UsageError, match="facts="):
        with_facts("c", "gpt")


async def test_deleted_facts_take_no_place_of_new_ones(redis_url, tmp_path, model):
    few = FactModel("distils", "small", most=2)
    memory = Memory(str(tmp_path / "m"), WordEmbeddings(), scope="tenant", facts=few)
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        model.says = {"I moved": ([("", "Lives in Bonn."), ("", "Is called Mia."), ("", "Is tall.")], [])}
        await say(cell, "t1", "I moved to Bonn, says Mia.")
        await distilled(cell, memory, model)
        assert sorted(await listed(client)) == ["Is called Mia.", "Lives in Bonn."]
        for fact in await by_text(client):
            await client.memory(tenant="acme").delete(fact.id)
        model.says = {"Tea": ([("", "Likes tea.")], [])}
        await say(cell, "t2", "Tea, please.", "s2")
        await distilled(cell, memory, model)
        assert await listed(client) == ["Likes tea."]


async def test_deleted_facts_count_for_no_limit_of_a_scope(redis_url, memory, model, monkeypatch):
    monkeypatch.setattr(many_facts, "MOST_FACTS", 1)
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        model.says = {"I moved": ([("", "Lives in Bonn.")], [])}
        await say(cell, "t1", "I moved to Bonn.")
        await distilled(cell, memory, model)
        known = client.memory(tenant="acme")
        with pytest.raises(LimitReached, match="delete some"):
            await known.add("Likes tea.")
        (bonn,) = await by_text(client)
        await known.delete(bonn.id)
        await known.add("Likes tea.")
        assert await listed(client) == ["Likes tea."]


async def test_what_another_worker_has_distilled_meanwhile_keeps_no_other_turn_from_its_facts(
    redis_url, memory, model, monkeypatch
):
    monkeypatch.setattr(Distiller, "_held", lambda *_: NOT_HELD)  # the facts stand on another server
    async with AsyncClient(redis_url) as client, open_cell(redis_url) as cell:
        await cell.set_clock(START_MS)
        model.says = {"I moved": ([("", "Lives in Bonn.")], []), "Tea": ([("", "Likes tea.")], [])}
        model.gate = asyncio.Event()
        await say(cell, "t1", "I moved to Bonn.")
        slow = asyncio.create_task(distiller(cell, memory, model).index_some())
        await model.reached.wait()
        slows, model.gate = model.gate, asyncio.Event()
        await cell.wait(int(Distiller.lease_seconds * 1000) + 1)
        await say(cell, "t2", "Tea, please.")
        model.reached.clear()
        second = asyncio.create_task(distiller(cell, memory, model).index_some())
        await model.reached.wait()  # it asks about both turns
        seconds = model.gate
        slows.set()
        await wait_until_async(
            lambda: cell.redis.keys("ant:facts:*"), description="the slow worker has written a fact"
        )
        seconds.set()
        await asyncio.gather(slow, second)
        assert sorted(await listed(client)) == ["Likes tea.", "Lives in Bonn."]


async def test_a_lost_reply_to_a_change_of_facts_changes_them_once(redis_url, proxy):
    async with AsyncClient(proxy.url) as client:
        sha = load_script("memories/write_facts").sha.encode()
        known = client.memory(tenant="acme")
        await known.add("Likes tea.")
        proxy.drop_reply(sha)
        fact = await known.add("Likes cake.")
        proxy.drop_reply(sha)
        await known.edit(fact.id, "Likes pie.")
        assert await listed(client) == ["Likes tea.", "Likes pie."]
        proxy.drop_reply(sha)
        await known.delete(fact.id)
        assert proxy.lost_replies == 3
        assert await listed(client) == ["Likes tea."]
