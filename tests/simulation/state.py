"""What stands in Redis after a step, read in one round trip."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError

from simulation.direct import DirectRedis

__all__ = ["SessionState", "State", "TurnState", "answer_to", "look_command", "read_state"]

_SOURCE = (Path(__file__).parent / "read_state.lua").read_text()
_SHA = hashlib.sha1(_SOURCE.encode()).hexdigest()
REGISTRIES = ("deferred", "scheduled", "finished", "failed", "canceled")


@dataclass
class SessionState:
    fence: str
    holder: str
    lease: int
    seq: int
    stop: str
    batch: int
    inbox: list[str]
    history: list[bytes]
    new_events: list[tuple[str, bytes]]
    look_at: int | None
    lives: list[int]
    oldest_seq: int
    first_seq: int  # of the head's run, 0 before it has begun
    kept: str


@dataclass
class TurnState:
    status: str
    run: int
    attempt: int
    crashes: int
    errors: int
    cancel: str
    journal: list[bytes]
    rq_status: str | None
    registries: list[str]
    lives: list[int]
    due_at: int | None


@dataclass
class State:
    sessions: dict[str, SessionState] = field(default_factory=dict)
    turns: dict[str, TurnState] = field(default_factory=dict)
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    queues: dict[str, list[str]] = field(default_factory=dict)
    started: dict[str, dict[str, str]] = field(default_factory=dict)
    active: int = 0
    due: int = 0
    quarantined: set[str] = field(default_factory=set)


def look_command(
    sessions: dict[str, int], turns: dict[str, str], workers: list[str], queues: list[str]
) -> tuple[Any, ...]:
    """The command that reads all. ``sessions`` gives for each the first seq to read, ``turns`` for each its queue."""
    asked = {
        "sessions": list(sessions.items()),
        "turns": list(turns.items()),
        "workers": workers,
        "queues": queues,
    }
    return ("EVALSHA", _SHA, 0, json.dumps(asked))


def answer_to(redis: DirectRedis, command: tuple[Any, ...]) -> Any:
    """Send it alone."""
    try:
        return redis.call(*command)
    except NoScriptError:
        return redis.call("EVAL", _SOURCE, *command[2:])


def read_state(command: tuple[Any, ...], found: Any) -> State:
    """The answer to ``look_command``. What does not exist is left out."""
    asked = json.loads(command[3])
    of_sessions, of_turns, of_workers, of_queues, (active, due, quarantined) = found
    state = State(active=active, due=due, quarantined={name.decode() for name in quarantined})
    for (name, _), raw in zip(asked["sessions"], of_sessions, strict=True):
        state.sessions[name] = _session(raw)
    for (name, _), raw in zip(asked["turns"], of_turns, strict=True):
        if raw[0][0] is not None:
            state.turns[name] = _turn(raw)
    for name, raw in zip(asked["workers"], of_workers, strict=True):
        state.held[name] = _pairs(raw)
    for name, (entries, started) in zip(asked["queues"], of_queues, strict=True):
        state.queues[name] = [entry.decode() for entry in entries]
        state.started[name] = _pairs(started)
    return state


def _session(raw: Any) -> SessionState:
    (fence, holder, lease, seq, stop, batch), inbox, history, events, look_at, lives, oldest, first, kept = (
        raw
    )
    return SessionState(
        _text(fence), _text(holder), int(lease or 0), int(seq or 0), _text(stop), int(batch or 0),
        [turn.decode() for turn in inbox], history, [(entry.decode(), fields[1]) for entry, fields in events],
        None if look_at is None else int(float(look_at)), lives,
        int(oldest[0][0].split(b"-")[0]) if oldest else 0, int(first or 0), _text(kept),
    )  # fmt: skip


def _turn(raw: Any) -> TurnState:
    (status, run, attempt, crashes, errors, cancel), journal, rq_status, registries, lives, due_at = raw
    return TurnState(
        _text(status), int(run), _count(attempt), _count(crashes), _count(errors), _text(cancel), journal,
        None if rq_status is None else rq_status.decode(),
        [name for name, member in zip(REGISTRIES, registries, strict=True) if member], lives,
        None if due_at is None else int(float(due_at)),
    )  # fmt: skip


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _count(value: bytes) -> int:
    """-1 for junk."""
    return int(value) if value.isdigit() else -1


def _pairs(flat: list[bytes]) -> dict[str, str]:
    return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
