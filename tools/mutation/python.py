"""Change random Python statements of the core, one at a time; a test that runs the statement must notice.

    python -m mutation.python --statements 200 --seed 7 --record /tmp/record.json

A statement is removed, or the condition of an ``if`` or ``while`` is reversed. pytest collects once. A forked process
runs every test and records which of the chosen statements each of them runs; ``--record`` keeps that for another run.
Then one process for each change runs the tests of its statement, the quickest first, until one of them fails.
Survivors are printed with their place, and the exit code is 1 if there are any.
"""

import argparse
import ast
import builtins
import gc
import importlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol
from support.source_tree import ROOT

from mutation.forks import in_a_fork, one_fails

CORE = ("worker/antiphon_worker/loop", "worker/antiphon_worker/process", "client/antiphon/wire")
TESTS = ("tests/worker", "tests/client")
REMOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Continue, ast.Break)
LEAST_SECONDS, TIMES_AS_LONG = 20.0, 5.0  # how long a test may take on a mutant
SEEN = "__mutation_seen__"  # the name of a built-in set: the statements that the current test has run
Record = dict[str, dict[str, float]]
"""The tests that run each statement (``path:offset``), with their seconds."""


@dataclass(frozen=True)
class Mutant:
    """A statement to remove from a function of the core, or a condition to reverse."""

    path: Path
    function: str
    line: int
    statement: str
    source: bytes
    start: int
    end: int
    is_condition: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} in {self.function}\n    {self.statement}"

    @property
    def place(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.start}"

    @property
    def changed(self) -> bytes:
        """The module with this statement removed or this condition reversed."""
        return _edited([self], Mutant._change)

    def _change(self, text: bytes) -> bytes:
        return b"(not (%b))" % text if self.is_condition else b"pass"

    def probe(self, text: bytes) -> bytes:
        """Return the same statement or condition, which also records that the test ran it."""
        see = f"{SEEN}.add({self.place!r})".encode()
        return b"(%b or (%b))" % (see, text) if self.is_condition else b"%b; %b" % (see, text)


def mutants_of(path: Path, source: str) -> Iterator[Mutant]:
    """Yield every statement to change in the functions and methods of a module."""
    tree = ast.parse(source)
    classes = [(f"{node.name}.", node.body) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for prefix, body in [("", tree.body), *classes]:
        for function in body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _in_function(path, source.encode(), f"{prefix}{function.name}", function)


def _in_function(path: Path, source: bytes, name: str, function: ast.AST) -> Iterator[Mutant]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(function):
        changed = _changed(node)
        if changed:
            start = starts[changed.lineno - 1] + changed.col_offset
            end = starts[(changed.end_lineno or 0) - 1] + (changed.end_col_offset or 0)
            shown = (ast.get_source_segment(source.decode(), node) or "").splitlines()[0]
            yield Mutant(path, name, node.lineno, shown, source, start, end, changed is not node)


def _changed(node: ast.AST) -> ast.stmt | ast.expr | None:
    """Return the statement to remove, or the condition to reverse."""
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        return node.test
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return node if isinstance(node, REMOVED) and not is_text else None


def _edited(mutants: Iterable[Mutant], edit: Callable[[Mutant, bytes], bytes]) -> bytes:
    """Return the module of the mutants with the text of each edited; they do not overlap."""
    edited, mutants = b"", sorted(mutants, key=lambda one: one.start)
    at = 0
    for one in mutants:
        edited += one.source[at : one.start] + edit(one, one.source[one.start : one.end])
        at = one.end
    return edited + mutants[-1].source[at:]


class Living:
    """The functions of the core in this process, whose code can be replaced."""

    def __init__(self, paths: set[Path]) -> None:
        files = {str(path) for path in paths}
        gc.unfreeze()  # frozen objects are not listed
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename in files:
                name = one.__code__.co_filename, one.__code__.co_qualname
                self._functions.setdefault(name, []).append(one)
        gc.freeze()

    def change(self, path: Path, name: str, source: bytes) -> bool:
        """Give a function its code from the changed module. Return False if that fails."""
        codes = {code.co_qualname: code for code in _codes(compile(source, str(path), "exec"))}
        try:
            for function in self._functions[str(path), name]:
                function.__code__ = codes[name]
        except (KeyError, ValueError):
            return False
        return True

    def probe(self, mutants: Iterable[Mutant]) -> None:
        """Have the statements to change record when a test runs them."""
        by_path: dict[Path, list[Mutant]] = {}
        for mutant in mutants:
            by_path.setdefault(mutant.path, []).append(mutant)
        for path, found in by_path.items():
            for name in {mutant.function for mutant in found}:
                self.change(path, name, _edited(found, Mutant.probe))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class Mutation:
    """A pytest plugin that, after the collection, runs the tests on mutants."""

    def __init__(self, mutants: list[Mutant], skip: int = 0, record: Path | None = None) -> None:
        self._mutants, self._skip = mutants, skip
        self._kept = record or Path(tempfile.mkdtemp(prefix="antiphon-mutation-")) / "record.json"
        self.survivors = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        paths = {mutant.path for mutant in self._mutants}
        for path in paths:  # some are imported when they are first needed
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts[1:])
            importlib.import_module(name.removesuffix(".__init__"))
        living = Living(paths)
        record = self._record(session.items, living)
        codes = [0, 0, 0]
        for number, mutant in enumerate(self._mutants[self._skip :], self._skip + 1):
            found = record.get(mutant.place, {})
            tests = {items[name]: seconds for name, seconds in found.items() if name in items}
            code = in_a_fork(lambda m=mutant, t=tests: _run_mutant(m, living, t))
            codes[code] += 1
            if code == 0:
                print(f"survived {len(tests)} tests: {mutant}", flush=True)
            if number % 25 == 0:
                print(f"{number}/{len(self._mutants)}", flush=True)
        self.survivors, noticed, skipped = codes
        print(
            f"{noticed} noticed, {self.survivors} survived, {skipped} cannot be changed in a living process."
        )
        return True

    def _record(self, items: list[pytest.Item], living: Living) -> Record:
        if not self._kept.exists():
            said = self._kept.with_suffix(".txt")
            code = in_a_fork(lambda: _record(items, living, self._mutants, self._kept), said)
            if not self._kept.exists():
                raise RuntimeError(
                    f"the tests could not be recorded, exit code {code}:\n{said.read_text()[-4000:]}"
                )
        return json.loads(self._kept.read_text())


