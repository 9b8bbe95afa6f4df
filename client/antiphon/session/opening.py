"""Checks the arguments that open a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.limits import check_size
from antiphon.input.messages import identified, to_messages
from antiphon.input.options import OpeningOptions
from antiphon.input.values import now_ms, plain
from antiphon.model import Message, encode
from antiphon.session.runtime import Opening
from antiphon.session.saved import FIELDS, OpeningFields


def opening_of(*, parent: str | None = None, **asked: Unpack[OpeningOptions]) -> Opening:
    """Check the arguments that open a session.

    Without ``system``, the leading system messages become the system prompt. Raises ``UsageError``,
    ``InvalidMessage`` and ``InvalidId``.
    """
    given: dict[str, Any] = dict(asked)
    found = to_messages(given.pop("messages", None) or [])
    leading = _leading_system(found)
    if leading and given.get("system") is None:
        given["system"] = "\n\n".join(message.text for message in found[:leading])
    fields = checked_fields(given, OpeningFields)
    _check_limits(fields.get("system"), found)
    opening = Opening(parent=parent, **fields)
    opening.messages = identified(found[leading:], opening.token, now_ms())
    return opening


def checked_fields(given: Mapping[str, Any], known: type[Struct]) -> dict[str, Any]:
    """Check the given fields of a session and leave out those that are None.

    Raises ``UsageError``, and ``TypeError`` for an unknown keyword.
    """
    for name in given:
        if name not in known.__struct_fields__:
            raise TypeError(f"Unknown keyword {name}=.")
    return {name: _checked(name, value) for name, value in given.items() if value is not None}


def _checked(name: str, value: Any) -> Any:
    known = FIELDS[name]
    if known.check is not None:
        return known.check(value)
    if known.kind == dict[str, Any]:
        return plain(value, name)
    if not isinstance(value, str):
        raise UsageError(f"{name}= must be text, not {type(value).__name__}.")
    return value


def _check_limits(system: str | None, messages: Sequence[Message]) -> None:
    check_size("system_bytes", len((system or "").encode(errors="replace")), "system= in bytes")
    check_size("opening_messages", len(messages), "messages=")
    if messages:
        check_size("opening_bytes", sum(len(encode(one)) for one in messages), "messages= in bytes")


def _leading_system(messages: Sequence[Message]) -> int:
    """Count the leading system messages. The system prompt is stored separately from the history."""
    return next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
