"""The release before this one, installed from its wheel into an environment of its own: ``.venv/releases/<version>``.

Nothing of it is published, so its wheel is built from its commit, and its dependencies are those of its time:
``tools/upgrade/requirements-<version>.txt``. ``python -m support.releases`` prepares it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.source_tree import ROOT

COMMIT = "6e6a3681d98bf67979a2c719c8cc1d3519ffccf1"
VERSION = "0.1.0"


@dataclass(frozen=True)
class Release:
    """A release that processes can be started of: its interpreter, and the tests whose stage its workers load."""

    version: str
    python: Path
    tests: Path

    @property
    def env(self) -> dict[str, str]:
        """The variables with which its interpreter finds its stage, and no other release."""
        return {"PYTHONPATH": f"{self.tests}{os.pathsep}{self.tests.parent / 'tools'}", "PYTHONSAFEPATH": "1"}


THIS = Release("this release", Path(sys.executable), ROOT / "tests")
_FOLDER = ROOT / ".venv" / "releases" / VERSION
PREVIOUS = Release(VERSION, _FOLDER / "venv" / "bin" / "python", _FOLDER / "source" / "tests")


def prepare() -> str:
    """Build and install the release before this one, unless that is done. Return why it cannot be had, or ''."""
    done = _FOLDER / COMMIT
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with _alone():
        if done.exists():
            return ""
        shutil.rmtree(_FOLDER / "source", ignore_errors=True)
        archive = _run(shutil.which("git") or "false", "archive", COMMIT, cwd=ROOT)
        if archive.returncode:
            return f"the history of this checkout does not reach back to {VERSION} ({COMMIT[:7]})"
        (_FOLDER / "source").mkdir()
        subprocess.run(["tar", "-x"], cwd=_FOLDER / "source", input=archive.stdout, check=True)
        for command in _steps():
            ended = _run(*command, cwd=_FOLDER)
            if ended.returncode:
                return f"release {VERSION} cannot be installed: {ended.stderr.decode()[-500:]}"
        done.touch()
        return ""


def _steps() -> list[list[str]]:
    pip = [str(PREVIOUS.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    requirements = ROOT / "tools" / "upgrade" / f"requirements-{VERSION}.txt"
    return [
        ["sh", str(ROOT / ".ci" / "venv"), "venv"],
        [*pip, "wheel", "--no-deps", "--wheel-dir", "wheels", "./source"],
        [*pip, "install", "--requirement", str(requirements)],
        [*pip, "install", "--no-deps", f"./wheels/antiphon-{VERSION}-py3-none-any.whl"],
    ]


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=600)


@contextmanager
def _alone() -> Iterator[None]:
    """One process prepares it; the others wait."""
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(prepare() or None)
