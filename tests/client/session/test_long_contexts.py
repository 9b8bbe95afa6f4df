"""A session that outgrows its model's context continues: what was refused is sent again with less."""

from __future__ import annotations

import pytest
from support.eventually import wait_until

from antiphon.errors import ContextTooLong
from antiphon.model import Usage
from antiphon.testing import answer, script, tool_call
from antiphon.tools import tool
from antiphon.window import Summary, estimated_tokens
from antiphon_worker.providers.scripted import ScriptedProvider

CONTEXT = 400
PER_TOKEN = 1.5  # the service counts more than we estimate
QUESTION = "x" * 200


def model_with(context=CONTEXT, *, numbers=True, says=lambda request: "Fine."):
    """A model that refuses requests over its context. ``refused`` and ``shown`` are their lengths in messages."""

    def reply(request):
        tokens = int(estimated_tokens(request.messages) * PER_TOKEN)
        if tokens > context:
            lines.refused.append(len(request.messages))
            where = {"tokens": tokens, "limit": context} if numbers else {}
            raise ContextTooLong("prompt is too long.", status=400, **where)
        lines.shown.append(len(request.messages))
        return answer(says(request), usage=Usage(tokens, 3))

    lines = script(reply, repeat=True)
    lines.refused, lines.shown = [], []
    return lines


def reductions(turn):
    return [event for event in turn.stream() if event.type == "context_reduced"]


@pytest.mark.parametrize("numbers", [True, False], ids=["with its limit", "without a number"])
@pytest.mark.parametrize("window", [None, 20], ids=["no window", "a window too large"])
def test_a_session_twice_as_long_as_the_context_continues(runtime, numbers, window):
    lines = model_with(numbers=numbers)
    runtime.use(lines if runtime.name == "redis" else ScriptedProvider(lines))
    session = runtime.agent(window=window).session("s")
    found = []
    for _ in range(16):
        turn = session.submit(QUESTION)
        assert turn.result(20).text == "Fine."
        found += reductions(turn)
    assert sum(len(message.text) for message in session.messages) > 2 * CONTEXT * 4 / PER_TOKEN
    assert len(found) == len(lines.refused) == 1
    assert (found[0].step, found[0].limit) == (1, CONTEXT if numbers else 0)
    assert found[0].messages > 0
    assert len(session.messages) == 32


def test_the_left_out_turns_are_summarised_for_an_agent_with_a_summary(runtime):
    def says(request):
        asked = request.messages[-1].text
        return "A summary of all questions." if "summary of our conversation" in asked else "Fine."

    lines = model_with(context=2_000, says=says)
    runtime.use(lines)
    session = runtime.agent(window=Summary(tokens=100_000)).session("s")
    for _ in range(25):
        assert session.run(QUESTION).text == "Fine."
    assert len(lines.refused) == 1
    assert "A summary of all questions." in lines.requests[-1].messages[0].text


def test_the_last_turn_is_left_out_too_where_it_alone_is_too_long(runtime):
    @tool
    def read() -> str:
        """Read a page."""
        return "page " * 200

    def reply(request):
        if len(request.messages) == 1 and request.messages[0].text == "Read":
            return tool_call("read")
        return last(request)

    last = model_with(context=420).entries[0]
    runtime.use(script(reply, repeat=True))
    session = runtime.agent(tools=[read]).session("s")
    assert session.run("Read").text == "Fine."
    turn = session.submit(QUESTION)
    assert turn.result(20).text == "Fine."
    assert [(event.messages, event.results) for event in reductions(turn)] == [(4, 0)]
    assert session.run("And?").text == "Fine."


def test_long_results_of_a_turn_are_cut_short_where_they_alone_are_too_long(runtime):
    @tool
    def read() -> str:
        """Read a book."""
        return "book " * 10_000

    lines = model_with(
        context=1_000, says=lambda request: tool_call("read") if len(request.messages) == 1 else "Read."
    )
    runtime.use(lines)
    session = runtime.agent(tools=[read]).session("s")
    turn = session.submit("Read")
    response = turn.result(20)
    assert response.text == "Read."
    assert [(event.step, event.messages, event.results) for event in reductions(turn)] == [(2, 0, 1)]
    assert "The result had 50,000 characters" in lines.requests[-1].messages[-1].tool_results[0].text
    assert len(response.tool_calls[0].result) == 50_000


def test_a_message_that_never_fits_fails_with_its_size_and_the_limit_and_the_session_continues(runtime):
    lines = model_with()
    runtime.use(lines)
    session = runtime.agent().session("s")
    session.run("Hello")
    turn = session.submit("y" * 4_000)
    with pytest.raises(ContextTooLong, match=r"about 1,506 tokens, and any accepts 400: shorten"):
        turn.result(20)
    assert turn.info().code == "context_too_long"
    assert session.run("Hello again").text == "Fine."


def test_a_summary_of_turns_that_are_too_long_together_is_written_in_parts(runtime):
    summaries = []

    def says(request):
        if request.messages[-1].text.startswith("Write a summary"):
            summaries.append(request)
            return f"Summary {len(summaries)}."
        return "Fine."

    lines = model_with(context=700, says=says)
    runtime.use(lines)
    session = runtime.agent(window=Summary(turns=12)).session("s")
    for _ in range(12):
        assert session.run("x" * 100).text == "Fine."
    lines = model_with(context=400, says=says)
    runtime.use(lines)
    session = runtime.agent(window=Summary(turns=12)).session("s")
    assert session.run("x" * 100).text == "Fine."
    assert len(summaries) > 1
    assert lines.requests[-1].messages[0].text.endswith(f"Summary {len(summaries)}.")
    assert session.to_dict()["summary"]["messages"] >= 2 * 6


def test_a_turn_that_waited_for_an_approval_sends_what_it_sent_before(runtime):
    @tool(approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    def says(request):
        if request.messages[-1].text.startswith("Write a summary"):
            summaries.append(request)
            return answer(f"Summary {len(summaries)}.", usage=Usage(100, 7))
        if request.messages[-1].text == "Pay":
            return tool_call("pay")
        return answer("Fine.", usage=Usage(10, 1))

    summaries = []
    lines = script(says, repeat=True)
    runtime.use(lines)
    session = runtime.agent(window=Summary(turns=4), tools=[pay]).session("s")
    for _ in range(5):
        session.run("Hello")
    turn = session.submit("Pay")
    wait_until(lambda: turn.status() == "suspended", description="the turn is suspended")
    turn.approve(turn.info().calls[0].call_id)
    response = turn.result(20)
    assert (response.text, len(summaries)) == ("Fine.", 1)
    before, after = lines.requests[-2:]
    assert [one.text for one in after.messages][: len(before.messages)] == [
        one.text for one in before.messages
    ]
    assert response.usage.input_tokens >= 110
    assert session.to_dict()["summary"]["text"] == "Summary 1."
