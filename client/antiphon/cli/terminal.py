"""Shows events, messages and lists on a terminal, and reads its keys."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import termios
import time
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

from antiphon.errors import TurnFailed
from antiphon.events import (
    AgentChanged,
    CustomEvent,
    Event,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    StepFinished,
    StepRecorded,
    TextDelta,
    ToolCallDelta,
    ToolCallEvent,
    ToolProgress,
    ToolResultEvent,
    TurnCancelledEvent,
    TurnFailedEvent,
    TurnFinished,
    TurnQueued,
    TurnResumed,
    TurnRetrying,
    TurnSleeping,
    TurnStarted,
    TurnSuspended,
)
from antiphon.model import Message, Refusal, Text

_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "cyan": 36}


def coloured(out: TextIO) -> bool:
    """Return whether to colour the output: on a terminal, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``."""
    if os.environ.get("NO_COLOR"):
        return False
    return out.isatty() and os.environ.get("TERM") != "dumb"


class Paint:
    """Colours text for one output, if it is ``coloured``, and removes characters that control a terminal.

    >>> import io
    >>> Paint(io.StringIO())("failed", "red")
    'failed'
    """

    def __init__(self, out: TextIO) -> None:
        self._on = coloured(out)

    def __call__(self, text: str, *styles: str) -> str:
        text = printable(text)
        if not self._on or not text or not styles:
            return text
        codes = ";".join(str(_CODES[style]) for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"


@contextmanager
def keys_of(descriptor: int) -> Generator[asyncio.Queue[str]]:
    """Yield a queue of the pressed keys, and restore the terminal's settings at the end."""
    before = termios.tcgetattr(descriptor)
    pressed: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        if not data:
            loop.remove_reader(descriptor)
        if data.startswith(b"\x1b") and len(data) > 1:
            return  # an arrow or the like
        for one in data.decode(errors="ignore"):
            pressed.put_nowait(one)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


# Characters from users or models that could move the cursor, change colours, ring the bell, or reverse the text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_LABELS = {"reasoning_delta": "  (thinks) ", "refusal_delta": "  (refuses) "}
MOST_IN_A_CELL = 100


def printable(text: str) -> str:
    """Return the text without characters that control a terminal, except line breaks and tabs.

    >>> printable("\\x1b[2Jgone?\\u202e")
    '[2Jgone?'
    """
    return _CONTROL.sub("", text)


