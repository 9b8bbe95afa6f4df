"""The page about memory: its code runs from top to bottom."""

from __future__ import annotations

import re

from support.source_tree import ROOT

PAGE = ROOT / "docs" / "memory.md"


def test_the_page_about_memory_runs_from_top_to_bottom(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["app"].agents == ["concierge"]
    assert names["memory"].replaces is names["former"]
