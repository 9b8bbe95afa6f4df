"""Delete each statement of the scripts in turn; the simulation or the script tests must notice.

What nobody notices is printed, unless ``accepted.txt`` gives the reason why it stays.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from simulation.actors import WEIGHTS, fewer_for
from simulation.schedule import make, play
from simulation.seeds import first_seed
from simulation.world import World
from support.servers import RedisServer

from mutation.accepted import read_accepted
from mutation.hook import FOLDER, SCRIPTS, scripts_from
from mutation.statements import Mutant, mutants_of

# What the promises rest on, and all that it includes.
FILES = [
    "claim", "emit", "append_step", "finish", "give_back", "steer", "cancel", "submit",
    "suspend", "decide", "reap", "requeue", "begin", "route", "promote", "rate", "count", "wake",
    "keep_variant", "keep_answered",
    "editing/edit", "editing/fork", "limits/admit", "limits/limit",
    "notices/follow", "schedules/advance", "schedules/write", "webhooks/release", "webhooks/settle", "webhooks/take",
    "webhooks/write", "events/send", "budgets/reserve", "budgets/capture", "budgets/note", "budgets/wake",
    "batches/collect", "batches/take", "batches/note", "batches/deliver", "batches/leave",
    *(f"include/{name}" for name in (
        "publish", "rq_view", "inbox", "holder", "requeue", "load", "conclude", "retry", "withdraw", "look",
        "life", "damage", "crashed", "suspended", "watch", "give_up", "clock_back", "jobs", "foreign", "cut", "tenants",
        "shares", "let_in", "stop", "busy", "scheduled", "notices", "following", "webhooks",
        "events", "ledgers", "batches",
    )),
]  # fmt: skip
ANSWERS_WITHIN = 5.0
PASSED_OR_FAILED = (0, 1)  # exit codes of pytest
TESTS = Path(__file__).parents[2] / "tests"
SCRIPT_TESTS = TESTS / "client" / "wire"


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("files", nargs="*", help="scripts to mutate (default: what the promises rest on)")
    parser.add_argument("--all", action="store_true", help="mutate every script")
    parser.add_argument("--statements", type=int, help="delete this many of the statements, chosen at random")
    parser.add_argument("--seeds", type=int, default=60, help="schedules against each mutant (default 60)")
    parser.add_argument("--first", type=int, help="the first seed (default: others at each commit)")
    options = parser.parse_args()
    everything = [str(path.relative_to(SCRIPTS))[:-4] for path in sorted(SCRIPTS.rglob("*.lua"))]
    files = options.files or ([name for name in everything if "clock" not in name] if options.all else FILES)
    mutants = [mutant for name in files for mutant in mutants_of(name, (SCRIPTS / f"{name}.lua").read_text())]
    first = first_seed() if options.first is None else options.first
    if options.statements:
        mutants = random.Random(first).sample(mutants, min(options.statements, len(mutants)))
    print(f"Schedules {first} to {first + options.seeds - 1} against each mutant.", flush=True)
    return report(mutants, Killers(range(first, first + options.seeds)))


def report(mutants: list[Mutant], killers: Killers) -> int:
    accepted, survived, began = read_accepted(), [], time.monotonic()
    killed: dict[str, int] = {}
    if complaint := killers.complain():
        print(f"{killers.last_tests}\nThe scripts as they are do not pass {complaint}: nothing is mutated.")
        return 1
    for number, mutant in enumerate(mutants, 1):
        killer = killers.kill(mutant)
        killed[killer] = killed.get(killer, 0) + 1
        if not killer and str(mutant) not in accepted:
            survived.append(mutant)
            print(f"survived: {mutant.file}:{mutant.line}\n    {mutant.statement}", flush=True)
        if number % 25 == 0:
            print(f"{number}/{len(mutants)}, {time.monotonic() - began:.0f} s", flush=True)
    killers.close()
    passed_by = killed.pop("", 0)
    by_whom = ", ".join(f"{count} by {killer}" for killer, count in sorted(killed.items()))
    print(
        f"{len(mutants)} statements deleted one by one in {time.monotonic() - began:.0f} s: "
        f"{sum(killed.values())} noticed ({by_whom}), {passed_by - len(survived)} accepted with a reason, "
        f"{len(survived)} survived."
    )
    return bool(survived)


def script_tests(file: str) -> list[Path]:
    """What is asked about a file: the tests of its name or folder come first, since the first that fails is enough."""
    own = {f"test_script_{part}.py" for part in file.split("/")}
    tests = sorted(SCRIPT_TESTS.glob("test_script_*.py"), key=lambda path: (path.name not in own, path.name))
    return [*tests, *(SCRIPT_TESTS / f"test_{name}_keys.py" for name in ("damaged", "shared"))]


class Killers:
    """Those who may notice, the quickest first."""

    def __init__(self, seeds: range) -> None:
        self.last_tests = ""  # what the script tests have printed
        self._seeds = seeds
        self._server = RedisServer().start()
        self._world = World(self._server.url, ANSWERS_WITHIN)
        self._folder = Path(tempfile.mkdtemp(prefix="antiphon-mutation-"))
        self._whole = self._folder / "whole"
        self._mutated = self._folder / "mutated"
        shutil.copytree(SCRIPTS, self._whole)

    def close(self) -> None:
        self._world.close()
        self._server.close()
        shutil.rmtree(self._folder)

    def complain(self) -> str:
        """Who finds fault with the scripts as they are, or ''. Then what they notice means nothing."""
        shutil.copytree(self._whole, self._mutated)
        return self._anyone()

    def kill(self, mutant: Mutant) -> str:
        """Who noticed, or ''."""
        shutil.copytree(self._whole, self._mutated, dirs_exist_ok=True)
        (self._mutated / f"{mutant.file}.lua").write_text(mutant.source)
        return self._anyone(mutant.file)

    def _anyone(self, file: str = "") -> str:
        if self._simulation(file):
            return "the simulation"
        return "the script tests" if self._script_tests(file) else ""

    def _simulation(self, file: str) -> bool:
        weights = fewer_for(file) or WEIGHTS
        with scripts_from(self._mutated):
            for seed in self._seeds:
                failure = play(self._world, make(seed, 40, weights))
                if failure and isinstance(failure.error.__cause__, OSError):  # a script that does not end
                    self._world.close()
                    self._world = World(self._server.restart().url, ANSWERS_WITHIN)
                if failure:
                    return True
        return False

    def _script_tests(self, file: str) -> bool:
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "--server", "valkey", "-p", "mutation.hook",
            "-p", "no:cacheprovider", "-p", "no:randomly", *map(str, script_tests(file)),
        ]  # fmt: skip
        places = [TESTS, TESTS.parent / "tools", TESTS.parent / "client", TESTS.parent / "worker"]
        environment = os.environ | {
            FOLDER: str(self._mutated),
            "PYTHONPATH": os.pathsep.join(map(str, places)),
        }
        done = subprocess.run(
            command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
        )
        if done.returncode not in PASSED_OR_FAILED:
            raise RuntimeError(f"The script tests could not run:\n{done.stdout}")
        self.last_tests = done.stdout
        return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
