"""A turn that is broken off anywhere, and goes on from its journal, ends like one that never was."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.model import Message, ToolCall
from antiphon.tools import Context, tool
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import StepEntry, ToolFinished, decode_entry, encode_entry, messages_of
from antiphon_worker.loop.toolbox import ToolBox, TurnStopped
from antiphon_worker.providers.scripted import ScriptedProvider


class Crash(TurnStopped):
    """The worker dies here."""


class Machine:
    """What outlives a worker: the journal. Counts every operation, and dies at the chosen ones."""

    def __init__(self, crashes):
        self.crashes = list(crashes)
        self.operations = 0
        self.stored = []
        self.started = Counter()
        self.model_calls = Counter()

    def operation(self):
        self.operations += 1
        if self.crashes and self.operations >= self.crashes[0]:
            self.crashes.pop(0)
            self.operations = 0
            raise Crash

    def finished_calls(self):
        entries = [decode_entry(data) for data in self.stored]
        return {entry.result.call_id for entry in entries if isinstance(entry, ToolFinished)}

    def finished_steps(self):
        entries = [decode_entry(data) for data in self.stored]
        return {entry.step for entry in entries if isinstance(entry, StepEntry)}


class MachineJournal:
    def __init__(self, machine):
        self.machine = machine
        self.entries = [decode_entry(data) for data in machine.stored]

    async def append(self, entries, events):
        self.machine.operation()  # dies before it is stored
        self.machine.stored += [encode_entry(entry) for entry in entries]
        self.machine.operation()  # dies before it is told so

    async def now(self):
        return 0

    async def checkpoint(self):
        self.machine.operation()

    async def steered(self, step):
        return []


class MachineProvider(ScriptedProvider):
    def __init__(self, machine):
        super().__init__()
        self.machine = machine

    async def stream(self, request):
        step = 1 + sum(message.role == "assistant" for message in request.messages)
        assert step not in self.machine.finished_steps()
        self.machine.model_calls[step] += 1
        async for increment in super().stream(request):
            self.machine.operation()
            yield increment


class Unlimited:
    full = False

    def put(self, event):
        pass

    def text(self, step, text):
        pass

    async def drain(self):
        pass


def tools_of(machine):
    def begin(context):
        assert context.call_id not in machine.finished_calls()
        machine.started[context.call_id] += 1
        machine.operation()

    @tool
    async def plain(n: int, context: Context) -> str:
        begin(context)
        await asyncio.sleep(0)
        return f"plain {n}"

    @tool(at_most_once=True)
    async def once(n: int, context: Context) -> str:
        begin(context)
        return f"once {n}"

    @tool
    async def failing(n: int, context: Context) -> str:
        begin(context)
        raise ValueError(n)

    return [plain, once, failing]


def played(steps, machine):
    """Attempts follow each other until one ends the turn."""
    said = [
        [{"type": "text", "text": f"step {number}"}]
        + [
            {"type": "tool_call", "call_id": "", "name": name, "arguments": {"n": n}}
            for n, name in enumerate(names)
        ]
        for number, names in enumerate(steps)
    ]
    tools = tools_of(machine)
    inp = LoopInput(
        "any", new_messages=[Message.user("Go")], tools=tools, params={"script": [*said, "The end"]}
    )
    with asyncio.Runner() as runner:
        while True:
            work = run_loop(
                MachineProvider(machine),
                inp,
                ToolBox(),
                MachineJournal(machine),
                Unlimited(),
                Context("s", "t"),
            )
            try:
                return runner.run(work)
            except Crash:
                assert_whole(messages_of(decode_entry(data) for data in machine.stored))


def assert_whole(messages):
    """No tool call without its result, and no result without its call."""
    for index, message in enumerate(messages):
        calls = [call.call_id for call in message.tool_calls]
        following = messages[index + 1] if index + 1 < len(messages) else None
        if calls:
            assert following is not None
            assert [result.call_id for result in following.tool_results] == calls
        if message.role == "tool":
            assert messages[index - 1].tool_calls


NAMES = st.sampled_from(["plain", "once", "failing", "unknown"])
STEPS = st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=3)
CRASHES = st.lists(st.integers(1, 25), max_size=5)


@settings(max_examples=60, deadline=None)
@given(STEPS, CRASHES)
def test_a_turn_that_was_broken_off_ends_like_one_that_was_not(steps, crashes):
    undisturbed = played(steps, Machine([]))
    machine = Machine(crashes)
    result = played(steps, machine)
    assert_whole(result.messages)
    once = {call.call_id for m in result.messages for call in m.tool_calls if call.name == "once"}
    assert all(machine.started[call_id] <= 1 for call_id in once)
    for message, expected in zip(result.messages, undisturbed.messages, strict=True):
        for part, expected_part in zip(message.parts, expected.parts, strict=True):
            if getattr(part, "content", None) == UNKNOWN_WHETHER_RUN:
                assert part.call_id in once
                assert part.is_error
            else:
                assert part == expected_part
    assert result.usage.output_tokens == undisturbed.usage.output_tokens
    assert result.stop_reason == undisturbed.stop_reason


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60))
def test_at_whatever_operation_it_breaks_off_nothing_finished_is_done_again(crash):
    machine = Machine([crash])
    result = played([["plain", "once"], ["failing", "once", "plain"]], machine)
    assert [type(part) for part in result.messages[0].parts][1:] == [ToolCall, ToolCall]
    assert sum(machine.model_calls.values()) <= 4
