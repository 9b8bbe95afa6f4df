"""Shared parts of the command line: errors, exit codes, and the options for Redis and for lists."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec

from antiphon.cli.terminal import safe_json, table
from antiphon.client import AsyncClient
from antiphon.errors import UsageError
from antiphon.input.request import AgentSpec
from antiphon.redis.cells import PREFIX_VARIABLE
from antiphon.redis.failed import FILTERS
from antiphon.session.work import OPTIONS, options_of
from antiphon.settings import CommandSettings, default_of
from antiphon.wire.connection.open import cell_urls

Command: TypeAlias = Callable[[list[str]], int]
"""Takes the command's arguments and returns the exit code."""

DEFAULT_URL = "redis://localhost:6379/0"
URL_VARIABLE = "ANTIPHON_REDIS_URL"
ARCHIVE_VARIABLE = "ANTIPHON_ARCHIVE"

INTERRUPTED, NOBODY_READS = 130, 141
EXIT_CODES = {
    0: "success",
    1: "failure, or a problem was found; standard error has one sentence about it",
    2: "invalid arguments or settings; nothing was done",
    INTERRUPTED: "interrupted with Ctrl-C",
    NOBODY_READS: "the reader of the output has closed it, as after `antiphon history … \\| head`",
}
"""The exit codes of all commands, for scripts."""

