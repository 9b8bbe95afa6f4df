"""``against REF [parts…]``: this release and an older one in alternating rounds, and the ratio of their figures.

The older one is taken from the history of this checkout, and measured with its own benchmark, by an interpreter with
the packages of this environment and the older sources.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.kept import Kept

ROOT = Path(__file__).parents[2]
WORD = "against"
DEFAULT_PARTS = ("turns", "latency", "commands", "memory")
Figures = dict[tuple[str, str, str], tuple[float, str]]
"""The value and unit by part, subject and name."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout that can measure itself."""

    python: str
    root: Path

    def measure(self, parts: Sequence[str], *, quick: bool) -> Figures:
        """Run one round of these parts. Raises ``RuntimeError`` with the output if that fails."""
        folders = [str(self.root / name) for name in ("tools", "tests")]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "figures.json"
            command = [self.python, "-m", "bench", *parts, "--rounds", "1", "--json", str(file)]
            done = subprocess.run(
                [*command, *(["--quick"] if quick else [])],
                cwd=self.root, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(
                    f"{self.root} could not be measured:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            return figures_of(Kept(file))


def figures_of(kept: Kept) -> Figures:
    return {
        (part, one.subject, one.what): (one.value.median, one.unit)
        for part, record in kept.parts.items()
        for one in (record.result.figures if record.result else [])
        if one.value is not None
    }


def older(ref: str) -> Tree:
    """Return the tree of a commit or tag of this checkout. Raises ``ValueError`` if there is none."""
    command = ["git", "rev-parse", "--verify", f"{ref}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise ValueError(f"expected a commit or tag of this checkout, found {ref!r}: run git fetch --tags")
    folder = ROOT / ".venv" / "releases" / found.stdout.strip()
    source, python = folder / "source", folder / "venv" / "bin" / "python"
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", ref], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
        venv.create(folder / "venv", symlinks=True)
        own = [source / name for name in ("client", "worker", "demo") if (source / name).exists()]
        paths = [*own, _packages(Path(sys.prefix))]  # the paths of this folder's .pth files are not added
        (_packages(folder / "venv") / "older.pth").write_text("\n".join(map(str, paths)) + "\n")
    return Tree(str(python), source)


def _packages(root: Path) -> Path:
    return next((root / "lib").glob("python*")) / "site-packages"


def compare(ref: str, parts: Sequence[str], rounds: int, *, quick: bool) -> str:
    """Measure both alternately, and return the table of their figures and ratios."""
    names = list(parts or DEFAULT_PARTS)
    trees = older(ref), Tree(sys.executable, ROOT)
    found: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        both = trees if number % 2 == 0 else trees[::-1]
        print(f"Round {number + 1} of {rounds} …", flush=True)
        one, other = (tree.measure(names, quick=quick) for tree in both)
        found.append((one, other) if number % 2 == 0 else (other, one))
    return table(ref, found)


def table(ref: str, rounds: Sequence[tuple[Figures, Figures]]) -> str:
    """Return the figures that both have: their medians, and the median and spread of the ratios of each round."""
    lines = [f"| figure | {ref} | this | ratio |", "|---|---|---|---|"]
    for name, (_, unit) in rounds[0][1].items():
        pairs = [(old[name][0], new[name][0]) for old, new in rounds if name in old and name in new]
        if not pairs or not all(old for old, _ in pairs):
            continue
        ratios = [new / old for old, new in pairs]
        olds, news = (statistics.median(values) for values in zip(*pairs, strict=True))
        lines.append(
            f"| {': '.join(name)}, {unit} | {olds:.4g} | {news:.4g} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    return "\n".join(lines)
