"""A turn as both runtimes run it: the window over the history, the loop, and what the session keeps of it."""

import asyncio
from itertools import count

import pytest
from support.journals import Journal

from antiphon.errors import ContextTooLong, ProviderOverloaded, TurnFailed
from antiphon.model import Message, Text, ToolCall, ToolOutcome, ToolResult, Usage
from antiphon.session.background import own_turns
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon.window import Summary, Window
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.run_turn import TimeLimit, WindowPlace, run_turn
from antiphon_worker.loop.steps import StepEntry, ToolFinished
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.loop.unfinished import NOTE, Unfinished, note_of
from antiphon_worker.loop.visible_history import LoadedHistory
from antiphon_worker.providers.scripted import ScriptedProvider

HISTORY = [m for n in range(5) for m in (Message.user(f"q{n}"), Message.assistant(f"a{n}"))]


async def play(lines, *, start=0, context=None, journal=None, **options):
    """A turn in a session whose history was read from `start` on."""

    async def read(begin, end):
        return HISTORY[begin:end]

    inp = LoopInput("any", new_messages=[Message.user("Hello")], **options)
    loaded = LoadedHistory(HISTORY[start:], start, None, None, read)
    context = context or Context("s", "t")
    journal = journal or Journal()
    return await run_turn(ScriptedProvider(lines), inp, loaded, ToolBox(), journal, Journal(), context)


def texts(request):
    return [message.text for message in request.messages]


@pytest.mark.parametrize("start", [0, 6])
async def test_without_a_window_the_model_is_sent_the_whole_history_wherever_it_was_read_from(start):
    lines = script("Hi")
    done = await play(lines, start=start)
    assert texts(lines.requests[0]) == [*(message.text for message in HISTORY), "Hello"]
    assert (done.window, done.summary) == (None, None)


async def test_the_window_leaves_out_the_beginning_and_its_place_is_kept_with_the_tokens():
    lines = script(answer("Hi", usage=Usage(40, 2)))
    done = await play(lines, window=Window(turns=1))
    assert texts(lines.requests[0]) == ["q4", "a4", "Hello"]
    assert done.window == WindowPlace(8, 42)


async def test_the_tokens_of_several_model_calls_say_nothing_about_the_window():
    @tool
    def look() -> str:
        return "seen"

    lines = script(answer(tool_call("look"), usage=Usage(40, 2)), answer("Hi", usage=Usage(50, 2)))
    done = await play(lines, window=Window(turns=1), tools=[look])
    assert done.window == WindowPlace(8, 0)


class Tight:
    """A model that takes six messages of history, calls a tool, and goes down at its first ``failures`` results."""

    def __init__(self, failures, **numbers):
        self.failures, self.numbers, self.refused = failures, numbers, 0
        self.lines = script(self.answer, repeat=True)

    def answer(self, request):
        if request.messages[-1].text.startswith("Write a summary"):
            return answer(f"A summary, written {next(self.summaries)} times.", usage=Usage(100, 7))
        results = request.messages[-1].role == "tool"
        if len(request.messages) > 8:
            self.refused += 1
            raise ContextTooLong("too long", status=400, **self.numbers)
        if not results:
            return tool_call("look")
        if self.failures:
            self.failures -= 1
            raise ProviderOverloaded("down")
        return "Hi"

    summaries = count(1)


@pytest.mark.parametrize("numbers", [{}, {"tokens": 60, "limit": 40}], ids=["no number", "a limit"])
@pytest.mark.parametrize("window", [Window(), Summary(turns=90), Summary(turns=3)])
async def test_a_turn_continued_elsewhere_sends_the_same_as_before(window, numbers):
    @tool
    def look() -> str:
        return "seen"

    journal, model = Journal(), Tight(1, **numbers)
    with pytest.raises(ProviderOverloaded):
        await play(model.lines, window=window, tools=[look], journal=journal)
    other = Tight(0)
    done = await play(other.lines, window=window, tools=[look], journal=journal)
    assert (done.loop.messages[-1].text, other.refused) == ("Hi", 0)
    (last,) = other.lines.requests
    assert texts(last) == texts(model.lines.requests[-1])
    if isinstance(window, Summary):
        assert last.messages[0].text.endswith(done.summary.text)
        assert done.loop.usage.input_tokens >= 100


async def test_what_a_summary_took_is_part_of_the_usage():
    lines = script(answer("It began.", usage=Usage(100, 7)), answer("Hi", usage=Usage(40, 2)))
    done = await play(lines, window=Summary(turns=4))
    assert done.loop.usage == Usage(140, 9)
    assert done.summary.text == "It began."
    assert done.window == WindowPlace(done.summary.messages, 42)


async def test_tools_run_as_part_of_the_turn_and_leave_plain_variables():
    @tool
    async def note(at: Context) -> str:
        at.variables["seen"] = ("a", "b")
        return str(own_turns("s"))

    lines = script(tool_call("note"), "Hi")
    done = await play(lines, context=Context("s", "t", variables={"user": "Eve"}), tools=[note])
    assert done.variables == {"user": "Eve", "seen": ["a", "b"]}
    assert done.loop.messages[1].tool_results[0].text == "{'t'}"
    assert own_turns("s") == set()


async def test_what_takes_longer_than_its_time_is_cancelled_and_fails_the_turn():
    cancelled = []

    async def work():
        async with TimeLimit(0.001):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

    with pytest.raises(TurnFailed, match=r"within 0\.001 s") as failed:
        await work()
    assert (failed.value.code, cancelled) == ("turn_timed_out", [True])


async def test_a_timeout_of_something_else_stays_what_it_is():
    with pytest.raises(TimeoutError):
        async with TimeLimit(None):
            raise TimeoutError


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
