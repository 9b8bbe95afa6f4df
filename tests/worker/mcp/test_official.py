"""Our client of MCP servers, by the official conformance suite and with servers of others: ``make mcp``."""

import subprocess
import sys

import pytest
from support.mcp_official import EARLIER, MODERN, MODULES, NODE, PYTHON, check_installed, conformance
from support.serving import serving
from support.source_tree import ROOT

from antiphon import Agent
from antiphon.mcp import MCP
from antiphon.testing import script, tool_call
from antiphon_worker.mcp.prompts import get_prompt, list_prompts
from antiphon_worker.mcp.servers import close_servers

pytestmark = [pytest.mark.one_server, pytest.mark.nightly]

SCENARIOS = [
    ("initialize", EARLIER), ("tools_call", EARLIER), ("tools_call", MODERN), ("request-metadata", MODERN),
    ("sep-2322-client-request-state", MODERN), ("http-standard-headers", MODERN), ("http-custom-headers", MODERN),
    ("http-invalid-tool-headers", MODERN), ("json-schema-ref-no-deref", MODERN),
    ("json-schema-2020-12-preservation", EARLIER), ("json-schema-2020-12-preservation", MODERN),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
async def test_the_client_conforms(redis_url, tmp_path, scenario, version):
    command = f"{sys.executable} {ROOT / 'tests' / 'mcp' / 'client.py'} {redis_url}"
    path = f"{ROOT / 'tests'}:{ROOT / 'tools'}"
    checks = await conformance("client", scenario, version, tmp_path, "--command", command, PYTHONPATH=path)
    assert checks
    assert {name: status for name, status in checks.items() if status.startswith("FAILURE")} == {}


async def calls(server, *said, **options):
    """The results of these calls of an agent, by the tools' names there, and the tools that the model was offered."""
    check_installed()
    model = script(*said, "Done.")
    try:
        response = await Agent(model, "any", mcp=[server]).session_async().run("Go.")
    finally:
        await close_servers()
    names = {one.name.partition("__")[2] for one in model.requests[0].tools}
    return {one.name.partition("__")[2]: (one.result, one.is_error) for one in response.tool_calls}, names


async def test_the_server_with_everything():
    folder = MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    server = MCP.stdio([str(NODE), str(folder), "stdio"], name="every", resources=True, connect_timeout=60)
    found, names = await calls(
        server, [tool_call("every__echo", message="Hello"), tool_call("every__get-sum", a=1, b=2)],
        tool_call("every__list_resources"),
        tool_call("every__trigger-long-running-operation", duration=0.2, steps=2),
    )  # fmt: skip
    assert {"echo", "get-sum", "get-tiny-image"} <= names
    assert found["echo"] == ("Echo: Hello", False)
    assert "3" in found["get-sum"][0]
    assert "completed" in found["trigger-long-running-operation"][0]
    assert "demo://resource/" in found["list_resources"][0]
    prompts = {one.name: one for one in await list_prompts(server)}
    assert prompts["args-prompt"].arguments["city"]
    [message] = await get_prompt(server, "args-prompt", {"city": "Paris"})
    assert "Paris" in message.text


async def test_the_server_of_files(tmp_path):
    (tmp_path / "note.txt").write_text("A note.")
    program = MODULES / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    server = MCP.stdio([str(NODE), str(program), str(tmp_path)], name="files", connect_timeout=60)
    found, names = await calls(
        server, tool_call("files__read_text_file", path=str(tmp_path / "note.txt")),
        tool_call("files__write_file", path=str(tmp_path / "new.txt"), content="New."),
        tool_call("files__list_directory", path="/etc"),
    )  # fmt: skip
    assert {"read_text_file", "write_file", "list_directory"} <= names
    assert found["read_text_file"] == ("A note.", False)
    assert (tmp_path / "new.txt").read_text() == "New."
    assert found["list_directory"][1]


def git(folder, *arguments):
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


async def test_the_server_of_git(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Begin the work")
    server = MCP.stdio([str(PYTHON / "mcp-server-git")], name="git", connect_timeout=60)
    found, names = await calls(server, tool_call("git__git_log", repo_path=str(tmp_path)))
    assert {"git_status", "git_log", "git_commit"} <= names
    assert "Begin the work" in found["git_log"][0]


async def test_the_server_that_fetches():
    async def page(scope, receive, send):
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
        )
        await send({"type": "http.response.body", "body": b"A page of this test."})

    async with serving(page) as port:
        server = MCP.stdio(
            [str(PYTHON / "mcp-server-fetch"), "--allow-private-ips"], name="web", connect_timeout=60
        )
        found, names = await calls(server, tool_call("web__fetch", url=f"http://127.0.0.1:{port}/a.txt"))
    assert names == {"fetch"}
    assert "A page of this test." in found["fetch"][0]
