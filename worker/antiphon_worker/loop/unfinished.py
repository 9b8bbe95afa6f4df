"""Determines what an unfinished turn leaves: in the history, in its own record, and for the session's next turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from antiphon.input.values import Keep
from antiphon.model import Decision, Message, Response, Text, ToolOutcome, Usage, encode
from antiphon_worker.loop.input import stamp
from antiphon_worker.loop.loop import LoopResult
from antiphon_worker.loop.steps import (
    JournalEntry,
    input_of,
    messages_of,
    steered_of,
    steps_of,
    usage_of,
    variables_of,
)
from antiphon_worker.loop.toolbox import shorten
from antiphon_worker.providers.stream.json_text import valid

MOST_CALLS = 20
CALL_CHARACTERS = 500
NOTE = (
    "Not part of this conversation: an earlier turn failed or was stopped, and its messages were left out. Its tools "
    "had been called, and what they did was not undone:"
)


class Unfinished:
    """A turn that failed or was cancelled: its input, its journal, and the text of the answer that it had begun.

    ``decisions`` are those of the last suspension, by call id. ``used`` is the turn's usage; default: the usage in
    its journal.
    """

    def __init__(
        self,
        question: list[Message],
        entries: Sequence[JournalEntry],
        text: str,
        decisions: Mapping[str, Decision] | None = None,
        used: Usage | None = None,
    ) -> None:
        self._question = input_of(entries, question)
        self._finished = messages_of(entries)
        self._said = [message for step in steps_of(entries) for message in step.closed(decisions or {})]
        self._said += steered_of(entries)
        if text:
            self._said.append(Message("assistant", [Text(valid(text))]))
        self.usage = used or usage_of(entries)
        self.variables = variables_of(entries)  # where a tool changed them

    def record(self, turn_id: str, session_id: str) -> Response | None:
        """Return the output, tool results and usage of the turn, or None if it has none."""
        if not self._said and not self.usage.tokens:
            return None
        copies = [msgspec.structs.replace(one) for one in (*self._question, *self._said)]
        asked = len(self._question)
        messages = stamp(copies[:asked], copies[asked:], turn_id, 0)[asked:]
        return LoopResult(messages, self.usage, "interrupted", None, None, 0).response(turn_id, session_id)

    def recorded(
        self, turn_id: str, session_id: str, kept: Sequence[Message], raw: str = "", limit: str = ""
    ) -> tuple[bytes, str]:
        """Return the turn's stored record (``raw``: its text), and ``untold`` if it has unreported calls, else ''."""
        record = self.record(turn_id, session_id)
        if raw:
            record = msgspec.structs.replace(record or Response(), text=raw)
        if limit:
            record = msgspec.structs.replace(record or Response(), limit=limit)
        return encode(record) if record else b"", "untold" if self.calls_beyond(kept) else ""

    def kept(self, keep: Keep) -> tuple[list[Message], list[Message]]:
        """Return the messages that stay in the history: those of the input, and those of the turn's output."""
        if keep == "nothing" or (keep == "steps" and not self._finished):
            return [], []
        asked, said = [*self._question], [*(self._said if keep == "partial" else self._finished)]
        if keep == "partial" and (last := said or asked):
            last[-1] = msgspec.structs.replace(last[-1], interrupted=True)
        return asked, said

    def calls_beyond(self, kept: Sequence[Message]) -> list[ToolOutcome]:
        """Return the tool calls that these messages do not contain."""
        return outcomes_of(self._said)[len(outcomes_of(kept)) :]


def outcomes_of(messages: Sequence[Message]) -> list[ToolOutcome]:
    """Return the tool calls of these messages with their results."""
    return LoopResult(list(messages), Usage(), "interrupted", None, None, 0).response().tool_calls


def note_of(calls: Sequence[ToolOutcome]) -> Message:
    """Return a message that reports tool calls absent from the history to the model."""
    lines = [_line(call) for call in calls[-MOST_CALLS:]]
    if len(calls) > MOST_CALLS:
        lines.insert(0, f"- {len(calls) - MOST_CALLS} earlier calls, which are left out here")
    return Message.system("\n".join([NOTE, *lines]))


def _line(call: ToolOutcome) -> str:
    arguments = shorten(msgspec.json.encode(call.arguments).decode(), CALL_CHARACTERS)
    what = "failed" if call.is_error else "returned"
    return f"- {call.name}({arguments}) {what}: {shorten(call.result or '', CALL_CHARACTERS)}"
