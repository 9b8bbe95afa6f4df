"""The memories of an App's agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from antiphon.errors import SettingsError
from antiphon.input.values import is_a
from antiphon.memory.declaration import fact_cursor

if TYPE_CHECKING:
    from antiphon.agent import Agent
    from antiphon.input.request import AgentSpec
    from antiphon.memory.declaration import Memory

RECALL = "recall"
"""The name of the tool."""


class Memories:
    """Which agent recalls from which memory. ``own`` is the memory of agents without one.

    Raises ``SettingsError`` if two memories share a name, or an agent with the tool has another tool of that name.
    """

    def __init__(self, own: Memory | None = None) -> None:
        self._own = own
        self._of_agents: dict[str, tuple[AgentSpec, Memory]] = {}
        self._named: dict[str, Memory] = {}
        self._with_facts: dict[str, Memory] = {}
        self.noted = ""  # further names under which turns of all agents wait
        self.first_noted = ""  # further names for turns of sessions without an answer
        if own is not None:
            self._check(own)
            self._know(own)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self._named.values())

    def check_sealed(self) -> None:
        """Raise ``SettingsError`` if the store of a memory would keep in plain text what is encrypted elsewhere."""
        for memory in self:
            from antiphon.memory.sealed import SealedEmbeddings

            if not isinstance(memory.store.embeddings, SealedEmbeddings):
                raise SettingsError(
                    f"The store of the memory {memory.name!r} would have its content in plain text: build it with "
                    "antiphon.memory.SealedEmbeddings(embeddings), omit memory=, or unset ANTIPHON_ENCRYPTION_KEYS."
                )

    @property
    def with_facts(self) -> list[Memory]:
        """The memories from whose turns a model extracts facts."""
        return [*self._with_facts.values()]

    @property
    def tools(self) -> list[str]:
        """The names of the tools that memories give to agents."""
        return [RECALL] if any(memory.recall == "tool" for memory in self) else []

    def add(self, agent: Agent, spec: AgentSpec) -> None:
        """Add an agent with its memory."""
        memory: Memory | None = getattr(agent, "memory", None) or self._own
        if memory is None:
            return
        if memory.recall == "tool" and any(tool.name == RECALL for tool in agent.tools):
            raise SettingsError(
                f"The agent {agent.name!r} has a tool {RECALL!r}, and its memory has one as well."
            )
        self._of_agents[spec.name or ""] = spec, memory
        self._know(memory)

    def of(self, agent: AgentSpec) -> Memory | None:
        """Return the memory of an agent of the App, or None. An inline agent has none."""
        known, memory = self._of_agents.get(agent.name or "", (None, None))
        return memory if known is agent else None

    def names(self, agent: AgentSpec) -> str:
        """Return the names under which an agent's turns wait: of its memory, its facts, and replaced memories."""
        memory, names = self.of(agent), list[str]()
        if memory is not None and memory.facts is not None:
            names.append(fact_cursor(memory.facts.name))
        while memory is not None:
            names.append(memory.name)
            memory = memory.replaces
        return " ".join(names)

    def _check(self, memory: object) -> None:
        from antiphon.memory.declaration import Memory

        if not is_a(memory, Memory):
            raise SettingsError(f"memory= must be a Memory, not {memory!r}.")

    def _know(self, memory: Memory | None) -> None:
        facts = None if memory is None else memory.facts
        if memory and facts and self._with_facts.setdefault(facts.name, memory) is not memory:
            raise SettingsError(
                f"Two memories of the App have facts of the name {facts.name!r}: share one memory, or give one "
                "FactModel another name."
            )
        while memory is not None:
            if self._named.setdefault(memory.name, memory) is not memory:
                raise SettingsError(
                    f"Two memories of the App have the name {memory.name!r}: share one, or give each another name."
                )
            memory = memory.replaces
