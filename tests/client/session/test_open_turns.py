"""What lists and the status say of failed and delayed turns, in both runtimes."""

import time

import pytest

from antiphon.errors import AgentError, ProviderRejected
from antiphon.testing import script

HOUR = 3600.0


def failing(runtime, *entries):
    runtime.use(script(*entries))
    return runtime.agent()


def status_in_list(agent):
    return [(info.status, info.due is not None) for info in agent.sessions()]


def test_the_status_names_the_turns_that_have_failed(runtime):
    agent = failing(runtime, ProviderRejected("no"), "fine", ProviderRejected("no"))
    session = agent.session("s")
    turns = []
    for _ in range(3):
        turns.append(session.submit("hello"))
        try:
            turns[-1].result(60)
        except AgentError:
            continue
    assert session.status().failed == [turns[2].id, turns[0].id]
    assert session.status().delayed == []
    assert agent.session("t").status().failed == []


def test_a_list_says_that_the_last_turn_has_failed(runtime):
    agent = failing(runtime, "fine", ProviderRejected("no"), "fine")
    session = agent.session("s")
    session.run("1")
    assert status_in_list(agent) == [("done", False)]
    with pytest.raises(AgentError):
        session.submit("2").result(60)
    assert status_in_list(agent) == [("failed", False)]
    session.run("3")
    assert status_in_list(agent) == [("done", False)]


def test_delayed_turns_are_listed_with_their_times(runtime):
    agent = runtime.agent()
    session = agent.session("s")
    session.run("1")
    before = time.time() * 1000
    later = session.submit("later", delay=2 * HOUR)
    sooner = session.submit("sooner", delay=HOUR)
    status = session.status()
    assert [turn.turn_id for turn in status.delayed] == [sooner.id, later.id]
    for turn, hours in zip(status.delayed, (1, 2), strict=True):
        assert abs(turn.due - before - hours * HOUR * 1000) < 60_000
    assert (status.state, status.waiting, status.running) == ("idle", [], None)
    (info,) = agent.sessions()
    assert (info.status, info.due) == ("delayed", status.delayed[0].due)
    for turn in (sooner, later):
        turn.cancel()
        with pytest.raises(AgentError):
            turn.result(60)
    assert session.status().delayed == []
    assert status_in_list(agent) == [("done", False)]


def test_a_delayed_turn_that_is_due_is_no_longer_delayed(runtime):
    agent = runtime.agent()
    session = agent.session("s")
    session.submit("soon", delay=0.01).result(60)
    assert (session.status().delayed, status_in_list(agent)) == ([], [("done", False)])
