"""MCP servers for tests: one over HTTP that notes the credentials of each request, and programs."""

import asyncio
import hashlib
import socket
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from support.eventually import wait_until_async

from antiphon.mcp import MCP


def digest(token: str) -> str:
    """Return what the server returns instead of a token, which would be removed from the result."""
    return hashlib.sha256(token.encode()).hexdigest()


async def without_watcher() -> None:
    """End the task, one per loop, in which the library for server-sent events watches if the process ends."""
    for task in asyncio.all_tasks():
        if getattr(task.get_coro(), "__qualname__", "") == "_shutdown_watcher":
            task.cancel()
            await asyncio.wait([task])


class Desk:
    """A server over HTTP. ``seen`` has the credentials and the protocol method of each request.

    With ``modern=False`` it supports only the handshakes of earlier protocols.
    """

    def __init__(self, *, modern: bool = True, json: bool = False) -> None:
        self.server = MCPServer("desk")
        self.seen: list[tuple[str, str]] = []
        self.modern, self.json = modern, json
        self.url = ""
        self.refused = ""
        """Credentials that the server refuses."""
        self.away = 0
        """The status that a load balancer answers in its place; 0 for none."""

        @self.server.tool()
        async def whoami(user: str, context: Context) -> str:
            """Say whose credentials came."""
            header = (context.headers or {}).get("authorization", "")
            return f"{user} {digest(header)}"

        @self.server.tool()
        async def repeat(context: Context) -> str:
            """Repeat the credentials."""
            return f"You sent {(context.headers or {}).get('authorization', '')}."

        @self.server.tool()
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Desk"]:
        app = self.server.streamable_http_app(json_response=self.json, max_sessions=None)
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            self._noting(app), log_level="error", log_config=None, timeout_graceful_shutdown=1,
            timeout_keep_alive=120,  # a busy machine takes longer than the usual 5 s from one request to the next
        )  # fmt: skip
        server = uvicorn.Server(config)
        running = asyncio.create_task(asyncio.to_thread(server.run, [listening]))  # on its own loop
        try:
            await wait_until_async(lambda: server.started or running.done())
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
            yield self
        finally:
            server.should_exit = True
            await running
            listening.close()

    def _noting(self, app: Any) -> Any:
        async def asgi(scope: Any, receive: Any, send: Any) -> Any:
            if scope["type"] == "http":
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                method = headers.get("mcp-method", scope["method"])
                self.seen.append((headers.get("authorization", ""), method))
                if not self.modern and "2026" in headers.get("mcp-protocol-version", ""):
                    return await _status(send, 404)
                if self.away:
                    return await _status(send, self.away)
                if self.refused and self.refused == headers.get("authorization"):
                    return await _status(send, 401)
            return await app(scope, receive, send)

        return asgi

    def declared(self, **options: Any) -> MCP:
        return MCP.http(self.url, name="desk", **options)


async def _status(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def program(code: str, name: str = "demo", **options: Any) -> MCP:
    """Return a server as a Python program. Its ``code`` adds tools to ``server``."""
    whole = "import asyncio, os, sys, time\nfrom mcp.server.mcpserver import MCPServer\nserver = MCPServer('demo')\n"
    whole += textwrap.dedent(code) + "\nserver.run('stdio')\n"
    return MCP.stdio([sys.executable, "-c", whole], name=name, connect_timeout=60, **options)


def raw_program(code: str, name: str = "demo", **options: Any) -> MCP:
    """Return a server as a Python program without the library. Its ``code`` may use ``answer`` and ``messages``."""
    whole = textwrap.dedent("""
        import json, sys, time
        def answer(message, result):
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
        def refuse(message):
            error = {"code": -32601, "message": "unknown"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
        def tools(*names, **more):
            schema = {"type": "object"}
            return [{"name": name, "inputSchema": schema, "description": "A tool.", **more} for name in names]
        def initialized(message):
            version = message["params"]["protocolVersion"]
            info = {"name": "raw", "version": "1"}
            answer(message, {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info})
        def messages():
            for line in sys.stdin:
                message = json.loads(line)
                if message["method"] == "initialize":
                    initialized(message)
                elif message["method"] == "server/discover":
                    refuse(message)
                elif "id" in message:
                    yield message
    """)
    return MCP.stdio([sys.executable, "-c", whole + textwrap.dedent(code)], name=name, **options)
