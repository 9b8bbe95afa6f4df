"""What a turn may bring with it: an agent that travels, and parameters of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from antiphon.errors import NotAllowed, SettingsError, UnknownAgent, UnknownProvider, UnknownTool
from antiphon.input.parameters import check_secrets
from antiphon.input.request import AgentSpec

__all__ = ["ORDINARY", "Allow", "Door"]

Names: TypeAlias = Iterable[str] | Literal["any"]

ORDINARY = frozenset(
    {
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "min_p", "parallel_tool_calls", "presence_penalty", "reasoning", "reasoning_effort", "repetition_penalty",
        "safety_identifier", "seed", "stop", "stop_sequences", "temperature", "thinking", "timeout", "top_k",
        "top_logprobs", "top_p", "user", "verbosity",
    }
)  # fmt: skip
"""Parameters that change how a model answers, and neither the model nor what it is told or may do."""


class Allow:
    """What turns may bring to an App: ``App(travelling=Allow(…))``. Each list of names may be ``"any"``.

    ``providers`` are those that agents which travel with a turn may use, none by default; ``models`` are the models
    that they, and the ``model`` of a turn, may name, by default any; ``tools`` are the tools that they may name, by
    default those of ``App(tools=…)``. ``parameters`` are those that come with a turn or with an agent that travels, by
    default ``ORDINARY``: ``model``, ``tools``, ``extra_body``, ``extra_headers`` and all others have to be named,
    because they can take the place of what an agent of the App has. ``system`` says whether the system prompt of a
    session may take the place of that of an agent of the App.

    Raises ``SettingsError`` for anything but names.

    >>> from antiphon import Agent
    >>> from antiphon_worker import Allow, App
    >>> support = Agent(provider="scripted", model="any", name="support")
    >>> app = App(agents=[support], travelling=Allow(providers=["scripted"], models=["any"]))
    >>> app.agent(Agent(provider="scripted", model="any", system="Be brief.").spec()).system
    'Be brief.'
    """

    def __init__(
        self,
        *,
        providers: Names = (),
        models: Names = "any",
        tools: Names | None = None,
        parameters: Names = ORDINARY,
        system: bool = False,
    ) -> None:
        self.providers = _names(providers, "providers")
        self.models = _names(models, "models")
        self.tools = None if tools is None else _names(tools, "tools")
        self.parameters = _names(parameters, "parameters")
        self.system = system


class Door:
    """Decides which agent works on a turn, and refuses what the App does not allow. ``None`` allows everything."""

    def __init__(self, agents: Mapping[str, AgentSpec], tools: Collection[str], allow: Allow | None) -> None:
        self._agents = agents
        self._tools = tools
        self._allow = allow

    def agent(
        self, asked: str | AgentSpec | None, parameters: Mapping[str, Any], own_system: bool
    ) -> AgentSpec:
        """The agent of a turn. Raises ``NotAllowed``, ``UnknownAgent``, ``UnknownProvider``, ``UnknownTool``."""
        found = self._of_the_app(asked)
        if parameters:
            check_secrets(parameters)
        if found is None and isinstance(asked, AgentSpec):
            if asked.params:
                check_secrets(asked.params)
            self._check_travelling(asked)
        elif own_system and self._allow is not None and not self._allow.system:
            raise NotAllowed(
                "The session has a system prompt of its own, which this worker's App does not allow its agents: "
                "leave system= out, or allow it there with App(travelling=Allow(system=True))."
            )
        self._check_parameters(parameters)
        return found or asked  # type: ignore[return-value]

    def _of_the_app(self, asked: str | AgentSpec | None) -> AgentSpec | None:
        """An agent of the App: by its name, as the only one, or described as it is; None for another that travels."""
        if isinstance(asked, AgentSpec):
            known = self._agents.get(asked.name or "")
            return known if known is not None and _plain(known) == _plain(asked) else None
        if asked is None:
            if len(self._agents) == 1:
                return next(iter(self._agents.values()))
            raise UnknownAgent("The turn names no agent: submit it with agent=….")
        if asked not in self._agents:
            raise UnknownAgent(f"The worker has no agent {asked!r}.")
        return self._agents[asked]

    def _check_travelling(self, agent: AgentSpec) -> None:
        allow = self._allow
        if allow is None:
            return
        if not allow.providers:
            raise NotAllowed(
                "This worker runs the agents of its App alone: submit the name of one of them (agent='…'), or allow "
                "others there with App(travelling=Allow(providers=[…]))."
            )
        if not _in(agent.provider, allow.providers):
            raise UnknownProvider(
                f"The worker has no provider {agent.provider!r} for agents that travel with a turn, "
                f"but: {_listed(allow.providers)}."
            )
        tools = self._tools if allow.tools is None else allow.tools
        for tool in agent.tools:
            if not _in(tool, tools):
                raise UnknownTool(
                    f"The worker has no tool {tool!r} for agents that travel with a turn, but: {_listed(tools)}."
                )
        self._check_model(agent.model)
        self._check_parameters(agent.params)

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        allow = self._allow
        if allow is None:
            return
        for name in parameters:
            if not _in(name, allow.parameters):
                raise NotAllowed(
                    f"This worker's App does not allow the parameter {name!r} to come with a turn: "
                    "App(travelling=Allow(parameters=[…])) says which it does."
                )
        if parameters.get("model"):
            self._check_model(parameters["model"])

    def _check_model(self, model: Any) -> None:
        if self._allow is not None and not _in(model, self._allow.models):
            raise NotAllowed(
                f"This worker's App does not allow the model {model!r} here, but: {_listed(self._allow.models)}."
            )


def _names(value: Any, name: str) -> Collection[str]:
    """Names in a set, or ``"any"``."""
    if value == "any":
        return "any"
    names: list[Any] = (
        list(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else [None]
    )
    if not all(isinstance(one, str) for one in names):
        raise SettingsError(f'Allow({name}=…) is a list of names or "any", not {value!r}.')
    return frozenset(names)


def _in(name: Any, names: Collection[str]) -> bool:
    return isinstance(name, str) and (names == "any" or name in names)


def _listed(names: Collection[str]) -> str:
    return "any name" if names == "any" else ", ".join(sorted(names)) or "none"


def _plain(agent: AgentSpec) -> Any:
    return msgspec.to_builtins(agent)
