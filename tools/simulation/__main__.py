"""Run the real scripts under a seeded scheduler: ``python -m simulation --seeds 1000``, or replay one ``--seed``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from support.servers import RedisServer

from simulation.schedule import make, play, shrink
from simulation.seeds import first_seed
from simulation.world import World

STEPS = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many schedules (default 1000)")
    parser.add_argument("--first", type=int, help="the first seed (default: others at each commit)")
    parser.add_argument("--seed", type=int, help="replay this one and print it whole")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of a schedule (default {STEPS})")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder) / "redis")


def run(options: argparse.Namespace, socket: Path) -> int:
    with RedisServer(options.server, config={"unixsocket": str(socket)}):
        world = World(f"unix://{socket}")
        if options.seed is not None:
            return replay(world, options.seed, options.steps)
        first = first_seed() if options.first is None else options.first
        print(f"Seeds {first} to {first + options.seeds - 1}.", flush=True)
        return run_many(world, range(first, first + options.seeds), options.steps)


def replay(world: World, seed: int, steps: int) -> int:
    failure = play(world, make(seed, steps))
    print(failure or "\n".join([*world.log, "Every promise held."]))
    return bool(failure)


def run_many(world: World, seeds: range, steps: int) -> int:
    began = time.monotonic()
    for count, seed in enumerate(seeds, 1):
        schedule = make(seed, steps)
        failure = play(world, schedule)
        if failure:
            shorter, failure = shrink(world, schedule, failure)
            print(f"Seed {seed} breaks a promise; {len(shorter)} of its {steps} steps are enough.\n{failure}")
            print(f"\nReplay it whole: python -m simulation --seed {seed} --steps {steps}")
            return 1
        if count % 500 == 0:
            print(f"{count} schedules, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(seeds)} schedules of {steps} steps, {time.monotonic() - began:.0f} s: every promise held.")
    return 0


sys.exit(main())
