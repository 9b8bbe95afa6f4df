"""``antiphon mcp``: agents as tools of an MCP server on standard input and output."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from starlette.requests import Request

from antiphon.cli.arguments import add_redis, add_tenant, command_parser, open_client
from antiphon.errors import MissingPackage
from antiphon_gateway.access.access import Access
from antiphon_gateway.access.caller import Caller
from antiphon_gateway.http.operations import Call, Services
from antiphon_gateway.settings import Limits

NOWHERE: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/mcp",
    "query_string": b"",
    "headers": [],
}


def mcp(argv: list[str]) -> int:
    """Serve agents as tools of an MCP server on standard input and output

    For programs on this machine that start MCP servers themselves. No gateway has to run: the command reads and writes
    Redis. `antiphon serve` serves the same tools over HTTP at /mcp, to callers with keys.
    """
    parser = command_parser(mcp)
    add_tenant(parser, "the tenant of all sessions that it uses")
    parser.add_argument("--user", metavar="NAME", help="the user that all turns are of")
    add_redis(parser)
    try:
        asyncio.run(_serve(parser.parse_args(argv)))
    except ImportError:
        raise MissingPackage("This command needs a package: pip install 'antiphon[gateway,mcp]'.") from None
    return 0


async def _serve(options: argparse.Namespace) -> None:
    from mcp.server.stdio import stdio_server

    from antiphon_gateway.mcp.server import server_of

    caller = Caller(name="the command line", tenant=options.tenant, user=options.user)
    async with open_client(options) as client, stdio_server() as streams:
        services = Services(client, Access(), Limits())
        server = server_of(Call(services, caller, {}, None, None, Request(NOWHERE)))
        await server.run(*streams, server.create_initialization_options())
