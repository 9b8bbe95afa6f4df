"""The command that shows what models received in a turn."""

from __future__ import annotations

import msgspec

from antiphon.cli.arguments import add_json, add_redis, command_parser, print_json, read_client
from antiphon.cli.terminal import clock_time, printable
from antiphon.client import AsyncClient, KeptRequest
from antiphon.text import text_of

NOTHING = "No requests of this turn are kept: workers keep those of an App with App(keep_requests=True), for 7 days."


def requests(argv: list[str]) -> int:
    """Show what the models received in a turn, if its App keeps that

    Each request is the JSON that was sent, without headers. What looks like a key is replaced by `[removed]`.
    """
    parser = command_parser(requests)
    parser.add_argument("turn", help="id of the turn")
    add_json(parser)
    add_redis(parser)
    options = parser.parse_args(argv)

    async def read(client: AsyncClient) -> list[KeptRequest]:
        return await (await client.turn(options.turn)).requests()

    found = read_client(options, read)
    if options.json:
        print_json(found)
        return 0
    print("\n\n".join(map(_shown, found)) or NOTHING)
    return 0


def _shown(one: KeptRequest) -> str:
    what = f"Step {one.step}" if one.step else "A summary of the history"
    run = f"run {one.run}, attempt {one.attempt}"
    head = f"{what}: {one.provider}/{one.model}, {run}, {clock_time(one.at)}, {one.size:,} bytes"
    if one.body is None:
        return f"{head}\nIt was not kept: it, or the requests of the turn together, were too long."
    return printable(f"{head}\n{text_of(msgspec.json.format(msgspec.json.encode(one.body), indent=2))}")
