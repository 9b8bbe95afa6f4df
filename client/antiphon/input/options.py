"""The keywords of public calls as ``TypedDict`` types: type checkers find misspelt ones, and ``help`` shows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

from antiphon.input.messages import MessageLike

F = TypeVar("F", bound=Callable[..., Any])


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


class _LeftOut:
    """Stands for the default of an optional keyword in signatures."""

    def __repr__(self) -> str:
        return "…"


_LEFT_OUT = _LeftOut()


def spelled_out(function: F) -> F:
    """List the keywords of a ``TypedDict`` one by one in the signature that ``help`` and notebooks show."""
    signature = inspect.signature(function)
    *others, last = signature.parameters.values()
    if last.kind is last.VAR_KEYWORD and str(last.annotation).startswith("Unpack["):
        options = inspect.unwrap(function).__globals__[last.annotation[len("Unpack[") : -1]]
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_LEFT_OUT, annotation=_text(hint))
            for name, hint in options.__annotations__.items()
        ]
        cast("Any", function).__signature__ = signature.replace(parameters=[*others, *keywords])
    return function


def _text(hint: Any) -> str:
    return getattr(hint, "__forward_arg__", None) or str(hint)
