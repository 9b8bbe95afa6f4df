"""Decorators that make synchronous methods and properties from coroutines.

    @synchronous
    async def run(self, text: str) -> Response: ...

    run_async = awaited(run)

Both methods have the signature of the coroutine, for type checkers and for ``help``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from types import FunctionType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, cast, overload

from antiphon.input.options import spelled_out
from antiphon.session.background import call

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


def synchronous(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], T]:
    """Make a method that runs the coroutine on the background loop and waits for it."""

    @wraps(method)
    def wait(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return call(method(self, *args, **kwargs))

    return spelled_out(wait)


class synchronous_property(Generic[S, T]):  # noqa: N801 - used as ``property`` is
    """A property whose value comes from a coroutine that runs on the background loop."""

    def __init__(self, read: Callable[[S], Coroutine[Any, Any, T]]) -> None:
        self.read = read
        self.__doc__ = read.__doc__

    @overload
    def __get__(self, obj: None, owner: type) -> Self: ...
    @overload
    def __get__(self, obj: S, owner: type) -> T: ...
    def __get__(self, obj: S | None, owner: type) -> Self | T:
        return self if obj is None else call(self.read(obj))

    def __set__(self, obj: S, value: Any) -> NoReturn:
        raise AttributeError(f"{self.read.__name__} is read-only.")


@overload
def awaited(method: synchronous_property[S, T]) -> Callable[[S], Coroutine[Any, Any, T]]: ...
@overload
def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]: ...
def awaited(method: Any) -> Any:
    """Return the coroutine of a synchronous method or property, renamed to ``…_async``."""
    written = cast(
        "FunctionType", method.read if isinstance(method, synchronous_property) else method.__wrapped__
    )
    name = written.__name__
    written.__doc__ = f"``{name}``, awaited.\n\n{inspect.getdoc(written) or ''}".partition("\n\n>>>")[0]
    written.__name__ = f"{name}_async"
    written.__qualname__ = f"{written.__qualname__}_async"
    return spelled_out(written)
