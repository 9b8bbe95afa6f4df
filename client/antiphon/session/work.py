"""The options of a turn, their checks, and the checked turn.

To add an option, add a line to ``TurnOptions``, a check to ``_CHECKS`` and a field to ``Work``. If workers need it, add
a field to ``TurnRequest`` too. Every call that runs a turn then accepts, checks and passes on the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from msgspec import Struct, field

from antiphon.errors import UsageError
from antiphon.input.ids import check_key, check_queue, tenant_id
from antiphon.input.messages import Input, to_input
from antiphon.input.parameters import ModelParams, check_params
from antiphon.input.request import AgentSpec, OutputSpec, Travelling, TurnRequest
from antiphon.input.values import IfBusy, check_if_busy, duration, plain
from antiphon.model import Message

if TYPE_CHECKING:
    from antiphon.tools import Tool
    from antiphon.window import Window

__all__ = [
    "AgentLike",
    "ClientSubmitOptions",
    "RunOptions",
    "SubmitOptions",
    "Work",
    "work_of",
    "work_of_client",
]


class AgentLike(Protocol):
    """The part of ``Agent`` that runtimes use."""

    provider: Any
    model: str
    name: str | None
    system: str | None
    tools: list[Tool[..., Any]]
    params: dict[str, Any]
    max_steps: int | None
    window: int | Window | None

    def spec(self) -> AgentSpec: ...
    def described(self) -> AgentSpec: ...


class TurnOptions(TypedDict, total=False):
    """The options that every call that runs a turn accepts."""

    timeout: float | timedelta | None
    if_busy: IfBusy
    metadata: Mapping[str, Any] | None
    queue: str | None


class _OfSession(TurnOptions, total=False):
    agent: AgentLike | str | None


class _HandedIn(TurnOptions, total=False):
    key: str | None
    delay: float | timedelta | None


class RunOptions(_OfSession, ModelParams, total=False):
    """The keywords of ``Session.run``, ``stream`` and ``json``: options of the turn and parameters of the model."""


class SubmitOptions(_OfSession, _HandedIn, ModelParams, total=False):
    """The keywords of ``Session.submit``."""


class ClientSubmitOptions(_HandedIn, total=False):
    """The keywords of ``Client.submit`` except ``agent`` and ``ttl``."""

    params: Mapping[str, Any] | None
    output: OutputSpec | None
    tenant: str | None


class Work(Struct):
    """One turn to run: its input, its agent (None: the session's agent) and its options. All values are checked."""

    messages: list[Message]
    agent: AgentLike | str | None = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    output: OutputSpec | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    timeout: float | None = None
    if_busy: IfBusy = "enqueue"
    queue: str | None = None
    key: str | None = None
    delay: float | None = None
    tenant: str | None = None

    def request(self, agent: str | AgentSpec | None) -> TurnRequest:
        """Return the request that workers receive, with the agent in its serialisable form."""
        request = TurnRequest(**dict(zip(_TRAVELLING, _travelling_of(self), strict=True)))
        request.agent = agent
        return request


_TRAVELLING = [name for name in TurnRequest.__struct_fields__ if name != "version"]
_travelling_of: Callable[[Work], tuple[Any, ...]] = attrgetter(*_TRAVELLING)


def _agent(value: object) -> object:
    if not isinstance(value, str | Travelling):
        raise UsageError(f"agent= must be an Agent or an agent's name, not {type(value).__name__}.")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "agent": _agent,
    "timeout": lambda value: duration(value, "timeout"),
    "if_busy": check_if_busy,
    "metadata": lambda value: plain(value, "metadata"),
    "queue": check_queue,
    "key": check_key,
    "delay": lambda value: duration(value, "delay"),
    "params": lambda value: plain(value, "params"),
    "output": lambda value: value,
    "tenant": tenant_id,
}
_OF_RUN = _CHECKS.keys() & RunOptions.__annotations__
_OF_SUBMIT = _CHECKS.keys() & SubmitOptions.__annotations__
_OF_CLIENT = _CHECKS.keys() & ClientSubmitOptions.__annotations__


def work_of(
    text: Input, given: Mapping[str, Any], agent: AgentLike | str | None, *, submitted: bool = False
) -> Work:
    """Return the turn for a call of a session. ``agent`` runs it unless the options name another.

    Keywords that are not options of Antiphon are parameters of the model. Raises ``UsageError`` and ``InvalidMessage``.
    """
    options, params = _checked(given, _OF_SUBMIT if submitted else _OF_RUN)
    check_params(params)
    options.setdefault("agent", agent)
    return Work(to_input(text), params=plain(params, "params"), **options)


def work_of_client(text: Input, given: Mapping[str, Any]) -> Work:
    """Return the turn for a call of a client. Raises ``UsageError`` and ``InvalidMessage``."""
    options, unknown = _checked(given, _OF_CLIENT)
    for name in unknown:
        raise TypeError(f"submit() got an unexpected keyword argument {name!r}")
    return Work(to_input(text), **options)


def _checked(given: Mapping[str, Any], ours: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checked options and the remaining keywords. An option that is None counts as not given."""
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            others[name] = value
        elif value is not None or name == "if_busy":
            options[name] = _CHECKS[name](value)
    return options, others
