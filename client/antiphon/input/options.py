"""The keywords of calls that hand them on, for type checkers: a misspelt one is seen before it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from antiphon.input.messages import MessageLike
from antiphon.input.request import AgentSpec, OutputSpec, Travelling

__all__ = ["ListOptions", "OpeningOptions", "SubmitOptions"]


class SubmitOptions(TypedDict, total=False):
    """Those of ``AsyncClient.submit``."""

    agent: str | AgentSpec | Travelling | None
    key: str | None
    params: Mapping[str, Any] | None
    output: OutputSpec | None
    metadata: Mapping[str, Any] | None
    if_busy: Literal["enqueue", "reject"]
    tenant: str | None
    queue: str | None
    delay: float | timedelta | None
    timeout: float | timedelta | None
    ttl: float | timedelta | None


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
