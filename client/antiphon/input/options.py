"""The keywords of calls that hand them on, for type checkers: a misspelt one is seen before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from antiphon.input.messages import MessageLike

__all__ = ["ListOptions", "OpeningOptions"]


class OpeningOptions(TypedDict, total=False):
    """Those of ``Client.session`` that the session begins with."""

    system: str | None
    messages: Sequence[MessageLike] | None
    variables: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    tenant: str | None
    queue: str | None


class ListOptions(TypedDict, total=False):
    """Those of ``Client.sessions``."""

    tenant: str | None
    metadata: Mapping[str, Any] | None
    limit: int | None
    cursor: str | None
