"""An answer of a script that is not as declared is an error of ours, never a success: another word, or odd values."""

import inspect
import pkgutil
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import NODEFAULT, Struct
from msgspec.structs import fields
from support.cells import TestCell

from antiphon import wire
from antiphon.errors import CorruptRecord
from antiphon.wire.cell import Cell
from antiphon.wire.connection.open import open_redis
from antiphon.wire.scripts import MOST_VALUES, load_script

RUNS = re.compile(r"\.run(_for|_for_each|_held)?\(")


def asking():
    """The functions of the wire package that run a script."""
    for found in pkgutil.walk_packages(wire.__path__, f"{wire.__name__}."):
        module = import_module(found.name)
        for name, one in inspect.getmembers(module, inspect.iscoroutinefunction):
            if one.__module__ == found.name and RUNS.search(inspect.getsource(one)):
                yield f"{found.name.removeprefix('antiphon.wire.')}.{name}", one
    for name, one in inspect.getmembers(Cell, inspect.iscoroutinefunction):
        if name not in ("run", "run_for", "run_for_each", "run_held") and RUNS.search(inspect.getsource(one)):
            yield f"Cell.{name}", one


NOT_ASKED = {
    "Cell.fail_job": "it reads no answer",
    "archiving.put_off": "it reads no answer",
    "batches.deliver": "it runs no script for a step that no turn waits for",
    "files.place": "files.add_chunks, which needs no byte store, reads the same answers",
}
ASKING = {name: one for name, one in asking() if name not in NOT_ASKED and "._" not in name}


def sample(kind: Any) -> Any:
    """A value of a type, as plain as it can be."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, NewType):
        return sample(kind.__supertype__)
    if origin is Literal:
        return parts[0]
    if origin in (Union, UnionType):
        return sample(parts[0])
    if origin in (Sequence, list, frozenset):
        return (list if origin is Sequence else origin)([sample(parts[0])])
    if origin in (Mapping, dict):
        return {sample(parts[0]): sample(parts[1])}
    if origin is tuple:
        return tuple(sample(part) for part in parts if part is not ...)
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        needed = [one.name for one in fields(kind) if one.default is one.default_factory is NODEFAULT]
        return kind(**{name: sample(hints[name]) for name in needed})
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*(sample(part) for part in get_type_hints(kind).values()))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind("a")
    return {str: "a", bytes: b"a", int: 1, float: 1.0, bool: False, type(None): None, Any: None}[kind]


class Odd(TestCell):
    """A cell whose scripts answer with a word of tomorrow."""

    async def run(self, name: str, *arguments: Any) -> Any:
        return [b"TOMORROW", 1, 2]


def arguments_of(function: Any) -> dict[str, Any]:
    hints = get_type_hints(function)
    return {
        one.name: sample(hints[one.name])
        for one in list(inspect.signature(function).parameters.values())[1:]
        if one.default is one.empty and one.kind is not one.VAR_POSITIONAL
    }


@pytest.mark.parametrize("name", ASKING)
async def test_an_unknown_answer_is_an_error(redis_url, name):
    redis = open_redis(redis_url)
    try:
        with pytest.raises(CorruptRecord, match="returned an unknown answer"):
            await ASKING[name](Odd(redis), **arguments_of(ASKING[name]))
    finally:
        await redis.aclose()


@pytest.mark.parametrize("name", ASKING)
async def test_an_answer_with_too_few_or_too_many_values_is_an_error(redis_url, name, monkeypatch):
    """A nil in a script's table ends its answer early."""
    redis, found, answered = open_redis(redis_url), dict[str, Any](), list[Any]()

    async def run_script(cell: Cell, script: str, *arguments: Any) -> Any:
        found[script] = load_script(script).outcomes
        return answered

    async def ask() -> None:
        with pytest.raises(CorruptRecord, match="returned an unknown answer"):
            await ASKING[name](TestCell(redis), **arguments_of(ASKING[name]))

    monkeypatch.setattr("antiphon.wire.cell.run_script", run_script)
    try:
        await ask()
        for word, counts in [one for outcomes in found.values() for one in outcomes.items()]:
            for count in {counts.start - 1, counts.stop} - {-1, MOST_VALUES + 1}:
                answered[:] = [word, *[b""] * count]
                await ask()
    finally:
        await redis.aclose()


MANY = {"Cell.renew": b"RENEWED", "Cell.emit": b"EMITTED", "Cell.submit_many": b"SUBMITTED"}


@pytest.mark.parametrize("odd", [b"", [], [b"", b""], [0], [[]], [[b"TOMORROW"]]], ids=str)
@pytest.mark.parametrize("name", MANY)
async def test_an_answer_for_each_is_one_for_each_and_of_its_kind(redis_url, name, odd, monkeypatch):
    async def run_script(*_: Any) -> Any:
        return [MANY[name], odd]

    async def ask() -> None:
        [found] = await ASKING[name](TestCell(redis), **arguments_of(ASKING[name]))
        raise found  # the error of one alone

    monkeypatch.setattr("antiphon.wire.cell.run_script", run_script)
    redis = open_redis(redis_url)
    try:
        with pytest.raises(CorruptRecord, match="returned an unknown answer"):
            await ask()
    finally:
        await redis.aclose()
