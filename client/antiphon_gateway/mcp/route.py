"""The MCP server at ``/mcp``, over streamable HTTP. Gateways are stateless: any replica answers any request."""

from __future__ import annotations

import logging
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from antiphon.errors import MissingPackage
from antiphon_gateway.http.operations import Call, operation, read_bytes


@operation("POST", "/mcp", right="read")
async def serve_mcp(call: Call[None, None]) -> Response:
    """Use agents as tools, over the Model Context Protocol (streamable HTTP)

    There is a tool for each agent of the workers that run now, and tools to wait for turns, to answer their calls and
    to cancel them. Tools that change something require the right `write`. The body is a JSON-RPC message.
    """
    try:
        from antiphon_gateway.mcp.server import server_of
    except ImportError:
        raise MissingPackage("The MCP server needs a package: pip install 'antiphon[mcp]'.") from None
    body = await read_bytes(call.request, call.services.limits.body_bytes)
    return McpResponse(server_of(call), body)


class McpResponse(Response):
    """The answer of a server to one message. This process keeps no state of it."""

    def __init__(self, server: Any, body: bytes) -> None:
        super().__init__()
        self._server, self._body = server, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        logging.getLogger(StreamableHTTPSessionManager.__module__).setLevel(
            logging.WARNING
        )  # it logs each request
        unread = True

        async def receive_again() -> Message:
            nonlocal unread
            if unread:
                unread = False
                return {"type": "http.request", "body": self._body, "more_body": False}
            return await receive()

        async def noting(message: Message) -> None:
            self.status_code = message.get("status", self.status_code)
            await send(message)

        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=max(1, len(self._body))
        )
        async with manager.run():
            await manager.handle_request(scope, receive_again, noting)


OPERATIONS = [serve_mcp]
