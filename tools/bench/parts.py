"""The parts of the benchmark, and how they run: each in its own process, which is ended if it hangs.

``python -m bench.parts NAME ROUNDS full|quick FILE`` measures one part, and writes its result as JSON.
"""

import importlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import FrameType

import msgspec
import uvloop
from support.guard import guard, release
from support.network import forbid_other_machines

from bench.kept import RESULTS, Machine, Record
from bench.results import Plan, Result, in_short

FULL_SECONDS = 900.0
QUICK_SECONDS = 90.0
"""The time limit of all parts together."""
QUICK_AT_ONCE = 2
"""A quick run only shows that everything works, so its parts may disturb each other."""


@dataclass(frozen=True, slots=True)
class Part:
    """``seconds`` and ``quick`` are the expected times; the limit is twice that and half a minute."""

    name: str
    seconds: float
    quick: float

    def expected(self, quick: bool) -> float:
        return self.quick if quick else self.seconds

    def limit(self, quick: bool, rounds: int = 3) -> float:
        return 30 + 2 * self.expected(quick) * max(1, rounds / 3)


PARTS = (
    Part("floor", 30, 10),
    Part("turns", 42, 10),
    Part("latency", 74, 12),
    Part("streams", 147, 9),
    Part("slow", 26, 9),
    Part("cancels", 24, 4),
    Part("memory", 17, 7),
    Part("idle", 20, 2),
    Part("waiting", 19, 4),
    Part("commands", 8, 5),
    Part("length", 5, 2),
    Part("histories", 6, 2),
    Part("sessions", 12, 4),
    Part("subscribers", 30, 7),
    Part("gateway", 26, 8),
    Part("tenants", 23, 8),
    Part("batches", 13, 6),
    Part("limits", 17, 7),
    Part("recall", 6, 2),
    Part("recovery", 80, 13),
    Part("peers", 175, 30),
    Part("network", 10, 4),
    Part("cluster", 40, 8),
    Part("cells", 25, 7),
)


def named(names: list[str]) -> list[Part]:
    """Return the parts with these names in order of definition; all if there are no names."""
    return [part for part in PARTS if not names or part.name in names]


def expected_seconds(parts: list[Part], quick: bool) -> float:
    together = sum(part.expected(quick) for part in parts)
    at_once = min(QUICK_AT_ONCE, len(parts)) if quick else 1
    return together / at_once


LEAVE_SECONDS = 10.0
LOOK_SECONDS = 0.1


def run_parts(parts: list[Part], plan: Plan, machine: Machine) -> Iterator[tuple[Part, Record]]:
    """Yield each part once it was measured. The record of a failed part has the reason."""
    over = Event()
    if plan.quick:
        parts = sorted(parts, key=lambda part: -part.quick)  # in parallel, the long ones first
    with ThreadPoolExecutor(QUICK_AT_ONCE if plan.quick else 1) as pool:
        running = {pool.submit(_run, part, plan, machine, over): part for part in parts}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            over.set()  # Ctrl-C or an abandoned generator: running parts end, waiting ones do not begin
            pool.shutdown(cancel_futures=True)


def _run(part: Part, plan: Plan, machine: Machine, over: Event) -> Record:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as directory:
        file, log = Path(directory, "result.json"), Path(directory, "log")
        why = _measure(part, plan, file, log, over)
        record = Record(machine, plan.rounds, plan.quick, round(time.monotonic() - began, 1))
        if why:
            record.failed = f"{why} (all it printed: {_kept(log, part)})"
        else:
            record.result = msgspec.json.decode(file.read_bytes(), type=Result)
    return record


def _kept(log: Path, part: Part) -> Path:
    """Keep the output of a failed part, and return its path."""
    RESULTS.mkdir(exist_ok=True)
    shutil.copy(log, RESULTS / f"{part.name}.log")
    return (RESULTS / f"{part.name}.log").relative_to(RESULTS.parent)


def _measure(part: Part, plan: Plan, file: Path, log: Path, over: Event) -> str:
    """Run a part to its end. Return what went wrong, or ''."""
    size = "quick" if plan.quick else "full"
    argv = [sys.executable, "-m", "bench.parts", part.name, str(plan.rounds), size, str(file)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    guard(process.pid)
    limit = part.limit(plan.quick, plan.rounds)
    try:
        code = _wait(process, limit, over)
    finally:
        _end(process)
    if code is None:
        return "stopped" if over.is_set() else f"not measured within its limit of {limit:.0f} s"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "" if code == 0 else (lines or [f"ended with code {code}"])[-1][:300]


def _wait(process: subprocess.Popen[bytes], limit: float, over: Event) -> int | None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and not over.is_set():
        try:
            return process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process by SIGTERM, or SIGKILL if it does not leave; its guard ends the processes it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    release(process.pid)


def main(name: str, rounds: str, size: str, file: str) -> None:
    signal.signal(signal.SIGTERM, _leave)
    forbid_other_machines()
    part = importlib.import_module(f"bench.{name}")
    result = Result(name, part.TITLE)
    try:
        uvloop.run(part.measure(Plan(int(rounds), size == "quick"), result))
    except Exception as exc:  # noqa: BLE001 - its last line is shown in the table
        traceback.print_exc()
        print(f"{type(exc).__name__}: {in_short(str(exc))}", file=sys.stderr)
        raise SystemExit(1) from None
    Path(file).write_bytes(msgspec.json.encode(result))


def _leave(number: int, _: FrameType | None) -> None:
    """Leave through every ``finally``, so that all processes end."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
