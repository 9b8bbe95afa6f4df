"""examples/refund.py: a tool that waits for a person, a time and an event, killed at each of its writes."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections import Counter
from itertools import count

import pytest
from support.crashing_turn import Turn
from support.journals import Crash
from support.source_tree import ROOT

from antiphon.testing import script, tool_call
from antiphon_worker.loop import durable

EXAMPLE = ROOT / "examples" / "refund.py"
PAID = "transfer-reservation-4711"
CALL = tool_call("refund", order="4711", amount=30)


@pytest.fixture
def example():
    """What the example defines, with steps that count their runs."""
    found = runpy.run_path(str(EXAMPLE))
    ran = found["ran"] = Counter()
    known = found["refund"].function.__globals__
    for name in ("reserve", "transfer", "release"):
        known[name] = _counted(ran, name, known[name])
    return found


def test_the_example_runs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "waits for a person: refund {'order': '4711', 'amount': 30}",
        "has done: reserve",
        "waits without a worker: sleep",
        "has done: transfer",
        f"waits without a worker: event {PAID}",
        "30 € were refunded. Receipt: R-1.",
    ]


@pytest.mark.parametrize("crash_at", range(2, 26))  # the model has answered
async def test_a_refund_is_killed_at_any_write_and_pays_once(example, crash_at):
    turn = Turn(example["refund"], lines=script(CALL, "Done."), crash_at=crash_at)
    turn.sent = {PAID: {"receipt": "R-1"}}
    found = await turn.run()
    [result] = [result.text for message in found.messages for result in message.tool_results]
    ran = example["ran"]
    assert ran["transfer"] <= 1, "money is never paid twice"
    if "unknown whether step 'transfer' ran" not in result:
        assert (ran["transfer"], result) == (1, "30 € were refunded. Receipt: R-1.")
    assert ran["reserve"] <= 2
    assert ran["release"] == 0
    assert Counter(turn.recorded()).most_common(1)[0][1] == 1, (
        "the journal has one result of each step and wait"
    )
    assert found.messages[1].decisions[0].by == "ada"


async def test_without_an_answer_of_the_bank_the_refund_is_undone(example):
    turn = Turn(example["refund"], lines=script(CALL, "Done."))
    found = await turn.run()
    [result] = [result.text for message in found.messages for result in message.tool_results]
    assert result == "The bank did not answer: the refund was undone."
    assert example["ran"] == {"reserve": 1, "transfer": 1, "release": 1}


class KilledAtLine:
    """Kills the worker at the line with this number, of those of the tool and of what runs its steps and waits."""

    def __init__(self, number, function):
        self.left, self.function = number, function
        self.at = ""

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _called(self, frame, event, argument):
        code = frame.f_code
        return self._line if code is self.function.__code__ or code.co_filename == durable.__file__ else None

    def _line(self, frame, event, argument):
        if event == "line" and not self.at:
            self.left -= 1
            if self.left == 0:
                self.at = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise Crash
        return self._line


async def test_a_refund_is_killed_at_every_line_and_pays_once():
    """One run for each line that is executed, in the order of their execution, until a run is not killed any more."""
    killed = set()
    for number in count(1):
        found = runpy.run_path(str(EXAMPLE))
        ran, known = Counter(), found["refund"].function.__globals__
        for name in ("reserve", "transfer", "release"):
            known[name] = _counted(ran, name, known[name])
        turn = Turn(found["refund"], lines=script(CALL, "Done."))
        turn.sent = {PAID: {"receipt": "R-1"}}
        with KilledAtLine(number, found["refund"].function) as death:
            ended = await turn.run()
        [result] = [result.text for message in ended.messages for result in message.tool_results]
        assert ran["transfer"] <= 1, death.at
        if "unknown whether step 'transfer' ran" not in result:
            assert (ran["transfer"], result) == (1, "30 € were refunded. Receipt: R-1."), death.at
        assert ran["release"] == 0, death.at
        assert max(Counter(turn.recorded()).values()) == 1, death.at
        if not death.at:
            break
        killed.add(death.at)
    assert (
        len([at for at in killed if at.startswith("refund:")]) >= 6
    )  # all but those for a bank that is silent
    assert len(killed) > 50


def _counted(ran, name, run):
    def counted(*arguments):
        ran[name] += 1
        return run(*arguments)

    return counted
