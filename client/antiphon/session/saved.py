"""The saved form of a session: a dictionary of plain types, the same from every runtime.

``version, session_id, agent, system, messages, variables, metadata, created, updated``, and ``tenant``, ``queue``,
``files``, ``parent``, ``children``, ``closed`` and ``summary`` where there are any. Times are ms since 1970. Readers
ignore keys that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from antiphon.errors import AgentError, CorruptRecord, InvalidId, UsageError
from antiphon.input.ids import check_queue, tenant_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.messages import to_messages
from antiphon.model import File, Message
from antiphon.window import SavedSummary

__all__ = ["VERSION", "SavedSession", "read_saved"]

VERSION = 1

_TYPES: dict[str, tuple[Any, str]] = {
    "version": (int, "a number"),
    "session_id": (str, "text"),
    "agent": (dict[str, Any] | str | None, "a name, a dictionary or null"),
    "system": (str | None, "text or null"),
    "variables": (dict[str, Any], "a dictionary"),
    "metadata": (dict[str, Any], "a dictionary"),
    "tenant": (str | None, "the name of a tenant or null"),
    "queue": (str | None, "the name of a queue or null"),
    "files": (dict[str, File], "a dictionary of files"),
    "parent": (str | None, "text or null"),
    "children": (list[str], "a list of session ids"),
    "closed": (bool, "true or false"),
    "summary": (SavedSummary | None, "a dictionary of messages and text, or null"),
    "created": (int, "a number of ms"),
    "updated": (int, "a number of ms"),
}
_CHECKS: dict[str, Callable[[object], str]] = {"tenant": tenant_id, "queue": check_queue}
_REQUIRED = ("version", "session_id", "messages")


class SavedSession(Struct):
    """A session as it is saved."""

    session_id: str
    messages: list[Message] = field(default_factory=list)
    agent: dict[str, Any] | str | None = None
    system: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    queue: str | None = None
    files: dict[str, File] = field(default_factory=dict)
    parent: str | None = None
    children: list[str] = field(default_factory=list)
    closed: bool = False
    summary: SavedSummary | None = None
    created: int = 0
    updated: int = 0

    def keep(self, messages: int) -> None:
        """Drop what comes after the first ``messages``, and a summary that tells of it."""
        del self.messages[messages:]
        if self.summary is not None and self.summary.messages > messages:
            self.summary = None

    def copied(self) -> SavedSession:
        """A copy that shares nothing with this one. Raises ``CorruptRecord`` where it has no JSON form."""
        try:
            return msgspec.json.decode(msgspec.json.encode(self), type=SavedSession)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise CorruptRecord(f"The saved session has no JSON form: {exc}.") from exc

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        keys = ("session_id", "agent", "system", "messages", "variables", "metadata", "created", "updated")
        more = {
            key: plain[key]
            for key in ("tenant", "queue", "files", "parent", "children", "closed", "summary")
            if plain[key]
        }
        return {"version": VERSION, **{key: plain[key] for key in keys}, **more}


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
    values = {name: _value(name, fields[name]) for name in _TYPES if name in fields}
    if not 1 <= values.pop("version") <= VERSION:
        raise CorruptRecord(
            f"The saved session has the format version {fields['version']}; this release reads up to"
            f" {VERSION}: upgrade antiphon."
        )
    try:
        checked_session_id(values["session_id"])
        saved = SavedSession(messages=_messages(fields["messages"]), **values)
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


def _value(name: str, value: Any) -> Any:
    kind, expected = _TYPES[name]
    try:
        found = msgspec.convert(value, kind)
        return found if found is None or name not in _CHECKS else _CHECKS[name](found)
    except (msgspec.ValidationError, UsageError) as exc:
        raise CorruptRecord(
            f"The {name} of the saved session must be {expected}, not {value!r:.80}."
        ) from exc
