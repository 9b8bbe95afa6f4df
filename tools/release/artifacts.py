"""Builds the wheel and the source of a release, and checks their contents."""

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from support.source_tree import ROOT, WHEELS, packages

from release.pins import PROJECT, TOOLS

VERSION = PROJECT["project"]["version"]
BESIDE = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}


def build(name: str, folder: Path) -> tuple[Path, Path]:
    """Build the source of a distribution, and the wheel from it. Return the wheel and the source."""
    project = ROOT / WHEELS[name][0]
    subprocess.run(
        [TOOLS / "pyproject-build", "--outdir", folder, project], check=True, stdout=subprocess.DEVNULL
    )
    stem = f"{name.replace('-', '_')}-{VERSION}"
    return folder / f"{stem}-py3-none-any.whl", folder / f"{stem}.tar.gz"


def complaints(name: str, wheel: Path, source: Path) -> list[str]:
    """Return what is missing from the two files of a distribution, or does not belong there."""
    stem, beside = (
        source.name.removesuffix(".tar.gz"),
        BESIDE | ({"CHANGELOG.md"} if name == "antiphon" else set()),
    )
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    with tarfile.open(source) as archive:
        unpacked = {
            member.name.removeprefix(f"{stem}/") for member in archive.getmembers() if member.isfile()
        }
    place = "" if name == "antiphon" else f"{WHEELS[name][0]}/"
    tracked = _tracked(*packages(name))
    ours = {path.removeprefix(place) for path in tracked}
    imported = {path.partition("/")[2] for path in tracked}
    if name == "antiphon":
        pages = _tracked(*(ROOT / "docs").glob("*.md"))
        ours, imported = ours | pages, imported | {f"antiphon/{page}" for page in pages}
    about = {path for path in inside if path.startswith(f"{stem}.dist-info/")}
    return [
        *_differences("the wheel", inside - about, imported),
        *_differences("the source", unpacked - beside, ours),
        *(["the wheel has no LICENSE"] if not any("LICENSE" in one for one in about) else []),
        *(f"the source has no {path}" for path in beside - {".gitignore"} - unpacked),
    ]


def _tracked(*folders: Path) -> set[str]:
    """Return the files that git tracks in these folders."""
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(listed.stdout.splitlines())


def _differences(what: str, found: set[str], wanted: set[str]) -> Iterable[str]:
    yield from (f"{what} has no {name}" for name in sorted(wanted - found))
    yield from (f"{what} has {name}, which does not belong there" for name in sorted(found - wanted))
