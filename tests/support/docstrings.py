"""The examples of docstrings: found by their public names, and typed in as by a reader.

The reader first types the example of the class, then that of the method, which continues from there; at a prompt that
understands ``await``, like that of ``python -m asyncio``. Dots in an expected answer match anything.

The methods of ``Session`` named …_async are those of ``AsyncSession``, whose examples are typed in.
"""

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import sys
import traceback
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_parser = doctest.DocTestParser()
_checker = doctest.OutputChecker()


@dataclass(frozen=True)
class Documented:
    """A public name and its docstring. ``before`` are the examples of its class."""

    name: str
    doc: str
    module: types.ModuleType
    before: tuple[doctest.Example, ...] = ()

    @property
    def examples(self) -> list[doctest.Example]:
        return _parser.get_examples(self.doc)


def documented(front: str, only: Collection[str] = ()) -> Iterator[Documented]:
    """Yield the classes and functions in the ``__all__`` of a module (or ``only`` some), and the public methods of
    the classes. Members that a class inherits from another of these classes belong to the latter."""
    module = importlib.import_module(front)
    names = list(only) or module.__all__
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            others = {getattr(module, other) for other in names} - {value}
            yield from _of_class(f"{front}.{name}", value, others)
        elif inspect.isroutine(value):
            yield Documented(f"{front}.{name}", inspect.getdoc(value) or "", _module_of(value))


def _of_class(name: str, cls: type, others: Collection[Any]) -> Iterator[Documented]:
    module, own = _module_of(cls), Documented(name, inspect.cleandoc(cls.__doc__ or ""), _module_of(cls))
    yield own
    for member in sorted(_members(cls, others)):
        found = inspect.getattr_static(cls, member)
        doc = inspect.getdoc(found if inspect.isdatadescriptor(found) else getattr(cls, member)) or ""
        yield Documented(f"{name}.{member}", doc, module, tuple(own.examples))


def _members(cls: type, others: Collection[Any]) -> set[str]:
    """Return the public methods and properties defined by this class or our base classes, except ``others``."""
    kinds = types.FunctionType | classmethod | staticmethod | property
    return {
        name
        for base in cls.__mro__
        if base.__module__.partition(".")[0].startswith("antiphon") and base not in others
        for name, value in vars(base).items()
        if isinstance(value, kinds) and not name.startswith("_") and _written(value)
    }


def _written(value: Any) -> bool:
    """Return whether this is our code: a base class of a framework may add methods to a class of ours."""
    return not inspect.isfunction(value) or value.__module__.partition(".")[0].startswith("antiphon")


def _module_of(value: Any) -> types.ModuleType:
    return importlib.import_module(value.__module__)


def type_in(one: Documented, stands_for: Mapping[str, str] | None = None) -> None:
    """Type in the examples and compare the answers. ``stands_for`` maps texts to their replacements."""
    names: dict[str, Any] = dict(vars(one.module)) | {"asyncio": asyncio}
    with asyncio.Runner() as runner:
        try:
            for example in [*one.before, *one.examples]:
                source, want = example.source, example.want
                for text, other in (stands_for or {}).items():
                    source, want = source.replace(text, other), want.replace(text, other)
                got = _answer(source, names, runner, example.exc_msg)
                if not _checker.check_output(example.exc_msg or want, got, doctest.ELLIPSIS):
                    raise AssertionError(f"{one.name}\n>>> {source}gave\n{got}instead of\n{want}")
        finally:
            known = vars(one.module)
            _close_all({n: value for n, value in names.items() if known.get(n) is not value}, runner)


def _answer(source: str, names: dict[str, Any], runner: asyncio.Runner, error: str | None) -> str:
    """Return what the prompt prints."""
    code = compile(source, "<docstring>", "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    display, sys.displayhook = sys.displayhook, sys.__displayhook__
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(types.FunctionType(code, names)())
            else:
                exec(code, names)
    except Exception as exc:
        if error is None:
            raise
        return traceback.format_exception_only(exc)[-1]
    finally:
        sys.displayhook = display
    return printed.getvalue()


def _close_all(opened: Mapping[str, Any], runner: asyncio.Runner) -> None:
    """Close what a reader would close at the end."""
    for value in {id(value): value for value in opened.values()}.values():
        if hasattr(type(value), "__aexit__"):
            runner.run(value.__aexit__(None, None, None))
        elif hasattr(type(value), "__exit__"):
            value.__exit__(None, None, None)
