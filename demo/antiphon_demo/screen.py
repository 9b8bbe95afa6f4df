"""The display of the demo: a live view on a terminal, otherwise plain lines."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Sequence
from typing import Protocol, TextIO

from antiphon.events import Event
from antiphon_demo.record import SessionRecord

FRAMES_A_SECOND = 12
NARROW = 60
WIDE = 100


class Screen(Protocol):
    def see(self, record: SessionRecord, event: Event) -> None:
        """Show an event."""
        ...

    def note(self, text: str) -> None:
        """Show something that is not an event."""
        ...

    async def run(self, records: Sequence[SessionRecord]) -> None:
        """Show until cancelled."""
        ...


def screen_for(out: TextIO, plain: bool) -> Screen:
    """Return a live view if the output is a terminal that can show one, else plain lines."""
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    return PlainScreen(out) if plain or dumb or not out.isatty() else LiveScreen(out)


def print_wrapped(*lines: str) -> None:
    """Print lines, wrapped between words on a terminal and with the indent of the first line."""
    width = shutil.get_terminal_size().columns - 1 if sys.stdout.isatty() else 1000
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        print(textwrap.fill(line, max(width, 20), subsequent_indent=indent), flush=True)


class PlainScreen:
    """A line for each answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()

    def see(self, record: SessionRecord, event: Event) -> None:
        if not event.terminal:
            return
        turn = record.turns[-1]
        what = (
            turn.said if event.type == "turn_finished" else f"{event.type}: {getattr(event, 'message', '')}"
        )
        place = f"turn {len(record.turns)} of {len(record.conversation.turns)}"
        again = f", attempt {turn.attempt}" if turn.attempt > 1 else ""
        self.note(f"{record.conversation.name}, {place}{again}, {turn.deltas} deltas: {fit(what, 70)}")

    def note(self, text: str) -> None:
        self._out.write(f"{time.monotonic() - self._began:6.2f} s  {text}\n")
        self._out.flush()

    async def run(self, records: Sequence[SessionRecord]) -> None:
        self._began = time.monotonic()
        await asyncio.Event().wait()


class LiveScreen:
    """A view with one row per session, which shows the end of its answer and is redrawn in place."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._began = time.monotonic()
        self._notes: list[str] = []
        self._drawn = 0  # lines of the last frame
        self._size = shutil.get_terminal_size()
        self._color = "NO_COLOR" not in os.environ
        self._changed = True

    def see(self, record: SessionRecord, event: Event) -> None:
        self._changed = True

    def note(self, text: str) -> None:
        self._notes.append(f"{time.monotonic() - self._began:.1f} s: {text}")
        self._changed = True

    async def run(self, records: Sequence[SessionRecord]) -> None:
        self._began = time.monotonic()
        try:
            while True:
                if self._changed:
                    self._changed = False
                    self._draw(records)
                await asyncio.sleep(1 / FRAMES_A_SECOND)
        finally:
            self._draw(records)

    def _draw(self, records: Sequence[SessionRecord]) -> None:
        """Write one frame over the last one, in one write. If the terminal's size has changed, clear it first."""
        size = shutil.get_terminal_size()
        lines = self._lines(records, size.columns - 1, size.lines - 1)
        back = f"\x1b[{self._drawn}F" if self._drawn else ""
        if size != self._size:
            back, self._size = "\x1b[2J\x1b[H", size
        self._out.write(back + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._out.flush()
        self._drawn = len(lines)

    def _lines(self, records: Sequence[SessionRecord], width: int, height: int) -> list[str]:
        notes = [line for note in self._notes[-2:] for line in textwrap.wrap(note, max(width, 20))]
        room = max(1, height - len(notes) - 2)
        shown = records if len(records) <= room else records[: room - 1]
        rows = [self._row(record, width) for record in shown]
        if len(shown) < len(records):
            rows.append(self._paint(fit(f"… and {len(records) - len(shown)} more sessions", width), "2"))
        return [
            self._head(records, width),
            *rows,
            *(self._paint(fit(note, width), "1;33") for note in notes),
        ][:height]

    def _head(self, records: Sequence[SessionRecord], width: int) -> str:
        turns = [turn for record in records for turn in record.turns]
        ended = sum(turn.ended is not None for turn in turns)
        total = sum(len(record.conversation.turns) for record in records)
        deltas = sum(turn.deltas for turn in turns)
        passed = time.monotonic() - self._began
        text = f"{len(records)} sessions, {ended} of {total} turns, {deltas:,} deltas, {passed:.1f} s"
        return self._paint(fit(text, width), "1")

    def _row(self, record: SessionRecord, width: int) -> str:
        turn = record.current
        mark, color = _mark(record)
        room = 8 if width < NARROW else 14
        name = fit(record.conversation.name, room)
        head = f"{mark} {name}{' ' * (room - cells(name))} {len(record.turns)}/{len(record.conversation.turns)}  "
        if width >= WIDE:
            head += f"{record.agent.provider:<13}"
        if cells(head) >= width:
            return fit(head, width)
        return self._paint(head, color) + tail(turn.said if turn else "", width - cells(head))

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and code else text


def _mark(record: SessionRecord) -> tuple[str, str]:
    if record.failed:
        return "x", "31"
    if record.done:
        return "✓", "32"
    if record.restarted:
        return "↻", "33"
    return ("•", "36") if record.turns else (" ", "")


def cells(text: str) -> int:
    """Return how many columns of a terminal the text takes."""
    return sum(_cells_of(character) for character in text)


def fit(text: str, width: int) -> str:
    """Return the beginning of the text as one line of at most this many columns."""
    flat = _flat(text)
    if cells(flat) <= width:
        return flat
    kept, used = "", 0
    for character in flat:
        used += _cells_of(character)
        if used > width - 1:
            break
        kept += character
    return f"{kept}…" if width > 0 else ""


def tail(text: str, width: int) -> str:
    """Return the end of the text as one line of at most this many columns."""
    flat = _flat(text[-4 * max(width, 1) :])
    kept, used = "", 0
    for character in reversed(flat):
        used += _cells_of(character)
        if used > width:
            break
        kept = character + kept
    return kept.lstrip()


def _flat(text: str) -> str:
    spaced = "".join(" " if unicodedata.category(one) in ("Cc", "Zl", "Zp") else one for one in text)
    return " ".join(spaced.split())


def _cells_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
