"""A turn that is broken off anywhere, and goes on from its journal, ends like one that never was."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from support.journals import Crash, Journal

from antiphon.model import Message, ToolCall
from antiphon.tools import Context, tool
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import run_loop
from antiphon_worker.loop.step_calls import UNKNOWN_WHETHER_RUN
from antiphon_worker.loop.steps import StepEntry, ToolFinished, messages_of
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.scripted import ScriptedProvider


class Machine(Journal):
    """What outlives a worker. Counts every operation, and dies at the chosen ones."""

    def __init__(self, crashes):
        super().__init__()
        self.crashes = list(crashes)
        self.started = Counter()
        self.model_calls = Counter()

    def operation(self):
        self.operations += 1
        if self.crashes and self.operations >= self.crashes[0]:
            self.crashes.pop(0)
            self.operations = 0
            raise Crash

    def finished_calls(self):
        return {entry.result.call_id for entry in self.entries if isinstance(entry, ToolFinished)}

    def finished_steps(self):
        return {entry.step for entry in self.entries if isinstance(entry, StepEntry)}


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
            context = Context("s", "t")
            work = run_loop(MachineProvider(machine), inp, ToolBox(), machine, machine, context)
            try:
                return runner.run(work)
            except Crash:
                assert_whole(messages_of(machine.entries))


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
