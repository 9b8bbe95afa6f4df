"""A turn of a function that is broken off anywhere, and goes on from its journal, ends like one that never was."""

import asyncio
from collections import Counter

import pytest
from support.journals import Crash, Journal

from antiphon.ext.turns import ModelAnswer, TurnFunction
from antiphon.model import Message, Text, ToolCall
from antiphon.tools import Context
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import StepEntry, ToolFinished
from antiphon_worker.loop.toolbox import ToolBox

STEPS = [["a", "b"], [], ["c"], []]


class Machine(Journal):
    """What outlives a worker."""

    def __init__(self, crash):
        super().__init__(crash=crash)
        self.ran = Counter()


async def loop_of(turn, machine):
    for number, names in enumerate(STEPS, 1):

        async def ask(number=number, names=names):
            assert number not in {entry.step for entry in machine.entries if isinstance(entry, StepEntry)}
            machine.operation()
            calls = [ToolCall(f"{number}{name}", name) for name in names]
            return ModelAnswer(Message.assistant([Text(f"step {number}"), *calls]))

        async def tool(context):
            known = {entry.result.call_id for entry in machine.entries if isinstance(entry, ToolFinished)}
            assert context.call_id not in known
            machine.ran[context.call_id] += 1
            machine.operation()
            context.variables[context.call_id] = True
            return f"result {context.call_id}"

        said = await turn.model_call(ask)
        await asyncio.gather(*(turn.tool_call(call.call_id, tool) for call in said.message.tool_calls))


def played(crash):
    machine = Machine(crash)
    function = TurnFunction(lambda turn: loop_of(turn, machine))
    with asyncio.Runner() as runner:
        while True:
            context = Context("s", "t")
            inp = LoopInput("any", new_messages=[Message.user("Go")])
            try:
                result = runner.run(run_function(function, inp, ToolBox(), machine, machine, context))
            except Crash:
                continue
            return machine, result, context.variables


def said_by(result):
    return [
        (message.role, message.text, [one.text for one in message.tool_results])
        for message in result.messages
    ]


WHOLE, EXPECTED, VARIABLES = played(crash=0)


@pytest.mark.parametrize("crash", range(1, WHOLE.operations + 1))
def test_a_crash_changes_nothing(crash):
    machine, result, variables = played(crash)
    assert machine.operations >= WHOLE.operations
    assert said_by(result) == said_by(EXPECTED)
    assert variables == VARIABLES == {"1a": True, "1b": True, "3c": True}
    assert sum(machine.ran.values()) <= 3 + 2  # the calls that were running


def test_the_last_step_is_not_written():
    assert [entry.step for entry in WHOLE.entries if isinstance(entry, StepEntry)] == [1, 2, 3]
    assert EXPECTED.steps == 4
