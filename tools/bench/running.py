"""Running parts, each in a process of its own and within its limit."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Event

import msgspec
from support.guard import guard, release

from bench.kept import RESULTS, Record
from bench.machine import Machine
from bench.parts import QUICK_AT_ONCE, Part
from bench.results import Plan, Result

LEAVE_SECONDS = 10.0
LOOK_SECONDS = 0.1


def run_parts(parts: list[Part], plan: Plan, machine: Machine) -> Iterator[tuple[Part, Record]]:
    """Each part as soon as it was measured; one that fails gives a record that says why."""
    over = Event()
    if plan.quick:
        parts = sorted(parts, key=lambda part: -part.quick)  # side by side, the long ones first
    with ThreadPoolExecutor(QUICK_AT_ONCE if plan.quick else 1) as pool:
        running = {pool.submit(_run, part, plan, machine, over): part for part in parts}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            over.set()  # Ctrl-C, or nobody reads on: what runs ends, what waits does not begin
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
    """Where the output of a part that failed can be read afterwards."""
    RESULTS.mkdir(exist_ok=True)
    shutil.copy(log, RESULTS / f"{part.name}.log")
    return (RESULTS / f"{part.name}.log").relative_to(RESULTS.parent)


def _measure(part: Part, plan: Plan, file: Path, log: Path, over: Event) -> str:
    """Run it to its end; what went wrong, or nothing."""
    size = "quick" if plan.quick else "full"
    argv = [sys.executable, "-m", "bench.part", part.name, str(plan.rounds), size, str(file)]
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
    """SIGTERM, and SIGKILL for one that does not leave; its guard ends what it had started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    release(process.pid)
