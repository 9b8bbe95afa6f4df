"""The fields of a session and its saved form, a dictionary of plain types.

Each field is declared once. The declaration is enough to check the keyword, to store the field in both runtimes and
in Redis, to save and read it, to copy it in forks and to restore it from the archive. Declare a field in
``ListedFields`` if lists show it and filter by it, in ``OpeningFields`` if they do not, and in ``SavedSession`` if
callers cannot set it when they open a session.

Every runtime saves the same form: ``version, session_id, agent, system, messages, variables, metadata, created,
updated``, and all other fields that have a value. Times are in ms since 1970. Unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct, field

from antiphon.errors import AgentError, CorruptRecord, InvalidId, UsageError
from antiphon.input.ids import check_queue, tenant_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.messages import to_messages
from antiphon.input.request import TurnRequest
from antiphon.model import File, Message, OpenCall, with_ids
from antiphon.model.files import StoredFile
from antiphon.model.usage import Usage
from antiphon.session.turn_info import TurnInfo
from antiphon.window import SavedSummary

VERSION = 1

_REQUIRED = ("version", "session_id", "messages")
_ALWAYS_SAVED = ("session_id", "agent", "system", "messages", "variables", "metadata", "created", "updated")


class Field(Struct, frozen=True):
    """How a field is checked and inherited.

    ``expected`` completes the sentence "The field must be …". ``check`` returns the value or raises ``UsageError``.
    If ``inherited`` is true, a child session without a value gets that of its parent.
    """

    expected: str
    check: Callable[[object], str] | None = None
    inherited: bool = False
    kind: Any = None  # the type that the value is converted to, filled in from the annotation


class ListedFields(Struct, kw_only=True):
    """Fields that callers set when they open a session, and that lists of sessions show and filter by."""

    tenant: Annotated[str | None, Field("the name of a tenant or null", tenant_id, inherited=True)] = None
    queue: Annotated[str | None, Field("the name of a queue or null", check_queue, inherited=True)] = None
    metadata: Annotated[dict[str, Any], Field("a dictionary")] = field(default_factory=dict)
    parent: Annotated[str | None, Field("text or null")] = None


class OpeningFields(ListedFields, kw_only=True):
    """Fields that callers set when they open a session."""

    system: Annotated[str | None, Field("text or null")] = None
    variables: Annotated[dict[str, Any], Field("a dictionary")] = field(default_factory=dict)


class SavedTurn(Struct, omit_defaults=True):
    """A suspended turn of a session in this process: its request, journal and pending tool calls."""

    turn: TurnInfo
    request: TurnRequest
    journal: list[dict[str, Any]]
    calls: list[OpenCall]


class Titled(Struct, omit_defaults=True):
    """The title that a worker gave a session, and the turn that it was made from."""

    title: str
    turn_id: str


class SavedSession(OpeningFields):
    """A session as it is saved."""

    session_id: str
    messages: list[Message] = field(default_factory=list)
    agent: Annotated[dict[str, Any] | str | None, Field("a name, a dictionary or null")] = None
    files: Annotated[dict[str, File], Field("a dictionary of files")] = field(default_factory=dict)
    children: Annotated[list[str], Field("a list of session ids")] = field(default_factory=list)
    fork_of: Annotated[str | None, Field("text or null")] = None
    fork_at: Annotated[str | None, Field("text or null")] = None
    branches: Annotated[dict[str, str], Field("a dictionary of message ids")] = field(default_factory=dict)
    users: Annotated[list[str], Field("a list of names of users")] = field(default_factory=list)
    closed: Annotated[bool, Field("true or false")] = False
    summary: Annotated[SavedSummary | None, Field("a dictionary of messages and text, or null")] = None
    usage: Annotated[Usage | None, Field("a dictionary of tokens and cost, or null")] = None
    titled: Annotated[Titled | None, Field("a dictionary of title and turn, or null")] = None
    title_usage: Annotated[Usage | None, Field("a dictionary of tokens and cost, or null")] = None
    created: Annotated[int, Field("a number of ms")] = 0
    updated: Annotated[int, Field("a number of ms")] = 0
    suspended: list[SavedTurn] = field(default_factory=list)
    media: list[StoredFile] = field(default_factory=list)

    def keep(self, messages: int) -> None:
        """Keep the first ``messages`` messages. Drop the others, and the summary if it covers any of them."""
        del self.messages[messages:]
        if self.summary is not None and self.summary.messages > messages:
            self.summary = None

    def copied(self) -> SavedSession:
        """Return a deep copy. Raises ``CorruptRecord`` if the session cannot be written as JSON."""
        try:
            return msgspec.json.decode(msgspec.json.encode(self), type=SavedSession)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise CorruptRecord(f"The saved session cannot be written as JSON: {exc}.") from exc

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        more = {name: plain[name] for name in [*FIELDS, *_LISTS] if plain[name] and name not in _ALWAYS_SAVED}
        return {"version": VERSION, **{name: plain[name] for name in _ALWAYS_SAVED}, **more}


def _declared() -> dict[str, Field]:
    """Return the fields of ``SavedSession`` that have a ``Field`` declaration."""
    fields: dict[str, Field] = {}
    for name, hint in get_type_hints(SavedSession, include_extras=True).items():
        kind, *more = get_args(hint) or (hint,)
        if more and isinstance(more[0], Field):
            fields[name] = msgspec.structs.replace(more[0], kind=kind)
    return fields


FIELDS = _declared()
"""All fields of a session except its id and its messages, by name."""


_LISTS = {
    "suspended": Field("a list of suspended turns", kind=list[SavedTurn]),
    "media": Field("a list of files with their data in base64", kind=list[StoredFile]),
}
_VERSION, _SESSION_ID = Field("a number", kind=int), Field("text", kind=str)


def read_saved(data: Any) -> SavedSession:
    """Read the dictionary that ``to_dict`` returned.

    The messages may also be OpenAI's or Anthropic's dictionaries. Raises ``CorruptRecord``, which states the problem.
    """
    if not isinstance(data, Mapping):
        raise CorruptRecord(f"A saved session must be a dictionary, not {type(data).__name__}.")
    fields = dict(cast("Mapping[str, Any]", data))
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise CorruptRecord(f"The saved session has no {', '.join(missing)}.")
    session_id = _value("session_id", fields["session_id"], _SESSION_ID)
    if not 1 <= _value("version", fields["version"], _VERSION) <= VERSION:
        raise CorruptRecord(
            f"The saved session has format version {fields['version']}, but this release reads versions up to"
            f" {VERSION}: upgrade antiphon."
        )
    values = {name: _value(name, fields[name], known) for name, known in FIELDS.items() if name in fields}
    try:
        checked_session_id(session_id)
        saved = SavedSession(session_id, with_ids(_messages(fields["messages"])), **values)
        for name, known in _LISTS.items():
            setattr(saved, name, _value(name, fields.get(name, []), known))
        saved.keep(len(saved.messages))
        return saved
    except InvalidId as exc:
        raise CorruptRecord(f"The session_id of the saved session is not valid: {exc.message}") from exc
    except (AgentError, TypeError) as exc:
        raise CorruptRecord(f"The messages of the saved session cannot be read: {exc}") from exc


def same_messages(some: Sequence[Message], others: Sequence[Message]) -> bool:
    """Return True if these are the same messages. Ids do not count: copies made by older releases have none."""
    if some == others:
        return True
    return len(some) == len(others) and all(map(_same, some, others))


def _same(one: Message, other: Message) -> bool:
    return msgspec.structs.replace(one, id=None) == msgspec.structs.replace(other, id=None)


def _messages(values: Any) -> list[Message]:
    """Read our own messages together, which is fast, and others one by one, for an error that names the message."""
    if isinstance(values, list) and all(
        type(one) is dict and "parts" in one for one in cast("list[Any]", values)
    ):
        try:
            messages = msgspec.convert(values, list[Message])
            msgspec.json.encode(messages)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return to_messages(cast("list[Any]", values))
        return messages
    return to_messages(cast("Any", values))


def _value(name: str, value: Any, known: Field) -> Any:
    try:
        found = msgspec.convert(value, known.kind)
        return found if found is None or known.check is None else known.check(found)
    except (msgspec.ValidationError, UsageError) as exc:
        raise CorruptRecord(
            f"The {name} of the saved session must be {known.expected}, not {value!r:.80}."
        ) from exc
