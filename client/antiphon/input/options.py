"""Declares options of calls: how each is checked, described and passed on, and which interfaces have it.

The keywords of public calls are ``TypedDict`` types, so that type checkers find misspelt ones. An option is a field
of one of these types, ``Annotated`` with its ``Option``. Request bodies, command-line flags, jobs, schedules, the types
for Node and the tables in the docs are made from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypedDict, get_args, get_type_hints

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.input.messages import MessageLike
from antiphon.input.values import SessionWord, lifetime

PageSize: TypeAlias = Annotated[int, Meta(ge=1, le=1000)]
_Cursor: TypeAlias = Annotated[str, Meta(max_length=2000)]

Positive: TypeAlias = Annotated[float, Meta(gt=0)]
"""A duration in JSON: seconds."""


class Option(Struct, frozen=True, kw_only=True):
    """The definition of one option, for all interfaces.

    ``doc`` is a phrase for ``--help``, types and the docs. ``check`` returns the value to use, or raises
    ``UsageError``. ``json`` is the type of the option in JSON, or None if it has none, and ``default`` its default
    there. ``missing`` maps each interface without the option to the reason.
    """

    doc: str
    check: Callable[[Any], Any] = lambda value: value
    json: Any = None
    default: Any = None
    missing: Mapping[str, str] = {}


def declared(keywords: Any) -> dict[str, Option]:
    """Return the options among the keywords of a call, by name."""
    hints = get_type_hints(keywords, include_extras=True)
    found = {name: [one for one in get_args(hint) if isinstance(one, Option)] for name, hint in hints.items()}
    return {name: options[0] for name, options in found.items() if options}


def json_fields(options: Mapping[str, Option]) -> list[tuple[str, Any, Any]]:
    """Return the options as fields of a struct, for ``msgspec.defstruct``."""
    return [(name, one.json, one.default) for name, one in options.items()]


def given(values: Any, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options that a struct of ``json_fields`` sets, by name."""
    found = {name: getattr(values, name) for name in options}
    return {name: value for name, value in found.items() if value != options[name].default}


class OpeningOptions(TypedDict, total=False):
    """The keywords of ``Client.session`` and ``Agent.session`` for the contents of a session."""

    system: Annotated[str | None, Option(doc="the system prompt, in place of the agent's", json=str | None)]
    messages: Annotated[
        Sequence[MessageLike] | None,
        Option(doc="messages that the history begins with", json=list[dict[str, Any]], default=[]),
    ]
    variables: Annotated[
        Mapping[str, Any] | None,
        Option(doc="values for the system prompt and for tools", json=dict[str, Any], default={}),
    ]
    metadata: Annotated[
        Mapping[str, Any] | None,
        Option(doc="values that lists of sessions filter by", json=dict[str, Any], default={}),
    ]
    tenant: Annotated[str | None, Option(doc="the tenant of the session", json=str | None)]
    queue: Annotated[str | None, Option(doc="the queue of turns that name none", json=str | None)]


LIFETIME = Option(
    doc="how long the session is kept after its last turn, in seconds; none (null) is for ever",
    check=lifetime,
    json=Positive | UnsetType | None,
    default=UNSET,
)
SESSION_OPTIONS = declared(OpeningOptions) | {"ttl": LIFETIME}
"""The options of a session, by name. ``antiphon.session.saved`` has their checks."""


class ListOptions(TypedDict, total=False):
    """The keywords of ``Client.sessions`` and ``Agent.sessions``."""

    tenant: Annotated[str | None, Option(doc="only sessions of this tenant", json=str | None)]
    metadata: Annotated[
        Mapping[str, Any] | None,
        Option(doc="a JSON object: only sessions with these entries", json=str | None),
    ]
    state: Annotated[
        SessionWord | None,
        Option(doc="only sessions that are in this state", json=SessionWord | None),
    ]
    search: Annotated[
        str | None,
        Option(doc="only sessions whose id, title, agent or tenant contains this text", json=str | None),
    ]
    parent: Annotated[str | None, Option(doc="only children of this session", json=str | None)]
    children: Annotated[
        bool, Option(doc="whether to list the children of sessions, too", json=bool, default=False)
    ]
    limit: Annotated[int | None, Option(doc="at most so many sessions", json=PageSize, default=50)]
    cursor: Annotated[
        str | None,
        Option(
            doc="the cursor of the page before",
            json=_Cursor | None,
            missing={"sessions": "the command prints up to --limit sessions"},
        ),
    ]


LIST_OPTIONS = declared(ListOptions)
"""The options of a list of sessions, by name. ``antiphon.session.listing`` has their checks."""
