"""Sub-agents: an agent as a tool of another one; each call runs as a child turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

from antiphon.errors import UsageError
from antiphon.input.values import duration, is_a
from antiphon.tools.approval import ToolRule
from antiphon.tools.context import Context
from antiphon.tools.functions import Tool

DESCRIPTION = "Give the agent {name} a task, and get its answer. It sees nothing but the input."


class ChildTool(Tool[..., Any]):
    """An agent as a tool: ``agent.as_tool()``. A call runs as a turn of the agent, in a session of its own.

    ``agent`` is the agent, ``wait_seconds`` how long a call waits for its answer (None: 30 days), and ``deltas``
    whether the calling turn's stream has the child's deltas.
    """

    def __init__(
        self, agent: Any, *, name: str | None, description: str | None, timeout: float | timedelta | None,
        approval: ToolRule, deltas: bool = False,
    ) -> None:  # fmt: skip
        if not is_a(deltas, bool):
            raise UsageError(f"deltas= must be True or False, not {deltas!r}.")
        if not agent.name:
            raise UsageError("as_tool() needs an agent with a name: use Agent(name=…).")
        about = DESCRIPTION.format(name=agent.name) if description is None else description
        super().__init__(_alone, name=name or agent.name, description=about, approval=approval)
        self.agent = agent
        self.deltas = deltas
        self.wait_seconds = None if timeout is None else duration(timeout, "timeout")

    def bound(self, run: Callable[[str, Context], Any]) -> Tool[..., Any]:
        """Return the tool for a turn: it calls this function."""

        async def call(input: str, context: Context) -> str:  # noqa: A002
            """Run the agent.

            Args:
                input: The task, with all that the agent needs to know.
            """
            return await run(input, context)

        found = Tool(call, name=self.name, description=self.description)
        found.approval = self.approval
        return cast("Tool[..., Any]", found)


async def _alone(input: str) -> str:  # noqa: A002
    """Run the agent.

    Args:
        input: The task, with all that the agent needs to know.
    """
    raise UsageError("A sub-agent runs only as a tool of a turn: run the agent itself with agent.session().")
