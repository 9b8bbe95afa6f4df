"""Kill, stop and cut everything at random, then check every promise: ``python -m chaos --seed 7 --seconds 60``."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from support.hosts import why_no_hosts
from support.servers import clock_library

from chaos.checker import Report, check
from chaos.driver import Chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="names the sequence of faults (default 1)")
    parser.add_argument("--seconds", type=float, default=60, help="how long faults go on (default 60)")
    parser.add_argument("--server", choices=["valkey", "redis"], default="valkey")
    parser.add_argument(
        "--clock", action="store_true", help="move the server's clock as well (needs libfaketime)"
    )
    parser.add_argument(
        "--hosts",
        action="store_true",
        help="Redis, the gateway and the workers on hosts of their own (needs root)",
    )
    parser.add_argument(
        "--cluster", action="store_true", help="the same, with a cluster of Redis whose slots move"
    )
    parser.add_argument(
        "--moves", action="store_true", help="a single Redis and a cluster, between which the cell moves"
    )
    parser.add_argument("--plan", action="store_true", help="print the sequence of faults and do nothing")
    parser.add_argument("--json", type=Path, help="write the report to this file as well")
    parser.add_argument("--keep", type=Path, help="leave what the workers logged in this folder")
    options = parser.parse_args()
    if options.keep and options.keep.exists() and any(options.keep.iterdir()):
        parser.error(f"--keep needs an empty folder: in {options.keep} are the notes of another run")
    if options.clock and clock_library() is None:
        parser.error("--clock needs libfaketime: apt-get install faketime")
    apart = options.hosts or options.cluster
    if apart and (reason := why_no_hosts()):
        parser.error(reason)
    if apart and options.clock:
        parser.error("the hosts of --hosts and --cluster have one clock: leave --clock out")
    if options.moves and (apart or options.clock):
        parser.error("--moves has places of its own: leave --hosts, --cluster and --clock out")
    with tempfile.TemporaryDirectory(prefix="antiphon-chaos-") as directory:
        folder = options.keep or Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        chaos = Chaos(
            options.seed, options.seconds, folder, server=options.server, clock=options.clock,
            apart=apart, cluster=options.cluster, moves=options.moves, webhook=not apart,
            errands=not options.clock, files=not options.clock,
            batches=not options.clock and not apart,
            archive=not options.clock and not options.cluster, memory=not options.clock and not options.cluster,
        )  # fmt: skip
        if options.plan:
            print("\n".join(map(str, chaos.plan)))
            return 0
        print(f"{len(chaos.plan)} faults in {options.seconds:g} s, seed {options.seed}", flush=True)
        with chaos:
            report = asyncio.run(run(chaos))
    print(report.table())
    if options.json:
        options.json.write_text(report.to_json())
    return 0 if report.ok else 1


async def run(chaos: Chaos) -> Report:
    """Run everything, and return the report."""
    await chaos.run()
    return await check(chaos)


if __name__ == "__main__":
    sys.exit(main())
