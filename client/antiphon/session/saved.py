"""The fields of a session, each declared once, and its saved form: a dictionary of plain types.

What follows from a declaration: the keyword of an opening is checked, both runtimes keep the field, it is saved and
read again, Redis stores it, forks copy it, the archive restores it, and lists show it and filter by it. A field is
declared in ``ListedFields`` where all of that holds, in ``OpeningFields`` where lists leave it out, and in
``SavedSession`` where no opening gives it.

The saved form is the same from every runtime: ``version, session_id, agent, system, messages, variables, metadata,
created, updated``, and every other field that has a value. Times are ms since 1970. Readers ignore keys that they do
not know.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct, field

from antiphon.errors import AgentError, CorruptRecord, InvalidId, UsageError
from antiphon.input.ids import check_queue, tenant_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.messages import to_messages
from antiphon.model import File, Message
from antiphon.window import SavedSummary

__all__ = ["FIELDS", "VERSION", "Field", "ListedFields", "OpeningFields", "SavedSession", "read_saved"]

VERSION = 1

_REQUIRED = ("version", "session_id", "messages")
_ALWAYS_SAVED = ("session_id", "agent", "system", "messages", "variables", "metadata", "created", "updated")


class Field(Struct, frozen=True):
    """How a field is handled; its type says the rest.

    ``expected`` ends the sentence "The field must be …". ``check`` gives the value, or raises ``UsageError``. With
    ``inherited``, a child session takes the value of its parent where it has none.
    """

    expected: str
    check: Callable[[object], str] | None = None
    inherited: bool = False
    kind: Any = None  # the type that the value is converted to, filled in from the annotation


class ListedFields(Struct, kw_only=True):
    """What an opening may give, the session keeps, and lists of sessions show and filter by."""

    tenant: Annotated[str | None, Field("the name of a tenant or null", tenant_id, inherited=True)] = None
    queue: Annotated[str | None, Field("the name of a queue or null", check_queue, inherited=True)] = None
    metadata: Annotated[dict[str, Any], Field("a dictionary")] = field(default_factory=dict)


class OpeningFields(ListedFields, kw_only=True):
    """What an opening may give and the session keeps."""

    system: Annotated[str | None, Field("text or null")] = None
    variables: Annotated[dict[str, Any], Field("a dictionary")] = field(default_factory=dict)
    parent: Annotated[str | None, Field("text or null")] = None


class SavedSession(OpeningFields):
    """A session as it is saved."""

    session_id: str
    messages: list[Message] = field(default_factory=list)
    agent: Annotated[dict[str, Any] | str | None, Field("a name, a dictionary or null")] = None
    files: Annotated[dict[str, File], Field("a dictionary of files")] = field(default_factory=dict)
    children: Annotated[list[str], Field("a list of session ids")] = field(default_factory=list)
    closed: Annotated[bool, Field("true or false")] = False
    summary: Annotated[SavedSummary | None, Field("a dictionary of messages and text, or null")] = None
    created: Annotated[int, Field("a number of ms")] = 0
    updated: Annotated[int, Field("a number of ms")] = 0

    def keep(self, messages: int) -> None:
        """Drop what comes after the first ``messages``, and a summary that tells of it."""
        del self.messages[messages:]
        if self.summary is not None and self.summary.messages > messages:
            self.summary = None

    def shallow(self, *, messages: bool = True) -> SavedSession:
        """A copy with lists and dictionaries of its own that hold the same values; without messages where asked."""
        values = {name: copy.copy(getattr(self, name)) for name in FIELDS}
        return SavedSession(self.session_id, list(self.messages) if messages else [], **values)

    def copied(self) -> SavedSession:
        """A copy that shares nothing with this one. Raises ``CorruptRecord`` where it has no JSON form."""
        try:
            return msgspec.json.decode(msgspec.json.encode(self), type=SavedSession)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise CorruptRecord(f"The saved session has no JSON form: {exc}.") from exc

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        more = {name: plain[name] for name in FIELDS if plain[name] and name not in _ALWAYS_SAVED}
        return {"version": VERSION, **{name: plain[name] for name in _ALWAYS_SAVED}, **more}


def _declared() -> dict[str, Field]:
    """The fields of ``SavedSession`` that say how they are handled."""
    fields: dict[str, Field] = {}
    for name, hint in get_type_hints(SavedSession, include_extras=True).items():
        kind, *more = get_args(hint) or (hint,)
        if more and isinstance(more[0], Field):
            fields[name] = msgspec.structs.replace(more[0], kind=kind)
    return fields


FIELDS = _declared()
"""The fields of a session beside its id and its messages, by name."""


_VERSION, _SESSION_ID = Field("a number", kind=int), Field("text", kind=str)


def read_saved(data: Any) -> SavedSession:
    """Read what ``to_dict`` gave. Raises ``CorruptRecord`` that says what is wrong with other data.

    The messages may also be OpenAI's or Anthropic's dictionaries.
    """
    if not isinstance(data, Mapping):
        raise CorruptRecord(f"A saved session is a dictionary, not {type(data).__name__}.")
    fields = dict(cast("Mapping[str, Any]", data))
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise CorruptRecord(f"The saved session has no {', '.join(missing)}.")
    session_id = _value("session_id", fields["session_id"], _SESSION_ID)
    if not 1 <= _value("version", fields["version"], _VERSION) <= VERSION:
        raise CorruptRecord(
            f"The saved session has the format version {fields['version']}; this release reads up to"
            f" {VERSION}: upgrade antiphon."
        )
    values = {name: _value(name, fields[name], known) for name, known in FIELDS.items() if name in fields}
    try:
        checked_session_id(session_id)
        saved = SavedSession(session_id, _messages(fields["messages"]), **values)
        saved.keep(len(saved.messages))
        return saved
    except InvalidId as exc:
        raise CorruptRecord(f"The session_id of the saved session cannot be one: {exc.message}") from exc
    except (AgentError, TypeError) as exc:
        raise CorruptRecord(f"The messages of the saved session cannot be read: {exc}") from exc


def _messages(values: Any) -> list[Message]:
    """Ours in one go, which is quick; anything else one by one, which says what is wrong with which."""
    if isinstance(values, list) and all(
        type(one) is dict and "parts" in one for one in cast("list[Any]", values)
    ):
        try:
            messages = msgspec.convert(values, list[Message])
            msgspec.json.encode(messages)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return to_messages(cast("list[Any]", values))
        return messages
    return to_messages(values)


def _value(name: str, value: Any, known: Field) -> Any:
    try:
        found = msgspec.convert(value, known.kind)
        return found if found is None or known.check is None else known.check(found)
    except (msgspec.ValidationError, UsageError) as exc:
        raise CorruptRecord(
            f"The {name} of the saved session must be {known.expected}, not {value!r:.80}."
        ) from exc
