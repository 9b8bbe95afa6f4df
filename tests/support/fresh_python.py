"""A Python process that has not imported our code yet."""

import subprocess
import sys

from support.eventually import patience


def printed_by(program: str) -> str:
    """Return what a program prints, which must end well within a minute."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patience(60), check=True
    )
    return done.stdout


def imported_by(program: str) -> list[str]:
    """Return the names of all modules loaded by a fresh Python after this program, which must succeed."""
    return printed_by(f"{program}\nimport sys\nprint(*sys.modules)").split()
