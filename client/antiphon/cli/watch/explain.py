"""``antiphon explain``: the whole life of a turn in sentences."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from antiphon.cli.arguments import add_json, add_redis, command_parser
from antiphon.cli.lists import open_client, print_json
from antiphon.cli.terminal import clock_time, counted
from antiphon.cli.watch.colour import Paint
from antiphon.cli.watch.story import Story, duration, story_of
from antiphon.client import AsyncClient
from antiphon.input.ids import turn_id
from antiphon.model import TERMINAL
from antiphon.redis.turn_info import runs_of, turn_info
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon.wire.cell import TurnRecord
from antiphon.wire.lists.inspection import unserved
from antiphon.wire.lists.turn_log import turn_log

__all__ = ["explain"]


def explain(argv: list[str]) -> int:
    """Tell the life of a turn: who held it, why it was tried again, where the time went

    It shows no text of users, models or tools. A turn is known for a week after its end, and its story for as long as
    its session keeps the events.
    """
    parser = command_parser(explain)
    parser.add_argument("turn", help="the turn's id")
    add_json(parser, "print one JSON object")
    add_redis(parser)
    options = parser.parse_args(argv)

    async def run() -> int:
        async with open_client(options) as client:
            told = await _told(client, options.turn)
        if options.json:
            print_json([told.plain()])
        else:
            told.show()
        return 0

    return asyncio.run(run())


async def _told(client: AsyncClient, turn: str) -> _Told:
    known = turn_id(turn)
    cell = client.connections.cell_of_turn(known)
    record = await cell.turn(known)
    story = story_of(await turn_log(cell, record), await cell.server_ms())
    return _Told(record, turn_info(record), runs_of(record), story, await unserved(cell, known))


class _Told:
    """What is known of a turn."""

    def __init__(
        self, record: TurnRecord, info: TurnInfo, runs: list[TurnRun], story: Story, hint: str
    ) -> None:
        self._info = info
        self._runs = runs
        self._story = story
        self._hint = hint
        fields = {name: value.decode(errors="replace") for name, value in record.fields.items()}
        self._queue = fields.get("queue", "")
        self._tenant = fields.get("tenant") or None
        self._worker = fields.get("worker") or None
        self._crashes, self._errors = (int(fields.get(name) or 0) for name in ("crashes", "errors"))

    def plain(self) -> dict[str, Any]:
        """All of it as plain data, with fields that stay."""
        info = self._info
        return {
            "turn_id": info.turn_id, "session_id": info.session_id, "status": info.status, "queue": self._queue,
            "tenant": self._tenant, "agent": info.agent, "run": info.run, "attempt": info.attempt,
            "worker": self._worker, "crashes": self._crashes, "errors": self._errors, "created": info.created,
            "started": info.started, "ended": info.ended, "code": info.code, "error": info.error,
            "usage": info.usage, "seconds": self._story.seconds,
            "story": [{"at": one.at, "text": one.text} for one in self._story.sentences],
        }  # fmt: skip

    def show(self) -> None:
        info, paint = self._info, Paint(sys.stdout)
        agent = f", for the agent {info.agent}" if info.agent else ""
        tenant = f" of the tenant {self._tenant}" if self._tenant else ""
        print(paint(f"Turn {info.turn_id} is {info.status}.", "bold"))
        where = f"session {info.session_id}{tenant} and the queue {self._queue}{agent}"
        print(paint(f"It was submitted to {where},"))
        print(f"at {clock_time(info.created)}.")
        for run in self._runs[:-1]:
            ended = f"at {clock_time(run.ended or 0)} ({run.code}): {run.error}"
            print(paint(f"Run {run.run} {run.status} {ended}"))
        if info.run > 1:
            print(f"This is run {info.run}.")
        print()
        for one in self._story.sentences:
            print(f"{paint(clock_time(one.at), 'dim')}  {paint(one.text, *filter(None, [one.style]))}")
        if not self._story.sentences:
            print("Its events are no longer kept.")
        print()
        print(self._time())
        self._next(paint)

    def _time(self) -> str:
        spent = {what: seconds for what, seconds in self._story.seconds.items() if seconds >= 0.001}
        if not spent:
            return "It has taken no time yet."
        parts = ", ".join(
            f"{duration(seconds)} {what}"
            for what, seconds in sorted(spent.items(), key=lambda item: -item[1])
        )
        verb = "took" if self._info.status in TERMINAL else "has taken"
        return f"It {verb} {duration(sum(spent.values()))}: {parts}."

    def _next(self, paint: Paint) -> None:
        """Say what can be done now."""
        info = self._info
        if self._crashes or self._errors:
            died, failed = counted(self._crashes, "time"), counted(self._errors, "time")
            print(f"Its workers died {died}, and its model service failed {failed}.")
        for call in info.calls:
            print(paint(f"It waits: antiphon approve {info.turn_id} {call.call_id}", "yellow"))
        if info.status == "failed":
            print(f"To run it again: antiphon requeue {info.turn_id}")
        if self._hint:
            print(paint(self._hint, "yellow"))
