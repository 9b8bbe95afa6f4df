"""Chooses the schedules of a run: different ones at each commit, so that a run finds what others missed."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

FIRST_SEED = "SIMULATION_FIRST_SEED"
"""The environment variable with the first seed, which repeats a run."""

SPACING = 10_000  # runs with fewer schedules do not overlap
PLACES = 1_000_000


def first_seed() -> int:
    """Return the first seed of this run: from the environment, else from the commit, else from the date."""
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
