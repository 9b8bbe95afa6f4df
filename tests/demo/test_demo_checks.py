"""The demo's judgement: it must see each kind of damage, or its verdict is worth nothing."""

import re

import msgspec
import pytest

from antiphon.events import (
    StepFinished,
    TextDelta,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnRetrying,
    TurnStarted,
)
from antiphon.input.request import AgentSpec
from antiphon.model import Message, Response
from antiphon_demo.accident import Accident
from antiphon_demo.conversations import Conversation
from antiphon_demo.modelserver import reply_to
from antiphon_demo.play import Performance
from antiphon_demo.record import SessionRecord
from antiphon_demo.verdict import check_events, check_history, judge, percentile

TURNS = ["What is a lease?", "And a fence?"]


def played():
    """A session of two turns; the first attempt of the second one was cut."""
    record = SessionRecord(
        Conversation("words", TURNS), AgentSpec(provider="openai", model="m"), lambda record, event: None
    )
    said = []
    for number, text in enumerate(TURNS, 1):
        said.append(("user", text))
        answer = reply_to(said)
        said.append(("assistant", answer))
        record.submitting(text)
        for event in events_of(f"turn-{number}", answer, cut=number == 2):
            event.seq = len(record.live.events) + 1
            record.live.take(event)
        record.messages += [Message.user(text), Message.assistant(answer)]
        for message in record.messages[-2:]:
            message.turn_id = f"turn-{number}"
    for event in record.live.events:
        record.late.take(msgspec.structs.replace(event))
        record.reconnected.take(msgspec.structs.replace(event))
    return record


def events_of(turn, answer, *, cut):
    where = {"turn_id": turn, "run": 1}
    events = [TurnQueued(**where)]
    if cut:
        events += [
            TurnStarted(**where, attempt=1),
            TextDelta(text=answer[:7], **where, attempt=1),
            TurnRetrying(**where, attempt=1),
        ]
    attempt = 2 if cut else 1
    events.append(TurnStarted(**where, attempt=attempt))
    events += [TextDelta(text=piece, **where, attempt=attempt) for piece in re.findall(r"\s*\S+", answer)]
    return [
        *events,
        StepFinished(**where, attempt=attempt),
        TurnFinished(response=Response(), **where, attempt=attempt),
    ]


def test_what_is_whole_is_found_whole():
    record = played()
    assert check_history(record, reply_to) == []
    assert check_events(record) == []


def lose_an_answer(record):
    del record.messages[1]


def swap_the_turns(record):
    record.messages[:] = record.messages[2:] + record.messages[:2]


def write_an_answer_twice(record):
    record.messages.append(record.messages[-1])


def cut_an_answer(record):
    record.messages[3] = Message.assistant(record.messages[3].text[:-1])
    record.messages[3].turn_id = "turn-2"


def empty_an_answer(record):
    record.messages[1] = Message.assistant("")


def change_a_question(record):
    record.messages[2] = Message.user("And a fence, please?")


def lose_a_delta(record):
    del record.live.events[
        next(n for n, event in enumerate(record.live.events) if event.type == "text_delta")
    ]


@pytest.mark.parametrize(
    "damage",
    [
        lose_an_answer, swap_the_turns, write_an_answer_twice, cut_an_answer, empty_an_answer, change_a_question,
        lose_a_delta,
    ],
)  # fmt: skip
def test_a_damaged_history_is_found(damage):
    record = played()
    damage(record)
    assert check_history(record) != []


def test_a_model_that_was_not_shown_the_whole_history_is_found():
    record = played()
    for follower in (record.live, record.late, record.reconnected):
        for event in follower.events:
            if isinstance(event, TextDelta):
                event.text = event.text.replace(" 2,", " 1,")
    for message in record.messages:
        text = message.text.replace("[turn 2,", "[turn 1,")
        message.parts = Message.user(text).parts
    assert check_history(record) == []
    assert check_history(record, reply_to) != []


def skip_a_seq(record):
    for follower in (record.live, record.late, record.reconnected):
        follower.events[-1].seq += 1


def miss_the_first(record):
    del record.late.events[0]


def repeat_one(record):
    record.reconnected.events.insert(3, record.reconnected.events[3])


def swap_two(record):
    late = record.late.events
    late[3], late[4] = late[4], late[3]


def change_one(record):
    record.late.events[4].text = "other"


def end_a_run_twice(record):
    for follower in (record.live, record.late, record.reconnected):
        end = msgspec.structs.replace(follower.events[-1], seq=len(follower.events) + 1)
        follower.events.append(end)


def end_a_run_never(record):
    for follower in (record.live, record.late, record.reconnected):
        del follower.events[-1]


def run_again(record):
    for follower in (record.live, record.late, record.reconnected):
        follower.events[-1].run = 2


@pytest.mark.parametrize(
    "damage",
    [
        skip_a_seq, miss_the_first, repeat_one, swap_two, change_one, end_a_run_twice, end_a_run_never, run_again,
    ],
)  # fmt: skip
def test_damaged_events_are_found(damage):
    record = played()
    damage(record)
    assert check_events(record) != []


def performance(*records, accident=True):
    cut = records[0].turns[-1]
    return Performance(records, Accident(1, 0.0, [cut], [12.3]) if accident else None, 1.5)


def test_a_whole_performance_ends_in_a_good_verdict():
    lines, holds = judge(performance(played(), played()), expected=reply_to, kill=True)
    assert holds
    assert lines[-1].startswith("OK: every answer is complete, though a worker was killed")
    assert any(line.split() == ["turns", "4"] for line in lines)
    assert any(line.split() == ["recovery", "12", "ms"] for line in lines)


@pytest.mark.parametrize("damage", [lose_an_answer, miss_the_first])
def test_one_damaged_session_among_others_fails_the_performance(damage):
    record = played()
    damage(record)
    lines, holds = judge(performance(played(), record), expected=reply_to, kill=True)
    assert not holds
    assert lines[-1].startswith("FAILED: 1 problem")
    assert any("DOES NOT HOLD" in line for line in lines)


def test_a_performance_without_its_accident_proves_too_little():
    assert judge(performance(played(), accident=False), expected=reply_to, kill=True)[1] is False
    assert judge(performance(played(), accident=False), expected=reply_to, kill=False)[1] is True


def test_a_turn_that_failed_is_said_with_its_reason():
    record = played()
    end = TurnFailedEvent(turn_id="turn-2", run=1, message="The key is wrong.")
    record.turns[-1].ended = end
    lines, holds = judge(performance(record), expected=reply_to, kill=True)
    assert not holds
    assert "    words: a turn failed: The key is wrong." in lines


def test_a_percentile_is_a_value_that_was_measured():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 99) == 4.0
    assert percentile([7.0], 50) == 7.0
