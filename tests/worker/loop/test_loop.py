"""The agent loop, on plain lists."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from support.journals import Journal

from antiphon.errors import (
    CorruptRecord,
    ProviderOverloaded,
    ProviderStreamBroken,
    StepLimitReached,
)
from antiphon.events import (
    ItemEvent,
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolResultEvent,
)
from antiphon.input.request import OutputSpec
from antiphon.input.values import now_ms
from antiphon.model import Item, Message, Reasoning, Refusal, Text, ToolCall, ToolResult, Usage
from antiphon.testing import answer, script, tool_call
from antiphon.tools import Context, tool
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import (
    StepEntry,
    ToolFinished,
    ToolStarted,
    decode_entry,
    encode_entry,
    messages_of,
    usage_of,
)
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.base import StepResult, TextPiece
from antiphon_worker.providers.scripted import ScriptedProvider


class MemoryJournal(Journal):
    """A journal that keeps what was appended together, to look at."""

    def __init__(self, entries=()):
        super().__init__(entries)
        self.appends = []
        self.checkpoints = 0

    async def append(self, entries, events):
        self.appends.append((list(entries), list(events)))
        await super().append(entries, events)

    async def checkpoint(self):
        self.checkpoints += 1


class MemorySink(Journal):
    def __init__(self):
        super().__init__()
        self.drained = 0

    def put(self, event):
        assert not self.full
        super().put(event)

    async def drain(self):
        self.drained += 1
        self.full = False


@dataclass
class Played:
    """One run of the loop and everything it left behind."""

    lines: object
    tools: list = field(default_factory=list)
    entries: list = field(default_factory=list)
    options: dict = field(default_factory=dict)

    async def run(self):
        self.journal = MemoryJournal(self.entries)
        self.sink = MemorySink()
        inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=self.tools, **self.options)
        return await run_loop(
            ScriptedProvider(self.lines),
            inp,
            ToolBox(),
            self.journal,
            self.sink,
            Context("session", "turn"),
        )


@tool
async def look(at: str) -> str:
    return f"{at} is there"


@tool
def fail(at: str) -> str:
    raise LookupError(f"no {at}")


async def test_a_plain_text_turn_never_touches_the_journal():
    played = Played(script(answer("Hello there", usage=Usage(3, 2))))
    result = await played.run()
    assert played.journal.appends == []
    assert [event.to_dict() for event in played.sink.events] == [
        TextDelta(step=1, text="Hello ").to_dict(),
        TextDelta(step=1, text="there").to_dict(),
        StepFinished(step=1, usage=Usage(3, 2), stop_reason="end", model="any").to_dict(),
    ]
    assert [message.text for message in result.messages] == ["Hello there"]
    assert (result.usage, result.stop_reason, result.model) == (Usage(3, 2), "end", "any")


async def test_a_step_with_tools_is_journalled_before_they_start_and_each_result_when_it_is_there():
    played = Played(
        script([tool_call("look", at="Rome"), tool_call("fail", at="Oslo")], "Done"), [look, fail]
    )
    result = await played.run()
    (first, first_events), *others = played.journal.appends
    assert [type(entry) for entry in first] == [StepEntry]
    assert [type(event) for event in first_events] == [StepFinished, ToolCallEvent, ToolCallEvent]
    finished = [entry for entries, _ in others for entry in entries]
    assert {entry.result.call_id for entry in finished} == {"call_1", "call_2"}
    results = [event for _, events in others for event in events]
    assert {type(event) for event in results} == {ToolResultEvent}
    assert [message.role for message in result.messages] == ["assistant", "tool", "assistant"]
    assert result.messages[1].parts == [
        ToolResult("call_1", "Rome is there", "look"),
        ToolResult("call_2", "LookupError: no Oslo", "fail", True),
    ]
    assert all(event.step == 1 for event in first_events + results)


async def test_results_that_are_there_together_are_journalled_together():
    played = Played(script([tool_call("look", at=at) for at in "abc"], "Done"), [look])
    await played.run()
    assert [len(entries) for entries, _ in played.journal.appends] == [1, 3]


async def test_calls_run_side_by_side_and_results_stand_in_the_order_of_the_calls():
    second_is_done = asyncio.Event()

    @tool
    async def first() -> str:
        await second_is_done.wait()
        return "first"

    @tool
    async def second() -> str:
        second_is_done.set()
        return "second"

    played = Played(script([tool_call("first"), tool_call("second")], "Done"), [first, second])
    result = await played.run()
    assert [part.text for part in result.messages[1].parts] == ["first", "second"]


async def test_the_model_is_sent_history_input_and_the_steps_so_far():
    lines = script(tool_call("look", at="Rome"), "{}")
    history = [Message.user("Hi"), Message.assistant("Hello")]
    spec = OutputSpec("answer", {"type": "object"}, strict=False)
    options = {"history": history, "system": "Be brief.", "params": {"temperature": 0}, "output": spec}
    result = await Played(lines, [look], options=options).run()
    first, second = lines.requests
    assert first.messages == [*history, Message.user("Hello")]
    assert second.messages == [*first.messages, *result.messages[:2]]
    assert (first.system, first.params, first.output.name) == ("Be brief.", {"temperature": 0}, "answer")
    assert [spec.name for spec in first.tools] == ["look"]


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", None),
        ("look", None),
        ({"type": "function", "name": "look"}, None),
        ("auto", "auto"),
        ("none", "none"),
    ],
)
async def test_a_choice_that_forces_a_call_holds_for_the_first_model_call(choice, later):
    lines = script(tool_call("look", at="a"), tool_call("look", at="b"), "Done")
    await Played(lines, [look], options={"params": {"tool_choice": choice, "temperature": 0}}).run()
    assert [one.params.get("tool_choice") for one in lines.requests] == [choice, later, later]
    assert {one.params["temperature"] for one in lines.requests} == {0}


async def test_usage_is_summed_over_the_steps():
    lines = script(answer(tool_call("look", at="a"), usage=Usage(10, 1)), answer("b", usage=Usage(20, 2)))
    result = await Played(lines, [look]).run()
    assert result.usage == Usage(30, 3)


async def test_every_kind_of_piece_becomes_its_event():
    parts = [
        Reasoning("hm"),
        "text",
        Refusal("no"),
        Item("scripted", {"search": 1}),
        tool_call("look", at="a"),
    ]
    played = Played(script(parts, "Done"), [look])
    await played.run()
    kinds = [type(event) for event in played.sink.events]
    assert kinds[:6] == [ReasoningDelta, TextDelta, RefusalDelta, ItemEvent, ToolCallDelta, ToolCallDelta]


async def test_a_full_sink_holds_the_stream_back():
    played = Played(script("one two three"))

    class Narrow(MemorySink):
        def put(self, event):
            super().put(event)
            self.full = True

    played.journal, sink = MemoryJournal(), Narrow()
    inp = LoopInput("any", new_messages=[Message.user("Hello")])
    await run_loop(ScriptedProvider(played.lines), inp, ToolBox(), played.journal, sink, Context())
    assert sink.drained == 3


async def test_checkpoints_stand_before_each_model_call_and_before_tools_start():
    played = Played(script(tool_call("look", at="a"), tool_call("look", at="b"), "Done"), [look])
    await played.run()
    assert played.journal.checkpoints == 5


async def test_a_stop_signal_at_a_checkpoint_passes_through_and_no_tool_has_started():
    ran = []

    @tool
    def note() -> None:
        ran.append(1)

    class Stop(BaseException):
        pass

    class Stopping(MemoryJournal):
        async def now(self):
            return 0

        async def checkpoint(self):
            await super().checkpoint()
            if self.checkpoints == 2:
                raise Stop

    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=[note])
    provider = ScriptedProvider(script(tool_call("note"), "Done"))
    with pytest.raises(Stop):
        await run_loop(provider, inp, ToolBox(), Stopping(), MemorySink(), Context())
    assert ran == []


async def test_when_the_journal_refuses_the_tools_that_still_run_are_stopped():
    stopped = asyncio.Event()

    @tool
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    class Refusing(MemoryJournal):
        async def append(self, entries, events):
            if isinstance(entries[0], ToolFinished):
                raise ProviderOverloaded("anything")
            await super().append(entries, events)

    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=[look, hang])
    provider = ScriptedProvider(script([tool_call("hang"), tool_call("look", at="a")], "Done"))
    with pytest.raises(ProviderOverloaded):
        await run_loop(provider, inp, ToolBox(), Refusing(), MemorySink(), Context())
    assert stopped.is_set()


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "content_filter", "stop_sequence"])
async def test_calls_of_an_answer_that_was_cut_off_are_not_run_and_have_results(reason):
    said = answer("Let me", tool_call("look", at="a"), stop_reason=reason, raw_stop_reason="theirs")
    played = Played(script(said), [look])
    result = await played.run()
    assert (result.stop_reason, result.raw_stop_reason) == (reason, "theirs")
    assert [message.role for message in result.messages] == ["assistant", "tool"]
    (told,) = result.messages[1].parts
    assert told.is_error
    assert reason in told.text
    assert played.journal.appends == []
    assert [type(e) for e in played.sink.events[-3:]] == [StepFinished, ToolCallEvent, ToolResultEvent]


async def test_servers_that_say_end_with_tool_calls_get_them_run():
    result = await Played(script(answer(tool_call("look", at="a"), stop_reason="end"), "Done"), [look]).run()
    assert result.messages[-1].text == "Done"


async def test_at_the_step_limit_an_answer_with_text_is_the_result():
    said = ["Still looking.", tool_call("look", at="a")]
    result = await Played(script(said, repeat=True), [look], options={"max_steps": 3}).run()
    assert result.stop_reason == "limit"
    assert [message.role for message in result.messages] == ["assistant", "tool"] * 3
    assert [message.parts[0].is_error for message in result.messages[1::2]] == [False, False, True]


async def test_at_the_step_limit_a_turn_without_text_fails_and_names_the_limit():
    lines = script(tool_call("look", at="a"), repeat=True)
    with pytest.raises(StepLimitReached, match="2 steps"):
        await Played(lines, [look], options={"max_steps": 2}).run()
    assert len(lines.requests) == 2


async def test_the_providers_own_unfinished_tools_lead_to_another_call():
    search = Item("scripted", {"type": "server_tool_use"})
    lines = script(answer("Searching.", search, stop_reason="tool_use"), "Found")
    played = Played(lines)
    result = await played.run()
    assert [message.text for message in result.messages] == ["Searching.", "Found"]
    assert [type(entry) for entry in played.journal.entries] == [StepEntry]


async def test_tool_use_without_any_call_ends_the_turn():
    result = await Played(script(answer("Hm.", stop_reason="tool_use"))).run()
    assert [message.text for message in result.messages] == ["Hm."]


async def test_calls_with_the_same_id_or_none_are_told_apart():
    calls = [ToolCall(call_id, "look", {"at": at}) for call_id, at in (("x", "a"), ("x", "b"), ("x_2", "c"))]
    result = await Played(script(calls, "Done"), [look]).run()
    ids = [call.call_id for call in result.messages[0].tool_calls]
    assert len(set(ids)) == 3
    assert [part.call_id for part in result.messages[1].parts] == ids
    assert [part.text[0] for part in result.messages[1].parts] == ["a", "b", "c"]


async def test_a_tool_that_is_not_offered_cannot_be_called():
    lines = script(tool_call("fail", at="a"), "Done")
    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=[look])
    box = ToolBox([look, fail])
    result = await run_loop(ScriptedProvider(lines), inp, box, MemoryJournal(), MemorySink(), Context())
    assert "look" in result.messages[1].parts[0].text
    assert "no tool named 'fail'" in result.messages[1].parts[0].text


async def test_a_provider_that_ends_without_a_result_is_a_broken_stream():
    class Ending(ScriptedProvider):
        async def stream(self, request):
            yield TextPiece("Hello")

    inp = LoopInput("any", new_messages=[Message.user("Hello")])
    with pytest.raises(ProviderStreamBroken):
        await run_loop(Ending(), inp, ToolBox(), MemoryJournal(), MemorySink(), Context())


async def test_the_stream_is_closed_when_the_turn_is_cancelled():
    closed, begun = asyncio.Event(), asyncio.Event()

    class Waiting(ScriptedProvider):
        async def stream(self, request):
            try:
                yield TextPiece("Hello")
                begun.set()
                await asyncio.Event().wait()
                yield StepResult(Message.assistant("Hello"), Usage(), "end", None, "any")
            finally:
                closed.set()

    inp = LoopInput("any", new_messages=[Message.user("Hello")])
    work = run_loop(Waiting(), inp, ToolBox(), MemoryJournal(), MemorySink(), Context())
    task = asyncio.create_task(work)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


STEP = StepEntry(
    1,
    Message("assistant", [ToolCall("c1", "look", {"at": "a"}), ToolCall("c2", "look", {"at": "b"})]),
    Usage(5, 5),
    "tool_use",
    "tool_use",
    "any",
)
FIRST = ToolFinished(1, ToolResult("c1", "kept from before", "look"))


async def test_a_turn_goes_on_with_the_calls_that_have_no_result():
    lines = script(answer("Done", usage=Usage(1, 1)))
    played = Played(lines, [look], [STEP, FIRST])
    result = await played.run()
    assert [part.text for part in result.messages[1].parts] == ["kept from before", "b is there"]
    assert len(lines.requests) == 1
    assert result.usage == Usage(6, 6)
    assert not any(
        isinstance(event, ToolCallEvent) for _, events in played.journal.appends for event in events
    )


async def test_what_a_former_attempt_brought_keeps_its_time():
    second = StepEntry(
        2, Message.assistant([ToolCall("c3", "look", {"at": "c"})]), Usage(), "tool_use", None, "any"
    )
    step = msgspec.structs.replace(STEP, message=msgspec.structs.replace(STEP.message, created=1))
    results = [msgspec.structs.replace(FIRST, created=3), ToolFinished(1, ToolResult("c2", "b"), created=4)]
    before = now_ms()
    played = Played(script("Done"), [look], [step, *results, second])
    result = await played.run()
    times = [message.created for message in result.messages]
    assert times[:3] == [1, 4, None], "an older release wrote the second step"
    assert before <= times[3] <= times[4]
    assert played.journal.appends[0][0][0].created == times[3]


async def test_a_call_of_an_at_most_once_tool_is_announced_before_it_starts():
    journal = MemoryJournal()

    @tool(at_most_once=True)
    def pay() -> str:
        assert ToolStarted(1, "call_1") in journal.entries
        return "paid"

    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=[pay, look])
    lines = script([tool_call("pay"), tool_call("look", at="a")], "Done")
    result = await run_loop(ScriptedProvider(lines), inp, ToolBox(), journal, MemorySink(), Context())
    assert [part.text for part in result.messages[1].parts] == ["paid", "a is there"]
    assert journal.appends[1] == ([ToolStarted(1, "call_1")], [])


async def test_a_started_at_most_once_call_is_not_started_again():
    ran = []

    @tool(at_most_once=True)
    def look(at: str) -> str:
        ran.append(at)
        return "again"

    played = Played(script("Done"), [look], [STEP, ToolStarted(1, "c1")])
    result = await played.run()
    assert ran == ["b"]
    assert [part.text for part in result.messages[1].parts] == [UNKNOWN_WHETHER_RUN, "again"]
    assert [part.is_error for part in result.messages[1].parts] == [True, False]


async def test_a_started_call_stays_unknown_when_the_tool_is_offered_no_more():
    result = await Played(script("Done"), [], [STEP, FIRST, ToolStarted(1, "c2")]).run()
    assert result.messages[1].parts[1].text == UNKNOWN_WHETHER_RUN


async def test_a_step_limit_that_is_already_used_up_does_not_call_the_model():
    entry = msgspec.structs.replace(
        STEP, message=Message("assistant", [Text("So far."), *STEP.message.parts])
    )
    played = Played(script(), [look], [entry, ToolStarted(1, "c2")], {"max_steps": 1})
    result = await played.run()
    assert result.stop_reason == "limit"
    assert result.messages[1].parts[1].text == UNKNOWN_WHETHER_RUN
    assert all(part.is_error for part in result.messages[1].parts)


def test_only_whole_steps_of_a_journal_are_history():
    second = msgspec.structs.replace(STEP, step=2)
    entries = [STEP, FIRST, ToolFinished(1, ToolResult("c2", "b", "look")), second, ToolStarted(2, "c1")]
    assert [message.role for message in messages_of(entries)] == ["assistant", "tool"]
    assert messages_of(entries)[1].parts[0] == FIRST.result
    assert messages_of([STEP, FIRST]) == []
    assert usage_of(entries) == Usage(10, 10)


@pytest.mark.parametrize("entry", [STEP, FIRST, ToolStarted(3, "c1")])
def test_a_journal_entry_survives_being_written_and_read(entry):
    assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize("data", [b"", b"{", b'{"type":"other"}', b'{"type":"step","step":1}', b"\xff"])
def test_a_damaged_journal_entry_is_a_corrupt_record(data):
    with pytest.raises(CorruptRecord):
        decode_entry(data)


async def test_a_result_without_its_step_is_a_corrupt_record():
    with pytest.raises(CorruptRecord, match="step 1"):
        await Played(script("Done"), [look], [FIRST]).run()


async def test_the_response_of_a_turn_joins_calls_and_results():
    result = await Played(script(tool_call("look", at="Rome"), "Done"), [look]).run()
    response = result.response("turn", "session")
    assert (response.text, response.turn_id, response.session_id) == ("Done", "turn", "session")
    (outcome,) = response.tool_calls
    assert (outcome.name, outcome.arguments, outcome.result) == ("look", {"at": "Rome"}, "Rome is there")


async def test_tools_share_the_variables_and_know_their_call():
    context = Context("session", "turn", variables={"count": 1})

    @tool
    def count(at: Context) -> str:
        at.variables["count"] += 1
        return f"{at.session_id} {at.turn_id} {at.call_id}"

    inp = LoopInput("any", new_messages=[Message.user("Hello")], tools=[count])
    provider = ScriptedProvider(script([tool_call("count"), tool_call("count")], "Done"))
    result = await run_loop(provider, inp, ToolBox(), MemoryJournal(), MemorySink(), context)
    assert context.variables == {"count": 3}
    assert [p.text for p in result.messages[1].parts] == ["session turn call_1", "session turn call_2"]
