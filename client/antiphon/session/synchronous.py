"""Shared parts of the generated synchronous classes, which wrap asynchronous forms on the background loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from antiphon.session.background import call

T = TypeVar("T")


class Synchronous(Generic[T]):
    """The synchronous form of an object. Two forms of the same object are equal."""

    def __init__(self, asynchronous: T) -> None:
        self._async = asynchronous

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Synchronous) and self._async is cast("Synchronous[Any]", other)._async

    def __hash__(self) -> int:
        return hash(id(self._async))


class _LeftOut:
    def __repr__(self) -> str:
        return "…"


LEFT_OUT: Any = _LeftOut()
"""The default of a keyword that is passed on only if the caller gives it."""


def given(**keywords: Any) -> dict[str, Any]:
    """Return the keywords that the caller has given."""
    return {name: value for name, value in keywords.items() if value is not LEFT_OUT}


def asynchronous(value: Any) -> Any:
    """Return the asynchronous form of a value, and of each value in a list."""
    if isinstance(value, Synchronous):
        return cast("Synchronous[Any]", value)._async  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [asynchronous(one) for one in cast("Iterable[Any]", value)]
    return value


def made(make: Callable[[], T]) -> T:
    """Make an object on the background loop, which its connections belong to."""

    async def make_there() -> T:
        return make()

    return call(make_there())
