"""The App for tests of the operator dashboard: the stage's model, with tools that report progress and wait.

Worker processes load ``app`` from here. ``tool:survey`` in a question reports progress and waits until the gate
``tool`` is open; ``tool:refund`` waits for an approval.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from support.stage import Stage, StageModel

from antiphon import Agent, tool
from antiphon.memory import Memory
from antiphon.tools import Context
from antiphon_worker import App

APP = "support.operated:app"


def make_app(
    stage: Stage,
    *,
    memory: Memory | None = None,
    providers: dict[str, Any] | None = None,
    search: bool = False,
    keep_requests: bool = False,
    sub_agents: bool = False,
) -> App:
    """Return an App with the agent ``support``. With ``sub_agents`` it can call another one: ``tool:understudy``."""

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

    understudy = Agent("stage", "stage-1", name="understudy", tools=[survey])
    tools: list[Any] = [survey, refund, *([understudy.as_tool()] if sub_agents else [])]
    return App(
        agents=[Agent("stage", "stage-1", name="support", tools=tools, memory=memory)],
        providers={"stage": StageModel(stage), **(providers or {})},
        search=search,
        keep_requests=keep_requests,
    )


if "STAGE" in os.environ:  # a worker process
    app = make_app(
        Stage(Path(os.environ["STAGE"])),
        search="ANTIPHON_ARCHIVE" in os.environ,
        keep_requests="KEEP_REQUESTS" in os.environ,
        sub_agents="SUB_AGENTS" in os.environ,
    )
