"""What the commands share that list things: their options, their client, and how they print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterable, Callable
from typing import Any, TypeVar

import msgspec

from antiphon.cli.arguments import Parser, add_json, add_redis, command_parser, positive, redis_urls
from antiphon.cli.terminal import safe_json, table
from antiphon.client import AsyncClient

__all__ = ["first", "list_parser", "open_client", "print_json", "print_table"]

T = TypeVar("T")


async def first(limit: int, items: AsyncIterable[T]) -> list[T]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found


def list_parser(command: Callable[..., object], what: str) -> Parser:
    parser = command_parser(command)
    parser.add_argument(
        "--limit", type=positive, default=50, metavar="N", help=f"show at most N {what}; by default 50"
    )
    add_json(parser)
    add_redis(parser)
    return parser


def open_client(options: argparse.Namespace) -> AsyncClient:
    archive = getattr(options, "archive", None)
    return AsyncClient(redis_urls(options.redis_url), prefix=options.prefix, archive=archive)


def print_json(values: list[Any]) -> None:
    for value in values:
        print(safe_json(msgspec.json.encode(value)), flush=True)


def print_table(head: list[str], rows: list[list[Any]], nothing: str) -> None:
    if not rows:
        print(nothing, file=sys.stderr)
        return
    for line in table(head, rows):
        print(line)
