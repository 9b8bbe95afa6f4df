"""The command for feedback about turns."""

from __future__ import annotations

from antiphon.cli.arguments import (
    add_json,
    add_redis,
    command_parser,
    list_parser,
    print_json,
    print_list,
    read_client,
    with_acts,
)
from antiphon.cli.terminal import clock_time, one_line
from antiphon.client import AsyncClient, Feedback, RatedTurn
from antiphon.errors import UsageError

WORDS = {"up": 1.0, "down": -1.0}


def _add(argv: list[str]) -> int:
    """Give feedback about a turn, in place of earlier feedback"""
    parser = command_parser(_add, "feedback add")
    parser.add_argument("turn", help="id of the turn")
    parser.add_argument("score", help="up, down, or a number from -1 (bad) to 1 (good)")
    parser.add_argument("--note", metavar="TEXT", help="why")
    parser.add_argument("--by", metavar="NAME", help="name of the person")
    add_json(parser, "print the feedback as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)

    async def rate(client: AsyncClient) -> Feedback | None:
        turn = await client.turn(options.turn)
        await turn.feedback(_score(options.score), options.note, by=options.by)
        return (await turn.info()).feedback

    found = read_client(options, rate)
    if options.json:
        print_json([found])
    return 0


@with_acts({"add": _add})
def feedback(argv: list[str]) -> int:
    """List the turns with feedback, the last feedback first; `feedback add TURN up` gives some

    Turns are listed as long as they are kept. With --json, each is a line with its input, answer and feedback; with
    --conversation, also with the messages of its session before it.
    """
    parser = list_parser(feedback, "turns")
    parser.add_argument("--agent", metavar="NAME", help="only turns of this agent")
    parser.add_argument(
        "--since", metavar="MS", type=int, default=0, help="only feedback since then, in ms since 1970"
    )
    parser.add_argument(
        "--conversation", action="store_true", help="add the messages before each turn; needs --json"
    )
    options = parser.parse_args(argv[1:] if argv[:1] == ["list"] else argv)
    if options.conversation and not options.json:
        parser.error("--conversation needs --json")
    return print_list(
        options,
        lambda client: client.agents().feedback(
            options.agent, tenant=options.tenant, since=options.since, conversation=options.conversation
        ),
        "turn, session, agent, revision, when, score, by, note", _row, "No turn has feedback.",
    )  # fmt: skip


def _row(one: RatedTurn) -> list[object]:
    said = one.feedback or Feedback(0)
    return [
        one.turn_id, one.session_id, one.agent or "-", one.revision or "-", clock_time(said.at), f"{said.score:g}",
        said.by or "-", one_line(said.note or "", 60),
    ]  # fmt: skip


def _score(text: str) -> float:
    try:
        return WORDS[text] if text in WORDS else float(text)
    except ValueError:
        raise UsageError(f"The score must be up, down or a number from -1 to 1, not {text!r}.") from None
