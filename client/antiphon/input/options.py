"""The keywords of public calls as ``TypedDict`` types, so that type checkers find misspelt ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from antiphon.input.messages import MessageLike

__all__ = ["ListOptions", "OpeningOptions"]


class OpeningOptions(TypedDict, total=False):
    """The keywords of ``Client.session`` and ``Agent.session`` for the contents of a session."""

    system: str | None
    messages: Sequence[MessageLike] | None
    variables: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    tenant: str | None
    queue: str | None


class ListOptions(TypedDict, total=False):
    """The keywords of ``Client.sessions`` and ``Agent.sessions``."""

    tenant: str | None
    metadata: Mapping[str, Any] | None
    limit: int | None
    cursor: str | None
