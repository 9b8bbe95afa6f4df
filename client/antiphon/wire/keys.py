"""Every key and channel: its kind, type, owner and lifetime.

The kind comes first and the id last, so that no id can reach another key. The keys in scripts are made from this
table (`lua_key`), so that each key is spelled in one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

PREFIX = "ant"
RQ = "rq"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of key. ``lifetime`` describes when it is removed; ``lasting`` kinds are not bounded by a TTL."""

    name: str
    template: str
    type: str
    holds: str
    lifetime: str
    lasting: bool = False


WHILE_LIVE = "no TTL while the session has turns in its inbox, then the session's own (30 days, sliding)"
WHILE_UNDECIDED = "an entry is removed when its turn continues or ends, after 30 days at most"
GRAPH_TTL = "30 days after the last write to the thread, or its checkpointer's `ttl`"
CONVERSATION_TTL = "30 days after its last save, or its store's `ttl`"
CONVERSATIONS_TTL = "with the last conversation that needs it"
BATCH_TTL = "two days after the deadline of the last step"
WHILE_OPEN = "no TTL until the turn ends, then 7 days"

KINDS: tuple[Kind, ...] = (
    Kind("session", "session:{}", "hash", "state of a session: head turn, fence, holder, lease, last seq",
         WHILE_LIVE + " and an hour, so that it outlives every other key of the session"),
    Kind("inbox", "inbox:{}", "list", "ids of the turns accepted and not yet ended, in order",
         "until the last turn ends", lasting=True),
    Kind("history", "history:{}", "list", "encoded messages of the finished turns, append-only except for edits",
         WHILE_LIVE),
    Kind("media", "media:{}", "hash", "files of a session, by the hash of their content: in chunks, or "
         "with their places in a byte store", WHILE_LIVE),
    Kind("events", "events:{}", "stream", "the session's events; the id is the seq", "no TTL while the session has "
         "turns in its inbox, then an hour or the `events_ttl` of its App, but no longer than the session"),
    Kind("turns", "turns:{}", "list", "ids of the session's last 1,000 turns, in the order in which they were accepted",
         WHILE_LIVE),
    Kind("turn", "turn:{}", "hash", "one turn: request, status, counters, response", WHILE_OPEN),
    Kind("journal", "journal:{}", "list", "finished steps and tool results of a running turn",
         "until the turn ends", lasting=True),
    Kind("active", "active", "sorted set", "every session with a turn in its inbox, by the time of its next check",
         "empty when idle", lasting=True),
    Kind("due", "due", "sorted set", "delayed turns, by the time at which they enter their inbox",
         "empty when idle", lasting=True),
    Kind("suspended", "suspended", "sorted set", "suspended turns, by the time of their suspension",
         WHILE_UNDECIDED, lasting=True),
    Kind("aside", "aside", "sorted set", "suspended turns that others may overtake, by the time of their next check",
         WHILE_UNDECIDED, lasting=True),
    Kind("sessions", "sessions", "sorted set", "all sessions, by the time at which they expire",
         "an entry is removed with its session", lasting=True),
    Kind("ending", "ending", "sorted set", "with an archive: sessions to archive, by the time to do it",
         "an entry is removed when its session is archived or deleted", lasting=True),
    Kind("fence", "fence", "counter", "the cell's fence counter", "kept", lasting=True),
    Kind("cells", "cells", "string", "on a cluster: the number of cells of the deployment, with their names if its URL "
         "has them", "kept", lasting=True),
    Kind("listed", "listed", "counter", "not on a cluster: how many cells the deployment lists, this one included",
         "31 days after the last worker process has written it"),
    Kind("moved", "moved", "string", "with `antiphon cells move`: where the cell is now (`to`), or from where it is "
         "copied (`from`)", "kept", lasting=True),
    Kind("arriving", "arriving:{}", "as its original", "a copy of a key that all sessions share, until the cell has "
         "arrived", "until the cell has arrived", lasting=True),
    Kind("gateway_secret", "gateway_secret", "string", "the secret of gateways that have none configured: it encrypts "
         "their cursors", "kept", lasting=True),
    Kind("byte_root", "byte_root", "string", "how the names of this cell's files begin in a byte store", "kept",
         lasting=True),
    Kind("swept", "swept", "string", "a worker has removed contents without a file from the byte store",
         "an hour after it has begun"),
    Kind("handed_out", "handed_out:{}", "string", "the response that ended with calls of client-side tools, by a keyed "
         "hash of its conversation", "a day"),
    Kind("seq_floor", "seq_floor", "counter", "with an archive: a seq that no archived session exceeds; "
        "recreated sessions continue from it", "kept", lasting=True),
    Kind("forget", "forget", "sorted set", "deleted sessions whose archived copy must be removed, by when",
         "empty when idle", lasting=True),
    Kind("erasing", "erasing", "hash", "deleted sessions, with the time of the deletion, until a worker has erased "
         "turns that they did not list; without a name, when it searches next", "7 days after the last deletion"),
    Kind("clock", "clock", "counter", "the server's time at the last check of a reaper, in ms, to "
        "detect a clock that was set back", "kept", lasting=True),
    Kind("quarantined", "quarantined", "hash", "sessions and delayed turns set aside because a key or "
         "field is damaged: when and why", "an entry is removed when it is repaired, has ended or is deleted",
         lasting=True),
    Kind("tenant", "tenant:{}", "sorted set", "unfinished turns of a tenant, by the time of their "
        "submission; queued and running ones below zero",
         "empty when the tenant is idle", lasting=True),
    Kind("schedules", "schedules", "sorted set", "schedules, by the time at which they are due next; paused ones at "
         "infinity", "an entry is removed when its schedule is deleted", lasting=True),
    Kind("schedule", "schedule:{}", "hash", "a schedule, by its name and session: what it submits, and "
        "its last outcome", "until it is deleted", lasting=True),
    Kind("scheduled", "scheduled:{}", "set", "the names of a session's schedules",
         "until they are deleted", lasting=True),
    Kind("tenant_schedules", "tenant_schedules:{}", "set", "the schedules of a tenant, by name and session",
         "until they are deleted", lasting=True),
    Kind("event_schedules", "event_schedules:{}", "sorted set", "the schedules of a tenant, or of none, that events "
         "start: the name of the event, or how it begins, and the schedule", "until they are deleted", lasting=True),
    Kind("event", "event:{}", "sorted set", "the ids of the events of a name that were sent, by their positions",
         "a day after the last one"),
    Kind("event_data", "event_data:{}", "hash", "these events: when they were sent, how many turns they have reached, "
         "their data", "a day after the last one"),
    Kind("tenant_events", "tenant_events:{}", "sorted set", "the events of a tenant, or of none, by the time at which "
         "they were sent", "a day after the last one"),
    Kind("event_position", "event_position", "counter", "the position of the last event that was sent in this cell",
         "kept", lasting=True),
    Kind("waiters", "waiters:{}", "sorted set", "turns that may wait for an event of a name, by the "
         "time of their suspension",
         "30 days after the last turn began to wait"),
    Kind("share", "share:{}", "hash", "by queue, the turn of a share (`@<tenant>`, `high`, `low`) in that queue",
         "empty when the share is idle", lasting=True),
    Kind("user_turns", "user_turns:{}", "sorted set", "turns of a user of a tenant (a hash of both) that have not "
         "ended, where their number is limited", "31 days after the last of them was submitted"),
    Kind("user_places", "user_places:{}", "set", "turns of a user of a tenant (a hash of both) that wait in the "
         "line of the tenant, are queued or run, where their number is limited",
         "31 days after the last of them was let in"),
    Kind("user_line", "user_line:{}", "sorted set", "turns of such a user that wait for others of the user, "
         "in their order", "31 days after the last of them has entered it"),
    Kind("user_pace", "user_pace:{}", "list", "when a user of a tenant (a hash of both) has submitted turns in the "
         "last minute, where that is limited", "a minute"),
    Kind("rounds", "rounds:{}", "hash", "by a hash of each user of a tenant, the last turn in the tenant's line and "
         "its place", "a day after the first of them has entered it"),
    Kind("line", "line:{}:{}", "sorted set", "turns of a share that wait to enter a queue, in their order",
         "empty when no turn waits", lasting=True),
    Kind("stored", "stored:{}", "hash", "the bytes of stored files of a tenant, where they are limited: of "
         "each session, and without a name of all", "40 days after the last change"),
    Kind("pace", "pace:{}", "list", "submission times of the last turns of a tenant with a limit per "
        "minute", "a minute"),
    Kind("limits", "limits", "hash", "the limits of tenants, and their defaults", "kept", lasting=True),
    Kind("budgets", "budgets:{}", "hash", "the budgets of a scope (`session`, `tenant`, `user`, `agent`), as JSON by "
         "name; those of names without their own have no name", "kept", lasting=True),
    Kind("spent", "spent:{}", "hash", "a ledger of budgets: what was used in a turn, a session, or the current day or "
         "month of a scope, and what running model calls hold",
         "40 days (turn); with its session; a day or a month after the end of its day or month"),
    Kind("unfunded", "unfunded", "sorted set", "turns that wait because a budget is used up, by the time at which they "
         "asked last", "an hour after the last of them has asked"),
    Kind("notices", "notices", "stream", "completion events of this cell, while something subscribes; "
        "the last 100,000", "7 days after the last subscription"),
    Kind("webhooks", "webhooks", "sorted set", "webhooks, by the time of their next check; those with nothing to "
         "deliver at infinity", "an entry is removed when its webhook is deleted", lasting=True),
    Kind("webhook", "webhook:{}", "hash", "a webhook: its events and URL, its secrets, and the state of its deliveries",
         "until it is deleted", lasting=True),
    Kind("deliveries", "deliveries:{}", "sorted set", "deliveries of a webhook, by the time of the next try",
         "an entry is removed when it was delivered, after a day at most", lasting=True),
    Kind("dispatched", "dispatched", "string", "the last completion event assigned to webhooks",
         "while there are webhooks", lasting=True),
    Kind("pushes", "pushes", "sorted set", "notifications about single turns (A2A), by the time of the next try",
         "an entry is removed when it was delivered, after a day at most", lasting=True),
    Kind("push_cursor", "push_cursor", "string", "the last completion event assigned to such notifications",
         "40 days after a turn was last given one"),
    Kind("unindexed", "unindexed:{}", "sorted set", "sessions that a memory is to index or to forget, by the time of "
         "the next try", "empty when idle", lasting=True),
    Kind("remembered", "remembered:{}", "hash", "which turns of a session are in the index of which "
        "memory, with the number of documents, and which are to be indexed",
         "until the session is deleted", lasting=True),
    Kind("facts", "facts:{}", "hash", "the facts of a scope of a memory, each with its revisions and their sources",
         "until a fact's last source is deleted, or the fact is", lasting=True),
    Kind("taking_over", "taking_over:{}", "hash", "how much of the replaced memory a memory has indexed",
         "kept", lasting=True),
    Kind("graph_data", "graph:data:{}", "hash", "checkpoints, values and writes of a LangGraph thread", GRAPH_TTL),
    Kind("graph_index", "graph:index:{}", "sorted set", "the names of these fields, in the order in which they are "
         "listed", GRAPH_TTL),
    Kind("pydantic_record", "pydantic:record:{}", "hash", "a conversation of pydantic-ai, without its messages",
         CONVERSATION_TTL),
    Kind("pydantic_entry", "pydantic:entry:{}", "hash", "a message of such conversations, and the entry before it",
         CONVERSATIONS_TTL),
    Kind("pydantic_family", "pydantic:family:{}", "set", "conversations that may share entries: forks of each other",
         CONVERSATIONS_TTL),
    Kind("pydantic_index", "pydantic:index", "sorted set", "all conversations, by the time of their last save in µs",
         CONVERSATIONS_TTL),
    Kind("pydantic_scope", "pydantic:scope:{}", "sorted set", "the conversations of a scope, in the same order",
         CONVERSATIONS_TTL),
    Kind("bucket", "bucket:{}", "hash", "a rate limit of a provider, model and key (a part of its hash): when the next "
         "call may start", "a minute after the last turn that waited for it"),
    Kind("app", "app:{}", "string", "the revisions of an App's agents, by a hash of what the App has",
         "31 days after the last worker with it"),
    Kind("mcp_tools", "mcp_tools:{}", "hash", "hashes of the names, descriptions and schemas of the tools that an MCP "
         "server has listed", "31 days after its last list"),
    Kind("promotions", "promotions", "string", "which revisions of agents sessions take at their next turns, as JSON "
         "by agent", "until the last one is reset", lasting=True),
    Kind("figures", "figures:{}", "hash", "how the turns of an agent's revision ended: figures of the last 100 "
         "worker processes, as JSON by their names, those of others (`past`), and the feedback (`rated`, `scores`)",
         "31 days after the last such turn"),
    Kind("missing", "missing:{}", "set", "turns that wait for a revision that no worker has",
         "7 days after the last turn began to wait"),
    Kind("requests", "requests:{}", "hash", "what models received in a turn, where its App keeps that: a "
         "request by its run, attempt and number, and their bytes in all", "7 days after the turn's last model call"),
    Kind("variants", "variants:{}", "hash", "what came of an ended turn that workers ran again, by the variant's id",
         "7 days after the last one, or as long as the turn"),
    Kind("rated", "rated", "sorted set", "turns with feedback, by its time", "8 days after the last feedback"),
    Kind("rated_of", "rated:{}", "sorted set", "those of a tenant", "8 days after the last feedback"),
    Kind("batch_step", "batch_step:{}", "hash", "a model step that is answered in a batch: its turn, and its request "
         "until it is sent", BATCH_TTL),
    Kind("batch_outbox", "batch_outbox:{}", "sorted set", "steps of a provider and model that are in no batch yet, by "
         "their times", BATCH_TTL),
    Kind("batch_groups", "batch_groups", "sorted set", "the providers and models of these, by the time at which their "
         "steps are sent", BATCH_TTL),
    Kind("batches", "batches", "sorted set", "batches at model services, by the time of their next check", BATCH_TTL),
    Kind("batch", "batch:{}", "hash", "a batch: its provider and model, its state, its id at the service", BATCH_TTL),
    Kind("batch_steps", "batch_steps:{}", "list", "the steps of a batch", BATCH_TTL),
    Kind("held", "held:{}", "hash", "sessions held by a worker process, with their fences",
         "an hour after the last claim or renewal"),
    Kind("bell", "bell:{}", "list", "the wake-up key of a queue or a stopping worker, at most one entry",
         "a minute after it was written"),
)  # fmt: skip

