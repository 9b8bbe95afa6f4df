"""docs/http.md lists what the gateway can be asked, as the code has it. The examples of docs/openai.md run too."""

from __future__ import annotations

import re

import pytest
from support.marked import with_block
from support.source_tree import ROOT

from antiphon_gateway.app import _operations

PAGE = ROOT / "docs" / "http.md"


def operations_table() -> str:
    rows = ["| request | right | what it does |", "|---|---|---|"]
    for one in _operations():
        summary = one.doc.partition("\n")[0]
        rows.append(f"| `{one.method} {one.route}` | {one.right or ''} | {summary} |")
    return "\n".join(rows)


def test_the_table_of_operations_is_the_one_in_the_code():
    page = PAGE.read_text()
    assert page == with_block(page, "operations", operations_table()), (
        "Write it anew: PYTHONPATH=tests python tests/docs/test_pages_of_http.py"
    )


@pytest.mark.parametrize(("page", "made"), [("http", {"app", "own"}), ("openai", {"ask", "follow", "allow"})])
def test_the_examples_of_the_page_run(page, made):
    names: dict[str, object] = {}
    text = PAGE.with_stem(page).read_text()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, f"{page}.md", "exec"), names)
    assert made <= names.keys()


if __name__ == "__main__":
    PAGE.write_text(with_block(PAGE.read_text(), "operations", operations_table()))
