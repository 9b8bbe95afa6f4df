"""A Python that has imported nothing of ours yet."""

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
    """Return the names of all modules that a fresh Python has behind this program, which must end well."""
    return printed_by(f"{program}\nimport sys\nprint(*sys.modules)").split()
