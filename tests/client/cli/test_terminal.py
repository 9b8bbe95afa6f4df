"""How events look on a terminal."""

import io

from antiphon.cli.terminal import EventLines, PrintedTurn
from antiphon.events import CustomEvent, OutputDelta, StepFinished, TextDelta, ToolProgress, TurnRetrying
from antiphon.model import Usage


def test_partial_output_does_not_break_the_text_that_it_is_made_of():
    lines = EventLines(out := io.StringIO())
    for event in (TextDelta(text='{"n":'), OutputDelta(output={}), TextDelta(text="1}")):
        lines.show(event)
    assert out.getvalue() == '  {"n":1}'


def test_an_answer_starts_again_only_if_it_has_begun(capsys):
    printed = PrintedTurn(json=False)
    for event in (
        TurnRetrying(),
        TextDelta(text="One t"),
        TurnRetrying(),
        TurnRetrying(),
        TextDelta(text="One two"),
    ):
        printed.show(event)
    assert capsys.readouterr().out == "One t\n[the answer starts again]\nOne two"


def test_a_rejected_answer_says_why():
    lines = EventLines(out := io.StringIO())
    lines.show(StepFinished(usage=Usage(3, 2), model="m"))
    assert out.getvalue().endswith("end, 3 tokens in, 2 out, m\n")
    lines.show(StepFinished(usage=Usage(3, 2), model="m", rejected="The answer is not JSON."))
    assert out.getvalue().endswith("m, rejected: The answer is not JSON.\n")


def test_what_a_tool_says_is_shown_in_a_line():
    lines = EventLines(out := io.StringIO())
    lines.show(ToolProgress(name="export", text="Page 3\x1b[2J", fraction=0.3))
    lines.show(ToolProgress(name="export", text="More"))
    lines.show(CustomEvent(name="order.placed", data={"order": 17}))
    shown = out.getvalue().splitlines()
    assert [line.partition("  ")[2].split(maxsplit=2)[1] for line in shown] == ["tool_progress"] * 2 + [
        "custom"
    ]
    assert [line.rpartition("  ")[2] for line in shown] == [
        "export 30%: Page 3[2J",
        "export: More",
        "order.placed {'order': 17}",
    ]
