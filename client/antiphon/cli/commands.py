"""The commands that talk to sessions, which need nothing but the client."""

from __future__ import annotations

import argparse
import asyncio
import os
import stat
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from antiphon.cli.arguments import Parser, add_redis, command_parser, redis_urls
from antiphon.cli.terminal import EventLines, ago, clock_time, message_lines, printable, table
from antiphon.client import DEFAULT_QUEUE, AsyncClient
from antiphon.errors import InvalidMessage, TurnFailed, UsageError
from antiphon.events import Event, TurnFailedEvent
from antiphon.input.ids import check_queue, session_id, turn_id
from antiphon.input.request import AgentSpec
from antiphon.model import decode_message
from antiphon.redis.cells import Cells, open_cells
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import SessionInfo
from antiphon.wire import inspection as overview
from antiphon.wire.cell import Cell

__all__ = ["cancel", "failed", "history", "requeue", "sessions", "submit", "tail"]

T = TypeVar("T")


def submit(argv: list[str]) -> int:
    """Submit a turn, and print its id

    Name an agent of the workers' App with --agent, or describe one with --provider, --model, --system and --tools.
    Without either, the agent is the one that the session began with; a new session gets the only agent that the
    workers have.
    """
    parser = command_parser(submit)
    parser.add_argument("session", help="the session's id; the first turn begins the session")
    parser.add_argument("text", help="what the user says; - reads standard input")
    agent = parser.add_argument_group("agent")
    agent.add_argument("--agent", metavar="NAME", help="an agent of the workers' App")
    agent.add_argument("--provider", help="openai, openai-chat, anthropic, scripted, or one of the App's")
    agent.add_argument("--model")
    agent.add_argument("--system", metavar="TEXT", help="the system prompt")
    agent.add_argument("--tools", metavar="A,B", help="tools of the workers' App")
    parser.add_argument(
        "--key", help="submit only once: with the same key, the session gives the first turn again"
    )
    parser.add_argument(
        "--queue", help=f"the queue; by default the session's, its agent's, or {DEFAULT_QUEUE}"
    )
    parser.add_argument("--tenant", metavar="NAME", help="whose session it is")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--wait", action="store_true", help="wait for the answer and print it")
    output.add_argument("--stream", action="store_true", help="print the answer as it arrives")
    add_redis(parser)
    options = parser.parse_args(argv)
    return asyncio.run(_submit(options, _agent(options, parser), _text(options.text)))


async def _submit(options: argparse.Namespace, agent: str | AgentSpec | None, text: str) -> int:
    where = session_id(options.session)
    queue = None if options.queue is None else check_queue(options.queue)
    async with _client(options) as client:
        turn = await client.submit(
            where, text, agent=agent, key=options.key, queue=queue, tenant=options.tenant
        )
        follow = options.wait or options.stream
        print(turn.id, file=sys.stderr if follow else sys.stdout, flush=True)
        unserved = await overview.unserved(client.connections.cell_of_turn(turn.id), turn.id)
        if unserved:
            print(unserved, file=sys.stderr)
        if options.wait:
            print(printable(await _answer(turn)))
        elif options.stream:
            await _print_answer(turn)
    return 0


async def _answer(turn: AsyncTurn) -> str:
    """The whole text. Raises ``TurnFailed`` where the turn fails: whatever it failed of, the command was right."""
    try:
        return (await turn.result()).text
    except UsageError as exc:
        raise TurnFailed(exc.message, code=str(exc.code)) from exc


async def _print_answer(turn: AsyncTurn) -> None:
    """The text as it comes. Raises ``TurnFailed`` where the turn fails."""
    last: Event | None = None
    async for last in turn.stream():
        match last.type:
            case "text_delta" | "refusal_delta":
                sys.stdout.write(printable(last.text))
                sys.stdout.flush()
            case "turn_retrying":
                sys.stdout.write("\n[the answer starts again]\n")
            case _:
                continue
    print(flush=True)
    if isinstance(last, TurnFailedEvent):
        raise TurnFailed(last.message, code=last.code)


