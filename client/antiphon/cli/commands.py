"""The commands that use sessions and turns and need only the client."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from antiphon.cli.arguments import (
    Parser,
    add_agent,
    add_archive,
    add_json,
    add_options,
    add_redis,
    agent_of,
    command_parser,
    first,
    json_value,
    list_parser,
    open_client,
    options_in,
    print_found,
    print_json,
    print_list,
    read_client,
    with_acts,
)
from antiphon.cli.terminal import (
    EventLines,
    PrintedTurn,
    ago,
    clock_time,
    message_lines,
    one_line,
    printable,
    safe_json,
)
from antiphon.client import AsyncClient, Feedback, KeptRequest, RatedTurn, Submission
from antiphon.errors import InvalidMessage, StoreError, TurnFailed, TurnNotFound, UsageError
from antiphon.input.ids import SessionId, session_id, turn_id
from antiphon.input.options import LIST_OPTIONS
from antiphon.input.request import AgentSpec
from antiphon.input.values import SessionWord
from antiphon.model import Status, decode_history
from antiphon.model.files import FileEntry
from antiphon.redis.archived import whole_snapshot
from antiphon.redis.search import SEARCH_OPTIONS
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnInfo
from antiphon.text import text_of
from antiphon.wire.lists import inspection as overview

T = TypeVar("T")


def submit(argv: list[str]) -> int:
    """Submit a turn, and print its id

    Name an agent of the workers' App with --agent, or describe one with --provider, --model, --system and --tools.
    Without either, the agent is the one that the session began with; a new session gets the only agent that the
    workers have.
    """
    parser = command_parser(submit)
    parser.add_argument("session", help="the session's id; the first turn begins the session")
    parser.add_argument("text", nargs="?", help="the user's text; - reads it from standard input")
    parser.add_argument(
        "--continue", action="store_true", dest="continues",
        help="without a text: answer the question or the results of tools that the history ends with",
    )  # fmt: skip
    add_agent(parser)
    add_options(parser, "submit")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--wait", action="store_true", help="wait for the answer and print it")
    output.add_argument("--stream", action="store_true", help="print the answer as it arrives")
    add_json(
        parser, "print the ids as JSON; with --wait the event of the turn's end, with --stream each event"
    )
    add_redis(parser)
    options = parser.parse_args(argv)
    if options.continues == (options.text is not None):
        parser.error("give a text, or --continue without one")
    text: str | list[Any] = [] if options.continues else _text(options.text)
    return asyncio.run(_submit(options, agent_of(options, parser), text))


async def _submit(options: argparse.Namespace, agent: str | AgentSpec | None, text: str | list[Any]) -> int:
    asked = Submission(options.session, text, agent=agent, **options_in(options))
    async with open_client(options) as client:
        turn = await asked.submit(client.connections)
        follow = options.wait or options.stream
        if options.json and not follow:
            print_json([{"turn_id": turn.id, "session_id": turn.session_id}])
        elif not options.json:
            print(turn.id, file=sys.stderr if follow else sys.stdout, flush=True)
        unserved = await overview.unserved(client.connections.cell_of_turn(turn.id), turn.id)
        if unserved:
            print(printable(unserved), file=sys.stderr)
        if options.wait and not options.json:
            print(printable(await _answer(turn)))
        elif follow:
            shown = PrintedTurn(json=options.json, only_end=options.wait)
            async for event in turn.stream():
                shown.show(event)
            return shown.end()
    return 0


async def _answer(turn: AsyncTurn) -> str:
    """Return the whole text. A usage error of the turn raises ``TurnFailed``: the command itself was correct."""
    try:
        return (await turn.result()).text
    except UsageError as exc:
        raise TurnFailed(exc.message, code=str(exc.code)) from exc


def tail(argv: list[str]) -> int:
    """Show a session's events as they happen

    Without --after, it shows only new events. If the session does not exist yet, it waits for it.
    """
    parser = command_parser(tail)
    parser.add_argument("session")
    parser.add_argument(
        "--after", metavar="SEQ", help="show events after this seq; 0 shows all that are kept"
    )
    add_json(parser, "print a line of JSON for each event")
    add_redis(parser)
    options = parser.parse_args(argv)
    return asyncio.run(_until_nobody_reads(_tail(options)))


async def _tail(options: argparse.Namespace) -> int:
    lines = EventLines(sys.stdout)
    async with open_client(options) as client:
        events = client.subscribe(options.session, options.after)
        await _say_that_it_waits(client, session_id(options.session))
        async for event in events:
            if options.json:
                print(safe_json(event.to_json()), flush=True)
            else:
                lines.show(event)
    return 0


async def _say_that_it_waits(client: AsyncClient, session: SessionId) -> None:
    with suppress(StoreError):  # the command waits for events in any case
        [created] = await client.connections.cell_of_session(session).session_fields(session, "created")
        if created is None:
            print(f"Redis has no session {printable(session)}. Waiting for its first event.", file=sys.stderr)


def history(argv: list[str]) -> int:
    """Show the messages of a session

    They are those of finished turns. A running turn is not included yet.
    """
    parser = command_parser(history)
    parser.add_argument("session")
    add_json(parser, "print a line of JSON for each message")
    add_archive(parser)
    add_redis(parser)
    options = parser.parse_args(argv)
    where = session_id(options.session)
    found = read_client(options, lambda client: whole_snapshot(
        client.connections.cell_of_session(where), client.connections.archive, where
    ))  # fmt: skip
    for message in decode_history(found.history, 0):
        print(safe_json(message.to_json()) if options.json else "\n".join([*message_lines(message), ""]))
    return 0


def sessions(argv: list[str]) -> int:
    """List the sessions, most recently used first"""
    parser = list_parser(sessions, "sessions")
    parser.add_argument("--metadata", metavar="JSON", type=json_value, help=LIST_OPTIONS["metadata"].doc)
    parser.add_argument("--state", choices=get_args(SessionWord), help=LIST_OPTIONS["state"].doc)
    parser.add_argument("--search", metavar="TEXT", help=LIST_OPTIONS["search"].doc)
    parser.add_argument("--parent", metavar="SESSION", help=LIST_OPTIONS["parent"].doc)
    parser.add_argument("--children", action="store_true", help=LIST_OPTIONS["children"].doc)
    add_archive(parser)
    options = parser.parse_args(argv)
    given = {name: getattr(options, name) for name in LIST_OPTIONS if name not in ("limit", "cursor")}
    return print_list(
        options, lambda client: client.sessions(**given),
        "session, tenant, agent, status, turns, messages, updated, due",
        lambda one: [
            one.session_id, one.tenant or "-", one.agent or "-", one.status, one.turns, one.messages,
            ago(one.updated), clock_time(one.due or 0),
        ],
        "There are no sessions.",
    )  # fmt: skip


def search(argv: list[str]) -> int:
    """Search the finished turns of all sessions, the best one first

    It needs the archive of workers whose App has search=True.
    """
    parser = list_parser(search, "turns")
    parser.add_argument(
        "text", help="words, of which the last may be a beginning; in double quotes, a phrase"
    )
    parser.add_argument("--session", metavar="SESSION", help=SEARCH_OPTIONS["session"].doc)
    add_archive(parser)
    options = parser.parse_args(argv)
    found = read_client(options, lambda client: client.search(
        options.text, tenant=options.tenant, session=options.session, limit=options.limit
    ))  # fmt: skip
    return print_found(
        options, found.hits, "session, tenant, agent, turn, ended, text",
        [
            [
                one.session_id, one.tenant or "-", one.agent or "-", one.turn_id, clock_time(one.created),
                " ".join(one.text.split()),
            ]
            for one in found.hits
        ],
        "No turn has these words.",
    )  # fmt: skip


def turns(argv: list[str]) -> int:
    """List the turns of a session, newest first

    A turn is kept for a week after its end.
    """
    parser = list_parser(turns, "turns")
    parser.add_argument("session", help="the session's id")
    parser.add_argument("--status", choices=get_args(Status), help="only turns with this status")
    options = parser.parse_args(argv)

    async def read(client: AsyncClient) -> AsyncGenerator[TurnInfo, None]:
        async for turn in client.turns(options.session, status=options.status, tenant=options.tenant):
            with suppress(TurnNotFound):  # it has expired since
                yield await turn.info()

    return print_list(
        options, read, "turn, status, agent, run, submitted, ended, code",
        lambda one: [
            one.turn_id, one.status, one.agent or "-", one.run, clock_time(one.created),
            clock_time(one.ended) if one.ended else "-", one.code or "-",
        ],
        "The session has no turns.",
    )  # fmt: skip


def cancel(argv: list[str]) -> int:
    """Cancel a turn

    A turn that has ended stays as it is.
    """
    parser = command_parser(cancel)
    parser.add_argument("turn", help="the turn's id")
    parser.add_argument("--reason", default="cancelled on the command line")
    parser.add_argument(
        "--keep", choices=["partial", "steps", "nothing"], default="steps",
        help="what stays in the history: all output, the finished steps (default), or nothing",
    )  # fmt: skip
    add_json(parser, "print what came of it as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)

    known = turn_id(options.turn)

    async def run(client: AsyncClient) -> str:
        return await client.connections.cell_of_turn(known).cancel(known, options.reason, options.keep)

    answer = read_client(options, run)
    if options.json:
        print_json([{"turn_id": known, "answer": answer}])
    else:
        done = {"cancelled": "cancelled", "requested": "its worker is ending it"}
        print(done.get(answer, f"the turn has already ended: {answer}"))
    return 0


def due(argv: list[str]) -> int:
    """List the delayed turns, next first"""
    options = list_parser(due, "turns").parse_args(argv)
    return print_list(
        options, lambda client: client.due(tenant=options.tenant), "turn, session, tenant, due",
        lambda one: [one.turn_id, one.session_id, one.tenant or "-", clock_time(one.due)], "No turn is delayed.",
    )  # fmt: skip


def _text(text: str) -> str:
    """Return the text, or standard input for ``-``. Raises ``InvalidMessage`` if standard input is not text."""
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as exc:
        raise InvalidMessage(f"The standard input is not text: {exc}.") from exc


async def _until_nobody_reads(work: Coroutine[Any, Any, int]) -> int:
    """Run the work, but stop when the reader of standard output is gone, even if there is nothing to write."""
    task = asyncio.ensure_future(work)
    pipe = _output_pipe()
    if pipe is None:
        return await task
    nobody = asyncio.Event()

    def leave() -> None:
        nobody.set()
        task.cancel()

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe, leave)
    try:
        return await task
    except asyncio.CancelledError:
        if nobody.is_set():
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(pipe)


def _output_pipe() -> int | None:
    """Return the descriptor of standard output if it is a pipe. It becomes readable when the reader is gone."""
    try:
        out = sys.stdout.fileno()
    except (OSError, AttributeError):  # a caller in the same process has replaced it
        return None
    return out if stat.S_ISFIFO(os.fstat(out).st_mode) else None


def waiting(argv: list[str]) -> int:
    """List the suspended turns, oldest first"""
    options = list_parser(waiting, "turns").parse_args(argv)
    turns = read_client(options, lambda client: first(options.limit, client.waiting(tenant=options.tenant)))
    rows = [
        [
            one.turn_id, one.session_id, clock_time(one.suspended), call.call_id, call.kind,
            clock_time(call.until or 0), f"{call.name} {call.arguments}",
        ]
        for one in turns
        for call in one.calls
    ]  # fmt: skip
    return print_found(
        options, turns, "turn, session, since, call, waits for, until, what", rows, "No turn waits."
    )


def approve(argv: list[str]) -> int:
    """Approve a tool call that a turn waits for

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(approve)
    parser.add_argument("--arguments", metavar="JSON", help="an object that replaces the model's arguments")
    options = parser.parse_args(argv)
    arguments = None if options.arguments is None else _object(options.arguments)
    return _decide(options, lambda turn, call: turn.approve(call, by=options.by, arguments=arguments))


