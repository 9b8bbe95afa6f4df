"""The tools of a server as tools of agents. Their descriptions are untrusted: unusable tools are left out."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp_types import Tool as Listed

from antiphon.errors import AgentError, ToolArgumentsInvalid, ToolRaised
from antiphon.input.json_schema import misfits
from antiphon.input.limits import check_size
from antiphon.mcp import MCP, tool_name
from antiphon.model import File, Image, Text
from antiphon.tools import Context, Tool
from antiphon_worker.mcp.credentials import Credentials

log = logging.getLogger("antiphon.mcp")

Arguments: TypeAlias = Mapping[str, Any]
Run: TypeAlias = Callable[["RemoteTool", Arguments, Context], Coroutine[Any, Any, Any]]


async def _unbound(arguments: Arguments, context: Context) -> Any:
    raise ToolRaised("This tool runs only in a turn.")


class RemoteTool(Tool[..., Any]):
    """A tool of a server. ``remote`` is its name there."""

    def __init__(self, server: MCP, remote: str, description: str, parameters: Arguments) -> None:
        super().__init__(
            _accepts_all, name=tool_name(server.name, remote), description=description, parameters=parameters,
            timeout=server.timeout, at_most_once=server.once(remote),
        )  # fmt: skip
        self.function = cast("Any", _unbound)
        self.server, self.remote = server, remote
        self.approval = server.rule(remote)

    @property
    def digest(self) -> str:
        """A hash of the tool as its server describes it."""
        said = msgspec.json.encode([self.remote, self.description, self.parameters], order="deterministic")
        return hashlib.sha256(said).hexdigest()[:32]

    def bind(self, arguments: Arguments, context: Context) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments, and the context. Raises ``ToolArgumentsInvalid``.

        Models also write null for arguments that they omit: it is left out if the schema does not accept it.
        """
        given = arguments
        if reasons := misfits(arguments, self.parameters):
            given = {name: one for name, one in arguments.items() if one is not None or not self._omits(name)}
            reasons = reasons if given == arguments else misfits(given, self.parameters)
        if reasons:
            raise ToolArgumentsInvalid(f"The arguments do not match {self.name}: {'; '.join(reasons)}.")
        return [given, context], {}

    def _omits(self, name: str) -> bool:
        """Return whether an argument may be left out, and may not be null."""
        schema: dict[str, Any] = {**self.parameters}
        known: dict[str, Any] = schema.get("properties", {})
        alone: dict[str, Any] = {**schema, "properties": {name: known.get(name)}, "required": []}
        return name in known and name not in schema.get("required", ()) and bool(misfits({name: None}, alone))

    def bound(self, run: Run) -> RemoteTool:
        """Return the tool as a turn calls it: with this function."""
        found = copy.copy(self)

        async def call(arguments: Arguments, context: Context) -> Any:
            return await run(found, arguments, context)

        found.function = cast("Any", call)
        return found


async def _accepts_all(**arguments: Any) -> Any:
    """Accept any schema."""


def usable_tools(server: MCP, listed: Sequence[Listed], credentials: Credentials) -> list[RemoteTool]:
    """Return the tools of a list that agents may use, and that models can call."""
    found: dict[str, RemoteTool] = {}
    for one in listed:
        if not server.offers(one.name):
            continue
        try:
            tool = _tool(server, one, credentials)
        except (AgentError, ValueError, TypeError, RecursionError) as exc:
            _left_out(server, type(exc).__name__)
            continue
        if tool.name in found:
            _left_out(server, "its name appears twice")
        else:
            found[tool.name] = tool
    return list(found.values())


def _tool(server: MCP, listed: Listed, credentials: Credentials) -> RemoteTool:
    if credentials.out_of(listed.name) != listed.name:
        raise ValueError("its name repeats credentials")
    schema = credentials.out_of_json({"type": "object", **listed.input_schema})
    description = credentials.out_of(listed.description or listed.title or "")
    size = len(msgspec.json.encode([listed.name, description, schema]))
    check_size("mcp_tool_bytes", size, "A tool of an MCP server in bytes")
    return RemoteTool(server, listed.name, description, schema)


def _left_out(server: MCP, reason: str) -> None:
    log.warning(
        "a tool of the MCP server %s is left out: %s", server.name, reason,
        extra={"action": "mcp_tool_left_out", "server": server.name},
    )  # fmt: skip


def missing_tool(server: MCP, name: str, reason: str) -> Tool[..., Any]:
    """Return a tool that raises ``reason``, for an unanswered call of a tool that its server does not list now."""

    async def call(**arguments: Any) -> Any:
        raise ToolRaised(reason)

    found: Any = Tool(call, name=name, parameters={"type": "object"})
    return found


def content_of(result: CallToolResult, credentials: Credentials) -> str | list[Text | Image | File]:
    """Return the content of a result for the model. Raises ``ToolRaised`` for an error result."""
    parts = [_part(one) for one in result.content]
    for part in parts:
        if isinstance(part, Text):
            part.text = credentials.out_of(part.text)
        elif isinstance(part, File) and part.name:
            part.name = credentials.out_of(part.name)
    if result.is_error:
        texts = [part.text for part in parts if isinstance(part, Text)]
        raise ToolRaised("\n".join(texts) or "The tool failed without a message.")
    if not parts and result.structured_content is not None:
        return msgspec.json.encode(credentials.out_of_json(result.structured_content)).decode()
    if all(isinstance(part, Text) for part in parts):
        return "\n".join(cast("Text", part).text for part in parts)
    return parts


def _part(content: Any) -> Text | Image | File:
    match content:
        case TextContent(text=text):
            return Text(text)
        case ImageContent(data=data, mime_type=media_type):
            return Image(data=data, media_type=media_type)
        case AudioContent(data=data, mime_type=media_type):
            return File(data=data, media_type=media_type)
        case EmbeddedResource(resource=BlobResourceContents(blob=blob, mime_type=media_type, uri=uri)):
            return File(data=blob, media_type=media_type, name=str(uri).rpartition("/")[2] or None)
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            return Text(f"{uri}:\n{text}")
        case ResourceLink(uri=uri, name=name):
            return Text(f"{name}: {uri}")
        case _:
            return Text(f"[content of the type {getattr(content, 'type', 'unknown')!r}]")