def _record(items: list[pytest.Item], living: Living, mutants: list[Mutant], kept: Path) -> int:
    """Write which tests run each statement to change, without tests that fail."""
    seen: set[str] = set()
    setattr(builtins, SEEN, seen)
    living.probe(mutants)
    record: Record = {}
    for item, following in zip(items, [*items[1:], None], strict=True):
        seen.clear()
        began = time.monotonic()
        failed = any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))
        seconds = time.monotonic() - began
        for place in () if failed else list(seen):  # threads of other tests may still add some
            record.setdefault(place, {})[item.nodeid] = seconds
    kept.write_text(json.dumps(record))
    return 0


def _run_mutant(mutant: Mutant, living: Living, tests: dict[pytest.Item, float]) -> int:
    """Return 0 if no test noticed, 1 if one did, 2 if the mutant cannot be made."""
    if not living.change(mutant.path, mutant.function, mutant.changed):
        return 2
    items = sorted(tests, key=tests.__getitem__)
    return int(one_fails(items, lambda item: LEAST_SECONDS + TIMES_AS_LONG * tests[item]))


def chosen(modules: Iterable[str], statements: int, seed: int) -> list[Mutant]:
    """Return random statements of these modules and folders, determined by the seed."""
    places = [ROOT / module for module in modules]
    paths = [path for place in places for path in sorted(place.rglob("*.py")) or [place]]
    everything = [mutant for path in paths for mutant in mutants_of(path, path.read_text())]
    return random.Random(seed).sample(everything, min(statements, len(everything)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation.python", description=__doc__)
    parser.add_argument("modules", nargs="*", default=CORE, help="modules or folders (default: the core)")
    parser.add_argument("--statements", type=int, default=200, help="how many are changed (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="which ones")
    parser.add_argument("--skip", type=int, default=0, help="how many of them a run before this has changed")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="the tests that may notice")
    parser.add_argument(
        "--record", type=Path, help="which tests run each statement: read from here, or written"
    )
    options = parser.parse_args()
    print(f"--seed {options.seed} repeats this run.", flush=True)
    mutants = chosen(options.modules, options.statements, options.seed)
    mutation = Mutation(mutants, options.skip, options.record)
    flags = ["-n0", "-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "unit or redis"]
    tests = [str(ROOT / test) for test in options.tests]
    code = pytest.main([*flags, "--server", "valkey", *tests], plugins=[mutation])
    return int(code not in (0, 5)) or int(mutation.survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
