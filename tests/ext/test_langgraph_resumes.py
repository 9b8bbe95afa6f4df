"""A graph whose worker dies anywhere, between checkpoint and journal too, ends like one whose worker lives."""

from collections import Counter

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from antiphon.ext.langgraph import GraphRunner
from antiphon.model import Message
from antiphon.tools import Context
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.steps import decode_entry, encode_entry
from antiphon_worker.loop.toolbox import ToolBox, TurnStopped


class Crash(TurnStopped):
    """The worker dies here."""


class Machine(InMemorySaver):
    """A journal and a checkpointer, which outlive a worker. It dies at the operation with this number."""

    def __init__(self, crash):
        super().__init__()
        self.crash, self.operations, self.stored, self.asked = crash, 0, [], Counter()

    def operation(self):
        self.operations += 1
        if self.operations == self.crash:
            raise Crash

    async def aput(self, *args):
        self.operation()
        kept = await super().aput(*args)
        self.operation()
        return kept

    async def aput_writes(self, *args, **options):
        self.operation()
        await super().aput_writes(*args, **options)
        self.operation()

    @property
    def entries(self):
        return [decode_entry(data) for data in self.stored]

    async def append(self, entries, events):
        self.operation()
        self.stored += [encode_entry(entry) for entry in entries]
        self.operation()

    async def now(self):
        return 0

    async def checkpoint(self):
        self.operation()


class Sink:
    full = False

    def put(self, event):
        pass

    def text(self, step, text):
        pass

    async def drain(self):
        pass


def graph_of(machine):
    """Two calls, each answered by a node, and an answer. No two answers of a model are alike."""

    def ask(state):
        machine.asked[len(state["messages"])] += 1
        calls = [{"id": f"c{machine.asked.total()}-{n}", "name": "look", "args": {}} for n in (1, 2)]
        return {"messages": [AIMessage(f"Ask {machine.asked.total()}", tool_calls=calls)]}

    def look(state):
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(f"of {call['id']}", tool_call_id=call["id"]) for call in calls]}

    graph = StateGraph(MessagesState)
    graph.add_sequence([("ask1", ask), ("look1", look), ("ask2", ask), ("look2", look)])
    graph.add_node("end", lambda state: {"messages": [("assistant", "Done.")]})
    return graph.add_edge(START, "ask1").add_edge("look2", "end").compile(checkpointer=machine)


async def played(crash):
    machine = Machine(crash)
    runner = GraphRunner(graph_of(machine))
    while True:
        inp = LoopInput("any", new_messages=[Message.user("Go")])
        try:
            return machine, await run_function(runner, inp, ToolBox(), machine, Sink(), Context("s", "t"))
        except Crash:
            continue


def checked(machine, result):
    """Each call has the result that is its own."""
    assert [message.role for message in result.messages] == [
        "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    for said, results in (result.messages[:2], result.messages[2:4]):
        assert [one.text for one in results.tool_results] == [f"of {one.call_id}" for one in said.tool_calls]
    assert result.messages[-1].text == "Done."
    assert machine.asked.total() <= 2 + 1  # the answer whose node had not finished


async def test_a_crash_anywhere_breaks_no_pair():
    machine, result = await played(0)
    checked(machine, result)
    assert machine.operations > 20
    for crash in range(1, machine.operations + 1):
        checked(*await played(crash))
