"""Roll hosts between the release before this one and this one while everything breaks: ``python -m upgrade``."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from support.releases import PREVIOUS, prepare

from upgrade.rolling import Rolling, checked


def main() -> int:
    parser = argparse.ArgumentParser(prog="upgrade", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="names the sequence of faults (default 1)")
    parser.add_argument("--seconds", type=float, default=60, help="how long faults go on (default 60)")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    options = parser.parse_args()
    if reason := prepare():
        parser.error(reason)
    with tempfile.TemporaryDirectory(prefix="antiphon-upgrade-") as directory:
        folder = Path(directory)
        with Rolling(options.seed, options.seconds, folder, server=options.server) as run:
            print(f"{len(run.plan)} faults in {options.seconds:g} s beside {PREVIOUS.version}", flush=True)
            report = asyncio.run(checked(run))
    print(report.table())
    print("attempts:", ", ".join(f"{times} {where}" for where, times in sorted(run.passed_on.items())))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
