"""The page about hooks: its code runs from top to bottom, and each example does what the page says."""

from __future__ import annotations

import logging
import re

import pytest
from support.source_tree import ROOT

from antiphon import Agent, tool
from antiphon.errors import TurnFailed
from antiphon.events import TextDelta
from antiphon.hooks import MOMENTS
from antiphon.testing import script, tool_call

PAGE = (ROOT / "docs" / "hooks.md").read_text()


@tool
def refund(cents: int) -> str:
    """Refund an order."""
    return "Refunded to 4111 1111 1111 1111."


@pytest.fixture(scope="module")
def page():
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/hooks.md", "exec"), names)
    return names


def session_with(hook, *lines, **options):
    agent = Agent(script(*lines, repeat=True), "any", tools=[refund], hooks=[hook])
    return agent.session(**options)


def test_a_guardrail_blocks_a_turn(page):
    session = session_with(page["no_legal_advice"], "Hello!")
    assert session.run("Hi").text == "Hello!"
    with pytest.raises(TurnFailed, match="We cannot give legal advice"):
        session.run("I need a lawyer")


def test_an_answer_is_given_in_place_of_the_models(page):
    closed = session_with(page["closed_on_sundays"], "Hello!", variables={"weekday": "Sunday"})
    assert closed.run("Hi").text == "We are closed today. Please write again on Monday."
    assert session_with(page["closed_on_sundays"], "Hello!").run("Hi").text == "Hello!"


@pytest.mark.parametrize(("cents", "asked"), [(20_000, 1), (500, 0)])
def test_a_person_is_asked_about_large_refunds(page, cents, asked):
    calls = []
    session = session_with(page["large_refunds"], tool_call("refund", cents=cents), "Done.")
    session.run("Go", on_approval=lambda call: calls.append(call) or True)
    assert len(calls) == asked


def test_cards_are_redacted_in_results_and_in_streamed_answers(page):
    session = session_with(page["cards_of_tools"], tool_call("refund", cents=5), "Done.")
    assert session.run("Go").tool_calls[0].result == "Refunded to [card]."
    with session_with(page["cards_of_answers"], "Your card 4111 1111 1111 1111.").stream("Go") as stream:
        assert "".join(event.text for event in stream if isinstance(event, TextDelta)) == "Your card [card]."


def test_a_turn_is_routed_by_its_length(page):
    session = session_with(page["by_length"], lambda request: request.model)
    assert session.run("Hi").text == "gpt-5-mini"
    assert session.run("Hi" * 20_000).text == "gpt-5"


def test_calls_are_audited(page, caplog):
    with caplog.at_level(logging.INFO):
        session_with(page["audit"], tool_call("refund", cents=5), "Done.", session_id="s1").run("Go")
    assert "s1 called refund: ok" in caplog.messages


def test_the_app_has_the_hooks_of_the_page(page):
    app = page["app"]
    names = [hook.name for hook in app.hooks(app.agent("support"))]
    assert names == ["cards_of_tools", "cards_of_answers", "audit", "no_legal_advice"]


def test_the_table_lists_what_each_moment_offers():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    for moment in MOMENTS:
        _, attributes, replaces, others = rows[moment.__name__].split(" | ")
        own = [name for name in moment.__struct_fields__ if name not in ("context", "agent")]
        named = re.findall(r"`(\w+)`", attributes)
        assert [name for name in named if name in own] == own
        assert re.findall(r"`(\w+)`", replaces) == list(moment.replaces)
        assert re.findall(r"`(\w+)`", others) == [verdict.__name__ for verdict in moment.verdicts]
