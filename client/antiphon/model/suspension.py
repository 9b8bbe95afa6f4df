"""What suspended turns wait for (approvals, results of client-side tools, events, sleeps), and decisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from antiphon.model.parts import NO_ARGUMENTS, Arguments, File, Image, Text


def _approval() -> OpenCallKind:
    return "approval"


def _no_parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class CallerTool(Struct, omit_defaults=True):
    """A client-side tool, without code: a model may call it, and the client that submitted the turn gives the result.

    ``parameters`` is the JSON schema of its arguments. ``timeout`` is how many seconds a call may wait for its
    result; None means the maximum, 30 days. After that, ``at_limit`` decides: ``"reject"`` reports to the model that
    no result came, and ``"fail"`` fails the turn.

    >>> CallerTool("open_page", "Open a page in the user's browser.", timeout=60).at_limit
    'reject'
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=_no_parameters)
    timeout: float | None = None
    at_limit: AtLimit = "reject"


IN_TIME = "Nobody decided within the time limit."
"""The reason of a decision made by a time limit."""

OpenCallKind: TypeAlias = Literal["approval", "tool"]
AtLimit: TypeAlias = Literal["reject", "approve", "fail"]
DecisionKind: TypeAlias = Literal["approve", "reject", "result"]


class OpenCall(Struct, omit_defaults=True):
    """A tool call that a suspended turn waits for.

    A call of the kind ``approval`` waits for a person to approve or reject it; if approved, a worker runs the tool. A
    call of the kind ``tool`` calls a client-side tool: it waits for its result from the client.

    ``seconds`` is how long it may wait, and ``until`` the end of this time in ms since 1970, by the clock of the
    store; ``at_limit`` decides what happens then.

    >>> OpenCall("call_1", "refund", {"amount": 30}, seconds=3600.0).at_limit
    'reject'
    """

    call_id: str
    name: str
    arguments: Arguments = NO_ARGUMENTS
    kind: Annotated[OpenCallKind, Meta(extra_json_schema={"default": "approval"})] = field(
        default_factory=_approval
    )
    seconds: float | None = None
    at_limit: AtLimit = "reject"
    until: int | None = None


class Wait(Struct, omit_defaults=True):
    """What a suspended turn waits for without a decision, until ``until`` (ms since 1970).

    This is the end of a sleep, an event (kind ``event``) or the answer of a model service (kind ``batch``); ``until``
    is the time limit of the latter two. ``call_id`` is the tool call that waits, or '' for the function of the turn.
    ``name`` is the name of the wait in its call, and ``event`` that of the event. ``seconds`` is how much of the time
    was left when the turn was suspended. An event at or before the position ``after`` does not end the wait: the call
    has received it. ``about`` is the question that the event is to answer, if any: see the page about MCP servers.

    >>> Wait("call_1", "sleep#2", seconds=28_800.0).id
    'sleep#2:call_1'
    """

    call_id: str
    name: str
    kind: str = "sleep"
    seconds: float = 0.0
    until: int | None = None
    event: str = ""
    after: int = 0
    about: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The id of the wait among all waits of the turn."""
        return f"{self.name}:{self.call_id}"


class Decision(Struct, omit_defaults=True):
    """How a pending tool call was resolved: by whom, when, and why.

    ``arguments`` replace those of the model if a call was approved with others. ``content`` and ``is_error`` are the
    result of a client-side tool. ``by`` is None if no name was given, and if a time limit decided (see ``reason``).
    ``at`` is in ms since 1970. Through a gateway, ``by`` is the authenticated caller, and ``on_behalf_of`` the person
    named by the caller.

    >>> Decision("call_1", "reject", by="ada", reason="Too much.").kind
    'reject'
    """

    call_id: str
    kind: DecisionKind
    by: str | None = None
    reason: str | None = None
    arguments: dict[str, Any] | None = None
    content: str | list[Text | Image | File] = ""
    is_error: bool = False
    at: int = 0
    on_behalf_of: str | None = None

    @property
    def who(self) -> str:
        """The names in the decision, as text to show, or ''."""
        return " on behalf of ".join(filter(None, (self.by, self.on_behalf_of)))
