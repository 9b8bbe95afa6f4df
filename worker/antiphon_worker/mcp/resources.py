"""The resources of a server, through two tools: one lists them, and one reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    ListResourcesRequest,
    ListResourcesResult,
    ListResourceTemplatesRequest,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequest,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from antiphon.errors import ToolRaised
from antiphon.input.limits import LIMITS
from antiphon.mcp import MCP
from antiphon.tools import Context
from antiphon_worker.mcp.connection import Connection
from antiphon_worker.mcp.tools import Arguments, RemoteTool, content_of

Use: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

LIST, READ = "list_resources", "read_resource"
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_URI: dict[str, Any] = {
    "type": "object", "properties": {"uri": {"type": "string", "description": "The URI of the resource."}},
    "required": ["uri"], "additionalProperties": False,
}  # fmt: skip


def resource_tools(server: MCP, use: Use) -> list[RemoteTool]:
    """Return the tools for the resources of a server, in a turn that connects with ``use``."""

    async def listed(tool: RemoteTool, arguments: Arguments, context: Context) -> Any:
        async with use() as connection:
            return await _listed(connection)

    async def read(tool: RemoteTool, arguments: Arguments, context: Context) -> Any:
        async with use() as connection:
            return await _read(connection, arguments["uri"])

    return [
        RemoteTool(server, LIST, f"List the resources of {server.name} with their URIs.", _NOTHING).bound(
            listed
        ),
        RemoteTool(server, READ, f"Read a resource of {server.name}.", _URI).bound(read),
    ]


async def _listed(connection: Connection) -> str:
    """Return a line for each resource, and for each URI template of the server. Raises ``ToolError``."""
    lines: list[str] = []
    for request, kind in (
        (ListResourcesRequest, ListResourcesResult),
        (ListResourceTemplatesRequest, ListResourceTemplatesResult),
    ):
        cursor = None
        while len(lines) < LIMITS.mcp_resources:
            page: Any = await connection.request(request(params=PaginatedRequestParams(cursor=cursor)), kind)
            found = page.resources if isinstance(page, ListResourcesResult) else page.resource_templates
            lines += [_line(one) for one in found]
            cursor = page.next_cursor
            if cursor is None:
                break
    text = connection.credentials.out_of("\n".join(lines[: LIMITS.mcp_resources]))
    return text or "There are no resources."


def _line(one: Any) -> str:
    about = ": ".join(filter(None, (one.title or one.name, one.description)))
    place = getattr(one, "uri", None) or one.uri_template
    return f"{place} ({about})"


async def _read(connection: Connection, uri: str) -> Any:
    """Return the content of a resource. Raises ``ToolError``."""
    request = ReadResourceRequest(params=ReadResourceRequestParams(uri=uri))
    found = await connection.request(request, ReadResourceResult)
    if not found.contents:
        raise ToolRaised("The resource has no content.")
    parts: Any = [EmbeddedResource(type="resource", resource=one) for one in found.contents]
    return content_of(CallToolResult(content=parts), connection.credentials)
