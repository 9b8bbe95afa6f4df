"""Deferred tools of pydantic-ai on workers that die: a turn waits, and does nothing twice that it has done."""

from collections import Counter

import pytest
from pydantic_ai import Agent, CallDeferred
from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from support.eventually import wait_until
from support.journals import Crash, Journal

from antiphon import Client
from antiphon.ext.pydantic_ai import PydanticAIRunner
from antiphon.model import Decision, Message
from antiphon.tools import Context
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.loop import Suspended
from antiphon_worker.loop.toolbox import ToolBox

STEPS = [
    [
        ToolCallPart("pay", {"euros": 1}, "c1"),
        ToolCallPart("start", {}, "c2"),
        ToolCallPart("look", {}, "c3"),
    ],
    [ToolCallPart("pay", {"euros": 2}, "c4"), ToolCallPart("pay", {"euros": 3}, "c5")],
    [TextPart("Done.")],
]


class Machine(Journal):
    """What outlives a worker."""

    def __init__(self, crash):
        super().__init__(crash=crash)
        self.did = Counter()


def agent_of(machine):
    async def answer(messages, info):
        number = sum(message.kind == "response" for message in messages)
        machine.did["model", number] += 1
        for index, part in enumerate(STEPS[number]):
            if isinstance(part, TextPart):
                yield part.content
            else:
                call = DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                yield {index: call}

    agent = Agent(FunctionModel(stream_function=answer))

    @agent.tool_plain(requires_approval=True)
    def pay(euros: int) -> str:
        machine.did["pay", euros] += 1
        return f"paid {euros}"

    @agent.tool_plain
    def start() -> str:
        machine.did["start"] += 1
        raise CallDeferred

    @agent.tool_plain
    def look() -> str:
        machine.did["look"] += 1
        return "seen"

    return agent


def decided(call):
    if call.kind == "tool":
        return Decision(call.call_id, "result", content="started")
    if call.arguments == {"euros": 2}:
        return Decision(call.call_id, "reject", reason="No.")
    return Decision(call.call_id, "approve", "ada")


async def played(crash):
    machine, decisions, waits = Machine(crash), {}, []
    runner = PydanticAIRunner(agent_of(machine))
    while True:
        inp = LoopInput("any", new_messages=[Message.user("Go")])
        try:
            end = await run_function(runner, inp, ToolBox(), machine, machine, Context("s", "t"), decisions)
        except Crash:
            continue
        if not isinstance(end, Suspended):
            return machine, waits, end
        waits.append(sorted(call.call_id for call in end.calls))
        decisions = {call.call_id: decided(call) for call in end.calls}  # those of this suspension alone


def checked(machine, waits, end):
    assert [message.role for message in end.messages] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    results = {one.call_id: one.text for message in end.messages for one in message.tool_results}
    assert "the call was rejected: No." in results.pop("c4")
    assert results == {"c1": "paid 1", "c2": "started", "c3": "seen", "c5": "paid 3"}
    assert waits == [["c1", "c2"], ["c4", "c5"]]
    assert end.messages[-1].text == "Done."
    assert ("pay", 2) not in machine.did
    assert machine.did.total() <= 3 + 4 + 2, "only what had no result when the worker died: two calls at most"


async def test_a_crash_anywhere_loses_no_decision_and_repeats_no_finished_call():
    machine, *rest = await played(0)
    checked(machine, *rest)
    assert machine.operations > 15
    for crash in range(1, machine.operations + 1):
        checked(*await played(crash))


APP = """
import os

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from antiphon import Agent
from antiphon.ext.pydantic_ai import PydanticAIRunner
from antiphon_worker import App

theirs = PydanticAgent(TestModel(custom_output_text="Paid."))


@theirs.tool_plain(requires_approval=True)
def pay(euros: int) -> str:
    with open(os.environ["PAID"], "a") as file:
        print(euros, file=file)
    return "paid"


till = Agent(provider="till", model="any", name="till")
app = App(agents=[till], providers={"till": PydanticAIRunner(theirs)})
"""


@pytest.mark.one_server
def test_a_waiting_turn_outlives_its_workers(processes, redis_url, tmp_path):
    (tmp_path / "app.py").write_text(APP)
    flags = ("--app", "app:app", "--processes", "1")
    env = {"PYTHONPATH": str(tmp_path), "PAID": str(tmp_path / "paid")}
    worker = processes.worker(redis_url, *flags, env=env)
    with Client(redis_url) as client:
        turn = client.submit("s", "Pay", agent="till")
        wait_until(lambda: turn.status() == "suspended", 60, "the turn waits")
        worker.kill()
        (call,) = turn.info().calls
        assert (call.name, call.kind) == ("pay", "approval")
        turn.approve(call.call_id, by="ada", arguments={"euros": 7})
        processes.worker(redis_url, *flags, env=env)
        assert turn.result(60).text == "Paid."
        assert (tmp_path / "paid").read_text() == "7\n"
        assert turn.info().decisions[0].by == "ada"
