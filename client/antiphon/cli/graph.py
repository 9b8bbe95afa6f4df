"""``antiphon graph``: the turns of a session, their agents and their child turns, as a Mermaid diagram."""

from __future__ import annotations

from antiphon.cli.arguments import add_redis, command_parser, read_client


def graph(argv: list[str]) -> int:
    """Print the turns of a session, their agents and their child turns, as a Mermaid diagram

    The diagram has the last 100 turns, and no text of users, models or tools. It goes back as far as the session keeps
    events.
    """
    parser = command_parser(graph)
    parser.add_argument("session", help="the session's id")
    add_redis(parser)
    options = parser.parse_args(argv)

    print(read_client(options, lambda client: client.session(options.session).graph()), end="")
    return 0
