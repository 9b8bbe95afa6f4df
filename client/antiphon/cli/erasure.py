"""The commands that export and erase the content of a session or of a tenant."""

from __future__ import annotations

import argparse
import sys

from antiphon.cli.arguments import (
    Command,
    add_archive,
    add_json,
    add_redis,
    add_tenant,
    command_parser,
    print_json,
    read_client,
)
from antiphon.client import AsyncClient


def export(argv: list[str]) -> int:
    """Print the content of a session or of a tenant as lines of JSON

    Each line has a `type`: `session`, followed by its turns (`turn`) and schedules (`schedule`).
    """
    options = _parser(export).parse_args(argv)

    async def printed(client: AsyncClient) -> None:
        async for one in client.export(session=options.session, tenant=options.tenant):
            print_json([one])

    read_client(options, printed)
    return 0


def forget(argv: list[str]) -> int:
    """Erase all content of a session or of a tenant, and search for what is left

    Running turns are cancelled. It exits with 1 if the search finds content: repeat it then. Export first what is to be
    kept.
    """
    parser = _parser(forget)
    parser.add_argument(
        "--memory", metavar="NAME", default="memory", help="facts of a tenant; default: memory"
    )
    add_json(parser, "print the report as a line of JSON")
    options = parser.parse_args(argv)
    found = read_client(
        options,
        lambda client: client.forget(session=options.session, tenant=options.tenant, memory=options.memory),
    )
    if options.json:
        print_json([found])
    else:
        print(
            f"Erased {len(found.sessions)} sessions, {found.turns} further turns, {found.schedules} further schedules, "
            f"{found.webhooks} webhooks and {found.facts} facts.\nSearched {found.searched} keys: "
            + (f"{len(found.left)} still have content." if found.left else "none has any content of them.")
        )
        for one in found.left:
            print(one, file=sys.stderr)
        for one in found.pending:
            print(f"Workers still remove {one}.")
    return 1 if found.left else 0


def _parser(command: Command) -> argparse.ArgumentParser:
    parser = command_parser(command)
    parser.add_argument("--session", metavar="ID", help="the session")
    add_tenant(parser, "the tenant; with --session: fail if the session belongs to another one")
    add_archive(parser)
    add_redis(parser)
    return parser
