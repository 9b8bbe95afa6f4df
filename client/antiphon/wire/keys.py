"""Every key and channel: its kind, type, owner and how long it stays.

The kind stands first and the id last, so that no id can reach another key. The scripts' own key functions are
made from this table (`lua_key_functions`), so that a key is spelled in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "PREFIX", "Keys", "Kind", "lua_key_functions", "needs_ttl"]

PREFIX = "ant"
RQ = "rq"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key. ``lifetime`` says when it goes; ``lasting`` kinds are bounded by other means than a TTL."""

    name: str
    template: str
    type: str
    holds: str
    lifetime: str
    lasting: bool = False


WHILE_LIVE = "no TTL while the session has turns in its inbox, then the session's own (30 days, sliding)"
WHILE_OPEN = "no TTL until the turn ends, then 7 days"

KINDS: tuple[Kind, ...] = (
    Kind("session", "session:{}", "hash", "state of a session: head turn, fence, holder, lease, last seq",
         WHILE_LIVE + " and an hour, so that it outlives every other key of the session"),
    Kind("inbox", "inbox:{}", "list", "ids of the turns accepted and not yet ended, in order",
         "gone when the last turn ends", lasting=True),
    Kind("history", "history:{}", "list", "encoded messages of the finished turns, append only", WHILE_LIVE),
    Kind("events", "events:{}", "stream", "the session's events; the id is the seq", WHILE_LIVE),
    Kind("turns", "turns:{}", "list", "ids of the session's turns, the last 1,000, in the order in which they came",
         WHILE_LIVE),
    Kind("turn", "turn:{}", "hash", "one turn: request, status, counters, response", WHILE_OPEN),
    Kind("journal", "journal:{}", "list", "what a running turn has achieved", "gone when the turn ends", lasting=True),
    Kind("active", "active", "sorted set", "every session with a turn in its inbox, by when to look at it next",
         "empty when nothing is left to do", lasting=True),
    Kind("due", "due", "sorted set", "delayed turns, by when they enter their inbox",
         "empty when nothing is left to do", lasting=True),
    Kind("sessions", "sessions", "sorted set", "sessions by the end of their life",
         "an entry goes with its session", lasting=True),
    Kind("ending", "ending", "sorted set", "where an archive is in use: sessions to be archived, by when",
         "an entry goes when its session is archived or deleted", lasting=True),
    Kind("fence", "fence", "counter", "the cell's fence counter", "kept", lasting=True),
    Kind("seq_floor", "seq_floor", "counter", "where an archive is in use: no archived session had a higher seq, and "
         "sessions that begin anew go on from it", "kept", lasting=True),
    Kind("forget", "forget", "sorted set", "deleted sessions whose archived copy must go, by when",
         "empty when nothing is left to do", lasting=True),
    Kind("clock", "clock", "counter", "the server's time when a reaper looked last, in ms: so one that is put back is "
         "noticed", "kept", lasting=True),
    Kind("quarantined", "quarantined", "hash", "sessions and delayed turns set aside, because a key or field of "
         "theirs is damaged: when, and why", "an entry goes when it is mended, has ended or is deleted", lasting=True),
    Kind("held", "held:{}", "hash", "sessions that one incarnation of a worker holds, with their fences",
         "an hour after the last claim or renewal"),
    Kind("bell", "bell:{}", "list", "the doorbell of a queue or a stopping worker, at most one entry",
         "a minute after it was rung"),
)  # fmt: skip

CHANNELS: dict[str, str] = {
    "live": "live:{}:{}",  # database and session: a channel ignores SELECT
    "control": "control:{}",
}

RQ_KEYS: dict[str, str] = {
    "rq_job": "job:{}",
    "rq_queue": "queue:{}",
    "rq_intermediate": "queue:{}:intermediate",
    "rq_started": "wip:{}",
    "rq_deferred": "deferred:{}",
    "rq_scheduled": "scheduled:{}",
    "rq_finished": "finished:{}",
    "rq_failed": "failed:{}",
    "rq_canceled": "canceled:{}",
    "rq_workers_of": "workers:{}",
    "rq_worker": "worker:{}",
    "rq_pubsub": "pubsub:{}",
    "rq_queues": "queues",
    "rq_workers": "workers",
    "rq_suspended": "suspended",
    "rq_executions": "executions:{}",
    "rq_results": "results:{}",
    "rq_worker_executions": "worker:{}:executions",
    "rq_execution": "execution:{}:{}",
}

_TEMPLATES = {kind.name: kind.template for kind in KINDS} | CHANNELS


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one deployment.

    >>> Keys("ant").session("user-123")
    'ant:session:user-123'
    """

    prefix: str = PREFIX

    def _key(self, kind: str, *ids: object) -> str:
        return f"{self.prefix}:{_TEMPLATES[kind].format(*ids)}"

    def session(self, session_id: str) -> str:
        return self._key("session", session_id)

    def inbox(self, session_id: str) -> str:
        return self._key("inbox", session_id)

    def history(self, session_id: str) -> str:
        return self._key("history", session_id)

    def events(self, session_id: str) -> str:
        return self._key("events", session_id)

    def live(self, database: int, session_id: str) -> str:
        return self._key("live", database, session_id)

    def turns(self, session_id: str) -> str:
        return self._key("turns", session_id)

    def turn(self, turn_id: str) -> str:
        return self._key("turn", turn_id)

    def journal(self, turn_id: str) -> str:
        return self._key("journal", turn_id)

    def held(self, worker: str) -> str:
        return self._key("held", worker)

    def bell(self, queue: str) -> str:
        return self._key("bell", queue)

    def control(self, worker: str) -> str:
        return self._key("control", worker)

    @property
    def active(self) -> str:
        return self._key("active")

    @property
    def due(self) -> str:
        return self._key("due")

    @property
    def sessions(self) -> str:
        return self._key("sessions")

    @property
    def ending(self) -> str:
        return self._key("ending")

    @property
    def fence(self) -> str:
        return self._key("fence")

    @property
    def seq_floor(self) -> str:
        return self._key("seq_floor")

    @property
    def forget(self) -> str:
        return self._key("forget")

    @property
    def clock(self) -> str:
        return self._key("clock")

    @property
    def quarantined(self) -> str:
        return self._key("quarantined")


def rq_key(kind: str, *ids: str) -> str:
    """A key of RQ's own, by the name it has in `RQ_KEYS`."""
    return f"{RQ}:{RQ_KEYS[kind].format(*ids)}"


def needs_ttl(key: str, prefix: str = PREFIX) -> bool:
    """Whether a key that has no TTL while nothing runs is a leak."""
    kind = key.removeprefix(f"{prefix}:").split(":", 1)[0]
    return not any(known.lasting and known.name == kind for known in KINDS)


def lua_key_functions() -> str:
    """The key functions of the scripts: ``key_session(id)``, ``key_rq_job(id)``, … over the locals PREFIX and DB."""
    lines: list[str] = []
    for root, templates in (("PREFIX", _TEMPLATES), (f"'{RQ}'", RQ_KEYS)):
        for name, template in templates.items():
            if name == "live":
                lines.append("local function key_live(id) return PREFIX .. ':live:' .. DB .. ':' .. id end")
                continue
            stem, *rest = template.split("{}")
            ids = ["id", "second"][: len(rest)]
            suffix = "".join(
                f" .. {one}" + (f" .. '{text}'" if text else "") for one, text in zip(ids, rest, strict=True)
            )
            lines.append(
                f"local function key_{name}({', '.join(ids)}) return {root} .. ':{stem}'{suffix} end"
            )
    return "\n".join(lines)
