"""The core of Antiphon, from claim to finish, stays small enough to read in an afternoon."""

from __future__ import annotations

import re
from pathlib import Path

from support.marked import with_block
from support.source_tree import ROOT

PAGE = ROOT / "docs" / "internals.md"
LUA = ROOT / "client/antiphon/wire/lua"
MOST_LINES = 3000
SCRIPTS = ("claim", "renew", "emit", "append_step", "finish", "give_back")
MODULES = {
    "process/consumer.py": "takes turns from their queues",
    "process/lease.py": "holds and renews leases",
    "process/turn.py": "runs one turn up to its outcome",
    "loop/loop.py": "calls the model and its tools until it has answered",
    "process/publisher.py": "publishes deltas",
    "process/journal.py": "appends finished steps",
}


def sources_of_scripts() -> set[Path]:
    """The scripts of the path with all that they include."""
    found: set[Path] = set()
    waiting = [LUA / f"{name}.lua" for name in SCRIPTS]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            named = " ".join(re.findall(r"^-- @include (.+)$", path.read_text(), re.MULTILINE)).split()
            waiting += [LUA / "include" / f"{name}.lua" for name in named]
    return found


def lines_in(*paths: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def table() -> str:
    worker = ROOT / "worker/antiphon_worker"
    rows = [(f"`antiphon_worker/{name}`", what, lines_in(worker / name)) for name, what in MODULES.items()]
    scripts = f"`{'`, `'.join(SCRIPTS)}` in `antiphon/wire/lua`"
    rows.append((scripts, "change Redis, with all that they include", lines_in(*sources_of_scripts())))
    rows.append(("**together**", "", sum(lines for *_, lines in rows)))
    cells = (f"| {where} | {what} | {lines:,} |" for where, what, lines in rows)
    return "\n".join(["| where | what it does | lines |", "|---|---|---|", *cells])


def test_the_core_path_stays_small():
    worker = ROOT / "worker/antiphon_worker"
    assert lines_in(*(worker / name for name in MODULES), *sources_of_scripts()) <= MOST_LINES


def test_the_page_has_the_lines_of_the_core():
    page = PAGE.read_text()
    assert page == with_block(page, "core", table()), (
        "Run: PYTHONPATH=tests python tests/docs/test_core_path.py"
    )


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text(), "core", table()))