NARROWING = ("tenant", "metadata", "status", *FILTERS)
"""Options that select from a list."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, printed by ``antiphon.cli.main``. ``acts`` names the subcommands."""

    acts: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        raise UsageError(f"{sentence}{self._advice(message)}. Run `{self.prog} --help`.")

    def _advice(self, message: str) -> str:
        """Return a suggestion for the first unknown argument, or an empty string."""
        first = message.partition("unrecognized arguments: ")[2].partition(" ")[0].partition("=")[0]
        if first and first[:1] != "-" and self.acts:
            return f": use {', '.join(self.acts)}"
        if first[:2] != "--":
            return ""
        known = self._option_string_actions
        near = get_close_matches(first, known, 1, 0.75) or [one for one in known if one.endswith(first[1:])]
        return f" (did you mean {near[0]}?)" if near else ""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of docstrings and gives options more room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def summary(command: Callable[..., object]) -> str:
    """Return the first line of a command's docstring, for lists of commands."""
    return (command.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def command_parser(command: Callable[..., object], name: str | None = None) -> Parser:
    """Make a parser for a command; ``--help`` shows the command's docstring."""
    text = "\n".join(line.strip() for line in (command.__doc__ or "").strip().splitlines())
    parser = Parser(
        prog=f"antiphon {name or command.__name__}",
        description=text,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.acts = [*acts_of(command)]
    return parser


def with_acts(acts: dict[str, Command]) -> Callable[[Command], Command]:
    """Let the first argument of a command name one of these subcommands, which takes the remaining arguments."""

    def wrap(command: Command) -> Command:
        @wraps(command)
        def run(argv: list[str]) -> int:
            act = acts.get(argv[0]) if argv else None
            return command(argv) if act is None else act(argv[1:])

        run.acts = acts  # type: ignore[attr-defined]
        return run

    return wrap


def acts_of(command: Callable[..., object]) -> dict[str, Command]:
    """Return the subcommands of a command by name."""
    return getattr(command, "acts", {})


def add_json(parser: argparse.ArgumentParser, what: str = "print one line of JSON for each") -> None:
    """Add ``--json``, an option of every command whose output a program may read."""
    parser.add_argument("--json", action="store_true", help=what)


def add_tenant(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--tenant``."""
    parser.add_argument("--tenant", metavar="NAME", help=what)


def add_settings(parser: argparse.ArgumentParser, settings: type[CommandSettings]) -> None:
    """Add a flag for each setting of a command, with its default."""
    for known in settings.declared():
        shown = default_of(known)
        doc = known.metadata["doc"].replace("%", "%%") + (f". Default: {shown}" if shown else "")
        flag = f"--{known.name.replace('_', '-')}"
        switch: dict[str, Any] = {"nargs": "?", "const": "yes"} if isinstance(known.default, bool) else {}
        parser.add_argument(flag, metavar=known.metadata["kind"], help=_inside(doc), **switch)


def _inside(sentence: str) -> str:
    """Return a sentence with a lowercase first letter, to follow other text. A leading abbreviation stays."""
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def add_redis(parser: argparse.ArgumentParser) -> None:
    """Add ``--redis-url`` and ``--prefix``, with their variables as defaults."""
    parser.add_argument(
        "--redis-url",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help=f"Redis URL; separate several (cells) with commas; default: {URL_VARIABLE} or {DEFAULT_URL}",
    )
    parser.add_argument(
        "--prefix",
        default=os.environ.get(PREFIX_VARIABLE) or "ant",
        help=f"first part of every key; default: {PREFIX_VARIABLE} or ant",
    )


def add_archive(parser: argparse.ArgumentParser) -> None:
    """Add ``--archive``, with its variable as the default."""
    parser.add_argument(
        "--archive", metavar="URL", default=os.environ.get(ARCHIVE_VARIABLE),
        help=f"also read archived sessions from the workers' store; default: {ARCHIVE_VARIABLE}",
    )  # fmt: skip


def add_agent(parser: argparse.ArgumentParser) -> None:
    """Add the options that name or describe an agent."""
    agent = parser.add_argument_group("agent")
    agent.add_argument("--agent", metavar="NAME", help="an agent of the workers' App")
    agent.add_argument("--provider", help="openai, openai-chat, anthropic, scripted, or one of the App's")
    agent.add_argument("--model")
    agent.add_argument("--system", metavar="TEXT", help="the system prompt")
    agent.add_argument("--tools", metavar="A,B", help="tools of the workers' App")


def agent_of(options: argparse.Namespace, parser: Parser) -> str | AgentSpec | None:
    """Return the agent that these options name or describe, or None."""
    travelling = [name for name in ("model", "system", "tools") if getattr(options, name) is not None]
    if options.agent is not None and (options.provider or travelling):
        parser.error(
            "--agent names an agent of the workers: leave out --provider, --model, --system and --tools"
        )
    if options.provider is None and travelling:
        parser.error(f"--{travelling[0]} needs --provider and --model as well")
    if options.provider is None:
        return options.agent
    if not options.model:
        parser.error("--provider needs --model as well")
    tools = [name.strip() for name in (options.tools or "").split(",") if name.strip()]
    return AgentSpec(provider=options.provider, model=options.model, system=options.system, tools=tools)


def add_options(parser: argparse.ArgumentParser, interface: str) -> None:
    """Add a flag for each turn option of an interface. ``add_agent`` adds the options for the agent."""
    group = parser.add_argument_group("turn")
    for name, option in options_of(interface).items():
        if name != "agent":
            flag = f"--{name.replace('_', '-')}"
            form = form_of(option.json, forever=option.default is msgspec.UNSET)
            group.add_argument(flag, dest=name, default=argparse.SUPPRESS, help=option.doc, **form)


def options_in(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the turn options that were given, by name."""
    return {name: value for name, value in vars(parsed).items() if name in OPTIONS and name != "agent"}


def form_of(kind: Any, *, forever: bool = False) -> dict[str, Any]:
    """Return the arguments of ``add_argument`` for a type. With ``forever``, seconds may also be ``none``."""
    known = msgspec.json.schema(kind)
    form = next(one for one in known.get("anyOf", [known]) if one.get("type") != "null")
    if "enum" in form:
        return {"choices": form["enum"]}
    match form.get("type"):
        case "boolean":
            return {"action": "store_true"}
        case "number":
            return {"metavar": "SECONDS", "type": _seconds_or_none if forever else seconds}
        case "integer":
            return {"metavar": "N", "type": whole}
        case "string":
            return {"metavar": "TEXT"}
        case _:
            return {"metavar": "JSON", "type": json_value}


def seconds(text: str) -> float:
    """Read a number of seconds."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def _seconds_or_none(text: str) -> float | None:
    return None if text == "none" else seconds(text)


def whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def json_value(text: str) -> Any:
    """Read JSON, or the file that ``@FILE`` names."""
    try:
        return msgspec.json.decode(Path(text[1:]).read_bytes() if text[:1] == "@" else text)
    except (OSError, msgspec.DecodeError) as exc:
        raise argparse.ArgumentTypeError(f"{text!r:.80} must be JSON, or @FILE: {exc}") from exc


def positive(text: str) -> int:
    """Read a number above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def redis_urls(text: str) -> list[str]:
    """Split into one URL for each cell."""
    urls = cell_urls(text)
    if not urls:
        raise UsageError("The Redis URL is empty: set --redis-url or ANTIPHON_REDIS_URL.")
    return urls


T = TypeVar("T")


async def first(limit: int, items: AsyncIterable[T]) -> list[T]:
    found: list[T] = []
    async for item in items:
        found.append(item)
        if len(found) == limit:
            break
    return found


def list_parser(command: Callable[..., object], what: str) -> Parser:
    """Make the parser of a command that lists items, optionally those of one tenant."""
    parser = command_parser(command)
    parser.add_argument(
        "--limit", type=positive, default=50, metavar="N", help=f"most {what} to list; default: 50"
    )
    add_tenant(parser, f"only {what} of this tenant")
    add_json(parser)
    add_redis(parser)
    return parser


def print_list(
    options: argparse.Namespace,
    read: Callable[[AsyncClient], AsyncIterable[T]],
    head: str,
    row: Callable[[T], list[Any]],
    nothing: str,
) -> int:
    """Print the items that a client lists, up to ``--limit``, as a table with this head or as lines of JSON."""
    found = read_client(options, lambda client: first(options.limit, read(client)))
    return print_found(options, found, head, [row(one) for one in found], nothing)


def print_found(
    options: argparse.Namespace, found: Sequence[Any], head: str, rows: list[list[Any]], nothing: str
) -> int:
    """Print a list as lines of JSON or as a table. ``head`` contains the column names, separated by commas."""
    if options.json:
        print_json([*found])
    else:
        narrowed = any(getattr(options, name, None) is not None for name in NARROWING)
        print_table(head.split(", "), rows, "Nothing matches these options." if narrowed else nothing)
    return 0


def read_client(options: argparse.Namespace, read: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Return the result of ``read``, called with a client of the command line's Redis."""

    async def run() -> T:
        async with open_client(options) as client:
            return await read(client)

    return asyncio.run(run())


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
