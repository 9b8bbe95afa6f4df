"""Change random Python statements of the core, one at a time; a test that calls the changed function must notice.

    python -m mutation.python --statements 200 --seed 7

A statement is removed, or the condition of an ``if`` or ``while`` is reversed. pytest collects once. A forked process
records which tests call which functions of the core; then one for each change runs the tests of its function, the
quickest first. Survivors are printed with their place, and the exit code is 1 if there are any.
"""

import argparse
import ast
import gc
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from support.source_tree import ROOT

CORE = ("worker/antiphon_worker/loop", "worker/antiphon_worker/process", "client/antiphon/wire")
TESTS = ("tests/worker", "tests/client")
REMOVED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.Delete, ast.Continue, ast.Break)
LEAST_SECONDS, TIMES_AS_LONG = 30.0, 5.0


@dataclass(frozen=True)
class Mutant:
    """A function of the core with one statement changed."""

    path: Path
    function: str
    line: int
    statement: str
    source: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} in {self.function}\n    {self.statement}"


def mutants_of(path: Path, source: str) -> Iterator[Mutant]:
    """Every change of one statement in the functions and methods of a module."""
    tree = ast.parse(source)
    classes = [(f"{node.name}.", node.body) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for prefix, body in [("", tree.body), *classes]:
        for function in body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    changed = _changed(node, source)
                    if changed:
                        shown = (ast.get_source_segment(source, node) or "").splitlines()[0]
                        yield Mutant(path, f"{prefix}{function.name}", node.lineno, shown, changed)


def _changed(node: ast.AST, source: str) -> str:
    """The source with this statement changed, or '' if it is none to change."""
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        return _replaced(source, node.test, f"(not ({ast.unparse(node.test)}))")
    if isinstance(node, REMOVED) and not (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ):
        return _replaced(source, node, "pass")
    return ""


def _replaced(source: str, node: Any, text: str) -> str:
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + text.encode() + after).decode()


def apply(mutant: Mutant) -> bool:
    """Give the living function the changed code; False if it has none of its own."""
    wanted = [code for code in _codes(compile(mutant.source, str(mutant.path), "exec"))
              if code.co_qualname == mutant.function]  # fmt: skip
    gc.unfreeze()  # what is frozen is not listed
    living = [one for one in gc.get_objects() if isinstance(one, FunctionType) and _is(one.__code__, mutant)]
    try:
        for function in living:
            function.__code__ = wanted[0]
    except (IndexError, ValueError):
        return False
    return bool(living)


def _is(code: CodeType, mutant: Mutant) -> bool:
    return code.co_qualname == mutant.function and code.co_filename == str(mutant.path)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


class Mutation:
    """A pytest plugin: after the collection it runs tests on mutants instead of once."""

    def __init__(self, statements: int, seed: int, modules: list[str], skip: int = 0) -> None:
        paths = [path for folder in modules for path in _modules(ROOT / folder)]
        everything = [mutant for path in paths for mutant in mutants_of(path, path.read_text())]
        self._mutants = random.Random(seed).sample(everything, min(statements, len(everything)))[skip:]
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-mutation-"))
        self._files = {str(path) for path in paths}
        self.survivors = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        calls, seconds = self._recorded(session.items)
        noticed = skipped = 0
        for number, mutant in enumerate(self._mutants, 1):
            tests = sorted(calls.get(f"{mutant.path}:{mutant.function}", []), key=seconds.__getitem__)
            patience = LEAST_SECONDS + TIMES_AS_LONG * sum(map(seconds.__getitem__, tests))
            code = _in_a_fork(lambda m=mutant, t=tests: _run_mutant(m, [items[name] for name in t]), patience)
            noticed, skipped = noticed + (code == 1), skipped + (code == 2)
            if code == 0:
                self.survivors += 1
                print(f"survived {len(tests)} tests: {mutant}", flush=True)
            if number % 25 == 0:
                print(f"{number}/{len(self._mutants)}", flush=True)
        print(
            f"{noticed} noticed, {self.survivors} survived, {skipped} cannot be changed in a living process."
        )
        return True

    def _recorded(self, items: list[pytest.Item]) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Which tests call each function of the core, and how long each takes; tests that fail are left out."""
        found = self._folder / "calls.json"
        said = self._folder / "recorder.txt"
        code = _in_a_fork(lambda: _record(items, self._files, found), float("inf"), said)
        if not found.exists():
            raise RuntimeError(
                f"the tests could not be recorded, exit code {code}:\n{said.read_text()[-4000:]}"
            )
        return tuple(json.loads(found.read_text()))  # type: ignore[return-value]


def _modules(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _record(items: list[pytest.Item], files: set[str], found: Path) -> int:
    calls: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    called: set[CodeType] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            called.add(frame.f_code)

    for item, following in zip(items, [*items[1:], None], strict=True):
        called.clear()
        began = time.monotonic()
        threading.setprofile(note)
        sys.setprofile(note)
        failed = any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))
        sys.setprofile(None)
        seconds[item.nodeid] = time.monotonic() - began
        for code in () if failed else list(called):  # threads of other tests may still add some
            outermost = code.co_qualname.partition(".<locals>")[0]
            calls.setdefault(f"{code.co_filename}:{outermost}", []).append(item.nodeid)
    calls = {name: sorted(set(tests)) for name, tests in calls.items()}
    found.write_text(json.dumps([calls, seconds]))
    return 0


def _run_mutant(mutant: Mutant, items: list[pytest.Item]) -> int:
    """0 if no test noticed, 1 if one did, 2 if the mutant cannot be made."""
    if not apply(mutant):
        return 2
    for item, following in zip(items, [*items[1:], None], strict=True) if items else ():
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
            return 1
    return 0


def _in_a_fork(work: Any, patience: float, said: Path = Path(os.devnull)) -> int:
    """The exit code of a process that does this; one that takes too long is ended, and has noticed."""
    pid = os.fork()
    if not pid:
        os.setsid()
        silence = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        code = 1
        try:
            code = work()
        except BaseException:  # noqa: BLE001  (pytest ends a process with some that are no Exception)
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    deadline = time.monotonic() + patience
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.05)
    return min(1, abs(code)) if (code := os.waitstatus_to_exitcode(ended[1])) != 2 else 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation.python", description=__doc__)
    parser.add_argument("modules", nargs="*", default=CORE, help="modules or folders (default: the core)")
    parser.add_argument("--statements", type=int, default=200, help="how many are changed (default 200)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="which ones")
    parser.add_argument("--skip", type=int, default=0, help="how many of them a run before this has changed")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="the tests that may notice")
    options = parser.parse_args()
    print(f"--seed {options.seed} repeats this run.", flush=True)
    mutation = Mutation(options.statements, options.seed, options.modules, options.skip)
    flags = [
        "-n0",
        "-q",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-m",
        "unit or redis",
        "--server",
        "valkey",
    ]
    code = pytest.main([*flags, *(str(ROOT / test) for test in options.tests)], plugins=[mutation])
    return int(code not in (0, 5)) or int(mutation.survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
