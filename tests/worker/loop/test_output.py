"""Answers with a schema: read, corrected once within the turn, and published in part while they come."""

import json
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journals import Journal

from antiphon.errors import InvalidOutput, ProviderRejected, StepLimitReached
from antiphon.events import OutputDelta, StepFinished, TextDelta
from antiphon.input.request import OutputSpec
from antiphon.input.schema import output_schema
from antiphon.model import Message, Usage
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.output import ExpectedOutput, OutputEvents
from antiphon_worker.loop.steps import StepEntry, encode_entry, messages_of, usage_of
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.base import ReasoningPiece, TextPiece
from antiphon_worker.providers.scripted import ScriptedProvider

SPEC = OutputSpec("Plan", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
FITS = {"n": 1}
FITS_NOT = {"n": "one"}


class Turn:
    def __init__(self, *answers, journal=(), tools=(), **options):
        self.lines = script(*answers)
        self.given = len(journal)
        self.journal, self.sink = Journal(journal), Journal()
        options.setdefault("output", SPEC)
        self.inp = LoopInput("any", new_messages=[Message.user("Plan")], tools=tools, **options)

    async def run(self):
        toolbox, context = ToolBox(), Context("session", "turn")
        provider = ScriptedProvider(self.lines)
        return await run_loop(provider, self.inp, toolbox, self.journal, self.sink, context)

    @property
    def added(self):
        return self.journal.entries[self.given :]

    def asked(self, call):
        return [(message.role, message.text) for message in self.lines.requests[call].messages]


@tool
async def look() -> str:
    return "seen"


async def test_an_answer_that_matches_is_one_step_without_a_journal():
    turn = Turn(FITS)
    result = await turn.run()
    assert (result.output, result.response().output, result.steps) == (FITS, FITS, 1)
    assert turn.added == []


async def test_an_answer_that_does_not_match_is_corrected_once_within_the_turn():
    turn = Turn(answer(FITS_NOT, usage=Usage(10, 1)), answer(FITS, usage=Usage(20, 2)))
    result = await turn.run()
    response = result.response()
    assert (response.output, response.text, response.usage) == (FITS, '{"n":1}', Usage(30, 3))
    assert [message.text for message in result.messages] == ['{"n":1}']
    assert turn.asked(1)[:2] == [("user", "Plan"), ("assistant", '{"n":"one"}')]
    role, request = turn.asked(1)[2]
    assert role == "user"
    assert "does not match Plan: expected integer - at `$.n`" in request


async def test_a_rejected_answer_says_so_in_the_journal_and_in_its_event():
    turn = Turn("no JSON", FITS)
    await turn.run()
    (entry,) = turn.added
    (event,) = turn.journal.events
    assert isinstance(entry, StepEntry)
    assert isinstance(event, StepFinished)
    assert event.rejected == entry.rejected
    assert entry.rejected.startswith("The answer is not JSON")
    assert [event.rejected for event in turn.sink.events if isinstance(event, StepFinished)] == [""]


async def test_a_turn_goes_on_behind_a_rejected_answer():
    first = Turn("no JSON", ProviderRejected("the worker dies here"))
    with pytest.raises(ProviderRejected):
        await first.run()
    second = Turn(FITS, journal=first.added)
    result = await second.run()
    assert [message.text for message in result.messages] == ['{"n":1}']
    assert len(second.lines.requests) == 1
    assert second.asked(0) == first.asked(1)
    assert result.steps == 2


async def test_a_correction_is_asked_for_once_also_over_several_attempts():
    first = Turn("no JSON", ProviderRejected("the worker dies here"))
    with pytest.raises(ProviderRejected):
        await first.run()
    with pytest.raises(InvalidOutput) as caught:
        await Turn("still none", journal=first.added).run()
    assert caught.value.raw == "still none"


async def test_a_second_answer_that_does_not_match_ends_the_turn_after_its_step():
    turn = Turn("no JSON", FITS_NOT)
    with pytest.raises(InvalidOutput) as caught:
        await turn.run()
    assert caught.value.raw == '{"n":"one"}'
    assert len(turn.added) == 1
    assert turn.sink.events[-1].type == "step_finished"


async def test_the_correction_does_not_count_as_one_of_the_steps():
    assert (await Turn("no JSON", FITS, max_steps=1).run()).output == FITS


async def test_a_correction_may_use_tools_and_leaves_them_in_the_result():
    turn = Turn(tool_call("look"), "no JSON", tool_call("look"), FITS, tools=[look])
    result = await turn.run()
    assert [message.role for message in result.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert [role for role, _ in turn.asked(3)][1:] == [
        "assistant", "tool", "assistant", "user", "assistant", "tool",
    ]  # fmt: skip
    assert result.output == FITS


async def test_an_answer_that_is_cut_off_in_a_tool_call_is_not_corrected():
    with pytest.raises(InvalidOutput):
        await Turn(answer("Let me", tool_call("look"), stop_reason="max_tokens"), tools=[look]).run()


async def test_a_turn_that_used_all_its_steps_has_an_answer_only_where_it_matches():
    fits = [json.dumps(FITS), tool_call("look")]
    result = await Turn(fits, tools=[look], max_steps=1).run()
    assert (result.output, result.stop_reason) == (FITS, "limit")
    with pytest.raises(StepLimitReached):
        await Turn(["Let me see", tool_call("look")], tools=[look], max_steps=1).run()


def test_a_cancelled_turn_keeps_nothing_of_a_rejected_answer_but_its_usage():
    entry = StepEntry(1, Message.assistant("no JSON"), Usage(3, 1), "end", None, "any", "it is none")
    assert messages_of([entry]) == []
    assert usage_of([entry]) == Usage(3, 1)


def test_the_journal_of_a_plain_step_is_what_it_was():
    entry = StepEntry(1, Message.assistant("Hi"), Usage(), "end", None, "any")
    assert b"rejected" not in encode_entry(entry)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (list[int], '{"value":[1]}', [1]),
        (list[int], "[1]", [1]),
        (int | None, '{"value":null}', None),
        (dict[str, int], '{"value":3}', {"value": 3}),
        ({"type": "object"}, '```json\n{"a":1}\n```', {"a": 1}),
    ],
)
def test_the_value_of_a_type_that_is_no_object_stands_for_itself(type_, text, value):
    assert ExpectedOutput(output_schema(type_)).read(text) == value


