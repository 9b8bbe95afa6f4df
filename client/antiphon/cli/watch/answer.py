"""Shows the events of a turn as a conversation."""

from __future__ import annotations

from typing import TextIO

from antiphon.cli.terminal import one_line, printable, safe_json
from antiphon.cli.watch.colour import Paint
from antiphon.events import (
    Event,
    ModelChanged,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallEvent,
    ToolProgress,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnRetrying,
)

__all__ = ["Answer"]

MOST_SHOWN = 200  # characters of a tool's arguments and results


class Answer:
    """One turn on a screen. ``seq`` is that of the last event shown, 0 before the first."""

    def __init__(self, out: TextIO, paint: Paint, *, plain_json: bool = False) -> None:
        self.seq = 0
        self.finished = False
        self._out = out
        self._paint = paint
        self._json = plain_json
        self._running = ""  # the kind of text on the unfinished line

    def show(self, event: Event) -> None:
        """Write an event, at once."""
        self.seq = event.seq or self.seq
        self.finished = isinstance(event, TurnFinished)
        if self._json:
            self._out.write(safe_json(event.to_json()) + "\n")
        elif isinstance(event, TextDelta | RefusalDelta | ReasoningDelta):
            self._piece(event)
        else:
            self._told(event)
        self._out.flush()

    def end_line(self) -> None:
        """Begin a line of its own for what comes next."""
        if self._running:
            self._out.write("\n")
        self._running = ""

    def _piece(self, event: TextDelta | RefusalDelta | ReasoningDelta) -> None:
        if self._running != event.type:
            self.end_line()
        self._running = event.type
        text = printable(event.text)
        self._out.write(self._paint(text, "dim") if isinstance(event, ReasoningDelta) else text)

    def _told(self, event: Event) -> None:
        match event:
            case ToolCallEvent(name=name, arguments=arguments):
                self._line(f"[{_short(name)} {_short(str(arguments))}]", "cyan")
            case ToolResultEvent(name=name, result=result, is_error=is_error):
                how = "failed" if is_error else "returned"
                self._line(f"[{_short(name)} {how}: {_short(result)}]", "red" if is_error else "cyan")
            case ToolProgress(name=name, text=text, fraction=fraction):
                done = "" if fraction is None else f" {fraction:.0%}"
                self._line(f"[{_short(name)}{done}: {_short(text)}]", "cyan")
            case TurnRetrying(reason=reason):
                self._line(f"[{_short(reason)} The answer starts again.]", "yellow")
            case ModelChanged(target=target):
                self._line(f"[{_short(target)} answers]", "yellow")
            case TurnFailedEvent(code=code, message=message):
                self._line(f"[failed ({_short(code)}): {_short(message)}]", "red")
            case TurnCancelledEvent(reason=reason):
                self._line(f"[{_short(reason)}]", "yellow")
            case TurnFinished():
                self.end_line()
            case _:
                return

    def _line(self, text: str, style: str) -> None:
        self.end_line()
        self._out.write(self._paint(text, style) + "\n")


def _short(text: str) -> str:
    return one_line(text, MOST_SHOWN)
