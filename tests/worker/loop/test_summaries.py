"""Summaries of what a window leaves out: nothing is lost, nothing is parted, and requests begin alike."""

import asyncio
import logging
import re
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import CorruptRecord, ProviderOverloaded, UsageError
from antiphon.model import Message, Refusal, ToolCall, ToolResult, Usage
from antiphon.testing import answer, script, tool_call
from antiphon.tools import tool
from antiphon.window import SavedSummary, Summary, Window, estimated_tokens, window_of
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.visible_history import LoadedHistory, SummaryWriter, visible_history
from antiphon_worker.providers.scripted import ScriptedProvider


class NoLease:
    entries = ()

    def __init__(self):
        self.checkpoints = 0

    async def now(self):
        return 0

    async def checkpoint(self):
        self.checkpoints += 1

    async def steered(self, step):
        return []


def a_turn(number, *, size=40, tools=0):
    messages = [Message.user(f"question {number}.")]
    for n in range(tools):
        call = ToolCall(f"call_{number}_{n}", "look", {})
        messages += [Message("assistant", [call]), Message.tool([ToolResult(call.call_id, "x" * size)])]
    return [*messages, Message.assistant("a" * size)]


def known(messages):
    """The questions that the messages tell of, in a summary or themselves."""
    return [int(number) for message in messages for number in re.findall(r"question (\d+)\.", message.text)]


def sums_up(request):
    """A model whose summary names every question that it was shown."""
    return " ".join(f"question {number}." for number in known(request.messages))


@dataclass
class Played:
    """A session of which every turn's request is looked at."""

    window: Window
    lines: object = field(default_factory=lambda: script(sums_up, repeat=True))
    inp: LoopInput = field(default_factory=lambda: LoopInput("any"))
    history: list = field(default_factory=list)
    start: int = 0
    summary: SavedSummary | None = None
    usage: Usage = field(default_factory=Usage)  # of all summaries

    async def ask(self, turn):
        """Run a turn that says this; gives what it was shown."""

        async def front(start, stop):
            return self.history[start:stop]

        writer = SummaryWriter(ScriptedProvider(self.lines), self.inp, NoLease(), "s")
        past = LoadedHistory(self.history[self.start :], self.start, None, self.summary, front)
        shown = await visible_history(past, self.window, turn[:1], writer)
        self.usage += writer.usage
        self.start, self.summary = shown.start, shown.summary or self.summary
        self.history += turn
        return shown


def test_a_summary_needs_to_know_when():
    with pytest.raises(UsageError, match=r"Summary\(tokens=…\)"):
        Summary()
    with pytest.raises(UsageError, match="at least 1"):
        Summary(tokens=0)
    with pytest.raises(UsageError, match="a number of turns, a Window or a Summary"):
        window_of("5")


TURNS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3)), min_size=1, max_size=30)
LIMITS = st.one_of(
    st.builds(Summary, tokens=st.integers(50, 2_000)), st.builds(Summary, turns=st.integers(1, 20))
)


@given(TURNS, LIMITS)
def test_every_turn_is_either_summed_up_or_shown_and_no_call_is_parted_from_its_result(turns, window):
    async def play():
        played = Played(window)
        for number, (size, tools) in enumerate(turns):
            turn = a_turn(number, size=size, tools=tools)
            shown = await played.ask(turn)
            assert known(shown.messages) == list(range(number))
            calls = [call.call_id for message in shown.messages for call in message.tool_calls]
            assert calls == [r.call_id for message in shown.messages for r in message.tool_results]
            covered = played.summary.messages if played.summary else 0
            assert covered == played.start
        for request in played.lines.requests:
            calls = [call.call_id for message in request.messages for call in message.tool_calls]
            assert calls == [r.call_id for message in request.messages for r in message.tool_results]

    asyncio.run(play())


@pytest.mark.parametrize("window", [Summary(turns=20), Summary(tokens=2_000)])
async def test_between_two_summaries_the_requests_begin_with_the_same_messages(window):
    played = Played(window, script("short", repeat=True))
    shown = [(await played.ask(a_turn(number, size=200))).messages for number in range(100)]
    leaps = [later[: len(earlier)] != earlier for earlier, later in pairwise(shown)]
    assert sum(leaps) == len(played.lines.requests)
    assert 3 < sum(leaps) < 15
    assert all(estimated_tokens(messages) <= 2_000 for messages in shown)


