"""Marks each test with what it needs, so that authors need not: ``unit``, ``redis``, ``process`` or ``browser``.

A test that starts processes or a browser is also ``nightly``, unless it is marked ``main_path``.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

OWN = {
    "support",
    "tests",
    *(path.parent.name for path in Path(__file__).parents[2].glob("tools/*/__init__.py")),
}
STARTS = {"subprocess", "Popen", "create_subprocess_exec", "forks", "start_process", "multiprocessing"}
SERVERS = {
    "RedisServer",
    "Sentinel",
    "PostgresServer",
    "guard",
    "release",
    "Watchdog",
}  # these alone do not make a test one of processes
MARKS = {
    "unit": "needs neither a server nor a process",
    "redis": "needs a Redis",
    "process": "starts processes",
    "browser": "needs Chromium",
    "main_path": "one of the about sixty tests of processes and browsers that `make test` runs",
    "nightly": "not part of `make test`; `make test-all` runs it",
    "short": "the short form of a suite that has a verb of its own; CI runs it",
}


def mark(items: list[pytest.Item]) -> None:
    """Mark all tests."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        kind = _kind(item)
        item.add_marker(kind)
        if kind in ("process", "browser") and not item.get_closest_marker("main_path"):
            item.add_marker("nightly")


def _kind(item: pytest.Function) -> str:
    definitions = [one for found in item._fixtureinfo.name2fixturedefs.values() for one in found[-1:]]
    functions = [item.function, *(definition.func for definition in definitions)]
    names = set().union(*(_names(function) for function in functions))
    if "open_browser" in names:
        return "browser"
    if names & STARTS:
        return "process"
    return "redis" if names & SERVERS or "redis_server" in item.fixturenames else "unit"


@cache
def _names(function: Any) -> frozenset[str]:
    """Return all names used by a function and, recursively, by the functions and classes of tests it names."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for code, scope in _codes(one):
            for name in _used(code):
                found.add(name)
                value = scope.get(name)
                if name not in SERVERS and isinstance(value, FunctionType | type) and _of_tests(value):
                    waiting.append(value)
    return frozenset(found)


def _codes(one: Any) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    members = vars(one).values() if isinstance(one, type) else [one]
    for member in members:
        function = getattr(member, "fget", None) or getattr(member, "__func__", None) or member
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            yield function.__code__, function.__globals__


def _used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used(constant)


def _of_tests(value: Any) -> bool:
    origin = getattr(value, "__module__", "") or ""
    return origin.partition(".")[0] in OWN or origin.startswith("test_") or ".test_" in origin
