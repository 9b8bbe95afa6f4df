"""What the commands share on the command line: how they complain, and which Redis they mean."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import NoReturn

from antiphon.errors import UsageError
from antiphon.redis.prefix import PREFIX_VARIABLE

__all__ = ["DEFAULT_URL", "Parser", "add_redis", "command_parser", "redis_urls", "summary"]

DEFAULT_URL = "redis://localhost:6379/0"
URL_VARIABLE = "ANTIPHON_REDIS_URL"


class Parser(argparse.ArgumentParser):
    """Complains in one sentence, which ``antiphon.cli.main`` prints."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:].rstrip(".")
        raise UsageError(f"{sentence}. `{self.prog} --help` says more.")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Docstrings keep their lines, and options have room."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def summary(command: Callable[..., object]) -> str:
    """The first line of a command's docstring, as lists of commands show it."""
    return (command.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def command_parser(command: Callable[..., object], name: str | None = None) -> Parser:
    """A parser for a command; its docstring is what ``--help`` says."""
    text = "\n".join(line.strip() for line in (command.__doc__ or "").strip().splitlines())
    return Parser(
        prog=f"antiphon {name or command.__name__}",
        description=text,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )


def add_redis(parser: argparse.ArgumentParser) -> None:
    """``--redis-url`` and ``--prefix``, with their variables as defaults."""
    parser.add_argument(
        "--redis-url",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE) or DEFAULT_URL,
        help=f"the Redis; separate several (cells) with commas; by default {URL_VARIABLE} or {DEFAULT_URL}",
    )
    parser.add_argument(
        "--prefix",
        default=os.environ.get(PREFIX_VARIABLE) or "ant",
        help=f"first part of every key; by default {PREFIX_VARIABLE} or ant",
    )


def redis_urls(text: str) -> list[str]:
    """One URL a cell. A Sentinel URL holds commas of its own."""
    return [url.strip() for url in re.split(r",(?=\s*[a-z+]+://)", text) if url.strip()]
