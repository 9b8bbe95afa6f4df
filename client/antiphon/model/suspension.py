"""What a suspended turn waits for: client-side tools, approvals, and the decisions about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from antiphon.model.parts import NO_ARGUMENTS, Arguments, File, Image, Text


def _approval() -> OpenCallKind:
    return "approval"


def _no_parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class CallerTool(Struct, omit_defaults=True):
    """A tool without code: a model may call it, and whoever submitted the turn gives the result.

    ``parameters`` is the JSON schema of its arguments. ``timeout`` is how many seconds a call may wait for its result;
    None is the longest that any call waits, 30 days. Then ``at_limit`` says what happens: ``"reject"`` tells the model
    that no result came, and ``"fail"`` fails the turn.

    >>> CallerTool("open_page", "Open a page in the user's browser.", timeout=60).at_limit
    'reject'
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=_no_parameters)
    timeout: float | None = None
    at_limit: AtLimit = "reject"


IN_TIME = "Nobody decided within the time limit."
"""The reason of a decision that a time limit makes."""

OpenCallKind: TypeAlias = Literal["approval", "tool"]
AtLimit: TypeAlias = Literal["reject", "approve", "fail"]
DecisionKind: TypeAlias = Literal["approve", "reject", "result"]


class OpenCall(Struct, omit_defaults=True):
    """A tool call that a suspended turn waits for.

    A call of the kind ``approval`` waits for a person who approves or rejects it; then the worker runs the tool. A call
    of the kind ``tool`` is of a tool without code: it waits for its result from the caller.

    ``seconds`` is how long it may wait, and ``until`` the end of that in ms since 1970, by the clock of the store;
    ``at_limit`` says what happens then.

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

    That is the end of a sleep or, with the kind ``event``, an event or the end of the time for it. With the kind
    ``batch``, it is the answer of a model service, or the end of the time for that. ``call_id`` is the
    tool call that waits, '' if the function of the turn does. ``name`` is that of the wait in its call, and ``event``
    that of the event. ``seconds`` is how long it could still last when the turn was suspended. An event that was sent
    at the position ``after`` or before is not waited for: the call has received it. ``about`` is what the event is to
    answer, if that is a question: see the page about MCP servers.

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
        """Its id among all that the turn waits for."""
        return f"{self.name}:{self.call_id}"


class Decision(Struct, omit_defaults=True):
    """What was decided about a pending tool call: by whom, when, and why.

    ``arguments`` replace those of the model if a call was approved with others. ``content`` and
    ``is_error`` are the result of a client-side tool. ``by`` is None where nobody was named. It is so
    where a time limit decided, which
    ``reason`` then says. ``at`` is in ms since 1970.
    Through a gateway, ``by`` is the authenticated caller, and ``on_behalf_of`` the person whom that one has named.

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
        """The names in the decision, as a text to show; '' without any."""
        return " on behalf of ".join(filter(None, (self.by, self.on_behalf_of)))
