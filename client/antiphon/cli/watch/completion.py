"""``antiphon completion``: a script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from importlib.metadata import EntryPoint

from antiphon.cli.arguments import Parser, command_parser, summary
from antiphon.errors import MissingPackage

__all__ = ["completion"]

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


def _whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands that this installation can run."""
    from antiphon.cli.main import commands

    whole = argparse.ArgumentParser(prog="antiphon")
    below = whole.add_subparsers()
    for point in commands():
        parser = _parser_of(point)
        if parser is not None:
            below.add_parser(
                point.name, parents=[parser], add_help=False, help=summary(point.load()).replace("%", "%%")
            )
    return whole


def _parser_of(point: EntryPoint) -> Parser | None:
    """The parser that a command makes; None for one whose packages are missing, or that makes none."""
    before = Parser.parse_args

    def stop(self: Parser, *_: object, **__: object) -> None:
        raise _Parsed(self)

    Parser.parse_args = stop  # type: ignore[method-assign, assignment]
    try:
        point.load()([])
    except _Parsed as found:
        return found.parser
    except ImportError:
        return None
    finally:
        Parser.parse_args = before  # type: ignore[method-assign]
    return None
