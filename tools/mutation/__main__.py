"""Delete each statement of the scripts in turn; the simulation or the script tests must notice.

What nobody notices is printed, unless ``accepted.txt`` gives the reason why it stays.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from simulation.actors import WEIGHTS, fewer_for
from simulation.schedule import make, play
from simulation.seeds import first_seed
from simulation.world import World
from support.servers import RedisServer

from mutation.accepted import read_accepted
from mutation.forks import in_a_fork, one_fails
from mutation.hook import SCRIPTS, scripts_from
from mutation.statements import Mutant, mutants_of

# The scripts on which the promises depend, and all that they include.
FILES = [
    "claim", "emit", "append_step", "finish", "give_back", "steer", "cancel", "submit",
    "suspend", "decide", "reap", "requeue", "begin", "route", "promote", "rate", "count", "wake",
    "keep_variant", "keep_answered",
    "editing/edit", "editing/fork", "limits/admit", "limits/limit",
    "notices/follow", "schedules/advance", "schedules/write", "webhooks/release", "webhooks/settle", "webhooks/take",
    "webhooks/write", "events/send", "budgets/reserve", "budgets/capture", "budgets/note", "budgets/wake",
    "batches/collect", "batches/take", "batches/note", "batches/deliver", "batches/leave",
    "moving/leave", "moving/restore", "moving/arrive",
    *(f"include/{name}" for name in (
        "publish", "rq_view", "inbox", "holder", "requeue", "load", "conclude", "retry", "withdraw", "look",
        "life", "damage", "crashed", "suspended", "watch", "give_up", "clock_back", "jobs", "foreign", "cut", "tenants",
        "shares", "let_in", "stop", "busy", "scheduled", "notices", "following", "webhooks",
        "events", "ledgers", "batches",
    )),
]  # fmt: skip
ANSWERS_WITHIN = 5.0
A_TEST_ENDS_WITHIN = 60.0
TESTS = Path(__file__).parents[2] / "tests"
SCRIPT_TESTS = ("test_script_*.py", "test_forks.py", "test_damaged_keys.py", "test_shared_keys.py")
ELSEWHERE = {
    "files": ("client/redis/test_byte_stores.py",),
    "include/files": ("client/redis/test_byte_stores.py",),
    "editing": ("client/redis/test_deleted_sessions.py", "client/session/test_rewinding.py"),
    "batches": ("worker/process/test_batched.py",),
    "include/batches": ("worker/process/test_batched.py",),
    "route": ("worker/process/test_routing.py",),
}
"""Tests of the features that scripts implement, by the prefix of the script's name."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("files", nargs="*", help="scripts to mutate (default: what the promises rest on)")
    parser.add_argument("--all", action="store_true", help="mutate every script")
    parser.add_argument("--statements", type=int, help="delete this many of the statements, chosen at random")
    parser.add_argument("--seeds", type=int, default=60, help="schedules against each mutant (default 60)")
    parser.add_argument("--first", type=int, help="the first seed (default: others at each commit)")
    parser.add_argument("--skip", type=int, default=0, help="how many of them a run before this has deleted")
    options = parser.parse_args()
    everything = [str(path.relative_to(SCRIPTS))[:-4] for path in sorted(SCRIPTS.rglob("*.lua"))]
    files = options.files or ([name for name in everything if "clock" not in name] if options.all else FILES)
    mutants = [mutant for name in files for mutant in mutants_of(name, (SCRIPTS / f"{name}.lua").read_text())]
    first = first_seed() if options.first is None else options.first
    if options.statements:
        mutants = random.Random(first).sample(mutants, min(options.statements, len(mutants)))
    print(f"Schedules {first} to {first + options.seeds - 1} against each mutant.", flush=True)
    deletion = Deletion(mutants, range(first, first + options.seeds), options.skip)
    tests = sorted({path for mutant in mutants for path in modules_for(mutant.file)})
    flags = ["-n0", "-q", "-s", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "unit or redis"]
    code = pytest.main([*flags, "--server", "valkey", *map(str, tests)], plugins=[deletion])
    return int(code not in (0, 5)) or int(deletion.survived > 0)


