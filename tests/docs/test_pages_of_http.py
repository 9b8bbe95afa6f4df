"""The examples of docs/http.md and docs/openai.md run."""

from __future__ import annotations

import re

import pytest
from support.source_tree import ROOT

PAGE = ROOT / "docs" / "http.md"


@pytest.mark.parametrize(("page", "made"), [("http", {"app", "own"}), ("openai", {"ask", "follow", "allow"})])
def test_the_examples_of_the_page_run(page, made):
    names: dict[str, object] = {}
    text = PAGE.with_stem(page).read_text()
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, f"{page}.md", "exec"), names)
    assert made <= names.keys()
