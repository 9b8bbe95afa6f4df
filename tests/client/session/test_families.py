"""What a session knows beside its history, after its process has gone: whether it is closed, and its children."""

from __future__ import annotations

import pytest

from antiphon import Agent, Session
from antiphon.errors import UsageError
from antiphon.session.runtime import local_runtime
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.testing import script, tool_call


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "sessions.db")


def test_a_session_in_a_store_stays_closed(store):
    agent = Agent("scripted", "any", store=store)
    session = agent.session("s")
    session.run("a")
    session.close()
    local_runtime().forget()
    session = agent.session("s")
    assert session.status().state == "closed"
    with pytest.raises(UsageError, match="closed"):
        session.run("b")
    with pytest.raises(UsageError, match="closed"):
        session.clear()
    assert len(session.messages) == 2


def test_a_closed_session_that_is_deleted_begins_anew(store):
    session = Agent("scripted", "any", store=store).session("s")
    session.close()
    assert session.delete()
    assert session.run("a").text == "You said: a"


def test_a_session_in_a_store_keeps_its_children(store):
    agent = Agent("scripted", "any", store=store)
    agent.session("s").child(session_id="child").run("a")
    local_runtime().forget()
    agent.session("s").child(session_id="other").run("a")
    local_runtime().forget()
    assert agent.session("s").children() == ["child", "other"]
    assert agent.session("child").parent == "s"


def test_a_child_that_began_in_a_tool_of_its_parent_is_kept(store):
    def research() -> str:
        """Look it up."""
        return session.child(session_id="child").run("Search").text

    agent = Agent(script(tool_call("research"), "facts", "Done."), "any", store=store, tools=[research])
    session = agent.session("s")
    session.run("Find out")
    local_runtime().forget()
    assert agent.session("s").children() == ["child"]


def test_a_saved_session_says_that_it_is_closed_and_who_its_children_are(runtime):
    agent = runtime.agent()
    session = agent.session("s")
    session.child(session_id="child").run("a")
    session.close()
    data = session.to_dict()
    assert (data["closed"], data["children"]) == (True, ["child"])
    session.delete()
    restored = Session.from_dict(data, agent)
    assert (restored.status().state, restored.children()) == ("closed", ["child"])


def test_a_fork_is_open_and_has_no_family(runtime):
    agent = runtime.agent()
    child = agent.session("s").child(session_id="child")
    child.run("a")
    child.child(session_id="grandchild").run("a")
    child.close()
    fork = child.fork("fork")
    assert fork.run("b").text == "You said: b"
    assert (fork.parent, fork.children()) == (None, [])
    assert agent.session("s").children() == ["child"]


def test_a_closed_session_takes_neither_another_opening_nor_children(runtime):
    agent = runtime.agent()
    session = agent.session("s", system="OLD")
    session.close()
    with pytest.raises(UsageError, match="closed"):
        agent.session("s", system="NEW").status()
    assert agent.session("s", system="OLD").system == "OLD"
    with pytest.raises(UsageError, match="closed"):
        session.child(session_id="child").run("a")
    assert session.children() == []


def test_metadata_are_set_in_the_session_at_once(runtime):
    agent = runtime.agent()
    metadata = agent.session("s", metadata={"a": 1}).metadata
    metadata["b"] = 2
    metadata.update(c=3)
    assert metadata == agent.session("s").metadata == {"a": 1, "b": 2, "c": 3}
    with pytest.raises(UsageError, match="set 'a' to None instead"):
        del metadata["a"]
    with pytest.raises(UsageError, match="cannot be deleted"):
        metadata.clear()
    assert len(agent.session("s").metadata) == 3


def test_a_session_is_not_its_own_child(runtime):
    session = runtime.agent().session("s")
    with pytest.raises(UsageError, match="its own child"):
        session.child(session_id="s")
