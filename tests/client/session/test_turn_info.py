"""Turns beside the history: where they stand on a page of it."""

from __future__ import annotations

from antiphon.model import Message
from antiphon.session.turn_info import LeftNothing, TurnInfo, in_place, shown


def said(text, turn):
    message = Message.user(text)
    message.turn_id = turn
    return message


def left(place, name, started: int | None = 1):
    turn = TurnInfo(name, "s", "failed", [Message.user(name)], error="no", created=5, started=started)
    return LeftNothing(place, turn)


def texts(messages):
    return [message.text for message in messages]


PAGE = [said("1", "t1"), said("2", "t2"), said("3", "t3")]


def test_turns_stand_where_they_ended_in_the_order_in_which_they_did():
    found = in_place(PAGE, 0, [left(0, "a"), left(1, "b"), left(1, "c"), left(3, "d")], [])
    assert texts(found) == ["a", "1", "b", "c", "2", "3", "d"]


def test_a_later_page_counts_from_its_beginning():
    assert texts(in_place(PAGE[1:], 1, [left(1, "b"), left(3, "d")], [])) == ["b", "2", "3", "d"]


def test_one_that_never_began_stands_behind_those_that_were_submitted_before_it():
    order = ["t1", "t2", "a", "t3"]
    assert texts(in_place(PAGE, 0, [left(0, "a", started=None)], order)) == ["1", "2", "a", "3"]
    assert texts(in_place(PAGE, 0, [left(0, "a")], order)) == ["a", "1", "2", "3"]
    assert texts(in_place(PAGE, 0, [left(0, "a", started=None)], [])) == ["a", "1", "2", "3"]


def test_a_turn_is_shown_with_its_state_and_itself_left_as_it_is():
    turn = left(0, "a").turn
    turn.messages = [Message.assistant("half")]
    question, answer = shown(turn)
    assert (question.status, question.error, question.turn_id, question.created) == ("failed", "no", "a", 5)
    assert (answer.text, answer.status) == ("half", "failed")
    assert turn.input[0].status is None
    turn.status = "running"
    assert texts(shown(turn)) == ["a"], "what it says now is in its events"