def reject(argv: list[str]) -> int:
    """Reject a tool call that a turn waits for

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(reject)
    parser.add_argument("--reason", metavar="TEXT", help="the reason, shown to the model")
    options = parser.parse_args(argv)
    return _decide(options, lambda turn, call: turn.reject(call, by=options.by, reason=options.reason))


def tool_result(argv: list[str]) -> int:
    """Give the result of a client-side tool call

    Without the id of a call, the turn must wait for one call only.
    """
    parser = _parser(tool_result, "tool-result")
    parser.add_argument(
        "--result", metavar="TEXT", required=True, help="the result for the model; - reads standard input"
    )
    parser.add_argument("--error", action="store_true", help="the tool failed; the result is the error")
    options = parser.parse_args(argv)
    text = sys.stdin.read() if options.result == "-" else options.result
    return _decide(
        options, lambda turn, call: turn.tool_result(call, text, by=options.by, is_error=options.error)
    )


def _parser(command: Callable[..., object], name: str | None = None) -> Parser:
    parser = command_parser(command, name)
    parser.add_argument("turn", help="the turn's id")
    parser.add_argument("call", nargs="?", help="the call's id, as `antiphon waiting` shows it")
    parser.add_argument(
        "--by",
        metavar="NAME",
        default="the command line",
        help="the name of the person who decides, stored in the history",
    )
    parser.add_argument("--tenant", metavar="NAME", help="refuse if the turn is not one of this tenant")
    add_json(parser, "print the decision as a line of JSON")
    add_redis(parser)
    return parser


def _decide(options: argparse.Namespace, decide: Callable[[AsyncTurn, str], Awaitable[None]]) -> int:
    async def run(client: AsyncClient) -> int:
        turn = await client.turn(options.turn, tenant=options.tenant)
        call = options.call or await _only_call(turn)
        await decide(turn, call)
        info = await turn.info()
        if options.json:
            print_json([one for one in info.decisions if one.call_id == call])
        elif info.calls:
            print(f"decided; the turn waits for {len(info.calls)} more")
        else:
            print("decided; the turn goes on")
        return 0

    return read_client(options, run)


async def _only_call(turn: AsyncTurn) -> str:
    info = await turn.info()
    if len(info.calls) == 1:
        return info.calls[0].call_id
    if not info.calls:
        raise UsageError(
            f"Turn {turn.id} is {info.status}: it is not suspended, so there is nothing to decide."
        )
    ids = ", ".join(call.call_id for call in info.calls)
    raise UsageError(f"Turn {turn.id} has several pending tool calls: choose one of {ids}.")


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise UsageError(f"--arguments must be a JSON object: {exc}.") from exc


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


UNKEPT = "No requests of this turn are kept: workers keep those of an App with App(keep_requests=True), for 7 days."


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
    print("\n\n".join(map(_shown_request, found)) or UNKEPT)
    return 0


def _shown_request(one: KeptRequest) -> str:
    what = f"Step {one.step}" if one.step else "A summary of the history"
    run = f"run {one.run}, attempt {one.attempt}"
    head = f"{what}: {one.provider}/{one.model}, {run}, {clock_time(one.at)}, {one.size:,} bytes"
    if one.body is None:
        return f"{head}\nIt was not kept: it, or the requests of the turn together, were too long."
    return printable(f"{head}\n{text_of(msgspec.json.format(msgspec.json.encode(one.body), indent=2))}")


SCORES = {"up": 1.0, "down": -1.0}


def _add_feedback(argv: list[str]) -> int:
    """Give feedback about a turn, in place of earlier feedback"""
    parser = command_parser(_add_feedback, "feedback add")
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


@with_acts({"add": _add_feedback})
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
        "turn, session, agent, revision, when, score, by, note", _rated_row, "No turn has feedback.",
    )  # fmt: skip


def _rated_row(one: RatedTurn) -> list[object]:
    said = one.feedback or Feedback(0)
    return [
        one.turn_id, one.session_id, one.agent or "-", one.revision or "-", clock_time(said.at), f"{said.score:g}",
        said.by or "-", one_line(said.note or "", 60),
    ]  # fmt: skip


def _score(text: str) -> float:
    try:
        return SCORES[text] if text in SCORES else float(text)
    except ValueError:
        raise UsageError(f"The score must be up, down or a number from -1 to 1, not {text!r}.") from None


def files(argv: list[str]) -> int:
    """List the stored files of a session; add, read or remove some

    A message names an added file by its id: {"type": "file", "id": "…"}.
    """
    parser = command_parser(files)
    parser.add_argument("session")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--add", metavar="PATH", nargs="+", help="store these files in the session")
    action.add_argument("--read", metavar="ID", help="write the content of a file to --output")
    action.add_argument("--remove", metavar="ID", nargs="+", help="remove these files from the session")
    parser.add_argument("--output", metavar="PATH", help="where --read writes; by default to standard output")
    add_json(parser, "print each file as a line of JSON")
    add_archive(parser)
    add_redis(parser)
    options = parser.parse_args(argv)
    where = session_id(options.session)
    if options.read is not None:
        read = read_client(options, lambda client: client.session(where).read_file(options.read))
        return _write_file(read.data, options.output)
    found = read_client(options, lambda client: _changed_files(client, where, options.add, options.remove))
    rows = [[one.id, one.media_type or "-", one.size, one.name or "-"] for one in found]
    return print_found(options, found, "id, type, bytes, name", rows, "The session stores no files.")


async def _changed_files(
    client: AsyncClient, where: str, add: list[str] | None, remove: list[str] | None
) -> list[FileEntry]:
    """Add and remove files of a session, and return its stored files."""
    session = client.session(where)
    for path in add or ():
        try:
            await session.add_file(Path(path))
        except OSError as exc:
            raise UsageError(f"The file {path} cannot be read: {exc.strerror or exc}.") from exc
    for file in remove or ():
        await session.remove_file(file)
    return await session.stored_files()


def _write_file(data: bytes, path: str | None) -> int:
    if path is not None:
        try:
            Path(path).write_bytes(data)
        except OSError as exc:
            raise UsageError(f"The file {path} cannot be written: {exc.strerror or exc}.") from exc
    else:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0
