"""The bodies and queries of requests, and the bodies of responses. The OpenAPI document is made from these structs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct, field

from antiphon.errors import user_message
from antiphon.input.options import LIST_OPTIONS, SESSION_OPTIONS, PageSize, Positive, json_fields
from antiphon.model import Message, Part, Response, Status
from antiphon.redis.search import SEARCH_OPTIONS
from antiphon.session.runtime import Branch, DelayedTurn, RunningTurn, SessionInfo
from antiphon.session.turn_info import TurnInfo
from antiphon.session.work import options_of
from antiphon.wire.suspension import SuspendedTurn

LONGEST_WAIT = 60
REF = "#/components/schemas/{name}"
MOST_MESSAGES = 1000


class Given(Struct, kw_only=True, forbid_unknown_fields=True):
    """A body that refuses unknown fields, so that misspelt ones are not ignored."""


def turn_body(name: str, interface: str, doc: str, *fields: Any) -> type[Any]:
    """Return the struct of a body with the turn options of an interface, and further fields."""
    options = json_fields(options_of(interface))
    return msgspec.defstruct(
        name, [*fields, *options], bases=(Given,), module=__name__, namespace={"__doc__": doc}, kw_only=True
    )


class Approve(Given):
    """``by`` is the person who decided, recorded as ``on_behalf_of``. ``arguments`` replace those of the model."""

    by: str | None = None
    arguments: dict[str, Any] | None = None


class Reject(Given):
    """``by`` is the person who decided, recorded as ``on_behalf_of``. The model is told by whom and why."""

    by: str | None = None
    reason: str | None = None


class ToolAnswer(Given):
    """The result of a client-side tool. With ``is_error`` the model reads it as an error. ``by`` is who gave it."""

    result: Any = None
    is_error: bool = False
    by: str | None = None


class OfTenant(Struct, kw_only=True):
    """``tenant`` is for keys of every tenant."""

    tenant: str | None = None


class PageQuery(OfTenant, kw_only=True):
    """The most entries to list, optionally of one tenant."""

    limit: PageSize = 50


class WaitingPage(Struct):
    """Turns that wait for decisions, the longest wait first."""

    turns: list[SuspendedTurn]


_PARTS = [REF.format(name=kind.__name__) for kind in get_args(Part)]
_ONE: list[dict[str, Any]] = [
    *({"$ref": part} for part in _PARTS), {"$ref": REF.format(name="Message")},
    {"type": "object", "description": "A part or a message in the format of OpenAI or Anthropic."},
]  # fmt: skip
_SHAPES = [{"type": "string"}, *_ONE, {"type": "array", "items": {"anyOf": _ONE}}]
Input: TypeAlias = Annotated[Any, Meta(extra_json_schema={"title": "Input", "anyOf": _SHAPES})]
INPUT = ("input", Input)

Submit = turn_body(
    "Submit", "http",
    """A turn to submit. ``input`` is text, parts or messages, in our format, OpenAI's or Anthropic's.

    An empty list adds none: the turn answers the question or the results of tools that the history ends with.

    The other fields are those of ``AsyncClient.submit``; durations are in seconds. ``agent`` is the name of an agent
    of the workers, or an agent that travels with the turn. ``queue`` needs the right ``admin``. ``tenant`` is for keys
    of every tenant.
    """, INPUT,
)  # fmt: skip

Edit = turn_body(
    "Edit", "revision",
    "What takes the place of a message of the user's, and the options of the turn that answers it.", INPUT,
)  # fmt: skip

Regenerate = turn_body(
    "Regenerate", "revision", "The options of the turn that answers the last question again."
)

SetSchedule = turn_body(
    "SetSchedule", "schedule",
    """What is submitted, and when: ``every`` so many seconds, or at the times of ``cron`` text in the time zone ``tz``.

    With ``on``, an event of this name that no turn waits for submits a turn; ``github:*`` are all names that begin so.
    The other fields are those of a turn. ``tenant`` is for keys of every tenant.
    """,
    INPUT, ("every", Positive | None, None), ("cron", str | None, None), ("tz", str, "UTC"), ("on", str | None, None),
)  # fmt: skip


class Submitted(Struct):
    """A turn that is stored and will run. ``events`` and ``result`` are paths of this server."""

    turn_id: str
    session_id: str
    events: str
    result: str


CreateSession = msgspec.defstruct(
    "CreateSession",
    [("session_id", str | None, None), *json_fields(SESSION_OPTIONS)],
    bases=(Given,), kw_only=True, module=__name__,
    namespace={"__doc__": "A session to create. Without ``session_id`` it gets a new id."},
)  # fmt: skip


class NewSession(Struct):
    """A session that was created or forked."""

    session_id: str


class SessionView(Struct):
    """A session at the moment of reading. ``messages`` is the length of its history.

    ``state`` is ``idle``, ``busy`` or ``closed``. ``running`` is the running turn, ``waiting`` are the turns after it,
    ``delayed`` those not due yet, and ``failed`` those that failed last. Times are in ms since 1970.
    """

    session_id: str
    state: str
    messages: int
    running: RunningTurn | None
    waiting: list[str]
    delayed: list[DelayedTurn]
    failed: list[str]
    created: int
    updated: int
    tenant: str | None
    metadata: dict[str, Any]
    branch: Branch | None


class SnapshotQuery(Struct, kw_only=True):
    """``last`` is how many of the last messages to read."""

    last: Annotated[int, Meta(ge=0, le=MOST_MESSAGES)] = 50


ListQuery = msgspec.defstruct("ListQuery", json_fields(LIST_OPTIONS), kw_only=True)


class SessionPage(Struct):
    """Sessions, the most recently used one first. ``cursor`` is for the next page, null at the end of the list.

    A page may have fewer sessions than were asked for, or none, before the end of the list.
    """

    sessions: list[SessionInfo]
    cursor: str | None


SearchQuery = msgspec.defstruct("SearchQuery", [("text", str), *json_fields(SEARCH_OPTIONS)], kw_only=True)


class HistoryQuery(Struct, kw_only=True):
    """A slice of the history: negative numbers count from its end. At most 1,000 messages are returned.

    ``pending`` adds the input of turns that have not ended, ``failed`` the turns that left nothing.
    """

    start: int = -100
    stop: int | None = None
    pending: bool = False
    failed: bool = False


class HistoryPage(Struct):
    """Messages of the history, in order. ``length`` is that of the whole history."""

    messages: list[Message]
    length: int


class AddMessages(Given):
    """Messages to add to the history without running a turn, in our format, OpenAI's or Anthropic's."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class Rewind(Given):
    """``to`` is the id of the message that becomes the last one."""

    to: str


