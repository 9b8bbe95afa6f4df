"""The stage with another App for worker processes, whose agents are listed in STAGE_APP."""

import os
from pathlib import Path

from support.stage import Stage, StageModel, supervise

from antiphon import Agent, tool
from antiphon.model.revisions import Rollout
from antiphon_worker.app import App
from antiphon_worker.inline_agents import Allow


def app_with(stage: Stage, *agents: str, tools: tuple[str, ...] = (), approved: tuple[str, ...] = ()) -> App:
    """Return an App with these agents, and with tools of these names for inline agents.

    Calls of the agents' own tools, ``approved``, wait for an approval.
    """

    def made(name: str, approval: bool = False):
        def use(text: str) -> str:
            """Use it."""
            stage.note("tool", tool=name, text=text)
            return "used"

        return tool(name=name, approval=approval)(use)

    own = [made(name, approval=True) for name in approved]
    return App(
        agents=[Agent("stage", "any", name=name, tools=own) for name in agents],
        tools=[made(name) for name in tools],
        providers={"stage": StageModel(stage)},
        rollout=Rollout(timeout=0),
        travelling=Allow(providers=["stage"], parameters="any"),
    )


if "STAGE_APP" in os.environ:  # a worker process
    names = os.environ["STAGE_APP"].split()
    app = app_with(Stage(Path(os.environ["STAGE"])), *names)


if __name__ == "__main__":
    supervise()