def tail(argv: list[str]) -> int:
    """Show a session's events as they happen

    Without --after, from now on. A session that does not exist yet is waited for.
    """
    parser = command_parser(tail)
    parser.add_argument("session")
    parser.add_argument(
        "--after", metavar="SEQ", help="show events after this seq; 0 shows all that are kept"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each event")
    add_redis(parser)
    options = parser.parse_args(argv)
    return asyncio.run(_until_nobody_reads(_tail(options)))


async def _tail(options: argparse.Namespace) -> int:
    lines = EventLines(sys.stdout)
    async with _client(options) as client:
        async for event in client.subscribe(options.session, options.after):
            if options.json:
                print(event.to_json().decode(), flush=True)
            else:
                lines.show(event)
    return 0


def history(argv: list[str]) -> int:
    """Show what was said in a session

    The messages of its finished turns; a turn that runs now is not in it yet.
    """
    parser = command_parser(history)
    parser.add_argument("session")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each message")
    add_redis(parser)
    options = parser.parse_args(argv)
    return asyncio.run(_history(options))


async def _history(options: argparse.Namespace) -> int:
    where = session_id(options.session)
    async with _cells(options) as cells:
        found = await cells.of_session(where).snapshot(where)
    for data in found.history:
        print(data.decode() if options.json else "\n".join([*message_lines(decode_message(data)), ""]))
    return 0


def sessions(argv: list[str]) -> int:
    """List the sessions, the last used first"""
    parser = _list_parser(sessions, "sessions")
    parser.add_argument("--tenant", metavar="NAME", help="show only sessions of this tenant")
    options = parser.parse_args(argv)
    lines = asyncio.run(_sessions(options))
    if options.json:
        _print_json(lines)
    else:
        rows = [
            [one.session_id, one.tenant or "-", one.agent or "-", one.status, one.turns, one.messages, ago(one.updated)]
            for one in lines
        ]  # fmt: skip
        head = ["session", "tenant", "agent", "status", "turns", "messages", "updated"]
        _print_table(head, rows, "There are no sessions.")
    return 0


async def _sessions(options: argparse.Namespace) -> list[SessionInfo]:
    """As many as were asked for, however many pages that takes."""
    found: list[SessionInfo] = []
    async with _client(options) as client:
        async for one in client.sessions(tenant=options.tenant):
            found.append(one)
            if len(found) == options.limit:
                break
    return found


def cancel(argv: list[str]) -> int:
    """Cancel a turn

    Its finished steps stay in the history. A turn that has ended stays as it is.
    """
    parser = command_parser(cancel)
    parser.add_argument("turn", help="the turn's id")
    parser.add_argument("--reason", default="cancelled on the command line")
    add_redis(parser)
    options = parser.parse_args(argv)

    async def run() -> int:
        async with _cells(options) as cells:
            known = turn_id(options.turn)
            answer = await cells.of_turn(known).cancel(known, options.reason)
        said = {"cancelled": "cancelled", "requested": "its worker ends it now"}
        print(said.get(answer, f"the turn had ended before: {answer}"))
        return 0

    return asyncio.run(run())


def failed(argv: list[str]) -> int:
    """List the failed turns, the latest first"""
    options = _list_parser(failed, "turns").parse_args(argv)
    turns = asyncio.run(_over_cells(options, overview.failed_turns))
    turns = sorted(turns, key=lambda turn: -turn.ended)[: options.limit]
    if options.json:
        _print_json(turns)
    else:
        rows = [
            [one.turn_id, one.session_id or "-", clock_time(one.ended), one.code, one.error] for one in turns
        ]
        _print_table(["turn", "session", "ended", "code", "error"], rows, "No turn has failed.")
    return 0


def requeue(argv: list[str]) -> int:
    """Run a failed turn again

    It goes to the end of its session's inbox as a new run, with fresh counters, when a worker finds it.
    """
    parser = command_parser(requeue)
    parser.add_argument("turn", nargs="+", help="the ids of failed turns")
    add_redis(parser)
    options = parser.parse_args(argv)

    async def run() -> int:
        async with _cells(options) as cells:
            for known in [turn_id(one) for one in options.turn]:
                await cells.of_turn(known).requeue(known)
                print(known, flush=True)
        return 0

    return asyncio.run(run())


def _agent(options: argparse.Namespace, parser: Parser) -> str | AgentSpec | None:
    travelling = [name for name in ("model", "system", "tools") if getattr(options, name) is not None]
    if options.agent is not None and (options.provider or travelling):
        parser.error(
            "--agent names an agent of the workers; it takes no --provider, --model, --system or --tools"
        )
    if options.provider is None and travelling:
        parser.error(f"--{travelling[0]} needs --provider and --model beside it")
    if options.provider is None:
        return options.agent
    if not options.model:
        parser.error("--provider needs --model beside it")
    tools = [name.strip() for name in (options.tools or "").split(",") if name.strip()]
    return AgentSpec(provider=options.provider, model=options.model, system=options.system, tools=tools)


def _text(text: str) -> str:
    """The text itself, or what standard input brings. Raises ``InvalidMessage`` where that is no text."""
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as exc:
        raise InvalidMessage(f"What standard input brings is not text: {exc}.") from exc


def _list_parser(command: Callable[..., object], what: str) -> Parser:
    parser = command_parser(command)
    parser.add_argument(
        "--limit", type=_positive, default=50, metavar="N", help=f"show at most N {what}; by default 50"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    add_redis(parser)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _client(options: argparse.Namespace) -> AsyncClient:
    return AsyncClient(_urls(options), prefix=options.prefix)


def _urls(options: argparse.Namespace) -> list[str]:
    return redis_urls(options.redis_url)


@asynccontextmanager
async def _cells(options: argparse.Namespace) -> AsyncGenerator[Cells, None]:
    cells = open_cells(_urls(options), prefix=options.prefix)
    try:
        yield cells
    finally:
        for cell in cells:
            await cell.redis.aclose()


async def _over_cells(
    options: argparse.Namespace, read: Callable[[Cell, int], Awaitable[list[T]]]
) -> list[T]:
    async with _cells(options) as cells:
        return [line for cell in cells for line in await read(cell, options.limit)]


def _print_json(values: list[Any]) -> None:
    for value in values:
        print(msgspec.json.encode(value).decode())


def _print_table(head: list[str], rows: list[list[Any]], nothing: str) -> None:
    if not rows:
        print(nothing, file=sys.stderr)
        return
    for line in table(head, rows):
        print(line)


async def _until_nobody_reads(work: Coroutine[Any, Any, int]) -> int:
    """Do the work until the reader of our output is gone, also when there is nothing to write."""
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
    """Our standard output where it is a pipe: the writing end becomes readable when nobody reads."""
    try:
        out = sys.stdout.fileno()
    except (OSError, AttributeError):  # whoever runs this in their own process has put something in its place
        return None
    return out if stat.S_ISFIFO(os.fstat(out).st_mode) else None
