"""The page about MCP servers: its code runs, and its figures are those of the code."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from support.source_tree import ROOT

from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP, Requester
from antiphon_gateway.mcp import tools
from antiphon_worker.loop.toolbox import TIMEOUT_SECONDS
from antiphon_worker.mcp import connection, servers, tasks

PAGE = (ROOT / "docs" / "mcp.md").read_text()


@pytest.fixture(scope="module")
def page():
    names = {"vault": SimpleNamespace(token=lambda tenant, user: f"{tenant}-{user}")}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/mcp.md", "exec"), names)
    return names


def section(title):
    return PAGE.partition(f"\n{title}\n")[2].partition("\n## ")[0]


def test_the_agent_of_the_page_has_both_servers(page):
    app = page["app"]
    assert [one.name for one in app.servers(app.agent("support"))] == ["github", "files"]
    assert page["github"].auth(Requester("acme", "ada", "github")) == "acme-ada"


def test_the_page_lists_the_options():
    listed = {
        name
        for row in re.findall(r"^\| (`.+?`) \| ", section("## Options"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == set(MCP.__struct_fields__) - {"url", "command"}


def test_the_page_lists_the_tools_of_the_gateway_with_their_rights():
    rows = re.findall(
        r"^\| `(\w+)`.* \| `(\w+)` \|$", section("## Your agents as an MCP server"), re.MULTILINE
    )
    assert rows == [("ask_AGENT", "write"), *((one.name, one.right) for one in tools.TURNS)]
    assert f"({tools.USUAL_WAIT:g} by default, up to {tools.LONGEST_WAIT:g})" in PAGE


def test_the_figures_of_the_page_are_those_of_the_code():
    assert f"{LIMITS.mcp_bytes // 1024**2} MiB in one answer" in PAGE
    assert f"more than {LIMITS.mcp_tool_bytes // 1024} KiB" in PAGE
    assert f"more than {LIMITS.mcp_tools} tools" in PAGE
    assert f"for {connection.KEEP_SECONDS:g} s if it sets no time" in PAGE
    assert f"1, 2, 4 … {servers.LONGEST_PAUSE:g} s" in PAGE
    assert servers.FIRST_PAUSE == 1
    assert f"from {tasks.FIRST_POLL:g} s to {tasks.LONGEST_POLL:g} s" in PAGE
    assert f"after {tasks.LONGEST_TASK / 86_400:g} days" in PAGE
    assert tasks.SHARE == 10
    assert f"Default: {TIMEOUT_SECONDS:g}" in PAGE
    assert "Default: 10." in PAGE
    assert MCP.http("https://host/", name="a").connect_timeout == 10
