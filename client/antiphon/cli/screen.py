"""Draws the screen of ``antiphon top`` with Rich."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from antiphon.cli.terminal import printable
from antiphon.cli.view import View

_STATUS = {
    "running": "green",
    "retrying": "yellow",
    "suspended": "magenta",
    "waiting": "dim",
    "failed": "red",
}
_FONTS = re.compile(r"@font-face \{[^{}]*\}")
TURN_ID_LENGTH = 32
_FIXED = 12  # lines that are not those of turns


def drawn(view: View, status: str, height: int) -> RenderableType:
    """Return the whole screen; ``status`` is its last line."""
    head, turns = view.turn_rows()
    above: list[RenderableType] = [Text(printable(view.summary), style="bold")]
    above += [Text(one, style="yellow") for one in view.troubles]
    above += [_table("queues", *view.queue_rows()), _table("workers", *view.worker_rows())]
    used = _FIXED + len(view.overview.queues) + len(view.overview.workers) + len(view.troubles)
    room = max(height - used, 3)
    more = f", {len(turns) - room} more" if len(turns) > room else ""
    order = f"turns by {view.sort}{' reversed' if view.reverse else ''}{more}"
    return Group(*above, _table(order, head, turns[:room]), Text(printable(status), style="reverse"))


def save_svg(view: View, path: str, width: int = 120, height: int = 40) -> None:
    """Write the screen as a picture. Raises ``OSError``."""
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, file=nowhere, width=width, force_terminal=True)
        console.print(drawn(view, "q quit  s sort  r reverse  / filter  p pause", height))
        drawing = console.export_svg(title="antiphon top")
    Path(path).write_text(_FONTS.sub("", drawing), encoding="utf-8")  # nothing is loaded from elsewhere


def _table(title: str, head: list[str], rows: list[list[object]]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold cyan", box=None, pad_edge=False, expand=False
    )
    for name, first in zip(head, rows[0] if rows else head, strict=True):
        numeric = isinstance(first, int)
        whole = TURN_ID_LENGTH if name == "turn" and rows else None  # other commands take it
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis", min_width=whole
        )
    for row in rows:
        table.add_row(*(_cell(name, value) for name, value in zip(head, row, strict=True)))
    return table


def _cell(name: str, value: object) -> Text:
    text = printable(str(value))
    if name in ("status", "state"):
        return Text(text, style=_STATUS.get(text, ""))
    if name == "failed" and value:
        return Text(text, style="red")
    return Text(text)
