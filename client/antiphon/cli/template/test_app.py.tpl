"""Tests of the agents with scripted answers. They need no API key, no Redis and no network: run `pytest`."""

from app import support

from antiphon import Agent
from antiphon.testing import script, tool_call


def test_the_agent_looks_up_the_order():
    lines = script(tool_call("order_status", order_id="7"), "It was shipped yesterday.")
    agent = Agent(provider=lines, model="any", system=support.system, tools=support.tools)

    response = agent.session().run("Where is order 7?")

    assert response.text == "It was shipped yesterday."
    assert response.tool_calls[0].result == "Order 7 was shipped yesterday."
    assert lines.requests[0].messages[-1].text == "Where is order 7?"
