"""What workers know where the page of operators is tested: the stage's model, with tools that report and that wait.

Worker processes load ``app`` from here. ``tool:survey`` in a question says how far it is until the gate ``tool`` is
open; ``tool:refund`` waits for an approval.
"""

import asyncio
import os
from pathlib import Path

from support.stage import Stage, StageModel

from antiphon import Agent, tool
from antiphon.tools import Context
from antiphon_worker import App

APP = "support.operated:app"


def make_app(stage: Stage) -> App:
    """An App with the agent ``support``."""

    @tool
    async def survey(text: str, context: Context) -> str:
        """Say how far it is."""
        context.progress("half of the shelves", 0.5)
        context.emit("shelf", {"number": 7, "text": text})
        while not stage.is_open("tool"):  # noqa: ASYNC110 - the gate is a file
            await asyncio.sleep(0.01)
        return f"surveyed {text}"

    @tool(approval=True)
    async def refund(text: str) -> str:
        """Pay back."""
        return f"refunded {text}"

    return App(
        agents=[Agent("stage", "stage-1", name="support", tools=[survey, refund])],
        providers={"stage": StageModel(stage)},
    )


if "STAGE" in os.environ:  # a worker process
    app = make_app(Stage(Path(os.environ["STAGE"])))
