"""The packages of the image, pinned with their hashes: ``make pins`` rewrites them from pyproject.toml.

``requirements.txt`` has the packages that the image's extras need, and ``build-requirements.txt`` those that build
the wheel. They contain no address: pip uses its configured index, and refuses packages with another hash.
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
"""The environment of the extra ``release``, whose packages conflict with those of the tests."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def pinned(path: Path) -> dict[str, tuple[str, int]]:
    """Return the version of each package, and its number of accepted hashes."""
    return {
        name: (version, rest.count("--hash=sha256:"))
        for name, version, rest in _PIN.findall(path.read_text())
    }


def needed(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements in pyproject.toml, with these extras."""
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
    """Resolve again: every package becomes the newest version that fits."""
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
