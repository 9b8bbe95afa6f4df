"""``antiphon COMMAND``: finds the command, runs it, and prints an error in one sentence.

A command is a function that takes its arguments and returns the exit code. ``antiphon --help`` shows the first line of
its docstring. The entry-point group ``antiphon.commands`` adds commands of other packages.

The exit codes are the same for all commands and defined in ``antiphon.cli.arguments``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points, version

from antiphon.cli.arguments import DEFAULT_URL, INTERRUPTED, NOBODY_READS, Command, summary
from antiphon.cli.terminal import printable
from antiphon.errors import AgentError, MissingPackage, UsageError

GROUP = "antiphon.commands"
SECTIONS = {
    "Sessions and turns": {
        "commands": (
            "submit", "tail", "history", "sessions", "search", "turns", "cancel", "due", "waiting", "approve", "reject",
            "tool-result", "feedback", "requests", "files",
        ),
        "replay": ("record", "replay"),
        "chat": ("chat",),
        "batch": ("batch",),
    },
    "Operation": {
        "top": ("top",),
        "explain": ("explain",),
        "commands": ("graph",),
        "operation": ("workers", "queues", "cells", "failed", "requeue"),
        "agents": ("agents",),
        "administration": (
            "budgets", "limits", "tenants", "schedules", "webhooks", "facts", "event", "export", "forget",
        ),
    },
    "Getting started": {
        "getting_started": ("init", "docs", "completion"),
        "redis": ("redis", "demo"),
    },
}  # fmt: skip
OWN = {
    name: EntryPoint(name, f"antiphon.cli.{module}:{name.replace('-', '_')}", GROUP)
    for modules in SECTIONS.values()
    for module, names in modules.items()
    for name in names
}
EXTRAS = {"antiphon_demo": "demo", "antiphon_gateway": "gateway"}
NO_REDIS = " Check that it runs; set another URL with --redis-url, or start one with `antiphon redis`."
MISSING = "needs the {0}'s packages: pip install 'antiphon[{0}]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    said_by = (
        " ".join(["antiphon", *arguments[:1]]) if arguments[:1] and arguments[0][:1] != "-" else "antiphon"
    )
    try:
        try:
            code = _dispatch(arguments)
        finally:  # also after --help, which exits
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return NOBODY_READS
    except AgentError as exc:
        advice = NO_REDIS if exc.message.startswith("Redis cannot be reached") else ""
        sys.stderr.write(printable(f"{said_by}: {_in_flags(exc.message, arguments)}{advice}\n"))
        return 2 if isinstance(exc, UsageError) else 1
    return code


def _in_flags(message: str, arguments: Sequence[str]) -> str:
    """Replace option names with flags: for options that were given, and for those that the message recommends."""
    flags = [one.partition("=")[0] for one in arguments if one.startswith("--")]
    for flag in flags:
        name = re.escape(flag[2:].replace("-", "_"))
        message = re.sub(rf"(?<![\w(.]){name}=(?=[:,;.])", flag, message)
        message = re.sub(rf"(?<![\w(.]){name}= ?", f"{flag} ", message)
    message = re.sub(
        r"(?<![\w(])(\w+)=(…|True|(?=[:,;.]| or ))", lambda found: "--" + found[1].replace("_", "-"), message
    )
    message = re.sub(r"(?<![\w(.])(\w+)= ", r"\1 ", message)
    return message.replace(" or a timedelta", "").replace(" None,", " none,")


def _dispatch(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first == "help" and len(arguments) > 1:
        return _dispatch([*arguments[1:2], "--help"])
    if first in ("-h", "--help", "help"):
        print(_help())
        return 0
    if first in ("-V", "--version"):
        print(f"antiphon {version('antiphon')}")
        return 0
    points = _points()
    if first[:1] == "-":
        raise UsageError(
            f"Options follow a command: `antiphon COMMAND {first}`. `antiphon --help` lists the commands."
        )
    if first not in points:
        near = get_close_matches(first, [*points, "help"], 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"Unknown command {first!r}.{hint} `antiphon --help` lists them.")
    return _load(points[first])(arguments[1:])


def commands() -> list[EntryPoint]:
    """Return the commands of this installation, those of the client first."""
    return [*_points().values()]


def _points() -> dict[str, EntryPoint]:
    return OWN | {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> Command:
    try:
        return point.load()
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("antiphon."):
            raise
        raise MissingPackage(f"This command {_missing(point)}") from exc


def _help() -> str:
    points = _points()
    sections = {title: [name for names in one.values() for name in names] for title, one in SECTIONS.items()}
    sections["Servers and local turns"] = [name for name in points if name not in OWN]
    width = max(map(len, points)) + 2
    lines = [
        "Sessions of turns between users and language models, on Redis and RQ.",
        "",
        "Usage: antiphon COMMAND [OPTIONS]",
    ]
    for title, names in sections.items():
        lines += ["", f"{title}:", *(_line(points[name], width) for name in names)]
    return "\n".join(
        [
            *lines,
            "",
            "Run `antiphon COMMAND --help` for the options of a command, and `antiphon --version` for the release.",
            f"Set the Redis with --redis-url or ANTIPHON_REDIS_URL; the default is {DEFAULT_URL}.",
        ]
    )


def _line(point: EntryPoint, width: int) -> str:
    try:
        text = summary(_load(point))
    except MissingPackage:
        text = _missing(point)
    return f"  {point.name:<{width}}{text}"


def _missing(point: EntryPoint) -> str:
    return MISSING.format(EXTRAS.get(point.module.partition(".")[0], "worker"))


def _forget_output() -> None:
    """Discard buffered output, because the reader is gone and a flush at exit would print an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
