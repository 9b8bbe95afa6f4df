"""``python -m bench [names…]``: measure, print a table, and write JSON and plots where asked.

Every process that a measurement starts is its own and ends with it, however the run ends.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from support.network import forbid_other_machines

from bench.plots import write_plots
from bench.results import Plan, Result, conditions, table

NAMES = (
    "floor", "turns", "latency", "streams", "memory", "commands", "length", "sessions", "subscribers", "recovery",
    "peers", "cells",
)  # fmt: skip


def main() -> int:
    options = _options()
    plan = Plan(options.rounds or (1 if options.quick else 3), options.quick)
    signal.signal(signal.SIGTERM, _leave)
    forbid_other_machines()
    where = conditions()
    print(_sentence(where))
    results: list[Result] = []
    failed = 0
    for name in options.names or NAMES:
        began = time.monotonic()
        try:
            result = uvloop.run(importlib.import_module(f"bench.{name}").measure(plan))
        except Exception as exc:  # noqa: BLE001 - one that fails is reported, the others are measured
            failed += 1
            print(f"\n{name}: could not be measured: {exc!r}", file=sys.stderr, flush=True)
            continue
        results.append(result)
        print(f"{table(result)}\n  [{time.monotonic() - began:.0f} s]", flush=True)
    if options.json:
        text = json.dumps({"conditions": where, "results": [one.to_dict() for one in results]}, indent=1)
        Path(options.json).write_text(text + "\n")
    if options.svg:
        write_plots(results, Path(options.svg))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each measurement (3; 1 with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="everything, short: to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--svg", metavar="DIR", help="write plots there")
    return parser.parse_args()


def _leave(number: int, _: FrameType | None) -> None:
    """Leave through every ``finally``, so that all processes end."""
    raise SystemExit(128 + number)


def _sentence(where: dict[str, Any]) -> str:
    return (
        f"{where['date']}, {where['cores']} cores ({where['processor']}), load {where['load']} before the run, "
        f"Python {where['python']}, {', '.join(f'{name} {number}' for name, number in where['packages'].items())}"
    )


if __name__ == "__main__":
    sys.exit(main())
