"""Draws the screen of ``antiphon top`` with Rich."""

from __future__ import annotations

import re
from pathlib import Path

from rich.cells import cell_len
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
# Columns that a narrow screen omits, in this order. Other commands take the values of the remaining ones.
_LESS = (
    "tokens", "lag", "delayed", "waiting", "attempt", "step", "queues", "queue", "finished", "worker", "age", "session",
)  # fmt: skip
_GAP = 2  # between columns
_FIXED = 12  # lines that do not show turns


def drawn(view: View, status: str, width: int, height: int) -> RenderableType:
    """Return the whole screen; ``status`` is its last line."""
    head, turns = view.turn_rows()
    above: list[RenderableType] = [Text(printable(view.summary), style="bold")]
    above += [Text(one, style="yellow") for one in view.troubles]
    above += [_table("queues", *view.queue_rows(), width), _table("workers", *view.worker_rows(), width)]
    used = _FIXED + len(view.overview.queues) + len(view.overview.workers) + len(view.troubles)
    room = max(height - used, 3)
    more = f", {len(turns) - room} more" if len(turns) > room else ""
    order = f"turns by {view.sort}{' reversed' if view.reverse else ''}{more}"
    return Group(*above, _table(order, head, turns[:room], width), Text(printable(status), style="reverse"))


def save_svg(view: View, path: str, width: int = 120, height: int = 40) -> None:
    """Write the screen as a picture. Raises ``OSError``."""
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, file=nowhere, width=width, force_terminal=True)
        console.print(drawn(view, "q quit  s sort  r reverse  / filter  p pause", width, height))
        drawing = console.export_svg(title="antiphon top")
    Path(path).write_text(_FONTS.sub("", drawing), encoding="utf-8")  # nothing is loaded from elsewhere


def _table(title: str, head: list[str], rows: list[list[object]], width: int) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold cyan", box=None, pad_edge=False, expand=False
    )
    shown = _columns(head, rows, width)
    for place in shown:
        numeric = isinstance(rows[0][place] if rows else "", int)
        table.add_column(
            head[place], justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in rows:
        table.add_row(*(_cell(head[place], row[place]) for place in shown))
    return table


def _columns(head: list[str], rows: list[list[object]], width: int) -> list[int]:
    """Return the columns that fit in full. The others are omitted in the order of ``_LESS``."""
    wide = [
        max(cell_len(printable(str(row[place]))) for row in [head, *rows]) + _GAP
        for place in range(len(head))
    ]
    shown = [*range(len(head))]
    for name in _LESS:
        if sum(wide[place] for place in shown) - _GAP <= width:
            break
        shown = [place for place in shown if head[place] != name or place == 0]
    return shown


def _cell(name: str, value: object) -> Text:
    text = printable(str(value))
    if name in ("status", "state"):
        return Text(text, style=_STATUS.get(text, ""))
    if name == "failed" and value:
        return Text(text, style="red")
    return Text(text)
