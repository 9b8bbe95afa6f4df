"""The packages of the image, pinned with their hashes: ``make pins`` writes them anew from pyproject.toml.

``requirements.txt`` is what the extras of the image need, and ``build-requirements.txt`` what builds the wheel. They
name no address: pip takes the packages from wherever it is set up to, and refuses any with another hash.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from support.source_tree import ROOT

EXTRAS = ("worker", "gateway", "metrics", "a2a", "mcp")
RUN = ROOT / "deploy" / "image" / "requirements.txt"
BUILD = ROOT / "deploy" / "image" / "build-requirements.txt"
TOOLS = ROOT / ".venv" / "tools" / "bin"
"""The environment of the extra ``release``: its packages would not fit with all that tests need."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def pinned(path: Path) -> dict[str, tuple[str, int]]:
    """Of each package: its version, and how many hashes it may have."""
    return {
        name: (version, rest.count("--hash=sha256:"))
        for name, version, rest in _PIN.findall(path.read_text())
    }


def needed(*extras: str) -> Iterator[Requirement]:
    """What pyproject.toml asks for, with these extras of its own."""
    project = PROJECT["project"]
    lines = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, lines):
        if requirement.name == project["name"]:
            yield from needed(*requirement.extras)
        else:
            yield requirement


def main() -> int:
    """Resolve anew. Every package becomes the newest one that fits."""
    _compile(RUN, str(ROOT / "pyproject.toml"), *(f"--extra={extra}" for extra in EXTRAS))
    _compile(BUILD, "-", given="\n".join(PROJECT["build-system"]["requires"]))
    return 0


def _compile(path: Path, source: str, *options: str, given: str = "") -> None:
    command = [
        str(TOOLS / "uv"), "pip", "compile", source, *options, "--universal", "--quiet", "--upgrade",
        "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate", f"--output-file={path}",
    ]  # fmt: skip
    subprocess.run(command, input=given, text=True, cwd=ROOT, check=True)
    path.write_text("# Written by `make pins`.\n" + path.read_text())


if __name__ == "__main__":
    sys.exit(main())
