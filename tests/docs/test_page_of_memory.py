"""The page about memory: its code runs from top to bottom."""

import re

import pytest
from support.source_tree import ROOT

import antiphon
from antiphon.client import Client

PAGE = ROOT / "docs" / "memory.md"


@pytest.mark.one_server
def test_the_page_about_memory_runs_from_top_to_bottom(redis_url, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setattr(antiphon, "Client", lambda url: Client(redis_url))
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["app"].agents == ["concierge"]
    assert names["memory"].replaces is names["former"]
