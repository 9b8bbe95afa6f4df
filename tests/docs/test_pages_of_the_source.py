"""docs/internals.md and CONTRIBUTING name files, functions and folders that exist, and say of a folder what it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.offenders import for_each
from support.source_tree import ROOT, SOURCE_ROOTS, modules

INTERNALS = (ROOT / "docs" / "internals.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
SECTIONS = [part for part in re.split(r"^#{2,3} ", INTERNALS, flags=re.MULTILINE) if "`antiphon" in part]
# The folders of tests and tools: those with a file of one of these kinds.
TESTS = {
    f"{kind}/{path.name}"
    for kind in ("tests", "tools")
    for path in (ROOT / kind).iterdir()
    if path.is_dir() and any([*path.rglob("*.py"), *path.glob("package.json")])
}


def title(section: str) -> str:
    return section.partition("\n")[0]


def found(name: str) -> Path | None:
    return next((path for root in SOURCE_ROOTS if (path := ROOT / root / name).exists()), None)


def files(section: str) -> dict[str, Path | None]:
    return {name: found(name) for name in re.findall(r"`(antiphon[\w/.]*/[\w/.]+)`", section)}


def defined(path: Path) -> set[str]:
    """Functions, classes, and methods with their class, of a file or of all files of a folder."""
    if path.is_dir():
        return {name for file in path.glob("*.py") for name in defined(file)}
    if path.suffix == ".lua":
        return set(re.findall(r"function (\w+)", path.read_text()))
    names: set[str] = set()
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, kinds):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, kinds)}
    return names


@for_each(SECTIONS, title)
def test_a_step_names_files_that_exist(section):
    assert [name for name, path in files(section).items() if path is None] == []


@for_each(SECTIONS, title)
def test_a_step_names_functions_of_its_files(section):
    known = {name for path in files(section).values() if path is not None for name in defined(path)}
    known |= {f"Session.{name.partition('.')[2]}" for name in known if "session" in section and "." in name}
    named = set(re.findall(r"`([A-Za-z_]\w*(?:\.\w+)?)\(\)`", section))
    assert named - known == set()


def test_the_steps_name_every_script_that_a_turn_goes_through():
    scripts = {Path(name).stem for section in SECTIONS for name in files(section) if name.endswith(".lua")}
    assert {"submit", "claim", "renew", "emit", "append_step", "finish", "give_back", "reap"} <= scripts
    table = set(re.findall(r"`(\w+)\.lua`", INTERNALS.partition("\n## ")[0]))
    assert table <= scripts


def test_every_step_says_what_happens_if_the_process_stops_there():
    steps = [section for section in SECTIONS if re.match(r"\d|Recover", section)]
    assert len(steps) == 11
    assert [title(section) for section in steps if "*If the process stops here*" not in section] == []


def rooms() -> dict[str, str]:
    """Each folder of the source, and the first sentence of what it says of itself."""
    return {
        module.path.parent.relative_to(ROOT).as_posix(): (ast.get_docstring(module.tree) or "").partition(
            "\n"
        )[0]
        for module in modules().values()
        if module.path.name == "__init__.py"
    }


def test_the_table_of_the_source_has_every_folder_in_its_own_words():
    table = dict(
        re.findall(r"^\| `((?:client|worker|demo)/[\w/]+)/` \| (.*) \|$", CONTRIBUTING, re.MULTILINE)
    )
    assert table == {name: words.replace("``", "`") for name, words in rooms().items()}


def test_the_table_of_the_tests_has_every_folder():
    named = set(re.findall(r"^\| `((?:tests|tools)/\w+)/` \|", CONTRIBUTING, re.MULTILINE))
    assert named == TESTS


def test_every_path_that_contributing_names_exists():
    paths = re.findall(r"`((?:client|worker|tests|tools|docs|examples)/[\w./-]+)`", CONTRIBUTING)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_guarantees_name_tests_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    files = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
    named = re.findall(r"`(test_\w+\.py)(?:::(test_\w+)…)?`", page)
    assert len(named) > 20
    for file, beginning in named:
        assert file in files, file
        assert f"def {beginning}" in files[file].read_text(), f"{file}::{beginning}"


def test_each_promise_names_what_holds_it():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    promises = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    numbers = [int(title(one).split(":")[0].removeprefix("G")) for one in promises]
    assert numbers == sorted(set(numbers))
    assert numbers[:11] == list(range(1, 12))
    assert [title(one) for one in promises if "\nTests: " not in one] == []