async def test_a_long_history_is_summed_up_in_portions_that_the_window_could_hold():
    played = Played(Summary(tokens=1_000))
    for number in range(100):
        played.history += a_turn(number, size=200)
    shown = await played.ask(a_turn(100))
    assert known(shown.messages) == list(range(100))
    asked = [request.messages for request in played.lines.requests]
    assert len(asked) > 4
    for messages in asked:
        body = [m for m in messages[:-1] if not m.text.startswith("A summary of our conversation so far:")]
        assert estimated_tokens(body) <= 1_000


async def test_the_summary_is_asked_for_as_the_conversation_went():
    @tool
    def look(at: str) -> str:
        return at

    params = {"max_tokens": 5, "stop": "x", "tool_choice": "required", "temperature": 0.5}
    played = Played(
        Summary(turns=2, instructions="Keep all order numbers."),
        script(answer("It began.", usage=Usage(7, 3)), repeat=True),
        LoopInput("the-model", system="Be kind.", tools=[look], params=params),
    )
    for number in range(3):
        await played.ask(a_turn(number, tools=1))
    shown = await played.ask(a_turn(3))
    (request,) = played.lines.requests
    assert (request.model, request.system, request.output) == ("the-model", "Be kind.", None)
    assert [spec.name for spec in request.tools] == ["look"]
    assert request.params == {"temperature": 0.5}
    assert request.messages[:-1] == played.history[: played.start]
    assert request.messages[-1].text.endswith("Keep all order numbers.")
    assert played.usage == Usage(7, 3)
    assert shown.messages[0].text == "A summary of our conversation so far:\n\nIt began."


@pytest.mark.parametrize(
    ("answered", "calls"),
    [
        (ProviderOverloaded(), 1),
        (["The first words", ProviderOverloaded()], 1),
        (RuntimeError("a broken provider"), 1),
        (tool_call("look"), 2),
        (["Let me look.", tool_call("look")], 2),
        (Refusal("No."), 1),
        ("  ", 1),
        (answer("cut", stop_reason="content_filter"), 1),
    ],
    ids=["error", "broken off", "bug", "call", "text and call", "refusal", "empty", "filtered"],
)
async def test_a_summary_that_fails_leaves_the_turns_out_and_the_next_one_has_them(answered, calls, caplog):
    failing = True

    def sometimes(request):
        return answered if failing else sums_up(request)

    played = Played(Summary(turns=4), script(sometimes, repeat=True))
    for number in range(5):
        await played.ask(a_turn(number))
    with caplog.at_level(logging.WARNING, "antiphon.summary"):
        shown = await played.ask(a_turn(5))
    assert known(shown.messages) == [3, 4]
    assert shown.summary is None
    (line,) = caplog.records
    assert "session s: no summary could be written" in line.getMessage()
    assert len(played.lines.requests) == calls
    await played.ask(a_turn(6))
    assert len(played.lines.requests) == calls, "it is not tried again with every turn"
    failing = False
    for number in range(7, 10):
        shown = await played.ask(a_turn(number))
    assert known(shown.messages) == list(range(9))


async def test_what_was_summed_up_before_a_failure_stays():
    lines = script("first", "second", ProviderOverloaded())
    played = Played(Summary(tokens=500), lines)
    for number in range(30):
        played.history += a_turn(number, size=200)
    shown = await played.ask(a_turn(30))
    assert shown.summary.text == "second"
    assert 0 < shown.summary.messages < shown.start
    assert known(shown.messages)[-1] == 29


async def test_a_cancelled_turn_is_not_held_up_by_its_summary():
    asked = asyncio.Event()

    async def wait(request):
        asked.set()
        await asyncio.Event().wait()

    played = Played(Summary(turns=1), script(wait))
    played.history += [*a_turn(0), *a_turn(1)]
    turn = asyncio.create_task(played.ask(a_turn(2)))
    await asked.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_a_summary_that_ends_with_what_is_no_exception_does_not_fail_the_turn(raised):
    def breaks(request):
        raise raised

    played = Played(Summary(turns=1), script(breaks))
    played.history += [*a_turn(0), *a_turn(1)]
    assert (await played.ask(a_turn(2))).summary is None


def test_a_summary_survives_its_field_and_a_broken_one_is_named():
    for text in ("", "a: b\nc", "日本"):
        assert SavedSummary.from_field(SavedSummary(3, text).to_field()) == SavedSummary(3, text)
    assert SavedSummary.from_field(None) is None
    for broken in (b"x:y", b":", b"\xff:a"):
        with pytest.raises(CorruptRecord, match="summary"):
            SavedSummary.from_field(broken)
