"""The examples of docstrings: found by the public names that they belong to, and typed in as by a reader.

The reader first types the example of the class, then that of the method, which goes on from there; at a prompt that
understands ``await``, as that of ``python -m asyncio``. Dots in an expected answer stand for anything.

A method that is called with ``await`` or without, under two names, shows how it is called without. Its twin is tried
with the same examples, in which the call is awaited.
"""

from __future__ import annotations

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

from antiphon.session.synchronous import synchronous_property

_parser = doctest.DocTestParser()
_checker = doctest.OutputChecker()


@dataclass(frozen=True)
class Documented:
    """A public name and what stands in its docstring. ``before`` are the examples of the class that it belongs to."""

    name: str
    doc: str
    module: types.ModuleType
    before: tuple[doctest.Example, ...] = ()
    awaits: str = ""  # the method whose calls its examples await

    @property
    def examples(self) -> list[doctest.Example]:
        found = _parser.get_examples(self.doc)
        return [_awaiting(one, self.awaits) for one in found] if self.awaits else found


def documented(front: str, only: Collection[str] = ()) -> Iterator[Documented]:
    """The classes and functions that a module promises in its ``__all__`` (or ``only`` some), and the public methods
    of the classes. What a class has from another one of the module is that one's."""
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
        twin = member.removesuffix("_async")
        if doc.startswith(f"``{twin}``, awaited."):
            doc = inspect.getdoc(inspect.getattr_static(cls, twin)) or ""
            yield Documented(f"{name}.{member}", doc, module, tuple(own.examples), twin)
        else:
            yield Documented(f"{name}.{member}", doc, module, tuple(own.examples))


def _members(cls: type, others: Collection[Any]) -> set[str]:
    """Public methods and properties that this class or a base of ours defines, but for those of the others."""
    kinds = types.FunctionType | classmethod | staticmethod | property | synchronous_property
    return {
        name
        for base in cls.__mro__
        if base.__module__.partition(".")[0].startswith("antiphon") and base not in others
        for name, value in vars(base).items()
        if isinstance(value, kinds) and not name.startswith("_") and _written(value)
    }


def _written(value: Any) -> bool:
    """Whether the project wrote this: a base class of a framework may add methods to a class of ours."""
    return not inspect.isfunction(value) or value.__module__.partition(".")[0].startswith("antiphon")


def _awaiting(example: doctest.Example, method: str) -> doctest.Example:
    """The example with the calls of the method, or the looks at the property, awaited."""
    tree = _Awaited(method).visit(ast.parse(example.source))
    return doctest.Example(ast.unparse(ast.fix_missing_locations(tree)), example.want, example.exc_msg)


class _Awaited(ast.NodeTransformer):
    def __init__(self, method: str) -> None:
        self._method = method

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node.func:
            case ast.Attribute(value, attr) if attr == self._method:
                called = ast.Attribute(self.visit(value), f"{attr}_async", ast.Load())
                return ast.Await(ast.Call(called, [self.visit(one) for one in node.args], node.keywords))
            case _:
                return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr != self._method:
            return self.generic_visit(node)
        read = ast.Attribute(self.visit(node.value), f"{node.attr}_async", ast.Load())
        return ast.Await(ast.Call(read, [], []))


def _module_of(value: Any) -> types.ModuleType:
    return importlib.import_module(value.__module__)


def type_in(one: Documented, stands_for: Mapping[str, str] | None = None) -> None:
    """Type in the examples and compare the answers. ``stands_for`` are texts to type in place of others."""
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
    """What the prompt prints."""
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
    """What a reader would close at the end."""
    for value in {id(value): value for value in opened.values()}.values():
        if hasattr(type(value), "__aexit__"):
            runner.run(value.__aexit__(None, None, None))
        elif hasattr(type(value), "__exit__"):
            value.__exit__(None, None, None)
