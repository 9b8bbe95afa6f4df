"""``python -m bench [names…]``: measure, keep the figures as JSON, and make plots and pages of them.

A full run writes ``docs/bench.json`` after each part, then the plots in ``docs/img`` and the tables in the pages.
``--quick`` and ``--json FILE`` leave the pages alone. ``plots`` measures nothing and makes plots and pages again.
``against REF [names…]`` measures a commit or tag of this checkout in alternating rounds, and prints the ratios.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from bench import against
from bench.headlines import write_pages
from bench.kept import DOCS, QUIET_LOAD, RESULTS, Kept, Machine, Record, this_machine
from bench.parts import PARTS, Part, expected_seconds, named, run_parts
from bench.peers.catalogue import install
from bench.plots import draw
from bench.results import Plan, table

PLOTS = "plots"
WITH_PEERS = {"peers", "recovery"}


def main() -> int:
    options = _options()
    if options.names[:1] == [against.WORD]:
        return _compare(options)
    file = Path(options.json) if options.json else RESULTS / "quick.json" if options.quick else DOCS
    try:
        kept = Kept(file)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    parts = named([name for name in options.names if name != PLOTS])
    if options.names == [PLOTS]:
        parts = []
    plan = Plan(options.rounds or (1 if options.quick else 3), options.quick)
    with _leaving():
        failed = _measure(parts, plan, kept)
    _write(kept)
    return 1 if failed else 0


def _compare(options: argparse.Namespace) -> int:
    ref, *parts = options.names[1:]
    try:
        with _leaving():
            print(against.compare(ref, parts, options.rounds or 3, quick=options.quick))
    except (ValueError, RuntimeError) as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


def _measure(parts: list[Part], plan: Plan, kept: Kept) -> list[str]:
    """Measure, keep and show each part. Return the names of failed parts."""
    if not parts:
        return []
    machine = this_machine()
    if WITH_PEERS & {part.name for part in parts}:
        print("Installing other queues where they are missing …", flush=True)
        install()
    _announce(parts, plan, machine)
    began, failed = time.monotonic(), list[str]()
    for part, record in run_parts(parts, plan, machine):
        kept.put(part.name, record)
        _show(part, record)
        if record.result is None:
            failed.append(part.name)
    took, expected = time.monotonic() - began, expected_seconds(parts, plan.quick)
    print(f"\nTook {_span(took)}, {_span(expected)} were expected. The figures are in {kept.path}.")
    if failed:
        print(f"Could not be measured: {', '.join(failed)}.", file=sys.stderr)
    return failed


def _announce(parts: list[Part], plan: Plan, machine: Machine) -> None:
    print(machine.sentence())
    if machine.busy:
        print(
            f"WARNING: the load average is {machine.load:g}, more than {QUIET_LOAD:g}: something else runs here, "
            f"and times and rates will say more about it than about Antiphon."
        )
    what = ", ".join(part.name for part in parts)
    print(f"This takes about {_span(expected_seconds(parts, plan.quick))}: {what}.", flush=True)


def _show(part: Part, record: Record) -> None:
    if record.result is None:
        print(f"\n{part.name}: failed: {record.failed}", file=sys.stderr, flush=True)
        return
    expected = part.expected(record.quick)
    print(f"\n{table(record.result)}\n  [{record.seconds:.0f} s, {expected:.0f} s were expected]", flush=True)


def _write(kept: Kept) -> None:
    """Write plots next to the figures; also the pages, if these are the figures they show."""
    written = [*draw(kept, kept.path.parent / "img"), *(write_pages(kept) if kept.path == DOCS else [])]
    if written:
        print("Written: " + ", ".join(str(path) for path in written))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(names)}; or {PLOTS}")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each measurement (3; 1 with --quick)"
    )
    parser.add_argument("--quick", action="store_true", help="everything, short: to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="keep the figures there, and leave the pages alone")
    options = parser.parse_args()
    given = options.names[2:] if options.names[:1] == [against.WORD] else options.names
    if options.names == [against.WORD]:
        parser.error("expected a commit or tag after against, found nothing: against v0.2.0")
    unknown = [name for name in given if name not in (*names, PLOTS)]
    if unknown:
        parser.error(f"There is no part {', '.join(unknown)}: the parts are {', '.join(names)}, and {PLOTS}.")
    return options


@contextmanager
def _leaving() -> Iterator[None]:
    """End a run at SIGTERM as at Ctrl-C: through every ``finally``, so that all processes end."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        print("\nStopped; what was measured is kept.", file=sys.stderr)
        raise SystemExit(130) from None


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


if __name__ == "__main__":
    sys.exit(main())
