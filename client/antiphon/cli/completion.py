"""``antiphon completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from antiphon.cli.arguments import Command, Parser, acts_of, command_parser
from antiphon.errors import MissingPackage

SHELLS = ("bash", "zsh", "tcsh")


class _Parsed(BaseException):
    """A command has made its parser, and is to do nothing else."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


def completion(argv: list[str]) -> int:
    """Print a script that completes commands and options in a shell

    For bash: antiphon completion bash > ~/.local/share/bash-completion/completions/antiphon
    For zsh: antiphon completion zsh > a file _antiphon in a folder of $fpath
    It needs shtab: pip install 'antiphon[cli]'
    """
    parser = command_parser(completion)
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(argv).shell
    try:
        import shtab
    except ModuleNotFoundError as exc:
        raise MissingPackage("Completion needs a package: pip install 'antiphon[cli]'.") from exc
    print(shtab.complete(_whole_parser(), shell=shell))
    return 0


def parsers() -> Iterator[tuple[str, Parser]]:
    """Yield every command that this installation can run, and every act of one, with its parser."""
    from antiphon.cli.main import commands

    for point in commands():
        parser = _parser_of(point.load)
        if parser is None:
            continue
        yield point.name, parser
        for act, run in acts_of(point.load()).items():
            found = _parser_of(lambda run=run: run)
            if found is not None:
                yield f"{point.name} {act}", found


def _whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands that this installation can run."""
    whole = argparse.ArgumentParser(prog="antiphon")
    below = whole.add_subparsers()
    for name, parser in parsers():
        if " " not in name:
            help_line = (parser.description or "").partition("\n")[0]
            below.add_parser(name, parents=[parser], add_help=False, help=help_line.replace("%", "%%"))
    return whole


def _parser_of(load: Callable[[], Command]) -> Parser | None:
    """The parser that a command makes; None for one whose packages are missing, or that makes none."""
    before = Parser.parse_args

    def stop(self: Parser, *_: object, **__: object) -> None:
        raise _Parsed(self)

    Parser.parse_args = stop  # type: ignore[method-assign, assignment]
    try:
        load()([])
    except _Parsed as found:
        return found.parser
    except ImportError:
        return None
    finally:
        Parser.parse_args = before  # type: ignore[method-assign]
    return None
