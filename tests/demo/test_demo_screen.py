"""What the demo draws fits the terminal, whatever a model says and however small it is."""

import io
import re

import pytest

from antiphon.events import TextDelta, TurnFinished, TurnStarted
from antiphon.input.request import AgentSpec
from antiphon_demo.conversations import Conversation
from antiphon_demo.record import SessionRecord
from antiphon_demo.screen import LiveScreen, PlainScreen, cells, fit, screen_for, tail

SAYS = "Ein Satz über 富士山, mit\nZeilen, \x1b[31mFarben\x1b[0m, a\u0301kzenten und 👍 dazu. " * 5


def records(count):
    made = []
    for number in range(count):
        record = SessionRecord(
            Conversation(f"富士山-the-{number}th-conversation", ["One?", "Two?"]),
            AgentSpec(provider="openai-chat", model="m"),
            lambda record, event: None,
        )
        record.submitting("One?")
        record.live.take(TurnStarted(turn_id="t", run=1, attempt=1, seq=1))
        record.live.take(TextDelta(turn_id="t", run=1, attempt=1, seq=2, text=SAYS))
        made.append(record)
    return made


class Terminal(io.StringIO):
    def isatty(self):
        return True


def frame(out):
    """The lines of what was drawn, without what a terminal obeys."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", out.getvalue()).splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(200, 50), (80, 24), (44, 14), (20, 6), (8, 3)])
@pytest.mark.parametrize("count", [1, 8, 80])
def test_a_frame_is_no_larger_than_the_terminal(columns, lines, count, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    out = Terminal()
    screen = LiveScreen(out)
    screen.note("kill -9 of worker process 12345, in the middle of 4 answers")
    screen._draw(records(count))
    drawn = frame(out)
    assert 1 <= len(drawn) < lines
    assert [line for line in drawn if cells(line) >= columns] == []
    assert out.getvalue().count("\n") == len(drawn), "a line of the model's broke a line of the frame"


def test_a_second_frame_goes_over_the_first(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    out = Terminal()
    screen = LiveScreen(out)
    screen._draw(records(3))
    lines = out.getvalue().count("\n")
    out.truncate(0)
    screen._draw(records(3))
    assert out.getvalue().lstrip("\0").startswith(f"\x1b[{lines}F")


def test_no_colour_is_drawn_where_none_is_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    LiveScreen(out)._draw(records(2))
    assert re.findall(r"\x1b\[[0-9;]*m", out.getvalue()) == []


@pytest.mark.parametrize("width", range(30))
def test_texts_are_cut_by_columns_at_both_ends(width):
    assert cells(fit(SAYS, width)) <= width
    assert cells(tail(SAYS, width)) <= width
    assert fit("short", 10) == tail("short", 10) == "short"


def test_plain_lines_tell_each_end_of_a_turn():
    out = io.StringIO()
    (record,) = records(1)
    end = TurnFinished(turn_id="t", run=1, attempt=1, seq=3)
    screen = PlainScreen(out)
    record.live.take(end)
    screen.see(record, end)
    assert "turn 1 of 2, 1 deltas: Ein Satz über" in out.getvalue()
    assert out.getvalue().count("\n") == 1


def test_a_live_view_is_for_terminals_that_can_show_one(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(Terminal(), plain=False), LiveScreen)
    assert isinstance(screen_for(Terminal(), plain=True), PlainScreen)
    assert isinstance(screen_for(io.StringIO(), plain=False), PlainScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Terminal(), plain=False), PlainScreen)
