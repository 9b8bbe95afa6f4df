"""Tools with which a model sleeps, or waits for an event, within bounds."""

from datetime import timedelta

import pytest
from support.eventually import wait_until

from antiphon import Agent, tools
from antiphon.errors import InvalidId, InvalidTool
from antiphon.testing import script, tool_call


def session_of(made, **arguments):
    return Agent(script(tool_call(made.name, **arguments), "Done."), "any", tools=[made]).session()


def result(session):
    return session.run("Go").tool_calls[0]


def test_a_model_waits_for_an_event_that_it_names():
    session = session_of(tools.wait_for_event(names=["deploy:*"], max=60), name="deploy:7", seconds=30)
    turn = session.submit("Go")
    wait_until(lambda: turn.status() == "suspended", description="the turn waits")
    session.send_event("deploy:7", {"ok": True})
    assert '"ok":true' in turn.result().tool_calls[0].result.replace(" ", "")


def test_a_model_learns_that_no_event_came():
    waits = tools.wait_for_event(names=["deploy"], max=60)
    assert result(session_of(waits, name="deploy", seconds=0.01)).result == "No event 'deploy' came in time."


def test_a_model_sleeps():
    assert result(session_of(tools.sleep(max=10), seconds=0.01)).result == "0.01 seconds have passed."


@pytest.mark.parametrize(
    ("made", "arguments", "said"),
    [
        (tools.sleep(max=timedelta(minutes=1)), {"seconds": 61}, "at most 60"),
        (tools.sleep(max=60), {"seconds": -1}, "above 0"),
        (tools.wait_for_event(names=["a"], max=60), {"name": "a", "seconds": 61}, "at most 60"),
        (tools.wait_for_event(names=["a", "b:*"], max=60), {"name": "ab", "seconds": 1}, "one of a, b:*"),
    ],
)
def test_a_model_is_told_of_the_bounds(made, arguments, said):
    found = result(session_of(made, **arguments))
    assert found.is_error
    assert said in found.result


def test_bounds_are_checked():
    for wrong in (0, timedelta(days=31), "1h", True, float("nan")):
        with pytest.raises(InvalidTool, match="max= must be"):
            tools.sleep(max=wrong)
    with pytest.raises(InvalidTool, match="at least one"):
        tools.wait_for_event(names=[], max=1)
    with pytest.raises(InvalidId):
        tools.wait_for_event(names=["two words"], max=1)
