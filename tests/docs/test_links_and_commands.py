"""Every page leads to files that exist, and names commands and verbs that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.offenders import for_each
from support.source_tree import ROOT

from antiphon.cli.main import main

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    ROOT / "client" / "node" / "README.md",
]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page may say, as the site and GitHub have it."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> set[str]:
    return set(re.findall(r"(?:`|\$ |^)antiphon ([a-z][a-z-]*)", text, re.MULTILINE))


@for_each(PAGES, name_of)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name_of(page)} links to {target}#{anchor}"


def test_every_command_that_a_page_names_is_one(capsys):
    main(["--help"])
    known = set(re.findall(r"^  ([a-z][a-z-]*) ", capsys.readouterr().out, re.MULTILINE))
    named = {(name_of(page), command) for page in PAGES for command in commands(page.read_text())}
    assert {"worker", "redis", "tail", "submit"} <= {command for _, command in named}
    assert {(page, command) for page, command in named if command not in known} == set()


def test_every_verb_of_make_that_a_page_names_is_one():
    named = {
        (name_of(page), verb)
        for page in PAGES
        for verb in re.findall(r"(?:`|\$ |^)make ([a-z]+)", page.read_text(), re.MULTILINE)
    }
    assert len(named) > 5
    assert {(page, verb) for page, verb in named if verb not in TARGETS} == set()


def test_the_list_of_decisions_has_every_page_under_its_title():
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(.*)\]\((.*\.md)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    pages = {
        page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in folder.glob("*.md")
    }
    pages.pop("README.md")
    assert {name: title for title, name in listed} == pages
    assert len(listed) == len(pages) <= 40


def test_a_decision_names_its_context_its_choice_and_its_cost():
    for page in (ROOT / "docs" / "decisions").glob("[a-z]*.md"):
        parts = re.findall(r"^\*\*(\w+)\.\*\* ", page.read_text(), re.MULTILINE)
        assert parts == ["Context", "Choice", "Cost"], page.name
