"""The commands for getting started: a small project, the documentation, and shell completion."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from antiphon.cli.arguments import Command, Parser, acts_of, add_json, command_parser, print_json
from antiphon.cli.terminal import printable
from antiphon.errors import MissingPackage, UsageError

SUFFIX = ".tpl"


def init(argv: list[str]) -> int:
    """Write a small working project: agents, a client, a test and a compose file

    The README of the project lists the commands to run next. AGENTS.md and a skill point coding agents to the
    documentation of the installed version. If one of the files exists, nothing is written without --force.
    """
    parser = command_parser(init)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="folder of the project; default: the current one"
    )
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_json(parser, "print the path of each file as a line of JSON")
    options = parser.parse_args(argv)
    project = {options.folder / name: text for name, text in _filled(files("antiphon.cli") / "template")}
    existing = [str(path) for path in project if path.exists()]
    if existing and not options.force:
        raise UsageError(
            f"These files exist: {', '.join(existing)}. Choose another folder, or overwrite them with --force."
        )
    for path, text in project.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w" if options.force else "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as exc:
            raise UsageError(f"Cannot write {path}: {exc.strerror}.") from exc
        if options.json:
            print_json([{"path": str(path)}])
        else:
            print(path)
    print(f"Next: follow {options.folder / 'README.md'}.", file=sys.stderr)
    return 0


def _filled(folder: Traversable, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and text of every file of the project."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _filled(one, f"{place}{one.name}/")
        elif one.name.endswith(SUFFIX):
            text = one.read_text(encoding="utf-8").replace("{{version}}", version("antiphon"))
            yield f"{place}{one.name.removesuffix(SUFFIX)}", text


def docs(argv: list[str]) -> int:
    """Print a page of the documentation of the installed version

    Without a page, it lists the pages.
    """
    parser = command_parser(docs)
    parser.add_argument("page", nargs="?", help="name of a page, such as quickstart")
    parser.add_argument("--search", metavar="TEXT", help="print the lines that contain this text")
    add_json(parser, "print each page as a line of JSON")
    options = parser.parse_args(argv)
    pages = _pages()
    if options.page is not None:
        name = options.page.removesuffix(".md")
        if name not in pages:
            near = get_close_matches(name, pages, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"There is no page {name!r}.{hint} `antiphon docs` lists the pages.")
        pages = {name: pages[name]}
    if options.json:
        print_json([{"page": name, "text": text} for name, text in pages.items()])
    elif options.search is not None:
        for name, text in pages.items():
            for number, line in enumerate(text.splitlines(), 1):
                if options.search.lower() in line.lower():
                    print(printable(f"{name}:{number}: {line}"))
    elif options.page is not None:
        print(pages[options.page], end="")
    else:
        width = max(map(len, pages)) + 2
        for name, text in pages.items():
            print(f"{name:<{width}}{text.partition(chr(10))[0].lstrip('# ')}")
    return 0


def _pages() -> dict[str, str]:
    """Return the text of each page. A wheel contains the pages; in a checkout, they are next to the source."""
    inside = files("antiphon") / "docs"
    folder: Traversable = inside if inside.is_dir() else Path(__file__).parents[3] / "docs"
    pages = sorted((one for one in folder.iterdir() if one.name.endswith(".md")), key=lambda one: one.name)
    return {one.name.removesuffix(".md"): one.read_text(encoding="utf-8") for one in pages}


SHELLS = ("bash", "zsh", "tcsh")


class _Parsed(BaseException):
    """Raised when a command has made its parser, so that it does nothing else."""

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
    """Yield every command and subcommand that this installation can run, with its parser."""
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
    """Return one parser with all commands that this installation can run."""
    whole = argparse.ArgumentParser(prog="antiphon")
    below = whole.add_subparsers()
    for name, parser in parsers():
        if " " not in name:
            help_line = (parser.description or "").partition("\n")[0]
            below.add_parser(name, parents=[parser], add_help=False, help=help_line.replace("%", "%%"))
    return whole


def _parser_of(load: Callable[[], Command]) -> Parser | None:
    """Return the parser that a command makes, or None if it makes none or its packages are missing."""
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
