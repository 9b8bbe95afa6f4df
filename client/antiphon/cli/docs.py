"""``antiphon docs``: the documentation of the installed version, in the terminal."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from antiphon.cli.arguments import add_json, command_parser, print_json
from antiphon.cli.terminal import printable
from antiphon.errors import UsageError


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
        if options.page not in pages:
            raise UsageError(f"There is no page {options.page!r}. `antiphon docs` lists the pages.")
        pages = {options.page: pages[options.page]}
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
    """Return the text of each page. They are in the wheel, and in a checkout next to the source."""
    inside = files("antiphon") / "docs"
    folder: Traversable = inside if inside.is_dir() else Path(__file__).parents[3] / "docs"
    pages = sorted((one for one in folder.iterdir() if one.name.endswith(".md")), key=lambda one: one.name)
    return {one.name.removesuffix(".md"): one.read_text(encoding="utf-8") for one in pages}
