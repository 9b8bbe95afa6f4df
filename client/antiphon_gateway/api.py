"""``antiphon api``: calls any operation of the HTTP interface in this process, directly on Redis."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.types import Message

from antiphon.cli.arguments import (
    add_json,
    add_redis,
    command_parser,
    form_of,
    print_json,
    redis_urls,
    summary,
)
from antiphon.cli.terminal import safe_json, table
from antiphon.client import AsyncClient
from antiphon.errors import TurnError, UsageError
from antiphon.session.work import OPTIONS
from antiphon_gateway.access.caller import Caller
from antiphon_gateway.app import Gateway, gateway, operations
from antiphon_gateway.http.operations import Operation


def api(argv: list[str]) -> int:
    """Call an operation of the HTTP interface, and print its answer as JSON

    `antiphon api` lists the operations, and `antiphon api OPERATION --help` describes one. No gateway has to run: the
    command reads and writes Redis with every right.
    """
    known = {one.name: one for one in operations()}
    if argv and argv[0] in known:
        return _call(known[argv[0]], argv[1:])
    parser = command_parser(api)
    parser.add_argument("operation", nargs="?", help="the name of the operation; without it, all are listed")
    add_json(parser)
    add_redis(parser)
    options = parser.parse_args(argv)
    if options.operation is not None:
        parser.error(f"there is no operation {options.operation!r}")
    if options.json:
        print_json(
            [{"operation": one.name, "method": one.method, "route": one.route} for one in known.values()]
        )
    else:
        print(
            "\n".join(
                table(
                    ["operation", "what it does"],
                    [(name, summary(one.handler)) for name, one in known.items()],
                )
            )
        )
    return 0


def _call(operation: Operation, argv: list[str]) -> int:
    parser = command_parser(operation.handler, f"api {operation.name}")
    names = re.findall(r"{(\w+)}", operation.route)
    for name in names:
        parser.add_argument(name)
    for kind in filter(None, (operation.query, operation.body)):
        for field in msgspec.structs.fields(kind):
            doc = OPTIONS[field.name].doc if field.name in OPTIONS else None
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", dest=f"{kind.__name__}.{field.name}", default=argparse.SUPPRESS,
                required=field.required, help=doc, **form_of(field.type),
            )  # fmt: skip
    add_redis(parser)
    options = parser.parse_args(argv)
    path = "/".join(
        quote(getattr(options, part[1:-1]), safe="") if part[:1] == "{" else part
        for part in operation.route.split("/")
    )
    query, body = (_given(options, kind) for kind in (operation.query, operation.body))
    return asyncio.run(_answer(options, operation, path, query or {}, body))


def _given(options: argparse.Namespace, kind: Any) -> dict[str, Any] | None:
    """Return the given fields of a struct, or None without a struct."""
    if kind is None:
        return None
    start = f"{kind.__name__}."
    return {
        name.removeprefix(start): value for name, value in vars(options).items() if name.startswith(start)
    }


async def _answer(
    options: argparse.Namespace,
    operation: Operation,
    path: str,
    query: dict[str, Any],
    body: dict[str, Any] | None,
) -> int:
    """Send the request to a gateway in this process, and print its answer.

    Raises ``UsageError`` for the status 400, and ``TurnError`` for any other refusal.
    """

    async def anything(_: Request) -> Caller:
        return Caller(name="the command line", tenant=None)

    async with AsyncClient(redis_urls(options.redis_url), prefix=options.prefix) as client:
        status, refusal = await _sent(gateway(client, access=anything), operation.method, path, query, body)
    if status < 400:
        return 0
    problem = msgspec.json.decode(refusal)
    raise (UsageError if status == 400 else TurnError)(problem.get("detail") or problem.get("title"))


async def _sent(
    app: Gateway, method: str, path: str, query: dict[str, Any], body: dict[str, Any] | None
) -> tuple[int, bytes]:
    """Send a request. Prints a successful answer as it arrives, and returns the status and the body of a refusal."""
    status, refusal, content = 0, b"", msgspec.json.encode(body) if body is not None else b""
    words = {name: one if isinstance(one, str) else msgspec.json.encode(one) for name, one in query.items()}
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(content))}
    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path, "root_path": "",
        "raw_path": path.encode(), "query_string": urlencode(words).encode(), "client": ("127.0.0.1", 0),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    sent = asyncio.Event()

    async def receive() -> Message:
        if sent.is_set():
            await asyncio.Future()  # the connection stays open
        sent.set()
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, refusal
        status = message.get("status", status)
        if status >= 400:
            refusal += message.get("body", b"")
        elif message.get("body"):
            sys.stdout.write(safe_json(message["body"]).rstrip("\n") + "\n")
            sys.stdout.flush()

    await app(scope, receive, send)
    return status, refusal
