"""What a session is to be when it is first used, as callers say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.limits import check_size
from antiphon.input.messages import to_messages
from antiphon.input.options import OpeningOptions
from antiphon.input.values import plain
from antiphon.model import Message, encode
from antiphon.session.runtime import Opening
from antiphon.session.saved import FIELDS, OpeningFields

__all__ = ["checked_fields", "opening_of"]


def opening_of(*, parent: str | None = None, **asked: Unpack[OpeningOptions]) -> Opening:
    """Check what was asked for. System messages in front are the system prompt, unless there is one.

    Raises ``UsageError``, ``InvalidMessage``, ``InvalidId``.
    """
    given: dict[str, Any] = dict(asked)
    found = to_messages(given.pop("messages", None) or [])
    leading = _leading_system(found)
    if leading and given.get("system") is None:
        given["system"] = "\n\n".join(message.text for message in found[:leading])
    fields = checked_fields(given, OpeningFields)
    _check_limits(fields.get("system"), found)
    return Opening(messages=found[leading:], parent=parent, **fields)


def checked_fields(given: Mapping[str, Any], known: type[Struct]) -> dict[str, Any]:
    """The fields of a session as callers gave them, without those that are None. Raises ``UsageError``, and
    ``TypeError`` where there is no such keyword."""
    for name in given:
        if name not in known.__struct_fields__:
            raise TypeError(f"There is no keyword {name}=.")
    return {name: _checked(name, value) for name, value in given.items() if value is not None}


def _checked(name: str, value: Any) -> Any:
    known = FIELDS[name]
    if known.check is not None:
        return known.check(value)
    if known.kind == dict[str, Any]:
        return plain(value, name)
    if not isinstance(value, str):
        raise UsageError(f"{name}= is text, not {type(value).__name__}.")
    return value


def _check_limits(system: str | None, messages: Sequence[Message]) -> None:
    check_size("system_bytes", len((system or "").encode(errors="replace")), "system= in bytes")
    check_size("opening_messages", len(messages), "messages=")
    if messages:
        check_size("opening_bytes", sum(len(encode(one)) for one in messages), "messages= in bytes")


def _leading_system(messages: Sequence[Message]) -> int:
    """How many messages at the beginning are the system prompt, which is kept beside the history."""
    return next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
