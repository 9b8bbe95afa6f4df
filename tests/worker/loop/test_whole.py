"""A model is shown each tool call with its result, also of a history that was imported (G9)."""

import pytest

from antiphon import Agent
from antiphon.model import Message, Text, ToolCall, ToolResult
from antiphon.testing import script
from antiphon_worker.loop.visible_history import NO_RESULT, whole

ASKED = Message.assistant([ToolCall("1", "pay"), ToolCall("2", "look")])
FIRST, SECOND = ToolResult("1", "paid", "pay"), ToolResult("2", "seen", "look")
LOST = ToolResult("2", NO_RESULT, "look", is_error=True)
USER = Message.user("Hi")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([USER, ASKED, Message.tool([FIRST, SECOND])], [USER, ASKED, Message.tool([FIRST, SECOND])]),
        ([ASKED, Message.tool([FIRST]), Message.tool([SECOND])],) * 2,
        ([ASKED, Message.tool([FIRST]), USER], [ASKED, Message.tool([FIRST]), Message.tool([LOST]), USER]),
        ([USER, Message.tool([FIRST]), USER], [USER, USER]),
        ([ASKED, USER, Message.tool([FIRST, SECOND])],
         [ASKED, Message.tool([ToolResult("1", NO_RESULT, "pay", True), LOST]), USER]),
        ([ASKED, Message.tool([FIRST, SECOND, ToolResult("3", "x")]), Message("tool", [FIRST, Text("x")])],
         [ASKED, Message.tool([FIRST, SECOND]), Message("tool", [Text("x")])]),
        ([USER, ASKED],
         [USER, ASKED, Message.tool([ToolResult("1", NO_RESULT, "pay", True), LOST])]),
        ([], []),
    ],
)  # fmt: skip
def test_each_call_has_its_result_and_each_result_its_call(before, after):
    assert whole(before) == after


def test_a_model_is_shown_an_imported_history_as_a_whole():
    lines = script("Done.")
    session = Agent(lines, "any").session(messages=[USER, ASKED, Message.tool([FIRST])])
    session.run("Go on")
    shown = lines.requests[0].messages
    assert [result.call_id for message in shown for result in message.tool_results] == ["1", "2"]
    assert len(session.messages) == 5  # what was imported stays as it was
