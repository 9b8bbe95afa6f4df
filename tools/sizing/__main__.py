"""``python -m sizing --streams N``: what a deployment of so many live streams needs, by the costs in docs/bench.json.

It prints the sums of docs/scaling.md for another number of streams, another pace or other turns, and how late deltas
are, by a simulation in which a node fails.
"""

import argparse

from bench.kept import DOCS, Kept
from bench.sums import HEAD, PACE, TURN_SECONDS, Costs, costs_of, needs, row

from sizing.lag import Load, simulate


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    costs = costs_of(Kept(DOCS))
    if not isinstance(costs, Costs):
        print(f"Measure first, with make bench: {'; '.join(costs)}.")
        return 1
    found = needs(costs, options.streams, options.pace, options.turn_seconds)
    for name, value in zip(HEAD, row(found), strict=True):
        print(f"{name:<25}{value}")
    for name, fails in (("all nodes run", False), ("a node fails", True)):
        load = Load(min(found.cells, 12), costs.redis_chunk_us, pace=options.pace, fails=fails)
        lags = simulate(load)
        print(f"{'lag, ' + name:<25}p50 {lags.percentile(0.5):,.1f} ms, p99 {lags.percentile(0.99):,.1f} ms")
    return 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sizing", description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000, help="live streams at once (100,000)")
    parser.add_argument("--pace", type=float, default=PACE, help=f"tokens a second of each ({PACE})")
    parser.add_argument(
        "--turn-seconds", type=float, default=TURN_SECONDS, help=f"how long a turn takes ({TURN_SECONDS})"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