@pytest.mark.parametrize("text", ["", "Hello", "[" * 100_000, '{"a":' * 90 + "1" + "}" * 90, '{"a":1e999}'])
def test_what_cannot_be_read_or_stored_is_no_output(text):
    with pytest.raises(InvalidOutput) as caught:
        ExpectedOutput(OutputSpec("o", {"type": "object"})).read(text)
    assert caught.value.raw == text


def partial(spec, text, size=8):
    """The partial values that are published while a text comes in pieces of this size."""
    sink = Journal()
    events = OutputEvents(1, "p", sink, ExpectedOutput(spec))
    for at in range(0, len(text), size):
        events.append(TextPiece(text[at : at + size]))
    assert "".join(event.text for event in sink.events if isinstance(event, TextDelta)) == text
    return [event.output for event in sink.events if isinstance(event, OutputDelta)]


def test_partial_values_grow_towards_the_answer():
    plan = {"title": "A plan for the week", "steps": [f"step number {n}" for n in range(9)], "n": 12345}
    text = json.dumps(plan)
    found = partial(SPEC, text)
    assert len(found) > 4
    assert found[0] == {"title": "A plan for the week"[: len(found[0]["title"])]}
    for earlier, later in pairwise(found):
        assert len(json.dumps(earlier)) < len(json.dumps(later))
        whole = earlier.get("steps", [])[:-1]  # the last one may still grow
        assert whole == later.get("steps", [])[: len(whole)]
    assert found[-1]["title"] == plan["title"]


def test_partial_values_of_a_long_answer_take_a_small_multiple_of_its_length():
    text = json.dumps({"text": "word " * 20_000})
    found = partial(SPEC, text, size=5)
    assert sum(len(json.dumps(value)) for value in found) < 20 * len(text)
    assert len(found) < 200


@pytest.mark.parametrize("text", ["Hello " * 40, "x" * 400, '{"a":NaN, ' + '"b": "' + "b" * 80])
def test_text_that_is_no_json_has_no_partial_value(text):
    assert partial(SPEC, text) == []


def test_an_answer_that_is_nested_too_deeply_is_not_shown_beyond_the_limit():
    assert len(partial(SPEC, "[" * 4000)) < 3


def test_numbers_are_not_shown_before_they_are_whole():
    (found,) = partial(SPEC, '{"first": "abcdefghijklmnop", "n": 12', size=37)
    assert found == {"first": "abcdefghijklmnop"}


def test_a_wrapped_value_and_a_fenced_one_are_shown_as_the_value():
    items = json.dumps(["one two three", "four five six", "seven eight nine"])
    assert partial(output_schema(list[str]), f'{{"value":{items}}}')[-1][0] == "one two three"
    assert (
        partial(output_schema(list[str]), "```json\n" + f'{{"value":{items}}}\n```')[-1][0] == "one two three"
    )


def test_other_increments_are_no_part_of_the_output():
    sink = Journal()
    events = OutputEvents(1, "p", sink, ExpectedOutput(SPEC))
    events.append(ReasoningPiece('{"n": 1, "why": "because it is so and not otherwise", '))
    assert [event.type for event in sink.events] == ["reasoning_delta"]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
ANY_OBJECT = ExpectedOutput(OutputSpec("o", {"type": "object"}))


@given(ANY_JSON, st.floats(0, 1))
def test_the_beginning_of_any_answer_is_read_or_refused(value, share):
    text = json.dumps({"value": value})
    with suppress(ValueError):
        found = ANY_OBJECT.read_part(text[: int(len(text) * share)])
        assert msgspec.json.encode(OutputDelta(output=found))
