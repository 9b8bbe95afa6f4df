"""The options of a turn, their checks, and the checked turn.

To add an option, add a line to ``TurnOptions``, a check to ``_CHECKS`` and a field to ``Work``. If workers need it, add
a field to ``TurnRequest`` too. Every call that runs a turn then accepts, checks and passes on the option. ``schema``
is the caller's own type; ``output`` is what workers receive of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from msgspec import Struct, field

from antiphon.errors import UsageError
from antiphon.input.ids import check_key, check_queue, tenant_id
from antiphon.input.messages import Input, to_input
from antiphon.input.parameters import ModelParams, check_params
from antiphon.input.request import (
    CALLER_TOOLS,
    LAST_ANSWER,
    REVISES,
    AgentSpec,
    OutputSpec,
    Travelling,
    TurnRequest,
)
from antiphon.input.schema import output_schema
from antiphon.input.values import (
    IfBusy,
    Priority,
    WhileSuspended,
    check_if_busy,
    check_priority,
    check_while_suspended,
    duration,
    parse_cursor,
    plain,
)
from antiphon.model import CallerTool, Message, Retry, Timeouts
from antiphon.model.usage import Limits
from antiphon.tools.approval import ApprovalRule, OnApproval, OnTool
from antiphon.tools.caller import caller_tools

if TYPE_CHECKING:
    from antiphon.tools import Tool
    from antiphon.window import Window


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
    retry: Retry | None
    timeouts: Timeouts | None
    fallback: list[Any]
    limits: Limits | None
    approval: ApprovalRule
    caller_tools: list[CallerTool]

    def spec(self) -> AgentSpec: ...
    def described(self) -> AgentSpec: ...


class TurnOptions(TypedDict, total=False):
    """The options that every call that runs a turn accepts."""

    timeout: float | timedelta | None
    if_busy: IfBusy
    metadata: Mapping[str, Any] | None
    queue: str | None
    priority: Priority | None
    caller_tools: Iterable[CallerTool | Mapping[str, Any] | Callable[..., Any]] | None
    while_suspended: WhileSuspended


class _OfSession(TurnOptions, total=False):
    agent: AgentLike | str | None


class _HandedIn(TurnOptions, total=False):
    key: str | None
    retry_failed: bool
    delay: float | timedelta | None


class _Typed(TypedDict, total=False):
    schema: Any


class _Answering(TypedDict, total=False):
    on_tool: OnTool | None
    on_approval: OnApproval | None


class JsonOptions(_OfSession, _Answering, ModelParams, total=False):
    """The keywords of ``Session.json``, which has a parameter for the schema."""


class RunOptions(JsonOptions, _Typed, total=False):
    """The keywords of ``Session.run`` and ``stream``: options of the turn and parameters of the model."""


class SubmitOptions(_OfSession, _HandedIn, _Typed, ModelParams, total=False):
    """The keywords of ``Session.submit``."""


class ClientSubmitOptions(_HandedIn, _Typed, total=False):
    """The keywords of ``Client.submit`` and of ``Submission``."""

    agent: str | AgentSpec | Travelling | None
    ttl: float | timedelta | None
    params: Mapping[str, Any] | None
    tenant: str | None
    cursor: int | None


class Work(Struct):
    """One turn to run: its input, its agent (None: the session's agent) and its options. All values are checked."""

    messages: list[Message]
    agent: AgentLike | str | None = None
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    schema: Any = None
    output: OutputSpec | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    timeout: float | None = None
    if_busy: IfBusy = "enqueue"
    queue: str | None = None
    priority: Priority = "normal"
    key: str | None = None
    retry_failed: bool = False
    delay: float | None = None
    tenant: str | None = None
    cursor: int | None = None
    revises: str | None = None
    caller_tools: list[CallerTool] = field(default_factory=list[CallerTool])
    while_suspended: WhileSuspended = "wait"
    on_tool: OnTool | None = None
    on_approval: OnApproval | None = None

    def request(self, agent: str | AgentSpec | None) -> TurnRequest:
        """Return the request that workers receive, with the agent in its serialisable form."""
        request = TurnRequest(**dict(zip(_TRAVELLING, _travelling_of(self), strict=True)))
        request.agent = agent
        if self.revises is not None:
            request.version = REVISES
        if self.caller_tools:
            request.version = CALLER_TOOLS
        return request


_TRAVELLING = [name for name in TurnRequest.__struct_fields__ if name not in ("version", "trace")]
_travelling_of: Callable[[Work], tuple[Any, ...]] = attrgetter(*_TRAVELLING)


def _agent(value: object) -> object:
    if not isinstance(value, str | Travelling):
        raise UsageError(f"agent= must be an Agent or an agent's name, not {type(value).__name__}.")
    return value


def _retry_failed(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"retry_failed= must be True or False, not {value!r}.")
    return value


def _function(value: object, name: str) -> object:
    if not callable(value):
        raise UsageError(f"{name}= must be a function of the open call, not {value!r}.")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "agent": _agent,
    "timeout": lambda value: duration(value, "timeout"),
    "if_busy": check_if_busy,
    "metadata": lambda value: plain(value, "metadata"),
    "queue": check_queue,
    "priority": check_priority,
    "key": check_key,
    "retry_failed": _retry_failed,
    "delay": lambda value: duration(value, "delay"),
    "params": lambda value: plain(value, "params"),
    "schema": lambda value: value,
    "tenant": tenant_id,
    "cursor": lambda value: parse_cursor(value, "cursor"),
    "caller_tools": caller_tools,
    "while_suspended": check_while_suspended,
    "on_tool": lambda value: _function(value, "on_tool"),
    "on_approval": lambda value: _function(value, "on_approval"),
}
_OF_RUN = _CHECKS.keys() & RunOptions.__annotations__
_OF_SUBMIT = _CHECKS.keys() & SubmitOptions.__annotations__
_OF_CLIENT = (_CHECKS.keys() & ClientSubmitOptions.__annotations__) - {
    "agent"
}  # which the client has checked


