"""What a turn that does not finish leaves, without a runtime."""

from antiphon.model import Message, Text, ToolCall, ToolOutcome, ToolResult, Usage
from antiphon_worker.loop.steps import StepEntry, ToolFinished
from antiphon_worker.loop.unfinished import NOTE, Unfinished, note_of

QUESTION = Message.user("Pay 3 and 4.")


def step(*calls, number=1):
    message = Message("assistant", [ToolCall(call, "pay", {"amount": 3}) for call in calls])
    return StepEntry(number, message, Usage(1, 2), "tool_use", None, "m")


def done(call, number=1):
    return ToolFinished(number, ToolResult(call, "paid", "pay"))


def kept(unfinished, keep):
    asked, said = unfinished.kept(keep)
    return [*asked, *said]


def test_a_turn_that_has_done_nothing_leaves_its_question_or_nothing():
    unfinished = Unfinished([QUESTION], [], "")
    assert unfinished.record("t", "s") is None
    assert [one.text for one in kept(unfinished, "partial")] == ["Pay 3 and 4."]
    assert kept(unfinished, "steps") == kept(unfinished, "nothing") == []
    assert unfinished.calls_beyond([]) == []


def test_the_record_holds_every_step_and_what_it_took():
    unfinished = Unfinished([QUESTION], [step("a"), done("a"), step("b", number=2)], "")
    record = unfinished.record("t", "s")
    assert [one.role for one in record.messages] == ["assistant", "tool"] * 2
    assert {one.turn_id for one in record.messages} == {"t"}
    assert (record.usage, record.stop_reason) == (Usage(2, 4), "interrupted")
    assert [(call.call_id, call.is_error) for call in record.tool_calls] == [("a", False), ("b", True)]


def test_only_what_stays_is_marked_and_the_question_itself_is_not_changed():
    unfinished = Unfinished([QUESTION], [step("a"), done("a")], "Done, ")
    assert [one.interrupted for one in kept(unfinished, "partial")] == [False, False, False, True]
    assert not any(one.interrupted for one in kept(unfinished, "steps"))
    kept(Unfinished([QUESTION], [], ""), "partial")
    assert not QUESTION.interrupted


def test_the_calls_that_the_history_does_not_tell_are_those_behind_the_last_finished_step():
    unfinished = Unfinished([QUESTION], [step("a"), done("a"), step("b", "c", number=2), done("b", 2)], "")
    left = kept(unfinished, "steps")
    assert [call.call_id for call in unfinished.calls_beyond(left)] == ["b", "c"]
    assert unfinished.calls_beyond(kept(unfinished, "partial")) == []


def test_half_a_character_that_was_said_can_be_stored():
    (message,) = kept(Unfinished([], [], "so \ud83d"), "partial")
    assert message.to_json()


def test_a_note_says_what_was_called_and_stays_short():
    calls = [ToolOutcome(f"c{n}", f"tool{n}", {"text": "x" * 2000}, "y" * 2000) for n in range(30)]
    note = note_of(calls)
    first, left_out, *lines = note.text.split("\n- ")
    assert (note.role, first) == ("system", NOTE)
    assert left_out == "10 earlier calls, which are left out here"
    assert [line.partition("(")[0] for line in lines] == [f"tool{n}" for n in range(10, 30)]
    assert all(len(line) < 1200 for line in lines)
    assert isinstance(note.parts[0], Text)