def modules_for(file: str) -> list[Path]:
    """Return the test modules for a file. Those of its name or folder come first: one failure is enough."""
    own = own_tests(file)
    paths = [path for pattern in SCRIPT_TESTS for path in (TESTS / "client" / "wire").glob(pattern)]
    beside = [TESTS / name for start, names in ELSEWHERE.items() if file.startswith(start) for name in names]
    paths = sorted(paths, key=lambda path: path.name)
    return [
        *(path for path in paths if path.name in own),
        *beside,
        *(path for path in paths if path.name not in own),
    ]


def own_tests(file: str) -> set[str]:
    """Return the names of the modules that test a file or its folder."""
    return {f"test_script_{part}.py" for part in file.split("/")}


class Deletion:
    """A pytest plugin that runs tests and schedules on mutants after the collection, the quickest first."""

    def __init__(self, mutants: list[Mutant], seeds: range, skip: int) -> None:
        self._mutants, self._seeds, self._skip = mutants, seeds, skip
        self._items: dict[Path, list[pytest.Item]] = {}
        self.survived = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            self._items.setdefault(item.path, []).append(item)
        with tempfile.TemporaryDirectory(prefix="antiphon-mutation-") as folder:
            self._folder = Path(folder)
            if self._complains():
                print(f"{self._said()}\nThe scripts as they are do not pass: nothing is mutated.")
                self.survived = 1
            else:
                self._report()
        return True

    def _report(self) -> None:
        accepted, began = read_accepted(), time.monotonic()
        killed: Counter[str] = Counter()
        mutants = self._mutants[self._skip :]
        for number, mutant in enumerate(mutants, self._skip + 1):
            killer = self._killer(mutant)
            killed[killer] += 1
            if not killer and str(mutant) not in accepted:
                self.survived += 1
                print(f"survived: {mutant.file}:{mutant.line}\n    {mutant.statement}", flush=True)
            if number % 25 == 0:
                print(f"{number}/{len(self._mutants)}, {time.monotonic() - began:.0f} s", flush=True)
        passed_by = killed.pop("", 0)
        by_whom = ", ".join(f"{count} by {killer}" for killer, count in sorted(killed.items()))
        print(
            f"{len(mutants)} statements deleted one by one in {time.monotonic() - began:.0f} s: "
            f"{killed.total()} noticed ({by_whom}), {passed_by - self.survived} accepted with a reason, "
            f"{self.survived} survived."
        )

    def _complains(self) -> bool:
        """Return whether a test or schedule fails with the unchanged scripts; then no result would mean anything."""
        shutil.copytree(SCRIPTS, self._folder, dirs_exist_ok=True)
        everything = [item for items in self._items.values() for item in items]
        return self._asks(lambda: self._tests(everything)) or self._asks(lambda: self._simulation(""))

    def _killer(self, mutant: Mutant) -> str:
        """Return what noticed the mutant, or ''."""
        own = own_tests(mutant.file)
        asked = [
            (path.name in own, item)
            for path in modules_for(mutant.file)
            for item in self._items.get(path, [])
        ]
        script = self._folder / f"{mutant.file}.lua"
        script.write_text(mutant.source)
        try:
            if self._asks(lambda: self._tests([item for is_own, item in asked if is_own])):
                return "the tests of its name"
            if self._asks(lambda: self._simulation(mutant.file)):
                return "the simulation"
            if self._asks(lambda: self._tests([item for is_own, item in asked if not is_own])):
                return "other tests"
            return ""
        finally:
            shutil.copy(SCRIPTS / f"{mutant.file}.lua", script)

    def _asks(self, work: Callable[[], bool]) -> bool:
        def with_these_scripts() -> int:
            with scripts_from(self._folder):
                return int(work())

        return in_a_fork(with_these_scripts, self._folder / "said.txt") != 0

    def _said(self) -> str:
        return (self._folder / "said.txt").read_text()

    def _tests(self, items: list[pytest.Item]) -> bool:
        return one_fails(items, lambda _: A_TEST_ENDS_WITHIN)

    def _simulation(self, file: str) -> bool:
        weights = fewer_for(file) or WEIGHTS
        with RedisServer() as server:
            world = World(server.url, ANSWERS_WITHIN)
            return any(play(world, make(seed, 40, weights)) for seed in self._seeds)


if __name__ == "__main__":
    sys.exit(main())