class Changes(Given):
    """Changes of a session. ``metadata`` and ``variables`` are merged into those it has; ``remove`` names variables."""

    metadata: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)


class Fork(Given):
    """``session_id`` is the new session's, ``at`` the id of the last message to copy; without it all are copied.

    ``at`` may also be ``<turn>#<n>``: the copy then ends with the turn's n-th model call and its tool results.
    """

    session_id: str | None = None
    at: str | None = None


class Cancel(Given):
    """``keep`` is what stays in the history: all output so far, the finished steps, or nothing."""

    reason: str = "cancelled by the client"
    keep: Literal["partial", "steps", "nothing"] | None = None


class Cancelled(Struct):
    """``cancelled``; ``requested`` if a worker is ending it; the status of a turn that had ended; null: no turn."""

    outcome: str | None


class TurnsQuery(Struct, kw_only=True):
    """``status`` selects turns that have it when they are read."""

    status: Status | None = None
    limit: PageSize = 50


class TurnPage(Struct):
    """Turns of a session, the newest first."""

    turns: list[TurnInfo]


class WaitQuery(Struct, kw_only=True):
    """``wait`` is how many seconds to wait for the end of the turn."""

    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0


class TurnFailure(Struct):
    """Why a turn failed or was cancelled. ``code`` is stable. ``message`` is for operators, the other for end users."""

    code: str
    message: str
    user_message: str = ""

    def __post_init__(self) -> None:
        self.user_message = self.user_message or user_message(self.code)


class TurnResult(Struct, omit_defaults=True):
    """What became of a turn: the ``response`` of one that finished, the ``error`` of one that failed or was cancelled.

    A turn that has not ended has neither: ask again.
    """

    turn_id: str
    session_id: str
    status: Status
    response: Response | None = None
    error: TurnFailure | None = None


class ManyQuery(Struct, kw_only=True):
    """``sessions`` is a JSON list of up to 100 ids. Without it, the ends of all readable turns are sent.

    ``after`` is the id of the last message seen, 0 for all that is kept. ``types`` are separated by commas. ``tenant``
    is for keys of every tenant. The header ``Last-Event-ID`` takes precedence over ``after``.
    """

    sessions: Annotated[str, Meta(max_length=30_000)] | None = None
    after: Annotated[str, Meta(max_length=4000)] | None = None
    types: str | None = None
    tenant: str | None = None


class EventsQuery(Struct, kw_only=True):
    """``after`` is the ``seq`` of the last event seen, 0 for all that are kept. ``types`` are separated by commas.

    The header ``Last-Event-ID``, which a browser sends by itself, takes precedence over ``after``.
    """

    after: Annotated[int, Meta(ge=0)] | None = None
    types: str | None = None


class MakeToken(Given):
    """A token for the stream of this session: how many seconds it is valid, and optionally the only types of events."""

    seconds: Annotated[float, Meta(gt=0, le=86400)] = 600
    types: list[str] | None = None


class NewToken(Struct):
    """``token`` goes into the query of a stream: ``?token=…``. ``until`` is when it ends, in seconds since 1970."""

    token: str
    until: int
