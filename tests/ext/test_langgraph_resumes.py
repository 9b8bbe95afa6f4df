"""A graph whose worker dies anywhere, between checkpoint and journal too, ends like one whose worker lives."""

from collections import Counter

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from support.journals import Crash, Journal

from antiphon.ext.langgraph import GraphRunner
from antiphon.model import Message
from antiphon.tools import Context
from antiphon_worker.loop.function import run_function
from antiphon_worker.loop.input import LoopInput
from antiphon_worker.loop.toolbox import ToolBox


class Machine(InMemorySaver):
    """A checkpointer with a journal, which outlive a worker."""

    def __init__(self, crash):
        super().__init__()
        self.journal = Journal(crash=crash)
        self.asked = Counter()

    async def aput(self, *args):
        self.journal.operation()
        kept = await super().aput(*args)
        self.journal.operation()
        return kept

    async def aput_writes(self, *args, **options):
        self.journal.operation()
        await super().aput_writes(*args, **options)
        self.journal.operation()


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
    journal = machine.journal
    runner = GraphRunner(graph_of(machine))
    while True:
        inp = LoopInput("any", new_messages=[Message.user("Go")])
        try:
            return machine, await run_function(runner, inp, ToolBox(), journal, journal, Context("s", "t"))
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
    assert machine.journal.operations > 20
    for crash in range(1, machine.journal.operations + 1):
        checked(*await played(crash))
