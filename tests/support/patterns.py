"""Every regular expression of the packages, found in their sources, with its uses."""

import ast
import re
import re._parser as parser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from support.source_tree import Module, modules

METHODS = ("search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")


@dataclass(frozen=True)
class Pattern:
    """An expression and one method by which it is used."""

    where: str
    text: str
    flags: int
    method: str

    def reader(self) -> Callable[[str], object]:
        """Return a function that applies it to a whole text."""
        compiled = re.compile(self.text, self.flags)
        method = getattr(compiled, self.method)
        if self.method in ("sub", "subn"):
            return lambda text: method("", text)
        return lambda text: list(method(text)) if self.method == "finditer" else method(text)


def patterns() -> list[Pattern]:
    readers = [one for one in modules().values() if "import re" in one.source or "from re" in one.source]
    return [pattern for module in readers for pattern in patterns_of(module)]


def patterns_of(module: Module) -> list[Pattern]:
    """Return the expressions of a module. A text that is not in its source is empty, and marked ``(given)``."""
    used = _uses(module.tree)
    found: list[Pattern] = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or (called := _re_function(node)) is None:
            continue
        where = f"{module.name}:{node.lineno}"
        text = _text(node.args[0])
        if text is None:
            text = ""  # an expression from elsewhere: see the test
            where += " (given)"
        if isinstance(text, bytes):
            text = text.decode("latin-1")
        methods = [called] if called != "compile" else used.get(_target(module.tree, node), METHODS)
        found += [Pattern(where, text, _flags(node), method) for method in methods]
    return found


def signs_of(text: str) -> list[str]:
    """Return characters that an expression distinguishes: those it names, and some of every kind."""
    named = [sign for sign in re.sub(r"\\.", "", text) if sign not in "()[]{}?*+|^$"]
    return list(dict.fromkeys([*"a0 \n-", *named]))[:10]


def pieces_of(text: str) -> list[str]:
    """Return the shortest texts that match the beginnings of an expression, for each of its alternatives."""
    return [text for text in dict.fromkeys(_examples(parser.parse(text), "")) if text][:12]


def _examples(items: Any, start: str) -> Iterator[str]:
    """Yield ``start`` followed by more and more of the items."""
    for kind, value in items:
        name = str(kind)
        if name == "BRANCH":
            for option in value[1]:
                yield from _examples(option, start)
            start = [start, *_examples(value[1][0], start)][-1]
        elif name == "SUBPATTERN":
            yield from (inner := list(_examples(value[-1], start)))
            start = inner[-1] if inner else start
        elif name.endswith("REPEAT"):
            inner = list(_examples(value[2], start))
            yield from inner
            start += "".join(text[len(start) :] for text in inner[-1:]) * max(value[0], 1)
        elif name == "ASSERT":
            start = [start, *_examples(value[1], start)][-1] if value[0] < 0 else start
        else:
            start += _sign(name, value)
        yield start


def _sign(kind: str, value: Any) -> str:
    """Return a character that matches an item."""
    if kind == "LITERAL":
        return chr(value)
    if kind == "IN":
        return _sign(str(value[0][0]), value[0][1])
    if kind == "RANGE":
        return chr(value[0])
    if kind == "CATEGORY":
        return {"DIGIT": "0", "SPACE": " ", "WORD": "a"}.get(str(value).rpartition("_")[2], "a")
    return "a" if kind in ("ANY", "NOT_LITERAL", "NEGATE") else ""


def _re_function(node: ast.Call) -> str | None:
    function = node.func
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in (*METHODS, "compile")
    ):
        return function.attr
    return None


def _target(tree: ast.Module, call: ast.Call) -> str:
    """Return the name that a compiled expression is bound to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
    return ""


def _uses(tree: ast.Module) -> dict[str, list[str]]:
    """Return the methods used of each name."""
    used: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            used.setdefault(node.value.id, []).append(node.attr)
    return used


def _text(node: ast.expr) -> str | bytes | None:
    """Return the text of an expression, with ``word`` for each inserted part; None if it is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "word" for part in _parts(node))
    return None


def _parts(node: ast.JoinedStr) -> Iterator[ast.Constant | ast.expr]:
    yield from node.values


def _flags(node: ast.Call) -> int:
    names = [
        part.attr
        for argument in [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        for part in ast.walk(argument)
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "re"
    ]
    return reduce(or_, (getattr(re, name) for name in names), 0)
