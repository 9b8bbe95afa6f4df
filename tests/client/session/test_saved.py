"""Sessions of this process that are bound to a store save themselves, and come back from it."""

import threading

import pytest

from antiphon import Agent, Message, Session
from antiphon.errors import CorruptRecord, SessionExists, StoreError
from antiphon.session.runtime import local_runtime
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.testing import script


def echo(request):
    return f"answer to {request.messages[-1].text}"


def agent_with(store):
    return Agent(script(echo, repeat=True), "any", store=store)


class Plain(MemoryStore):
    """A store as a user writes it, with nothing but the four methods."""

    stamp = None

    def __getattribute__(self, name):
        if name in ("stamp", "save_stamped"):
            from antiphon.stores import SessionStore

            return getattr(SessionStore, name).__get__(self)
        return super().__getattribute__(name)

    def save(self, session_id, data):
        MemoryStore.save_stamped(self, session_id, data)


@pytest.fixture(params=["memory", "plain", "sqlite"])
def store(request, tmp_path):
    if request.param == "sqlite":
        with SQLiteStore(tmp_path / "s.db") as opened:
            yield opened
    else:
        yield MemoryStore() if request.param == "memory" else Plain()


def texts(session):
    return [message.text for message in session.messages]


def test_a_bound_session_saves_itself_after_every_turn(store):
    session = agent_with(store).session("s", system="S", variables={"a": 1})
    session.run("1")
    assert store.load("s") == session.to_dict()
    session.run("2")
    assert len(store.load("s")["messages"]) == 4
    session.set_variables({"a": 2})
    assert store.load("s")["variables"] == {"a": 2}
    session.clear()
    assert store.load("s")["messages"] == []


def test_a_bound_session_comes_back_in_another_process(store):
    agent_with(store).session("s", system="S", variables={"a": 1}).run("1")
    local_runtime().forget()
    session = agent_with(store).session("s")
    assert texts(session) == ["1", "answer to 1"]
    assert (session.system, dict(session.variables)) == ("S", {"a": 1})
    session.run("2")
    assert len(store.load("s")["messages"]) == 4


def test_what_another_process_saved_is_seen(store):
    session = agent_with(store).session("s")
    session.run("1")
    data = session.to_dict()
    data["messages"].append(Message.user("from elsewhere").to_dict())
    store.save("s", data)
    assert texts(session)[-1] == "from elsewhere"
    session.run("2")
    assert texts(session) == ["1", "answer to 1", "from elsewhere", "2", "answer to 2"]


def test_what_was_deleted_in_the_store_is_gone(store):
    session = agent_with(store).session("s")
    session.run("1")
    store.delete("s")
    assert session.messages == []


def test_a_stored_history_is_not_begun_anew(store):
    agent_with(store).session("s").run("1")
    local_runtime().forget()
    with pytest.raises(SessionExists):
        agent_with(store).session("s", messages=[Message.user("x")]).run("2")
    with pytest.raises(SessionExists):
        agent_with(store).session("other").fork("s")


def test_deleting_a_session_deletes_what_is_stored(store):
    session = agent_with(store).session("s")
    session.run("1")
    local_runtime().forget()
    assert session.delete() is True
    assert store.list_sessions() == []


def test_a_fork_of_a_bound_session_is_stored_at_once(store):
    session = agent_with(store).session("s")
    session.run("1")
    session.fork("f")
    assert store.load("f")["session_id"] == "f"
    assert store.load("f")["messages"] == store.load("s")["messages"]


def test_stored_sessions_are_listed(store):
    agent = agent_with(store)
    agent.session("s", metadata={"user": "1"}).run("1")
    agent.session("t").run("1")
    local_runtime().forget()
    assert {info.session_id for info in agent.sessions()} == {"s", "t"}
    assert [(info.session_id, info.messages) for info in agent.sessions(metadata={"user": "1"})] == [("s", 2)]


def test_a_restored_session_is_stored(store):
    agent = agent_with(store)
    data = {"version": 1, "session_id": "s", "messages": [Message.user("1").to_dict()]}
    assert texts(Session.from_dict(data, agent)) == ["1"]
    assert store.load("s")["messages"] == [{**data["messages"][0], "id": "h0"}]


class Failing(MemoryStore):
    def __init__(self):
        super().__init__()
        self.broken = False

    def save_stamped(self, session_id, data):
        if self.broken:
            raise StoreError("the disk is gone")
        return super().save_stamped(session_id, data)


def test_a_turn_that_cannot_be_saved_fails_and_leaves_the_history_as_it_was():
    store = Failing()
    session = agent_with(store).session("s")
    session.run("1")
    store.broken = True
    with pytest.raises(StoreError, match="the disk is gone"):
        session.run("2")
    assert texts(session) == ["1", "answer to 1"]
    store.broken = False
    session.run("3")
    assert texts(session) == ["1", "answer to 1", "3", "answer to 3"]


class Buggy(MemoryStore):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def load(self, session_id):
        raise self.error


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_broken_store_is_an_agent_error(kind):
    with pytest.raises(StoreError, match=f"{kind.__name__}: a bug in a store"):
        agent_with(Buggy(kind("a bug in a store"))).session("s").run("1")


def test_damaged_data_in_a_store_are_named():
    store = MemoryStore()
    store.save("s", {"version": 99, "session_id": "s", "messages": []})
    with pytest.raises(CorruptRecord, match="99"):
        agent_with(store).session("s").run("1")


class Watching(MemoryStore):
    def __init__(self):
        super().__init__()
        self.threads = set()

    def save_stamped(self, session_id, data):
        self.threads.add(threading.current_thread())
        return super().save_stamped(session_id, data)


async def test_a_store_does_not_block_the_loop():
    store = Watching()
    await agent_with(store).session("s").run_async("1")
    assert threading.current_thread() not in store.threads
    assert len(store.threads) == 1


def test_sessions_of_different_stores_do_not_mix():
    one, two = MemoryStore(), MemoryStore()
    agent_with(one).session("s").run("1")
    agent_with(two).session("s").run("2")
    assert texts(agent_with(one).session("s")) == ["1", "answer to 1"]
    assert texts(agent_with(two).session("s")) == ["2", "answer to 2"]


def test_many_bound_sessions_are_not_all_kept_in_memory():
    store = MemoryStore()
    agent = agent_with(store)
    for number in range(300):
        agent.session(f"s{number}", messages=[Message.user("x")]).status()
    assert len(local_runtime().cell(store).transitions.sessions) <= 256
    assert texts(agent.session("s0")) == ["x"]
