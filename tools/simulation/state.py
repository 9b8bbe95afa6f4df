"""The contents of Redis: each key as read after its last change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from simulation.direct import Command

REGISTRIES = ("deferred", "scheduled", "finished", "failed", "canceled")
_LIST, _HASH, _ZSET, _LIFE = ("LRANGE", 0, -1), ("HGETALL",), ("ZRANGE", 0, -1, "WITHSCORES"), ("PTTL",)


def _names(raw: list[bytes]) -> list[str]:
    return [one.decode() for one in raw]


def _texts(raw: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in raw.items()}


def _scores(raw: list[tuple[bytes, float]]) -> dict[str, float]:
    return {member.decode(): score for member, score in raw}


def _members(raw: Iterable[bytes]) -> set[str]:
    return {one.decode() for one in raw}


def _as_it_is(raw: Any) -> Any:
    return raw


_READ: dict[str, tuple[Callable[[Any], Any], tuple[Command, ...]]] = {  # how each kind of key is read
    "ant:session": (_as_it_is, (_HASH, _LIFE)), "ant:history": (_as_it_is, (_LIST, _LIFE)),
    "ant:media": (_as_it_is, (_HASH, _LIFE)), "ant:inbox": (_names, (_LIST,)), "ant:events": (_as_it_is, ()),
    "ant:turns": (_names, (_LIST,)), "ant:turn": (_as_it_is, (_HASH, _LIFE)), "ant:journal": (_as_it_is, (_LIST,)),
    "rq:job": (_as_it_is, (("HGET", "status"), _LIFE)),
    "ant:schedule": (_as_it_is, (_HASH,)), "ant:bucket": (_as_it_is, (_HASH,)), "ant:bell": (_names, (_LIST,)),
    **{f"ant:{kind}": (_texts, (_HASH,)) for kind in ("held", "share", "quarantined", "spent", "variants")},
    "ant:user_line": (_scores, (_ZSET,)),
    **{f"ant:{kind}": (_scores, (_ZSET,)) for kind in ("line", "tenant", "active", "due", "suspended", "aside")},
    "ant:webhook": (_as_it_is, (_HASH,)),
    "ant:push_cursor": (_as_it_is, (("GET",),)),
    **{
        f"ant:{kind}": (_scores, (_ZSET,))
        for kind in ("schedules", "webhooks", "deliveries", "pushes", "unfunded")
    },
    **{f"rq:{kind}": (_scores, (_ZSET,)) for kind in ("wip", *REGISTRIES)},
    "rq:queue": (_names, (_LIST,)), "ant:user_places": (_members, (("SMEMBERS",),)),
}  # fmt: skip
_OF_SESSIONS = ("ant:session", "ant:history", "ant:inbox", "ant:turns")
_OF_TURNS = ("ant:turn", "ant:journal", "rq:job")


T = TypeVar("T")
_NOTHING: dict[bytes, bytes] = {}


class Broken(AssertionError):
    """A promise does not hold."""


def require(held: bool, promise: str, *facts: Any) -> None:
    if not held:
        raise Broken(f"{promise}: {', '.join(map(repr, facts))}")


class SessionState(NamedTuple):
    """A session in Redis, without its events."""

    fields: dict[bytes, bytes]
    history: list[bytes]
    inbox: list[str]
    turns: list[str]


class TurnState(NamedTuple):
    """A turn in Redis."""

    fields: dict[bytes, bytes]
    journal: list[bytes]
    ends: bool  # whether its record expires
    rq_status: str | None


class State:
    """The contents of Redis, updated by each ``take``. What does not exist is left out."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionState] = {}
        self.turns: dict[str, TurnState] = {}
        self.new_events: dict[str, list[Any]] = {}  # since the last ``take``
        self.ways: set[tuple[str, str]] = set()  # the transitions: old and new status
        self._read: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(dict)  # by kind
        self._asked: list[tuple[str, str, int]] = []

    def commands(self, changed: Iterable[bytes], next_seqs: Mapping[str, int]) -> list[Command]:
        """Return how to read these keys; of a session's events only the first, and those from its next ``seq`` on."""
        self._asked = []
        commands: list[Command] = []
        for key in changed:
            kind, rest = _parts(key.decode())
            if kind not in _READ:
                continue
            how = _READ[kind][1]
            if kind == "ant:events":
                how = (
                    ("XRANGE", f"{next_seqs.get(rest, 1)}-0", "+"),
                    ("XRANGE", "-", "+", "COUNT", 1),
                    _LIFE,
                )
            self._asked.append((kind, rest, len(how)))
            commands += [(word, key, *more) for word, *more in how]
        return commands

    def take(self, answers: Sequence[Any]) -> None:
        """Process the answers to the last ``commands``."""
        at, sessions, turns = 0, set[str](), set[str]()
        self.new_events.clear()
        for kind, rest, count in self._asked:
            first, *more = answers[at : at + count]
            self._read[kind][rest] = _READ[kind][0](first), *more
            at += count
            if kind in _OF_TURNS:
                turns.add(rest)
            elif kind in _OF_SESSIONS:
                sessions.add(rest)
            if kind == "ant:events":
                self.new_events[rest] = first
        for name in sessions:
            self.sessions[name] = self._session(name)
        for name in turns:
            self._replace(name, self._turn(name))

    def _replace(self, name: str, turn: TurnState | None) -> None:
        before = self.turns.pop(name, None)
        if turn:
            self.turns[name] = turn
            new, old = (one.fields[b"status"].decode() if one else "[*]" for one in (turn, before))
            if old != new and not self.is_deleted(name):
                self.ways.add((old, new))

    def is_deleted(self, turn: str) -> bool:
        """Return whether a turn is erased, except for the fact that it existed."""
        return b"deleted" in self.at("ant:turn", turn, _NOTHING)

    def at(self, kind: str, whose: str, otherwise: T) -> T:
        """Return the content of a key, read according to its kind."""
        found = self._read[kind].get(whose)
        return otherwise if found is None else found[0]

    def all(self, kind: str) -> dict[str, Any]:
        """Return the contents of all existing keys of a kind."""
        return {whose: found[0] for whose, found in self._read[kind].items() if found[0]}

    def lives(self, session: str) -> list[int]:
        """Return the TTLs of a session's keys in ms; -1 for a key that never expires, -2 for a missing key."""
        kinds = ("session", "history", "media", "events")
        return [self._read[f"ant:{kind}"].get(session, (-2,))[-1] for kind in kinds]

    def life_of_job(self, turn: str) -> int:
        return self._read["rq:job"].get(turn, (-2,))[-1]

    def oldest_seq(self, session: str) -> int:
        """Return the seq of the oldest kept event; 0 without any."""
        oldest = self._read["ant:events"].get(session, ((), ()))[1]
        return int(oldest[0][0].split(b"-")[0]) if oldest else 0

    def first_seq(self, session: str) -> int:
        """Return the first seq of the head's run; 0 before it has begun."""
        head = self.sessions[session].inbox[:1] if session in self.sessions else []
        return int(self.at("ant:turn", head[0], _NOTHING).get(b"first_seq", 0)) if head else 0

    def lease(self, session: str) -> int:
        return int(self.at("ant:session", session, _NOTHING).get(b"lease", 0))

    def _session(self, name: str) -> SessionState:
        kinds = "ant:history", "ant:inbox", "ant:turns"
        return SessionState(
            self.at("ant:session", name, _NOTHING), *(self.at(kind, name, []) for kind in kinds)
        )

    def _turn(self, name: str) -> TurnState | None:
        fields, life = self._read["ant:turn"].get(name, (_NOTHING, -2))
        if not fields:
            return None
        status = self._read["rq:job"].get(name, (None, -2))[0]
        rq_status = None if status is None else status.decode()
        return TurnState(fields, self.at("ant:journal", name, []), life >= 0, rq_status)


def _parts(key: str) -> tuple[str, str]:
    """Return the kind of a key, and its owner."""
    deployment, _, rest = key.partition(":")
    kind, _, whose = rest.partition(":")
    return f"{deployment}:{kind}", whose
