"""docs/settings.md has every setting of a worker, with its default, as the code has them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from support.marked import with_block
from support.source_tree import ROOT

from antiphon_worker.settings import Settings, variable_of

PAGE = ROOT / "docs" / "settings.md"


def settings_table() -> str:
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for known in fields(Settings):
        default = f"`{shown(known.default)}`" if known.default != "" else ""
        rows.append(f"| `{variable_of(known.name)}` | {default} | {known.metadata['doc']} |")
    return "\n".join(rows)


def shown(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_the_table_of_settings_is_the_one_in_the_code():
    page = PAGE.read_text()
    assert page == with_block(page, "settings", settings_table()), (
        "Write it anew: PYTHONPATH=tests python tests/docs/test_pages_of_settings.py"
    )


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text(), "settings", settings_table()))
