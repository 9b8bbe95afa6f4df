"""What sessions mean is the same in this process and on workers."""

import threading

import pytest
from support.eventually import wait_until, wait_until_async

from antiphon import Session
from antiphon.testing import script


@pytest.fixture
def asked(runtime):
    """The system prompts that the model was given."""
    lines = script(*["a"] * 4)
    runtime.use(lines)
    return lambda: [request.system for request in lines.requests]


def test_an_empty_system_prompt_is_none_of_the_sessions_own(runtime, asked):
    agent = runtime.agent(system="The agent's.")
    session = agent.session("s", system="")
    session.run("1")
    assert session.system is None
    assert asked() == ["The agent's."]


def test_an_empty_system_prompt_takes_the_sessions_own_away(runtime, asked):
    agent = runtime.agent(system="The agent's.")
    agent.session("s", system="Its own.").run("1")
    agent.session("s", system="").run("2")
    Session.from_dict({"version": 1, "session_id": "t", "messages": [], "system": ""}, agent).run("3")
    assert asked() == ["Its own.", "The agent's.", "The agent's."]


def test_a_session_in_its_first_turn_is_there_to_be_deleted(runtime):
    begun = threading.Event()

    async def wait():
        begun.set()
        await wait_until_async(lambda: False, timeout=30, description="the turn is cancelled")

    runtime.use(script([wait, "a"]))
    session = runtime.agent().session("s")
    session.submit("1")
    wait_until(begun.is_set, description="the first turn has begun")
    assert session.status().created > 0
    assert session.delete() is True
    assert session.delete() is False


def test_a_session_that_was_never_used_was_never_created(runtime):
    session = runtime.agent().session("s")
    status = session.status()
    assert (status.created, status.updated) == (0, 0)
    assert session.to_dict()["created"] == session.to_dict()["updated"] == 0
    session.run("1")
    assert 0 < session.status().created <= session.status().updated
    assert session.to_dict()["created"] == session.status().created
