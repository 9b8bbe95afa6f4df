"""A cell of Redis and the memory cell beside it: each transition is made in both, and compared."""

from __future__ import annotations

import json
from typing import Any

from antiphon.wire.cell import Cell
from antiphon_worker.local.records import Session
from antiphon_worker.local.transitions import Transitions
from simulation.checks import require
from simulation.direct import DirectRedis

# What only servers write: the record of RQ, archives.
OF_SERVERS = {"restored"}
WITHOUT = ("schedules/", "limits/", "webhooks/", "notices/")


class Lasting(Transitions):
    """Sessions that never expire: in Redis they do so by the real clock, and a schedule is over before that."""

    def _release(self, session: Session, now: int) -> None:
        session.expires = None


class TwinCell(Cell):
    """Runs each script, makes the same transition in memory, and compares the answers and all that they have left."""

    def __init__(self, redis: DirectRedis, now: Any) -> None:
        super().__init__(redis, clock="test_clock")  # type: ignore[arg-type]
        self._direct = redis
        self._now = now

    def reset(self) -> None:
        self.transitions = Lasting(self._now)

    async def run(self, name: str, *arguments: Any) -> Any:
        answer = await super().run(name, *arguments)
        if not name.startswith(WITHOUT):
            found = getattr(self.transitions, name.rpartition("/")[2])(*arguments)
            require(read(name, found) == read(name, answer), f"{name} answers the same", found, answer)
            self._compare(name)
        return answer

    def _compare(self, name: str) -> None:
        for session in self.transitions.sessions.values():
            self._compare_session(session, name)
        turns = list(self.transitions.turns.values())
        commands = [("HGETALL", f"ant:turn:{turn.id}") for turn in turns]
        commands += [("LRANGE", f"ant:journal:{turn.id}", 0, -1) for turn in turns]
        answers = self._direct.calls(commands) if commands else []
        for turn, fields, journal in zip(turns, answers, answers[len(turns) :], strict=False):
            same(f"{turn.id} after {name}", turn.record, fields)
            require(plain(turn.journal) == plain(journal), f"the journal of {turn.id}", turn.journal, journal)

    def _compare_session(self, session: Session, name: str) -> None:
        fields, history, inbox, turns, events = self._direct.calls(
            [
                ("HGETALL", f"ant:session:{session.id}"),
                ("LRANGE", f"ant:history:{session.id}", 0, -1),
                ("LRANGE", f"ant:inbox:{session.id}", 0, -1),
                ("LRANGE", f"ant:turns:{session.id}", 0, -1),
                ("XRANGE", f"ant:events:{session.id}", "-", "+"),
            ]
        )
        what = f"{session.id} after {name}"
        same(what, session.record, fields)
        require(session.history == history, f"the history of {what}", session.history, history)
        ids = [turn.id.encode() for turn in session.inbox]
        require(ids == inbox, f"the inbox of {what}", ids, inbox)
        ids = [turn.id.encode() for turn in session.turns]
        require(ids == turns, f"the turns of {what}", ids, turns)
        logged = [json.loads(values[1]) for _, values in events]
        found = [json.loads(event) for _, event in session.events]
        require(found == logged, f"the events of {what}", found, logged)


def same(what: str, record: dict[str, bytes], fields: Any) -> None:
    """Compare the fields of a record. A field without a value counts as none."""
    known = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    redis = {name.decode(): plain(value) for name, value in known.items() if value}
    memory = {name: plain(value) for name, value in record.items() if value}
    for name in (redis.keys() | memory.keys()) - OF_SERVERS:
        require(memory.get(name) == redis.get(name), f"{name} of {what}", memory.get(name), redis.get(name))


def read(name: str, answer: Any) -> Any:
    """An answer as it can be compared: of records, which are lists of names and values, the order does not count."""
    if name in ("reap", "claim"):  # a repeated claim, and what a dead worker held, come in any order
        return [sorted(map(str, plain(one))) if isinstance(one, list) else one for one in answer]
    if name != "snapshot" or len(answer) == 1:
        return plain(answer)
    *before, fields, inbox, turns, order = answer
    return (
        plain([*before, inbox, order]),
        paired(fields),
        [(plain(turn), paired(flat)) for turn, flat in turns],
    )


def paired(flat: list[bytes]) -> dict[bytes, Any]:
    """A record that an answer has as a list."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name: plain(value) for name, value in pairs if value and name.decode() not in OF_SERVERS}


def plain(value: Any) -> Any:
    """An answer as it can be compared: numbers and JSON whatever their spelling."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
