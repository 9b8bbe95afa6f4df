"""The agents of a deployment's workers: their revisions, and what runs on each."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import Struct, field

from antiphon.redis.connections import Connections
from antiphon.wire.lists.agents import advertised, begun_turns


class AgentRevision(Struct):
    """A revision of an agent. ``workers`` have it now; without any it is listed because turns still need it.

    ``turns`` have begun on it and not ended; ``running`` of them run now. ``label`` is that of the agent.
    """

    agent: str
    revision: str
    label: str | None = None
    workers: list[str] = field(default_factory=list)
    running: int = 0
    turns: int = 0


class AsyncAgents:
    """The agents that workers have, by name and revision.

    >>> from antiphon import AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> [one.agent async for one in client.agents()]
    []
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def __aiter__(self) -> AsyncGenerator[AgentRevision, None]:
        found: dict[tuple[str, str], AgentRevision] = {}
        for cell in self._connections.cells:
            for worker, agents in (await advertised(cell)).items():
                for name, one in agents.items():
                    row = found.setdefault((name, one.id), AgentRevision(name, one.id, one.label))
                    row.workers.append(worker)
            for turn in await begun_turns(cell):
                if turn.revision:
                    row = found.setdefault(
                        (turn.agent, turn.revision), AgentRevision(turn.agent, turn.revision)
                    )
                    row.turns += 1
                    row.running += turn.status == "running"
        for _, row in sorted(found.items()):
            yield row
