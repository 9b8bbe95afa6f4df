"""What both runtimes hand to the agent loop, and how messages are marked for the history."""

import pytest

from antiphon.errors import UsageError
from antiphon.input.request import AgentSpec, TurnRequest
from antiphon.model import Message
from antiphon.window import Window
from antiphon_worker.loop.input import MAX_STEPS, Rules, fill_prompt, loop_input, stamp

HELLO = [Message.user("Hello")]


def test_what_the_turn_asks_for_comes_before_what_the_agent_says():
    agent = AgentSpec("scripted", "small", params={"temperature": 1, "seed": 7}, max_steps=3, window=5)
    asked = loop_input(
        agent, TurnRequest(HELLO, params={"temperature": 0, "model": "large"}), (), None, {}, Rules()
    )
    assert (asked.model, asked.params) == ("large", {"temperature": 0, "seed": 7})
    assert (asked.max_steps, asked.window, asked.new_messages) == (3, Window(turns=5), HELLO)
    assert agent.params == {"temperature": 1, "seed": 7}


def test_an_agent_that_says_nothing_has_no_prompt_no_window_and_the_usual_limit_of_steps():
    asked = loop_input(
        AgentSpec("scripted", "small", system=""), TurnRequest(HELLO), (), None, {"user": "Eve"}, Rules()
    )
    assert (asked.model, asked.system, asked.max_steps, asked.window) == ("small", None, MAX_STEPS, Window())


@pytest.mark.parametrize(
    ("own", "expected"), [(None, "You help Eve."), ("", "You help Eve."), ("Eve!", "Eve!")]
)
def test_the_sessions_own_prompt_comes_before_the_agents(own, expected):
    agent = AgentSpec("scripted", "small", system="You help {user}.")
    assert loop_input(agent, TurnRequest(HELLO), (), own, {"user": "Eve"}, Rules()).system == expected


def test_a_window_that_is_none_is_refused():
    agent = AgentSpec("scripted", "small")
    agent.window = "5"
    with pytest.raises(UsageError, match="window="):
        loop_input(agent, TurnRequest(HELLO), (), None, {}, Rules())


def test_only_braces_around_the_name_of_a_variable_are_replaced():
    prompt = '{user} {count} {other} {{user}} {1} {} {"user": 1}'
    filled = fill_prompt(prompt, {"user": "{count}", "count": [1, None]})
    assert filled == '{count} [1,null] {other} {{count}} {1} {} {"user": 1}'


def test_the_messages_of_a_turn_are_numbered_and_keep_the_time_and_the_author_that_they_have():
    mine, answer, theirs = Message.user("a"), Message.assistant("b"), Message.assistant("c")
    answer.created, theirs.agent = 9, "guest"
    stamped = stamp([mine], [answer, theirs], "t1", 5, "writer")
    assert [message.id for message in stamped] == ["t1.1", "t1.2", "t1.3"]
    assert [message.turn_id for message in stamped] == ["t1"] * 3
    assert [message.agent for message in stamped] == [None, "writer", "guest"]
    assert [message.created for message in stamped[:2]] == [5, 9]
    assert (stamped[2].created or 0) > 9, "the journal of an older release has no times"
    mine.created = 1
    assert stamp([mine], [], "t1", 5)[0].created == 1
