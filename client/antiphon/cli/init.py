"""``antiphon init``: writes a small working project from the templates of this package."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from antiphon.cli.arguments import add_json, command_parser, print_json
from antiphon.errors import UsageError

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
    return 0


def _filled(folder: Traversable, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every file of the project."""
    for one in sorted(folder.iterdir(), key=lambda one: one.name):
        if one.is_dir():
            yield from _filled(one, f"{place}{one.name}/")
        elif one.name.endswith(SUFFIX):
            text = one.read_text(encoding="utf-8").replace("{{version}}", version("antiphon"))
            yield f"{place}{one.name.removesuffix(SUFFIX)}", text
