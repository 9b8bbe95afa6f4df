"""An App whose turns are trees: the root calls two agents, each of these two others, and each of these two leaves."""

from antiphon import Agent
from antiphon.testing import script, tool_call
from antiphon_worker import App

DEPTH, WIDTH = 3, 2


def _asking(below: Agent, name: str) -> Agent:
    def answer(request):
        done = request.messages[-1].tool_results
        asked = [tool_call(below.name, input=f"part {number}") for number in range(WIDTH)]
        return " ".join(result.text for result in done) if done else asked

    return Agent(script(answer, repeat=True), "any", name=name, tools=[below.as_tool()])


def tree(root: str = "level-0") -> Agent:
    """Return the root agent of a tree. Its answer has one word of each leaf."""
    agent = Agent(script("leaf", repeat=True), "any", name="leaf")
    for level in range(DEPTH - 1, -1, -1):
        agent = _asking(agent, f"level-{level}" if level else root)
    return agent


def turns_of(found, depth=0):
    """Return the turns of a ``TurnTree`` as a list, with their depths."""
    return [(depth, found), *(below for child in found.children for below in turns_of(child, depth + 1))]


app = App(agents=[tree()])
