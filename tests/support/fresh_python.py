"""A Python that has imported nothing of ours yet."""

from __future__ import annotations

import subprocess
import sys

__all__ = ["imported_by"]


def imported_by(program: str) -> list[str]:
    """Return the names of all modules that a fresh Python has behind this program, which must end well."""
    shown = f"{program}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", shown], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()
