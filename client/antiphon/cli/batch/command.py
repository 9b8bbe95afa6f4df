"""``antiphon batch``: runs a turn for each line of a file, and appends the outcomes to another file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import aclosing
from itertools import islice
from pathlib import Path

from antiphon.cli.arguments import (
    INTERRUPTED,
    add_agent,
    add_json,
    add_redis,
    agent_of,
    command_parser,
    positive,
    redis_urls,
)
from antiphon.cli.batch.files import Line, OutFile, read_lines
from antiphon.cli.batch.progress import Progress
from antiphon.cli.lists import print_json
from antiphon.cli.terminal import counted
from antiphon.client import AsyncClient
from antiphon.errors import AgentError, StoreUnavailable, StoreUnsupported
from antiphon.input.ids import TurnId
from antiphon.input.request import AgentSpec
from antiphon.redis.many.ends import Ends, outcome_of
from antiphon.redis.many.submission import Submission
from antiphon.redis.turn import AsyncTurn

__all__ = ["batch"]

AT_ONCE = 200
PAUSE_SECONDS = 1.0


def batch(argv: list[str]) -> int:
    """Run a turn for each line of a file; the same command again goes on where it stopped

    A line is a JSON object: {"text": "…"}, and if you like "id", "session", "agent", "params" and "metadata". A line
    without a session gets a session of its own. Each outcome becomes a line of --out: id, session_id, turn_id, status,
    and text, output and usage or code and error.
    Run the same command again after Ctrl-C or a crash: lines that have their outcome are left out, and turns that were
    submitted are not submitted again. Exit code 1 if some have not finished.
    """
    parser = command_parser(batch)
    parser.add_argument("file", type=Path, metavar="FILE", help="a JSON object on each line")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file of the outcomes")
    add_agent(parser)
    parser.add_argument("--queue", help="the queue of all turns")
    parser.add_argument("--tenant", metavar="NAME", help="whose sessions they are")
    parser.add_argument(
        "--name", default="", help="makes the same lines other turns: without it they are the same for a week"
    )
    parser.add_argument(
        "--at-once",
        type=positive,
        default=1000,
        metavar="N",
        help="so many turns are accepted at once; by default 1000",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="run the lines again whose outcome is not finished"
    )
    add_json(parser, "print at the end how many lines there are, are done and have failed, as a line of JSON")
    add_redis(parser)
    options = parser.parse_args(argv)
    agent = agent_of(options, parser)
    lines = read_lines(options.file, [options.name, agent, options.queue, options.tenant])
    with OutFile(options.out, lines, options.retry_failed) as out:
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
        """Submit these, and return those that are to be tried again."""
        asked: list[tuple[Line, Submission]] = []
        for line in lines:
            try:
                asked.append((line, self._submission(line)))
            except AgentError as error:
                self._write(line, error, status="refused")
        again: list[Line] = []
        told = await client.submit_many([submission for _, submission in asked])
        for turn in told:
            if isinstance(turn, StoreUnsupported):  # of no line, but of the Redis, for each of them
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
        return Submission(
            line.session, line.text, agent=line.agent or self._agent, key=line.key, params=line.params,
            metadata=line.metadata, queue=self._options.queue, tenant=self._options.tenant,
            retry_failed=self._options.retry_failed,
        )  # fmt: skip

    async def _collect(self, ends: Ends) -> None:
        """Wait for ends, and write their outcomes."""
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
