"""Which part of a long history is sent: whole turns, from a place that seldom moves."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import UsageError
from antiphon.model import File, Image, Message, Reasoning, Text, ToolCall, ToolResult
from antiphon.window import Window, estimated_tokens, turn_starts, window_of, window_start


def a_turn(number, *, size=40, tools=0):
    """A question, some steps with tools, and the answer."""
    messages = [Message.user(f"question {number}")]
    for n in range(tools):
        call = ToolCall(f"call_{number}_{n}", "look", {})
        messages += [Message("assistant", [call]), Message.tool([ToolResult(call.call_id, "x" * size)])]
    return [*messages, Message.assistant("a" * size)]


def windowed(history, window, new=()):
    return history[window_start(history, window, new=new) :]


def a_history(turns, **options):
    return [message for number in range(turns) for message in a_turn(number, **options)]


def test_without_a_limit_everything_is_sent():
    history = a_history(50)
    assert windowed(history, Window()) == history
    assert window_start(history, Window(), start=8) == 0


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 7])
def test_a_small_number_of_turns_means_what_it_says(turns):
    history = a_history(30, tools=1)
    sent = windowed(history, Window(turns=turns))
    assert len(turn_starts(sent)) == turns
    assert sent == history[-4 * turns :]


def test_a_history_within_the_limit_is_sent_whole():
    history = a_history(5)
    assert windowed(history, Window(turns=5)) == history
    assert windowed(history, Window(tokens=10_000)) == history
    assert windowed([], Window(turns=1, tokens=1)) == []


LIMITS = st.one_of(
    st.builds(Window, turns=st.integers(1, 30)),
    st.builds(Window, tokens=st.integers(50, 2_000)),
    st.builds(Window, turns=st.integers(1, 30), tokens=st.integers(50, 2_000)),
)
TURNS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), max_size=40)


def history_of(turns):
    return [m for n, (size, tools) in enumerate(turns) for m in a_turn(n, size=size, tools=tools)]


@given(TURNS, LIMITS)
def test_the_window_holds_its_limit_and_never_parts_a_call_from_its_result(turns, window):
    history = history_of(turns)
    new = [Message.user("new")]
    sent = windowed(history, window, new=new)
    assert sent == history[len(history) - len(sent) :]
    calls = [call.call_id for message in sent for call in message.tool_calls]
    assert calls == [result.call_id for message in sent for result in message.tool_results]
    kept = len(turn_starts(sent))
    assert not history or kept >= 1
    assert window.turns is None or kept <= window.turns
    if window.tokens is not None and kept > 1:
        assert estimated_tokens([*sent, *new]) <= window.tokens


@given(TURNS, LIMITS)
def test_the_window_moves_only_forward_and_the_same_place_is_found_with_or_without_the_last_one(
    turns, window
):
    start, history = 0, []
    for number, (size, tools) in enumerate(turns):
        new = [Message.user(f"question {number}")]
        found = window_start(history, window, new=new)
        assert found >= start
        if window.turns is None or window.tokens is None:
            assert window_start(history, window, new=new, start=start) == found
        start = found
        history += a_turn(number, size=size, tools=tools)


@pytest.mark.parametrize("window", [Window(turns=20), Window(tokens=1_000)])
def test_between_two_leaps_the_requests_begin_with_the_same_messages(window):
    starts = [window_start(a_history(n, size=120), window, new=[Message.user("new")]) for n in range(200)]
    leaps = sum(before != after for before, after in pairwise(starts))
    assert starts[-1] > 200
    assert leaps <= 40


def test_the_providers_count_corrects_the_estimate():
    history = a_history(10, size=400)
    window = Window(tokens=2 * estimated_tokens(history))
    assert window_start(history, window) == 0
    assert window_start(history, window, reported=4 * estimated_tokens(history)) > 0
    assert window_start(history, window, reported=1_000 * estimated_tokens(history)) < len(history)


def test_a_new_input_that_fills_the_budget_leaves_the_last_turn():
    history = a_history(5)
    sent = windowed(history, Window(tokens=100), new=[Message.user("x" * 10_000)])
    assert sent == history[-2:]


def test_turns_begin_at_what_is_said_to_the_model():
    steered = [Message.user("more"), Message.assistant("yes")]
    history = [Message.system("s"), Message.user("u"), *a_turn(1)[1:], *a_turn(2, tools=2), *steered]
    assert turn_starts(history) == [0, 3, 9]
    same = [msgspec.structs.replace(message, turn_id="t") for message in history[3:]]
    assert turn_starts([*history[:3], *same]) == [0, 3]
    assert turn_starts([Message.assistant("a"), Message.user("u")]) == [0, 1]


def test_everything_in_a_message_is_estimated():
    parts = [
        Text("a" * 40),
        Reasoning("b" * 40),
        ToolCall("c", "name", {"a": 1}),
        ToolResult("c", [Text("d" * 40), Image(url="u")]),
        Image(url="u"),
        File(file_id="f"),
    ]
    one_by_one = [estimated_tokens([Message("assistant", [part])]) for part in parts]
    assert one_by_one[:2] == [14, 14]
    assert one_by_one[3] == 1_014
    assert estimated_tokens([Message("assistant", parts)]) == sum(one_by_one) - 5 * 4
    assert estimated_tokens([Message.user("é" * 40)]) == 24


def test_a_window_travels_as_json_and_a_number_means_turns():
    for window in (Window(), Window(turns=3), Window(tokens=5)):
        assert msgspec.json.decode(msgspec.json.encode(window), type=Window) == window
    assert msgspec.json.encode(Window()) == b"{}"
    assert window_of(4) == Window(turns=4)
    assert window_of(None) == Window()
    assert window_of(Window(tokens=9)) == Window(tokens=9)


@pytest.mark.parametrize("limits", [{"turns": 0}, {"tokens": -1}])
def test_a_window_that_sends_nothing_is_refused(limits):
    with pytest.raises(UsageError, match="at least 1"):
        Window(**limits)