def one_line(text: str, most: int) -> str:
    """Return the text as one line of at most ``most`` characters, without characters that control a terminal."""
    flat = " ".join(printable(text[: 4 * most]).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def safe_json(encoded: bytes) -> str:
    """Return an equivalent line of JSON in which characters that control a terminal are escaped.

    >>> safe_json('["\\x9b2J"]'.encode())
    '["\\\\u009b2J"]'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its word.

    >>> counted(1, "worker"), counted(2, "worker"), counted(1, "entry", "entries")
    ('1 worker', '2 workers', '1 entry')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class PrintedTurn:
    """Prints a turn as its events arrive: the text of its answer, or each event as a line of JSON."""

    def __init__(self, *, json: bool, only_end: bool = False) -> None:
        self._json = json
        self._only_end = only_end
        self._last: Event | None = None
        self._begun = False  # a part of an answer is on the screen

    def show(self, event: Event) -> None:
        """Print an event immediately."""
        self._last = event
        if self._json:
            if event.terminal or not self._only_end:
                print(safe_json(event.to_json()), flush=True)
        elif isinstance(event, TextDelta | RefusalDelta):
            print(printable(event.text), end="", flush=True)
            self._begun = True
        elif isinstance(event, TurnRetrying) and self._begun:
            print("\n[the answer starts again]", flush=True)
            self._begun = False

    def end(self) -> int:
        """Return the exit code: with JSON, 1 if the turn did not finish. Otherwise a failure raises ``TurnFailed``."""
        last = self._last
        if self._json:
            return 0 if isinstance(last, TurnFinished) else 1
        print(flush=True)
        if isinstance(last, TurnFinished) and last.steered_into:
            print(
                printable(f"The turn {last.steered_into} took the text into its next model call."),
                file=sys.stderr,
            )
        if isinstance(last, TurnFailedEvent):
            raise TurnFailed(last.message, code=last.code)
        return 0


class EventLines:
    """Writes events for people: one line each, and the deltas of an answer as continuous text."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._running: type[Event] | None = None  # the kind of delta on the unfinished line

    def show(self, event: Event) -> None:
        """Write one event immediately."""
        if isinstance(event, TextDelta | RefusalDelta | ReasoningDelta):
            self._piece(event)
        elif not isinstance(event, ToolCallDelta | OutputDelta):
            self._line(event)
        self._out.flush()

    def _piece(self, event: TextDelta | RefusalDelta | ReasoningDelta) -> None:
        if self._running is not type(event):
            self._end_line()
            self._out.write(_LABELS.get(event.type, "  "))
        self._running = type(event)
        self._out.write(printable(event.text).replace("\n", "\n  "))

    def _line(self, event: Event) -> None:
        self._end_line()
        more = _short(_told(event))
        turn = f"  {printable(event.turn_id)}" if isinstance(event, TurnQueued | TurnStarted) else ""
        self._out.write(
            f"{clock_time(event.at)}  {event.seq:>5}  {event.type}{turn}{'  ' if more else ''}{more}\n"
        )

    def _end_line(self) -> None:
        if self._running is not None:
            self._out.write("\n")
            self._running = None


def _told(event: Event) -> str:
    """Return the details of an event."""
    match event:
        case TurnQueued(position=position):
            return f"position {position}"
        case TurnStarted(worker=worker, attempt=attempt):
            return f"attempt {attempt} on {worker}"
        case StepFinished(usage=usage, model=model, stop_reason=stop, rejected=rejected):
            tokens = f"{stop}, {counted(usage.input_tokens, 'token')} in, {usage.output_tokens} out, {model}"
            return tokens + (f", rejected: {rejected}" if rejected else "")
        case TurnRetrying(reason=reason):
            return f"{reason}: the answer starts again"
        case TurnSuspended(calls=calls):
            return "waits for " + ", ".join(f"{call.kind} of {call.name}" for call in calls)
        case TurnSleeping(waits=waits):
            return "sleeps: " + ", ".join(wait.name for wait in waits)
        case StepRecorded(name=name, is_error=is_error):
            return f"{name} failed" if is_error else name
        case TurnResumed(decisions=decisions):
            return ", ".join(f"{one.call_id}: {one.kind} by {one.who or 'time limit'}" for one in decisions)
        case TurnFinished(response=response):
            return response.stop_reason if response else ""
        case TurnFailedEvent(code=code, message=message):
            return f"{code}: {message}"
        case TurnCancelledEvent(reason=reason):
            return reason
        case _:
            return _told_of_call(event)


def chosen_by_router(event: AgentChanged) -> list[str]:
    """Return what a router has chosen for a turn.

    >>> chosen_by_router(AgentChanged(agent="billing", queue="slow"))
    ['agent billing', 'queue slow']
    """
    chosen = {"agent": event.agent, "model": event.model, "queue": event.queue}
    return [f"{name} {value}" for name, value in chosen.items() if value]


def _told_of_call(event: Event) -> str:
    match event:
        case AgentChanged(agent=agent, revision=revision, previous=previous) if revision:
            return f"{agent}: {previous} to {revision}"
        case AgentChanged(reason=reason):
            return ": ".join(filter(None, (", ".join(chosen_by_router(event)), reason)))
        case ToolCallEvent(name=name, arguments=arguments):
            return f"{name} {arguments}"
        case ToolResultEvent(name=name, result=result, is_error=is_error):
            return f"{name} {'failed' if is_error else 'returned'}: {result}"
        case ToolProgress(name=name, text=text, fraction=fraction):
            return f"{name}{'' if fraction is None else f' {fraction:.0%}'}: {text}"
        case CustomEvent(name=name, data=data):
            return f"{name} {data}"
        case _:
            return ""


def message_lines(message: Message) -> list[str]:
    """Format a message of a history, indented below its role."""
    lines = [message.role if not message.agent else f"{message.role} ({printable(message.agent)})"]
    said = "\n".join(part.text for part in message.parts if isinstance(part, Text | Refusal))
    lines += [f"  {line}" for line in printable(said).splitlines()]
    lines += [f"  calls {_short(f'{call.name} {call.arguments_text}')}" for call in message.tool_calls]
    for result in message.tool_results:
        how = "failed" if result.is_error else "gave"
        lines.append(f"  {_short(f'{result.name} {how}: {result.text}')}")
    others = [part for part in message.parts if type(part).__name__ in ("Image", "File", "Item")]
    return lines + [f"  [{type(part).__name__.lower()}]" for part in others]


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Format rows as columns as wide as their widest cells. Numbers are right-aligned, trailing spaces removed."""
    cells = [[_short(str(value)) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]
    right = [bool(rows) and isinstance(rows[0][column], int) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = [
            f"{text:>{width}}" if to_right else f"{text:<{width}}"
            for text, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line([name.upper() for name in head]), *(line(row) for row in cells)]


def clock_time(ms: int) -> str:
    """Format a time in server ms as local time, with the date if it is not today."""
    if not ms:
        return "-"
    when = time.localtime(ms / 1000)
    today = time.strftime("%Y%m%d") == time.strftime("%Y%m%d", when)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", when)


def ago(ms: int) -> str:
    """Format how long ago a time in server ms was, as one number."""
    seconds = max(0.0, time.time() - ms / 1000)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _short(text: str) -> str:
    return one_line(text, MOST_IN_A_CELL)
