"""``antiphon batch``: runs a turn for each line of a file, and appends the outcomes to another file."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import hashlib
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from itertools import islice
from pathlib import Path
from typing import Any, Self, TextIO

import msgspec
from msgspec import Struct

from antiphon.cli.arguments import (
    INTERRUPTED,
    add_agent,
    add_json,
    add_options,
    add_redis,
    agent_of,
    command_parser,
    options_in,
    positive,
    print_json,
    redis_urls,
)
from antiphon.cli.terminal import counted, printable
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StoreUnavailable, StoreUnsupported, UsageError
from antiphon.input.ids import TurnId, session_id
from antiphon.input.request import AgentSpec
from antiphon.input.wrong_values import wrong_value
from antiphon.redis.results import Ends, outcome_of
from antiphon.redis.submission import Submission
from antiphon.redis.turn import AsyncTurn


class _Given(Struct, forbid_unknown_fields=True):
    """One line of the file."""

    text: Any
    id: str | int | None = None
    session: str | None = None
    agent: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Line(Struct):
    """One turn to run. ``key`` is derived from all it depends on, so that another run of the command finds it."""

    id: str
    key: str
    session: str
    text: Any
    agent: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class _Outcome(Struct):
    """Checks the fields of an outcome line."""

    id: str
    key: str
    status: str


def read_lines(path: Path, common: Sequence[Any]) -> list[Line]:
    """Read the lines to run. ``common`` contains the other values that their turns depend on. Raises ``UsageError``.

    The id of a line without one is its key; identical lines are numbered.
    """
    try:
        raw = path.read_bytes().splitlines()
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror}.") from exc
    lines: list[Line] = []
    equal: Counter[str] = Counter()
    names: set[str] = set()
    for number, text in enumerate(raw, 1):
        if not text.strip():
            continue
        given = _given(path, number, text)
        key = hashlib.sha256(msgspec.json.encode([given, common], order="sorted")).hexdigest()[:32]
        equal[key] += 1
        if equal[key] > 1 and given.id is None:
            key = f"{key}-{equal[key]}"
        name = key if given.id is None else str(given.id)
        if name in names:
            raise UsageError(f"{path}, line {number}: the id {name!r} was used before.")
        names.add(name)
        where = given.session or f"batch-{key}"
        lines.append(Line(name, key, where, given.text, given.agent, given.params, given.metadata))
    return lines


def _given(path: Path, number: int, text: bytes) -> _Given:
    try:
        given = msgspec.json.decode(text, type=_Given)
        if given.session is not None:
            session_id(given.session)
    except msgspec.ValidationError as exc:
        raise UsageError(f"{path}, line {number}: {wrong_value(exc, _Given)[0]}") from exc
    except (msgspec.DecodeError, UnicodeError, UsageError) as exc:
        raise UsageError(f"{path}, line {number}: {exc}") from exc
    return given


class OutFile:
    """The file with the outcomes so far; new ones are appended. Only one command at a time writes to it."""

    def __init__(self, path: Path, lines: Sequence[Line], retry_failed: bool) -> None:
        self._path = path
        self._last: dict[str, _Outcome] = {}
        self._retry_failed = retry_failed
        self._keys = {line.id: line.key for line in lines}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                self._file = stack.enter_context(self._path.open("a+b"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"Another command is writing to {self._path}: wait for its end.") from None
            except OSError as exc:
                raise UsageError(f"{self._path} cannot be written: {exc.strerror}.") from exc
            self._read()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        """Return how many lines need not run again."""
        return sum(map(self._is_done, self._last.values()))

    @property
    def failed(self) -> int:
        """Return how many of these did not finish."""
        return sum(self._is_done(one) and one.status != "finished" for one in self._last.values())

    def has(self, line: Line) -> bool:
        """Return whether this line need not run again."""
        return line.id in self._last and self._is_done(self._last[line.id])

    def write(self, outcome: dict[str, Any]) -> None:
        """Append one outcome as a complete line."""
        self._file.write(msgspec.json.encode(outcome) + b"\n")
        self._file.flush()

    def _is_done(self, outcome: _Outcome) -> bool:
        return outcome.status == "finished" or not self._retry_failed

    def _read(self) -> None:
        """Check the existing lines. If a crash left an incomplete last line, cut it off."""
        self._file.seek(0)
        whole, _, rest = self._file.read().rpartition(b"\n")
        if rest:
            self._file.truncate(len(whole) + 1 if whole else 0)
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                found = msgspec.json.decode(text, type=_Outcome)
            except (msgspec.DecodeError, UnicodeError) as exc:
                raise UsageError(f"{self._path}, line {number} is not an outcome of a batch: {exc}") from exc
            if self._keys.get(found.id) != found.key:
                raise UsageError(
                    f"{self._path}, line {number} is the outcome of a different line, agent or option ({found.id!r}): "
                    "repeat the command that wrote it, or choose another file for --out."
                )
            self._last[found.id] = found


EVERY_SECONDS = 0.1
WIDTH = 30


class Progress:
    """Counts how many of ``total`` are done and have failed. A terminal shows a one-line bar, a pipe nothing."""

    def __init__(self, out: TextIO, total: int, done: int = 0, failed: int = 0) -> None:
        self.done = done
        self.failed = failed
        self._out = out
        self._total = total
        self._before = done
        self._shown = out.isatty()
        self._began = time.monotonic()
        self._next = 0.0

    def advance(self, *, failed: bool) -> None:
        """Count one more as done."""
        self.done += 1
        self.failed += failed
        if self._shown and time.monotonic() >= self._next:
            self._show()

    def note(self, text: str) -> None:
        """Show a warning above the progress bar."""
        if self._shown:
            self._out.write(f"\r\x1b[K{printable(text)}\n")
            self._show()

    def end(self) -> None:
        """Draw the bar a last time and end its line."""
        if self._shown:
            self._show()
            self._out.write("\n")
            self._out.flush()

    def _show(self) -> None:
        now = time.monotonic()
        self._next = now + EVERY_SECONDS
        rate = (self.done - self._before) / max(now - self._began, 0.001)
        filled = WIDTH * self.done // max(self._total, 1)
        text = f"[{'#' * filled}{'.' * (WIDTH - filled)}] {self.done:,}/{self._total:,}  {rate:,.0f}/s"
        if self.failed:
            text += f"  {self.failed:,} failed"
        if rate and self.done < self._total:
            seconds = (self._total - self.done) / rate
            text += f"  {seconds // 60:.0f}:{seconds % 60:02.0f} left"
        self._out.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
        self._out.flush()


AT_ONCE = 200
PAUSE_SECONDS = 1.0


def batch(argv: list[str]) -> int:
    """Run a turn for each line of a file; run the same command again to resume

    A line is a JSON object: {"text": "…"}, optionally with "id", "session", "agent", "params" and "metadata". A line
    without a session gets its own. Each outcome is a line of --out: id, session_id, turn_id, status, and text, output
    and usage, or code and error. A repeated command skips lines with an outcome and submitted turns. Exit code 1 if
    some have not finished.
    """
    parser = command_parser(batch)
    parser.add_argument("file", type=Path, metavar="FILE", help="a JSON object on each line")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the output file")
    add_agent(parser)
    add_options(parser, "batch")
    parser.add_argument(
        "--name", default="", help="makes the same lines new turns; default: the same for a week"
    )
    parser.add_argument(
        "--at-once",
        type=positive,
        default=1000,
        metavar="N",
        help="how many turns to submit at once (default: 1000)",
    )
    add_json(parser, "print at the end how many lines there are, are done and have failed, as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    agent = agent_of(options, parser)
    asked = options_in(options)
    again = asked.pop("retry_failed", False)
    common = [options.name, agent, asked.pop("queue", None), asked.pop("tenant", None)]
    lines = read_lines(options.file, [*common, asked] if asked else common)
    with OutFile(options.out, lines, again) as out:
        progress = Progress(sys.stderr, len(lines), out.done, out.failed)
        try:
            asyncio.run(_Batch(options, agent, out, progress).run(lines))
        except KeyboardInterrupt:
            progress.end()
            print(
                f"{progress.done} of {counted(len(lines), 'line')} have their outcome. "
                "Run the same command again to go on.",
                file=sys.stderr,
            )
            return INTERRUPTED
        finally:
            if options.json:
                print_json([{"lines": len(lines), "done": progress.done, "failed": progress.failed}])
        progress.end()
    return 1 if progress.failed else 0


class _Batch:
    """One run of the command."""

    def __init__(
        self, options: argparse.Namespace, agent: str | AgentSpec | None, out: OutFile, progress: Progress
    ) -> None:
        self._options = options
        self._agent = agent
        self._out = out
        self._progress = progress
        self._open: dict[TurnId, tuple[AsyncTurn, Line]] = {}

    async def run(self, lines: list[Line]) -> None:
        waiting = iter([line for line in lines if not self._out.has(line)])
        again: list[Line] = []  # refused for the moment
        async with AsyncClient(redis_urls(self._options.redis_url), prefix=self._options.prefix) as client:
            ends = Ends(client.connections)
            async with aclosing(ends):
                while True:
                    room = min(AT_ONCE, self._options.at_once - len(self._open))
                    some = [*again, *islice(waiting, max(room - len(again), 0))]
                    again = await self._submit(client, ends, some)
                    if self._open and (len(self._open) >= self._options.at_once or again or not some):
                        await self._collect(ends)
                    elif again:
                        await asyncio.sleep(PAUSE_SECONDS)
                    elif not some:
                        return

    async def _submit(self, client: AsyncClient, ends: Ends, lines: list[Line]) -> list[Line]:
        """Submit these lines and return those to try again."""
        asked: list[tuple[Line, Submission]] = []
        for line in lines:
            try:
                asked.append((line, self._submission(line)))
            except AgentError as error:
                self._write(line, error, status="refused")
        again: list[Line] = []
        told = await client.submit_many([submission for _, submission in asked])
        for turn in told:
            if isinstance(turn, StoreUnsupported):  # the Redis is unsuitable, so every line would fail
                raise turn
        for (line, _), turn in zip(asked, told, strict=True):
            if isinstance(turn, AsyncTurn):
                self._open[turn.id] = turn, line
            elif turn.retryable:
                again.append(line)
            else:
                self._write(line, turn, status="refused")
        if told and isinstance(told[-1], StoreUnavailable):
            self._progress.note(told[-1].message)
        ends.add(self._open)
        return again

    def _submission(self, line: Line) -> Submission:
        own: dict[str, Any] = {
            "agent": line.agent or self._agent,
            "params": line.params,
            "metadata": line.metadata,
        }
        asked = options_in(self._options) | {name: value for name, value in own.items() if value is not None}
        return Submission(line.session, line.text, key=line.key, **asked)

    async def _collect(self, ends: Ends) -> None:
        """Wait until turns end, and write their outcomes."""
        for known, record in (await ends.records(await ends.ended())).items():
            turn, line = self._open.pop(known)
            status = getattr(record, "status", "gone")
            self._write(line, outcome_of(turn, known, record), status=status, turn=known)

    def _write(self, line: Line, outcome: object, *, status: str, turn: str | None = None) -> None:
        told = {"id": line.id, "key": line.key, "session_id": line.session, "turn_id": turn, "status": status}
        if isinstance(outcome, AgentError):
            told |= {"code": str(outcome.code), "error": outcome.message}
        else:
            told |= {name: getattr(outcome, name) for name in ("text", "output", "usage", "stop_reason")}
        self._out.write(told)
        self._progress.advance(failed=status != "finished")