CHANNELS: dict[str, str] = {
    "live": "live:{}:{}",  # database and session: a channel ignores SELECT
    "control": "control:{}",
    "buckets": "buckets:{}",  # database
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

SHARED: dict[str, str] = {
    kind.template: kind.type
    for kind in KINDS
    if "{}" not in kind.template and not kind.name.startswith("pydantic")
}
"""The keys of a deployment that all sessions share, without the prefix, and their types."""

RQ_SHARED: dict[str, str] = {
    "rq_queue": "list",
    **dict.fromkeys(
        ("rq_started", "rq_deferred", "rq_scheduled", "rq_finished", "rq_failed", "rq_canceled"), "sorted set"
    ),
}
"""The keys of each queue of RQ, and their types."""

REDIS_TYPES = {"sorted set": "zset", "counter": "string"}
"""The names of types in Redis, where they differ."""

_TEMPLATES = {kind.name: kind.template for kind in KINDS} | CHANNELS


_TAG = re.compile(r"\{\d+\}:")
_OF_A_DATABASE = ("live", "buckets")


class Key(str):
    """The name of a key or channel at one place of a cell; it differs at other places."""

    __slots__ = ()


class _One:
    """The only key of a kind."""

    def __set_name__(self, _: type, kind: str) -> None:
        self._kind = kind

    def __get__(self, keys: Keys, _: object = None) -> Key:
        return keys.of(self._kind)


class _Of:
    """The keys of a kind, by one id."""

    def __set_name__(self, _: type, kind: str) -> None:
        self._kind = kind

    def __get__(self, keys: Keys, _: object = None) -> Callable[[object], Key]:
        return partial(keys.of, self._kind)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cell, by their kinds. Keys of sessions, turns, … are functions of an id.

    >>> Keys("ant").session("user-123")
    'ant:session:user-123'
    >>> Keys("ant").active
    'ant:active'
    >>> Keys("ant", "17").session("user-123")
    'ant:{17}:session:user-123'
    """

    deployment: str = PREFIX
    tag: str = ""
    """The hash tag of a cell on a cluster."""
    prefix: str = field(init=False)
    rq: str = field(init=False)
    declared: tuple[int | str, ...] = field(init=False)
    """The keys that a script declares: on a cluster one, which determines its node.

    No such key exists. While the cluster moves a slot key by key, a node refuses a script before it begins if the key
    is not there. A declared key that exists would let the script begin, and fail at the first key that has moved.
    """

    def __post_init__(self) -> None:
        tag = f":{{{self.tag}}}" if self.tag else ""
        object.__setattr__(self, "prefix", f"{self.deployment}{tag}")
        object.__setattr__(self, "rq", f"{RQ}{tag}")
        object.__setattr__(self, "declared", (1, f"{self.prefix}:-") if tag else (0,))

    session = _Of()
    inbox = _Of()
    history = _Of()
    media = _Of()
    events = _Of()
    turns = _Of()
    turn = _Of()
    journal = _Of()
    tenant = _Of()
    bucket = _Of()
    buckets = _Of()
    share = _Of()
    rounds = _Of()
    user_turns = _Of()
    user_places = _Of()
    user_line = _Of()
    user_pace = _Of()
    pace = _Of()
    stored = _Of()
    budgets = _Of()
    spent = _Of()
    batch_step = _Of()
    batch_outbox = _Of()
    batch = _Of()
    batch_steps = _Of()
    held = _Of()
    app = _Of()
    mcp_tools = _Of()
    figures = _Of()
    missing = _Of()
    requests = _Of()
    variants = _Of()
    rated_of = _Of()
    handed_out = _Of()
    bell = _Of()
    arriving = _Of()
    control = _Of()
    schedule = _Of()
    tenant_schedules = _Of()
    event_schedules = _Of()
    event = _Of()
    event_data = _Of()
    tenant_events = _Of()
    waiters = _Of()
    scheduled = _Of()
    webhook = _Of()
    deliveries = _Of()
    unindexed = _Of()
    facts = _Of()
    taking_over = _Of()
    remembered = _Of()
    graph_data = _Of()
    graph_index = _Of()
    pydantic_record = _Of()
    pydantic_entry = _Of()
    pydantic_family = _Of()
    pydantic_scope = _Of()
    limits = _One()
    active = _One()
    due = _One()
    suspended = _One()
    aside = _One()
    sessions = _One()
    ending = _One()
    fence = _One()
    cells = _One()
    listed = _One()
    moved = _One()
    byte_root = _One()
    swept = _One()
    gateway_secret = _One()
    seq_floor = _One()
    forget = _One()
    erasing = _One()
    clock = _One()
    schedules = _One()
    event_position = _One()
    unfunded = _One()
    dispatched = _One()
    pushes = _One()
    push_cursor = _One()
    webhooks = _One()
    pydantic_index = _One()
    notices = _One()
    quarantined = _One()
    promotions = _One()
    rated = _One()
    batches = _One()
    batch_groups = _One()

    def live(self, database: int, session_id: str) -> Key:
        return self.of("live", database, session_id)

    def line(self, queue: str, share: str) -> Key:
        return self.of("line", queue, share)

    def of(self, kind: str, *ids: object) -> Key:
        """Return the key of a kind with these ids."""
        return Key(f"{self.prefix}:{_TEMPLATES[kind].format(*ids)}")

    def of_rq(self, kind: str, *ids: str) -> Key:
        """Return a key of RQ's own, by its name in `RQ_KEYS`."""
        return Key(f"{self.rq}:{RQ_KEYS[kind].format(*ids)}")

    def of_deployment(self, prefix: str) -> bool:
        """Return whether keys with this prefix belong to this deployment, at any place of the cell."""
        return prefix.partition(":")[0] == self.deployment

    def again(self, key: str, database: int) -> Key:
        """Return the name that a key or channel of another place has at this place, whose database is ``database``.

        >>> Keys("ant", "17").again("ant:session:user-123", 0)
        'ant:{17}:session:user-123'
        >>> Keys("ant").again("ant:{17}:live:0:user-123", 3)
        'ant:live:3:user-123'
        """
        first, _, rest = key.partition(":")
        found = _TAG.match(rest)
        parts = rest[found.end() if found else 0 :].split(":", 2)
        if first == self.deployment and parts[0] in _OF_A_DATABASE:
            parts[1] = str(database)
        return Key(":".join([self.prefix if first == self.deployment else self.rq, *parts]))


def rq_key(kind: str, *ids: str) -> Key:
    """Return a key of RQ's own outside a cluster, by its name in `RQ_KEYS`."""
    return Keys().of_rq(kind, *ids)


def needs_ttl(key: str, prefix: str = PREFIX) -> bool:
    """Return whether a key without a TTL is a leak while nothing runs."""
    kind = key.removeprefix(f"{prefix}:").split(":", 1)[0]
    return not any(known.lasting and known.name == kind for known in KINDS)


def lua_shared_keys() -> str:
    """Return the scripts' tables of the keys that all sessions share.

    The first one has the type of each key and whether it holds a number; the second one has the types of RQ's keys, by
    the part before the name of a queue.
    """
    lines = [
        f"[PREFIX .. ':{template}'] = {{'{REDIS_TYPES.get(kind, kind)}', {str(kind == 'counter').lower()}}}"
        for template, kind in SHARED.items()
    ]
    lines.append(f"['{rq_key('rq_queues')}'] = {{'set', false}}")
    stems = [f"['{rq_key(name, '')}'] = '{REDIS_TYPES.get(kind, kind)}'" for name, kind in RQ_SHARED.items()]
    return f"local SHARED_KEYS, SHARED_STEMS = {{{', '.join(lines)}}}, {{{', '.join(stems)}}}\n"


def lua_key(name: str, *ids: str) -> str:
    """Return the Lua expression of a key whose ids are these expressions; it uses the locals PREFIX and DB.

    >>> lua_key("line", "f.queue", "share")
    "(PREFIX .. ':line:' .. f.queue .. ':' .. share)"
    """
    root, template = (f"'{RQ}", RQ_KEYS[name]) if name in RQ_KEYS else ("PREFIX .. '", _TEMPLATES[name])
    parts = template.split("{}")
    values = [one if re.fullmatch(r"[\w.]+", one) else f"({one})" for one in ids]
    if name == "live":
        values = ["DB", *values]
    joined = (
        "".join(f"{part}' .. {value} .. '" for part, value in zip(parts, values, strict=False)) + parts[-1]
    )
    return f"({root}:{joined}')".replace(" .. ''", "")
