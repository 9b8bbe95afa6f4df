"""Models list and read the resources of a server, where the server is declared so."""

import pytest
from mcp.server.mcpserver import Context
from support.mcp_servers import Desk, program

from antiphon import Agent
from antiphon.errors import UsageError
from antiphon.mcp import MCP
from antiphon.model import Image
from antiphon.testing import script, tool_call
from antiphon_worker.mcp.servers import close_servers

pytestmark = pytest.mark.one_server

TOKEN = "token-Zx81-secret"
LIST = tool_call("desk__list_resources")


class Library(Desk):
    """A server with resources."""

    def __init__(self, **options):
        super().__init__(json=True, **options)

        @self.server.resource("docs://handbook", title="Handbook", description="How we work.")
        def handbook() -> str:
            return "Be kind."

        @self.server.resource("docs://logo", mime_type="image/png")
        def logo() -> bytes:
            return b"PNG"

        @self.server.resource("docs://people/{name}", description="A person.")
        def person(name: str, context: Context) -> str:
            return f"{name} {(context.headers or {}).get('authorization', '')}"


def read(uri):
    return tool_call("desk__read_resource", uri=uri)


async def answered(server, *said):
    model = script(*said, "Done.")
    try:
        response = await Agent(model, "any", mcp=[server]).session_async().run("Go.")
    finally:
        await close_servers()
    return response.tool_calls, model.requests


@pytest.mark.parametrize("modern", [True, False], ids=["2026-07-28", "handshake"])
async def test_resources_are_listed_and_read(modern):
    async with Library(modern=modern).running() as library:
        server = library.declared(resources=True, auth=lambda _: TOKEN)
        calls, requests = await answered(
            server, [LIST, read("docs://handbook"), read("docs://people/ada"), read("docs://unknown")]
        )
    listed, handbook, person, unknown = calls
    assert "docs://handbook (Handbook: How we work.)" in listed.result
    assert "docs://people/{name} (person: A person.)" in listed.result
    assert handbook.result == "docs://handbook:\nBe kind."
    assert person.result == "docs://people/ada:\nada [credentials]"
    assert unknown.is_error
    names = {one.name for one in requests[0].tools}
    assert {"desk__list_resources", "desk__read_resource", "desk__add"} <= names


async def test_a_binary_resource_is_kept_as_such():
    async with Library().running() as library:
        _, requests = await answered(library.declared(resources=True), read("docs://logo"))
    [result] = requests[1].messages[-1].tool_results
    assert any(getattr(part, "data", None) for part in result.content)
    assert not isinstance(result.content, str)
    assert not any(isinstance(part, Image) and part.url for part in result.content)


async def test_resources_are_offered_only_where_declared_and_there():
    async with Library().running() as library:
        _, requests = await answered(library.declared())
        assert not any("resource" in one.name for one in requests[0].tools)
        calls, _ = await answered(
            library.declared(resources=True, approval=["read_resource"], tools=["add"]), LIST
        )
        assert "docs://handbook" in calls[0].result
    own = program("""
    from mcp.server.mcpserver import Context
    @server.tool()
    def read_resource(uri: str) -> str:
        "Read."
        return "own"
    @server.resource("docs://a")
    def a() -> str:
        return "a"
    """, resources=True)  # fmt: skip
    calls, _ = await answered(own, tool_call("demo__read_resource", uri="docs://a"))
    assert calls[0].result == "own"


async def test_approvals_hold_for_resources_too():
    server = MCP.http("https://desk.example/mcp", name="desk", resources=True, approval=["read_resource"])
    assert server.rule("read_resource").rule
    assert not server.rule("list_resources").rule


def test_resources_are_part_of_the_revision_only_where_they_are_offered():
    assert "resources" not in MCP.stdio("files", name="files").described()
    assert MCP.stdio("files", name="files", resources=True).described()["resources"]
    with pytest.raises(UsageError, match="resources= of an MCP server must be True or False"):
        MCP.stdio("files", name="files", resources=["a"])
