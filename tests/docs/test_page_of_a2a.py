"""The page about A2A: its code runs, and its tables are those of the code."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace

import pytest
from support.source_tree import ROOT

from antiphon.a2a import RemoteAgent, Requester
from antiphon.input.limits import LIMITS
from antiphon_gateway.a2a import listing, methods
from antiphon_gateway.published import A2AAgent, read_agents
from antiphon_worker import a2a

PAGE = (ROOT / "docs" / "a2a.md").read_text()


@pytest.fixture(scope="module")
def page():
    """The names that the code of the page defines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIPHON_REDIS_URL", "redis://localhost:6379/0")
        return run()


def run():
    names = {"vault": SimpleNamespace(token=lambda tenant, user: f"{tenant}-{user}")}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/a2a.md", "exec"), names)
    return names


def rows(section: str) -> set[str]:
    """The names in the first column of the first table of a section."""
    table = PAGE.partition(f"## {section}\n")[2].partition("|---|")[2].partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}


def test_the_code_of_the_page_runs(page):
    assert page["weather"].auth(Requester("acme", "ada", "weather")) == "acme-ada"
    assert page["planner"].tools == [page["weather"]]


def test_the_file_of_the_page_is_that_of_its_code(page, tmp_path):
    file = tmp_path / "agents.toml"
    file.write_text(re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0])
    (read,) = read_agents(file)
    read.url = ""
    read.skills[0].tags = []
    assert read == page["support"]


def test_the_tables_have_every_option():
    assert rows("Publish agents") == set(A2AAgent.__struct_fields__) - {"name"}
    options = set(inspect.signature(RemoteAgent.__init__).parameters) - {"self", "url"}
    assert rows("Call agents of other systems") == options


def test_the_figures_are_those_of_the_code():
    assert f"or after {methods.BLOCK_SECONDS:g} s;" in PAGE
    assert f"among the {listing.MOST_LOOKED_AT:,} newest turns" in PAGE
    assert f"more than\n  {LIMITS.a2a_bytes // 2**20} MiB" in PAGE
    assert PAGE.count(f"{LIMITS.a2a_values:,} JSON values") == 2
    assert f"at most {LIMITS.step_bytes // 2**20} MiB" in PAGE
    assert f"asked after {a2a.SHORTEST_PAUSE:g}, 1, 2 … {a2a.LONGEST_PAUSE:g} s" in PAGE
    assert a2a.RETRIES == 2
