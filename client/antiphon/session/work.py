"""The options of a turn, each declared once, and the checked turn.

To add an option, add it to one of the ``TypedDict`` types and a field to ``Work``. If workers need it, add a field to
``TurnRequest`` too. Every interface then accepts, checks, describes and passes on the option, unless it is
``missing`` there. ``schema`` is the caller's own type; ``output`` is the form that workers receive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, TypedDict

import msgspec
from msgspec import Meta, Struct, field

from antiphon.errors import UsageError
from antiphon.handoffs import Handoff
from antiphon.hooks import Hook
from antiphon.input.ids import check_key, check_queue, tenant_id, user_name
from antiphon.input.messages import Input, to_input
from antiphon.input.options import LIFETIME, Option, Positive, declared
from antiphon.input.parameters import ALIKE, ModelParams, check_params
from antiphon.input.request import (
    CALLER_TOOLS,
    IN_BATCHES,
    LAST_ANSWER,
    OWN_RULES,
    REVISES,
    AgentSpec,
    OutputSpec,
    Travelling,
    TurnRequest,
)
from antiphon.input.schema import output_schema
from antiphon.input.values import (
    IfBusy,
    ModelServiceWord,
    Priority,
    WhileSuspended,
    check_word,
    duration,
    parse_cursor,
    plain,
)
from antiphon.mcp import MCP
from antiphon.model import CallerTool, Message, Retry, Timeouts
from antiphon.model.budget import Budget
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
    budgets: list[Budget]
    approval: ApprovalRule
    caller_tools: list[CallerTool]
    hooks: list[Hook[Any]]
    handoffs: list[Handoff]
    mcp: list[MCP | str]

    def spec(self) -> AgentSpec: ...
    def described(self) -> AgentSpec: ...


INTERFACES = {
    "client": "`Client.submit`, `Submission`",
    "session": "`Session.submit`, `edit`, `regenerate`",
    "run": "`Session.run`, `stream`, `json`",
    "http": "`POST /sessions/{session}/turns`, Node over HTTP",
    "revision": "`PUT /sessions/{session}/messages/{message}`, `POST /sessions/{session}/regenerate`",
    "schedule": "`schedules.set`, `PUT /sessions/{session}/schedules/{schedule}`, `antiphon schedules add`",
    "job": "RQ jobs, Node on Redis",
    "submit": "`antiphon submit`",
    "chat": "`antiphon chat`",
    "batch": "`antiphon batch`",
    "local": "`antiphon run`",
}
"""Where a turn can be submitted. An option that one of these lacks states the reason as ``missing``."""


def _agent(value: object) -> object:
    if not isinstance(value, str | Travelling):
        raise UsageError(f"agent= must be an Agent or an agent's name, not {type(value).__name__}.")
    return value


def _retry_failed(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"retry_failed= must be True or False, not {value!r}.")
    return value


def _instructions(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise UsageError(f"instructions= must be a non-empty string, not {value!r}.")
    return value


def _max_tool_calls(value: object) -> object:
    if type(value) is not int or value < 1:
        raise UsageError(f"max_tool_calls= must be a whole number of at least 1, not {value!r}.")
    return value


def _function(value: object, name: str) -> object:
    if not callable(value):
        raise UsageError(f"{name}= must be a function of the pending tool call, not {value!r}.")
    return value


_Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1000)]
_Seq: TypeAlias = Annotated[int, Meta(ge=0)]
_Text: TypeAlias = Annotated[str, Meta(min_length=1)]
_Count: TypeAlias = Annotated[int, Meta(ge=1)]

_WAITS = "the call submits a new turn at once and waits for it"
_TYPED = "each line that is typed is a new turn"
_TIMES = "each due time submits one turn, in the order of the session"
_ALONE = "the turn is the only one of its process"
_OPENED = "it is set when the session is opened"
_EXISTS = "the session exists and has its own"
_PROCESS = "it is a function of the process that waits for the answer"
_RUNS_ONLY = {name: _PROCESS for name in INTERFACES if name != "run"}


class TurnOptions(TypedDict, total=False):
    """The options that every call that runs a turn accepts."""

    timeout: Annotated[
        float | timedelta | None,
        Option(
            doc="time limit of each attempt in seconds; where a call waits for the answer, of the whole call",
            check=lambda value: duration(value, "timeout"),
            json=Positive | None,
        ),
    ]
    if_busy: Annotated[
        IfBusy,
        Option(
            doc="if a turn is running: wait for it, be refused, stop it and keep or drop it, or add the text to it",
            check=lambda value: check_word(value, IfBusy, "if_busy="),
            json=IfBusy,
            default="enqueue",
            missing={"schedule": _TIMES, "local": _ALONE},
        ),
    ]
    metadata: Annotated[
        Mapping[str, Any] | None,
        Option(
            doc="a JSON object that is kept with the turn; models do not see it",
            check=lambda value: plain(value, "metadata"),
            json=dict[str, Any],
            default={},
        ),
    ]
    user: Annotated[
        str | None,
        Option(
            doc="the user whose turn it is, to export and erase their turns; models do not see it",
            check=user_name,
            json=str | None,
            missing={"local": _ALONE},
        ),
    ]
    queue: Annotated[
        str | None,
        Option(
            doc="the queue of the turn; by default that of the session or its agent",
            check=check_queue,
            json=str | None,
            missing={"job": "the job is in a queue", "local": _ALONE},
        ),
    ]
    priority: Annotated[
        Priority | None,
        Option(
            doc="which turns of the tenant run first",
            check=lambda value: check_word(value, Priority, "priority="),
            json=Priority | None,
            missing={"local": _ALONE},
        ),
    ]
    caller_tools: Annotated[
        Iterable[CallerTool | Mapping[str, Any] | Callable[..., Any]] | None,
        Option(
            doc="client-side tools: the turn suspends until the client returns their results",
            check=caller_tools,
            json=list[CallerTool],
            default=[],
            missing={"local": _ALONE},
        ),
    ]
    while_suspended: Annotated[
        WhileSuspended,
        Option(
            doc="whether the session's next turns wait while this one is suspended",
            check=lambda value: check_word(value, WhileSuspended, "while_suspended="),
            json=WhileSuspended,
            default="wait",
            missing={"local": _ALONE},
        ),
    ]

    service: Annotated[
        ModelServiceWord,
        Option(
            doc="whether the model service answers at once, or in batches, within a day at half the price",
            check=lambda value: check_word(value, ModelServiceWord, "service="),
            json=ModelServiceWord,
            default="standard",
            missing={"local": _ALONE},
        ),
    ]
    instructions: Annotated[
        str | None,
        Option(
            doc="the system prompt of this turn, in place of the agent's and the session's, if the App allows it",
            check=_instructions,
            json=_Text | None,
        ),
    ]
    max_tool_calls: Annotated[
        int | None,
        Option(
            doc="how many calls of the workers' tools the turn may make; further ones get an error as their result",
            check=_max_tool_calls,
            json=_Count | None,
        ),
    ]


_AGENT = Option(
    doc="the name of an agent of the workers, or an inline agent; by default the session's",
    check=_agent,
    json=str | AgentSpec | None,
)


class _OfSession(TurnOptions, total=False):
    agent: Annotated[AgentLike | str | None, _AGENT]


class _HandedIn(TurnOptions, total=False):
    key: Annotated[
        str | None,
        Option(
            doc="submits the turn once: the same key in the same session returns the first turn",
            check=check_key,
            json=_Key | None,
            missing={
                "run": _WAITS,
                "local": _WAITS,
                "chat": _TYPED,
                "schedule": "it is made from the due time",
                "job": "the id of the job is made from it",
                "batch": "it is made from the line",
            },
        ),
    ]
    retry_failed: Annotated[
        bool,
        Option(
            doc="runs a failed turn of this key again",
            check=_retry_failed,
            json=bool,
            default=False,
            missing={
                "run": _WAITS,
                "local": _WAITS,
                "chat": _TYPED,
                "schedule": _TIMES,
                "job": "requeue the failed turn, whose id is that of the job",
            },
        ),
    ]
    delay: Annotated[
        float | timedelta | None,
        Option(
            doc="time in seconds until the turn may run",
            check=lambda value: duration(value, "delay"),
            json=Positive | None,
            missing={"run": _WAITS, "local": _WAITS, "chat": _TYPED, "schedule": _TIMES},
        ),
    ]


class _Typed(TypedDict, total=False):
    schema: Annotated[
        Any,
        Option(
            doc="a JSON schema: the answer is structured output",
            json=dict[str, Any] | None,
        ),
    ]


class _Answering(TypedDict, total=False):
    on_tool: Annotated[
        OnTool | None,
        Option(
            doc="returns the result of a call of a client-side tool",
            check=lambda value: _function(value, "on_tool"),
            missing=_RUNS_ONLY,
        ),
    ]
    on_approval: Annotated[
        OnApproval | None,
        Option(
            doc="decides about a call that waits for an approval",
            check=lambda value: _function(value, "on_approval"),
            missing=_RUNS_ONLY,
        ),
    ]


class JsonOptions(_OfSession, _Answering, ModelParams, total=False):
    """The keywords of ``Session.json``, which has a parameter for the schema."""


class RunOptions(JsonOptions, _Typed, total=False):
    """The keywords of ``Session.run`` and ``stream``: options of the turn and parameters of the model."""


class SubmitOptions(_OfSession, _HandedIn, _Typed, ModelParams, total=False):
    """The keywords of ``Session.submit``."""


class ClientSubmitOptions(_HandedIn, _Typed, total=False):
    """The keywords of ``Client.submit`` and of ``Submission``."""

    agent: Annotated[str | AgentSpec | Travelling | None, _AGENT]
    ttl: Annotated[
        float | timedelta | None,
        msgspec.structs.replace(
            LIFETIME,
            missing={
                "session": _OPENED,
                "run": _OPENED,
                "revision": _EXISTS,
                "schedule": _EXISTS,
                "local": _ALONE,
            },
        ),
    ]
    params: Annotated[
        Mapping[str, Any] | None,
        Option(
            doc="parameters of the model, such as temperature",
            check=lambda value: plain(value, "params"),
            json=dict[str, Any],
            default={},
            missing={"session": "they are keywords of the call", "run": "they are keywords of the call"},
        ),
    ]
    tenant: Annotated[
        str | None,
        Option(
            doc="the tenant of the session",
            check=tenant_id,
            json=str | None,
            missing={"session": _OPENED, "run": _OPENED, "revision": _EXISTS, "local": _ALONE},
        ),
    ]
    cursor: Annotated[
        int | None,
        Option(
            doc="the cursor of a snapshot: the turn is refused if anything has happened in the session since",
            check=lambda value: parse_cursor(value, "cursor"),
            json=_Seq | None,
            missing={
                "session": "its calls run in order; Client.submit has it",
                "run": _WAITS,
                "local": _ALONE,
                "revision": "the message or the question that is replaced must exist",
                "schedule": _TIMES,
                "chat": _TYPED,
                "batch": "one cursor does not fit the sessions of all lines",
            },
        ),
    ]


OPTIONS = declared(RunOptions) | declared(SubmitOptions) | declared(ClientSubmitOptions)
"""The options of a turn, by name."""


def options_of(interface: str) -> dict[str, Option]:
    """Return the options that an interface has, by name."""
    return {name: one for name, one in OPTIONS.items() if interface not in one.missing}


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
    user: str | None = None
    cursor: int | None = None
    revises: str | None = None
    caller_tools: list[CallerTool] = field(default_factory=list[CallerTool])
    while_suspended: WhileSuspended = "wait"
    service: ModelServiceWord = "standard"
    instructions: str | None = None
    max_tool_calls: int | None = None
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
        if self.instructions is not None or self.max_tool_calls is not None:
            request.version = OWN_RULES
        if self.service != "standard":
            request.version = IN_BATCHES
        return request


_TRAVELLING = [name for name in TurnRequest.__struct_fields__ if name not in ("version", "trace", "parent")]
_travelling_of: Callable[[Work], tuple[Any, ...]] = attrgetter(*_TRAVELLING)


_RUN, _SUBMIT = options_of("run"), options_of("session")
_CLIENT = {name: one for name, one in options_of("client").items() if name not in ("agent", "ttl")}


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
    options, params = _checked(given, _SUBMIT if submitted else _RUN)
    check_params(params)
    options.setdefault("agent", agent)
    if options.get("if_busy") == "steer" and not (submitted and revises is None):
        raise UsageError(
            'if_busy="steer" is for submit(): its text has no answer of its own while another turn runs.'
        )
    messages = [] if revises == LAST_ANSWER or (revises is None and _continues(text)) else to_input(text)
    return _work(messages, {**options, "params": plain(params, "params"), "revises": revises})


_INSTEAD = {
    "provider": "use agent=Agent(provider, model)",
    "model": "use agent=Agent(provider, model)",
    "stream": "use turn.stream() of the turn that submit returns",
    "wait": "use turn.result() of the turn that submit returns",
    "at": "use delay=…",
}


def work_of_client(text: Input, given: Mapping[str, Any]) -> Work:
    """Return the turn for a call of a client, without ``agent`` and ``ttl``.

    Raises ``UsageError`` and ``InvalidMessage``.
    """
    options, unknown = _checked(given, _CLIENT)
    for name in unknown:
        near = get_close_matches(name, options_of("client"), 1, ALIKE)
        instead = _INSTEAD.get(name, f"parameters of the model go into params={{{name!r}: …}}")
        advice = f"did you mean {near[0]}=?" if near else f"{instead}."
        raise TypeError(f"submit() got an unexpected keyword argument {name!r}: {advice}")
    return _work([] if _continues(text) else to_input(text), options)


def _continues(text: object) -> bool:
    """Return whether an input adds nothing, so that the turn answers the end of the history."""
    return isinstance(text, list) and not text


def _work(messages: list[Message], options: dict[str, Any]) -> Work:
    user = options.get("user")  # it stays with the history, for longer than the turn
    messages = [one if one.by == user else msgspec.structs.replace(one, by=user) for one in messages]
    schema = options.get("schema")
    if not messages and options.get("if_busy") == "steer":
        raise UsageError('if_busy="steer" gives a running turn new messages: an empty input has none.')
    return Work(messages, output=None if schema is None else output_schema(schema), **options)


def _checked(given: Mapping[str, Any], ours: Mapping[str, Option]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the checked options and the remaining keywords. An option that is None counts as not given."""
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        if name not in ours:
            others[name] = value
        elif value is not None or name == "if_busy":
            options[name] = ours[name].check(value)
    if options.get("retry_failed") and "key" not in options:
        raise UsageError("retry_failed= needs key=: it runs the failed turn of that key again.")
    if_busy = options.get("if_busy")
    if "delay" in options and if_busy in ("interrupt", "rollback", "steer"):
        raise UsageError(
            f"delay= and if_busy={if_busy!r} cannot be combined: a delayed turn can only wait or be rejected."
        )
    own = [
        name
        for name in ("schema", "instructions", "max_tool_calls", "service")
        if options.get(name) not in (None, "standard")
    ]
    if own and if_busy == "steer":
        raise UsageError(
            f'{own[0]}= and if_busy="steer" cannot be combined: the answer is that of the running turn.'
        )
    return options, others
