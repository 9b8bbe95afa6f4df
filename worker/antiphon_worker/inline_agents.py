"""Checks what a turn may bring: an inline agent, and its own parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

from antiphon.errors import NotAllowed, SettingsError, UnknownAgent, UnknownProvider, UnknownTool
from antiphon.handoffs import without_targets
from antiphon.input.parameters import check_secrets
from antiphon.input.request import AgentSpec

Names: TypeAlias = Iterable[str] | Literal["any"]

ORDINARY = frozenset(
    {
        "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens",
        "min_p", "parallel_tool_calls", "presence_penalty", "prompt_cache", "prompt_cache_key", "reasoning",
        "reasoning_effort", "repetition_penalty", "safety_identifier", "seed", "stop", "stop_sequences",
        "temperature", "thinking", "timeout", "top_k", "top_logprobs", "top_p", "user", "verbosity",
    }
)  # fmt: skip
"""Parameters that change how a model answers, but not the model, its instructions or its tools."""

UNFORCED = ("auto", "none")
"""The tool choices that any turn may use: they do not force a model to call a tool."""


class Allow:
    """What turns may bring to an App: ``App(travelling=Allow(…))``. Each list of names may be ``"any"``.

    Inline agents may use these ``providers`` (default: none), also as fallbacks, and name these ``tools`` (default:
    those of ``App(tools=…)``). Inline agents and the ``model`` of a turn may name these ``models`` (default: any).
    ``parameters`` (default: ``ORDINARY``) are those that a turn or an inline agent may set; a ``tool_choice`` of
    ``"auto"`` or ``"none"`` is always allowed. List ``model``, ``tools``, ``extra_body``, ``extra_headers`` and
    others to allow them; they can override what an agent of the App has. With ``system``, the system prompt of a
    session and the ``instructions`` of a turn may replace that of the App's agent.

    Raises ``SettingsError`` for values other than names.

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
    """Chooses the agent of a turn, and refuses what the App does not allow. ``allow=None`` allows everything.

    ``only`` names the agent of turns that name none, if the App has other agents only because that one brings them.
    """

    def __init__(
        self, agents: Mapping[str, AgentSpec], tools: Collection[str], allow: Allow | None, only: str = ""
    ) -> None:  # fmt: skip
        self._agents = agents
        self._only = only
        self._tools = tools
        self._allow = allow

    def providers(self) -> Collection[str]:
        """Return the names of the providers that inline agents may use; ``*`` matches any."""
        allowed = "any" if self._allow is None else self._allow.providers
        return ("*",) if allowed == "any" else allowed

    def models(self) -> Collection[str] | None:
        """Return the names of the models that inline agents may use; None for any."""
        allowed = "any" if self._allow is None else self._allow.models
        return None if allowed == "any" else allowed

    def tools(self) -> Collection[str]:
        """Return the names of the tools that inline agents may use; ``*`` matches any."""
        allowed = self._tools if self._allow is None or self._allow.tools is None else self._allow.tools
        return ("*",) if allowed == "any" else allowed

    def agent(
        self, asked: str | AgentSpec | None, parameters: Mapping[str, Any], own_system: bool
    ) -> AgentSpec:
        """Return the agent of a turn. Raises ``NotAllowed``, ``UnknownAgent``, ``UnknownProvider``, ``UnknownTool``."""
        found = self._of_the_app(asked)
        if parameters:
            check_secrets(parameters)
        if found is None and isinstance(asked, AgentSpec):
            if asked.params:
                check_secrets(asked.params)
            for model in asked.fallback:
                check_secrets(model.params)
            self._check_travelling(asked)
        elif own_system and self._allow is not None and not self._allow.system:
            raise NotAllowed(
                "The turn or its session has its own system prompt, which this worker's App does not allow: omit "
                "instructions= and system=, or allow them there with App(travelling=Allow(system=True))."
            )
        self._check_parameters(parameters)
        return found or asked  # type: ignore[return-value]

    def _of_the_app(self, asked: str | AgentSpec | None) -> AgentSpec | None:
        """Return the App's agent with this name, its only agent, or the one with this description; None for others."""
        if isinstance(asked, AgentSpec):
            known = self._agents.get(asked.name or "")
            return known if known is not None and without_targets(known) == without_targets(asked) else None
        if asked is None:
            if self._only:
                return self._agents[self._only]
            if len(self._agents) == 1:
                return next(iter(self._agents.values()))
            raise UnknownAgent(
                "The turn does not name an agent, and the App of its worker has several: submit it with agent='…'."
                if self._agents
                else "The turn does not name an agent, and the App of its worker has none: submit it with "
                "agent=Agent(…), or register the agent in the App."
            )
        if asked not in self._agents:
            raise UnknownAgent(f"The worker has no agent {asked!r}.")
        return self._agents[asked]

    def _check_travelling(self, agent: AgentSpec) -> None:
        allow = self._allow
        if allow is None:
            return
        if not allow.providers:
            raise NotAllowed(
                "This worker runs only the agents of its App: submit the name of one of them "
                "(agent='…'), or allow inline agents there with App(travelling=Allow(providers=[…]))."
            )
        self._check_provider(agent.provider, allow)
        for model in agent.fallback:
            self._check_provider(model.provider, allow)
            self._check_model(model.model)
            self._check_parameters(model.params)
        tools = self._tools if allow.tools is None else allow.tools
        for tool in agent.tools:
            if not _in(tool, tools):
                raise UnknownTool(
                    f"This worker's App has no tool {tool!r} for inline agents; available: {_listed(tools)}."
                )
        self._check_model(agent.model)
        self._check_parameters(agent.params)

    def _check_provider(self, name: str, allow: Allow) -> None:
        if not _in(name, allow.providers):
            raise UnknownProvider(
                f"The worker has no provider {name!r} for inline agents; available: {_listed(allow.providers)}."
            )

    def _check_parameters(self, parameters: Mapping[str, Any]) -> None:
        allow = self._allow
        if allow is None:
            return
        for name, value in parameters.items():
            if not _in(name, allow.parameters) and not (name == "tool_choice" and value in UNFORCED):
                raise NotAllowed(
                    f"This worker's App does not allow the parameter {name!r} in a turn: "
                    "App(travelling=Allow(parameters=[…])) lists the allowed ones."
                )
        if parameters.get("model"):
            self._check_model(parameters["model"])

    def _check_model(self, model: Any) -> None:
        if self._allow is not None and not _in(model, self._allow.models):
            raise NotAllowed(
                f"This worker's App does not allow the model {model!r} here; allowed: {_listed(self._allow.models)}."
            )


def _names(value: Any, name: str) -> Collection[str]:
    """Return the names as a set, or ``"any"``."""
    if value == "any":
        return "any"
    names: list[Any] = (
        list(cast("Iterable[Any]", value))
        if isinstance(value, Iterable) and not isinstance(value, str | Mapping)
        else [None]
    )
    if not all(isinstance(one, str) for one in names):
        raise SettingsError(f'Allow({name}=…) is a list of names or "any", not {value!r}.')
    return frozenset(names)


def _in(name: Any, names: Collection[str]) -> bool:
    return isinstance(name, str) and (names == "any" or name in names)


def _listed(names: Collection[str]) -> str:
    return "any name" if names == "any" else ", ".join(sorted(names)) or "none"
