"""The wheel and the source of a release: building them, and what is wrong with their contents."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from support.source_tree import ROOT, packages

from release.pins import PROJECT, TOOLS

__all__ = ["NAME", "build", "complaints"]

NAME = f"{PROJECT['project']['name']}-{PROJECT['project']['version']}"
BESIDE = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source, and the wheel from that source. Returns both."""
    subprocess.run(
        [TOOLS / "pyproject-build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    return folder / f"{NAME}-py3-none-any.whl", folder / f"{NAME}.tar.gz"


def complaints(wheel: Path, source: Path) -> list[str]:
    """What is missing in them, or does not belong there."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    with tarfile.open(source) as archive:
        unpacked = {
            member.name.removeprefix(f"{NAME}/") for member in archive.getmembers() if member.isfile()
        }
    ours = _tracked(*packages())
    imported = {name.partition("/")[2] for name in ours}
    about = {name for name in inside if name.startswith(f"{NAME}.dist-info/")}
    return [
        *_differences("the wheel", inside - about, imported),
        *_differences("the source", unpacked - BESIDE, ours),
        *(f"the wheel has no {name}" for name in ("LICENSE",) if not any(name in one for one in about)),
        *(f"the source has no {name}" for name in BESIDE - {".gitignore"} - unpacked),
    ]


def _tracked(*folders: Path) -> set[str]:
    """The files that git knows in these folders."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(listed.stdout.splitlines())


def _differences(what: str, found: set[str], wanted: set[str]) -> Iterable[str]:
    yield from (f"{what} has no {name}" for name in sorted(wanted - found))
    yield from (f"{what} has {name}, which does not belong there" for name in sorted(found - wanted))
