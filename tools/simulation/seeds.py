"""Which schedules a run takes: others at each commit, so that what one run has missed another one finds."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

FIRST_SEED = "SIMULATION_FIRST_SEED"
"""The variable that repeats a run: the first of its seeds."""

SPACING = 10_000  # runs of fewer schedules do not overlap
PLACES = 1_000_000


def first_seed() -> int:
    """The first seed of this run: the one that the environment names, else by the commit, without one by the date."""
    if named := os.environ.get(FIRST_SEED):
        return int(named)
    return int(_commit() or time.strftime("%Y%m%d"), 16) % PLACES * SPACING


def _commit() -> str:
    try:
        command = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