def work_of(
    text: Input,
    given: Mapping[str, Any],
    agent: AgentLike | str | None,
    *,
    submitted: bool = False,
    revises: str | None = None,
) -> Work:
    """Return the turn for a call of a session. ``agent`` runs it unless the options name another.

    ``revises`` is that of ``TurnRequest``. A turn that answers the last question again has no ``text`` of its own.
    Keywords that are not options of Antiphon are parameters of the model. Raises ``UsageError`` and ``InvalidMessage``.
    """
    options, params = _checked(given, _OF_SUBMIT if submitted else _OF_RUN)
    check_params(params)
    options.setdefault("agent", agent)
    if options.get("if_busy") == "steer" and not (submitted and revises is None):
        raise UsageError(
            'if_busy="steer" is for submit(): its text has no answer of its own while another turn runs.'
        )
    messages = [] if revises == LAST_ANSWER else to_input(text)
    return _work(messages, {**options, "params": plain(params, "params"), "revises": revises})


def work_of_request(request: TurnRequest, agent: AgentLike | str | None) -> Work:
    """Return the turn of a saved request. ``agent`` runs it unless the request names another."""
    named = {name: getattr(request, name) for name in _TRAVELLING if name != "agent"}
    return Work(**named, agent=request.agent if isinstance(request.agent, str) and agent is None else agent)


def work_of_client(text: Input, given: Mapping[str, Any]) -> Work:
    """Return the turn for a call of a client, without ``agent`` and ``ttl``.

    Raises ``UsageError`` and ``InvalidMessage``.
    """
    options, unknown = _checked(given, _OF_CLIENT)
    for name in unknown:
        raise TypeError(
            f"submit() got an unexpected keyword argument {name!r}: parameters of the model go into "
            f"params={{{name!r}: …}}."
        )
    return _work(to_input(text), options)


def _work(messages: list[Message], options: dict[str, Any]) -> Work:
    schema = options.get("schema")
    return Work(messages, output=None if schema is None else output_schema(schema), **options)


def _checked(given: Mapping[str, Any], ours: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checked options and the remaining keywords. An option that is None counts as not given."""
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            others[name] = value
        elif value is not None or name == "if_busy":
            options[name] = _CHECKS[name](value)
    if options.get("retry_failed") and "key" not in options:
        raise UsageError("retry_failed= needs key=: it runs the failed turn of that key again.")
    if_busy = options.get("if_busy")
    if "delay" in options and if_busy in ("interrupt", "rollback", "steer"):
        raise UsageError(
            f"delay= and if_busy={if_busy!r} do not go together: a delayed turn waits as any other."
        )
    if options.get("schema") is not None and if_busy == "steer":
        raise UsageError(
            'schema= and if_busy="steer" do not go together: the answer is that of the running turn.'
        )
    return options, others
