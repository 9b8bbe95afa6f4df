"""Older releases, each installed from its wheel into its own environment: ``.venv/releases/<version>``.

They are not published, so their wheels are built from their commits, with the dependencies of their time:
``tools/upgrade/requirements-<version>.txt``. ``python -m support.releases`` prepares them.
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


@dataclass(frozen=True)
class Release:
    """A release whose processes can be started: its interpreter, and the tests with the stage its workers load."""

    version: str
    python: Path
    tests: Path
    commit: str = ""

    @property
    def env(self) -> dict[str, str]:
        """The variables with which its interpreter finds its own stage and no other release."""
        return {"PYTHONPATH": f"{self.tests}{os.pathsep}{self.tests.parent / 'tools'}", "PYTHONSAFEPATH": "1"}


def _folder(version: str) -> Path:
    return ROOT / ".venv" / "releases" / version


def _older(version: str, commit: str) -> Release:
    folder = _folder(version)
    return Release(version, folder / "venv" / "bin" / "python", folder / "source" / "tests", commit)


THIS = Release("this release", Path(sys.executable), ROOT / "tests")
FIRST = _older("0.1.0", "6e6a3681d98bf67979a2c719c8cc1d3519ffccf1")
PREVIOUS = _older("0.2.0", "40dfede08d534c9b9fe3db4ba3bec7618d167f66")


def prepare(release: Release = PREVIOUS) -> str:
    """Build and install an older release, unless that is done. Return why that failed, or ''."""
    version, commit, folder = release.version, release.commit, _folder(release.version)
    done = folder / commit
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if done.exists():
            return ""
        shutil.rmtree(folder / "source", ignore_errors=True)
        archive = _run(shutil.which("git") or "false", "archive", commit, cwd=ROOT)
        if archive.returncode:
            return f"the history of this checkout does not reach back to {version} ({commit[:7]})"
        (folder / "source").mkdir()
        subprocess.run(["tar", "-x"], cwd=folder / "source", input=archive.stdout, check=True)
        for command in _steps(release):
            ended = _run(*command, cwd=folder)
            if ended.returncode:
                return f"release {version} cannot be installed: {ended.stderr.decode()[-500:]}"
        done.touch()
        return ""


def _steps(release: Release) -> list[list[str]]:
    pip = [str(release.python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    requirements = ROOT / "tools" / "upgrade" / f"requirements-{release.version}.txt"
    return [
        ["sh", str(ROOT / ".ci" / "venv"), "venv"],
        [*pip, "wheel", "--no-deps", "--wheel-dir", "wheels", "./source"],
        [*pip, "install", "--requirement", str(requirements)],
        [*pip, "install", "--no-deps", f"./wheels/antiphon-{release.version}-py3-none-any.whl"],
    ]


def _run(*command: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False, timeout=600)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process prepare a release while others wait."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(prepare(FIRST) or prepare(PREVIOUS) or None)
