"""What a session is to be when it is first used, as callers say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.errors import UsageError
from antiphon.input.ids import check_queue, tenant_id
from antiphon.input.limits import check_size
from antiphon.input.messages import MessageLike, to_messages
from antiphon.model import Message, encode
from antiphon.session.runtime import Opening, plain

__all__ = ["opening_of"]


def opening_of(
    *,
    system: str | None = None,
    messages: Sequence[MessageLike] | None = None,
    variables: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tenant: str | None = None,
    queue: str | None = None,
    parent: str | None = None,
) -> Opening:
    """Check what was asked for. System messages in front are the system prompt, unless there is one.

    Raises ``UsageError``, ``InvalidMessage``, ``InvalidId``.
    """
    found = to_messages(messages or [])
    leading = _leading_system(found)
    if leading and system is None:
        system = "\n\n".join(message.text for message in found[:leading])
    if system is not None and not isinstance(system, str):
        raise UsageError(f"system= is text, not {type(system).__name__}.")
    _check_limits(system, found)
    return Opening(
        system=system,
        messages=found[leading:],
        variables=plain(variables, "variables"),
        metadata=plain(metadata, "metadata"),
        tenant=None if tenant is None else tenant_id(tenant),
        queue=None if queue is None else check_queue(queue),
        parent=parent,
    )


def _check_limits(system: str | None, messages: Sequence[Message]) -> None:
    check_size("system_bytes", len((system or "").encode(errors="replace")), "system= in bytes")
    check_size("opening_messages", len(messages), "messages=")
    if messages:
        check_size("opening_bytes", sum(len(encode(one)) for one in messages), "messages= in bytes")


def _leading_system(messages: Sequence[Message]) -> int:
    """How many messages at the beginning are the system prompt, which is kept beside the history."""
    return next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
