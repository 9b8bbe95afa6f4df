"""Lists the agents of a cell's workers by their revisions, and the turns that run on each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from antiphon.errors import CorruptRecord
from antiphon.model.revisions import Revision
from antiphon.text import number, text_of
from antiphon.wire.cell import Cell
from antiphon.wire.errors import asked
from antiphon.wire.lists.reading import fields_of, workers_of
from antiphon.wire.lists.workers import FIELD
from antiphon.wire.records import ClaimedTurn, TurnRecord

PAGE = 1000  # sessions that one round trip reads
LOOKED_AT = 21  # turns of a session, including the current one


class Advertised(Struct):
    """The revisions of a worker's agents by name, from its record."""

    prefix: str = ""
    revisions: dict[str, Revision] = field(default_factory=dict)


class BegunTurn(Struct):
    """A turn that has begun and not ended, and the agent and revision that it runs on, if known."""

    turn_id: str
    session_id: str
    status: str
    agent: str
    revision: str


async def advertised(cell: Cell) -> dict[str, Mapping[str, Revision]]:
    """Return the revisions of each live worker of this prefix, by the worker's name. Raises ``StoreError``."""
    names = await workers_of(cell)
    records = await fields_of(cell, (cell.keys.of_rq("rq_worker", name) for name in names), FIELD)
    found: dict[str, Mapping[str, Revision]] = {}
    for name, (record,) in zip(names, records, strict=True):
        with suppress(msgspec.MsgspecError, UnicodeError):
            one = msgspec.json.decode(record or b"", type=Advertised)
            if cell.keys.of_deployment(one.prefix):
                found[name] = one.revisions
    return found


async def revisions_of_app(cell: Cell, digest: str) -> dict[str, Revision] | None:
    """Return the revisions of an App by its hash, or None if no worker has had it for a month.

    Raises ``StoreError``.
    """
    found: bytes | None = await asked(cell.redis.get(cell.keys.app(digest)))
    if found is None:
        return None
    try:
        return msgspec.json.decode(found, type=dict[str, Revision])
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise CorruptRecord(f"The revisions of an App cannot be read: {exc}.") from exc


_FIELDS = ("status", "session", "started_at", "agent", "app", "revision")


async def begun_turns(cell: Cell) -> list[BegunTurn]:
    """Return the turns of a cell that have begun and not ended. Raises ``StoreError``."""
    apps: dict[str, Mapping[str, Revision]] = {}
    found: list[BegunTurn] = []
    turns = [text_of(turn) for turn in await asked(cell.redis.zrange(cell.keys.aside, 0, -1))]
    first = 0
    while sessions := await asked(cell.redis.zrange(cell.keys.active, first, first + PAGE - 1)):
        pipe = cell.redis.pipeline(transaction=False)
        for session in sessions:
            pipe.lindex(cell.keys.inbox(text_of(session)), 0)
        heads = await asked(pipe.execute(raise_on_error=False))
        turns += [text_of(head) for head in heads if isinstance(head, bytes)]
        first += PAGE
    for at in range(0, len(turns), PAGE):
        page = turns[at : at + PAGE]
        rows = await fields_of(cell, map(cell.keys.turn, page), *_FIELDS)
        agents = await fields_of(cell, (cell.keys.session(text_of(row[1])) for row in rows), "agent")
        for turn, row, (agent,) in zip(page, rows, agents, strict=True):
            status, session, began, own, app, noted = row
            if session and began:
                name = _agent_name(cell, text_of(session), own or agent)
                revision = text_of(noted) or (await _revision(cell, text_of(app), name, apps) if app else "")
                found.append(BegunTurn(turn, text_of(session), text_of(status), name, revision))
    return found


async def revision_of(cell: Cell, record: TurnRecord) -> tuple[str, str]:
    """Return the agent and the revision that a turn ran on, each '' if unknown. Raises ``StoreError``."""
    noted, app = (text_of(record.fields.get(name)) for name in ("revision", "app"))
    if not (noted or app):
        return "", ""
    own = record.fields.get("agent")
    if not own:
        session = cell.keys.session(record.session_id)
        ((own, tenant, created),) = await fields_of(cell, [session], "agent", "tenant", "created")
        later = number(created) > number(record.fields.get("created"))
        if later or record.tenant not in (None, text_of(tenant)):
            own = b""  # the turn has outlived its session: this is a later one
        own = cell.seal.open(record.session_id, "agent", own or b"")
    known = {} if not app else await revisions_of_app(cell, app) or {}
    name = _named(own) or (next(iter(known)) if len(known) == 1 else "")
    return name, noted or (known[name].id if name in known else "")


class LastTurn(NamedTuple):
    """The hash of the App that a turn began on, and its revision if that was noted."""

    app: str
    revision: str


async def last_of(cell: Cell, turn: ClaimedTurn, agent: str) -> LastTurn | None:
    """Return the last of the session's newest turns before this one with an agent, or None. Raises ``StoreError``."""
    session = turn.session_id
    listed = [
        text_of(one) for one in await asked(cell.redis.lrange(cell.keys.turns(session), -LOOKED_AT, -1))
    ]
    before = listed[: listed.index(turn.turn_id)] if turn.turn_id in listed else []
    keys = [cell.keys.session(session), *map(cell.keys.turn, before)]
    (own, *_), *rows = await fields_of(cell, keys, "agent", "app", "revision")
    for row in reversed(rows):
        known, app, revision = row
        if (app or revision) and _agent_name(cell, session, known or own) in ("", agent):
            return LastTurn(text_of(app), text_of(revision))
    return None


class SessionRevisions(NamedTuple):
    """A session's revisions by agent: the ones that it keeps, and the ones of its last turns, as far as noted."""

    pins: Mapping[str, str]
    ran: Mapping[str, str]


async def sessions_with_revisions(cell: Cell) -> AsyncGenerator[SessionRevisions, None]:
    """Yield the sessions of a cell that have noted revisions. This reads all sessions. Raises ``StoreError``."""
    cursor, seen = 0, set[bytes]()
    while True:
        cursor, page = await asked(cell.redis.zscan(cell.keys.sessions, cursor, count=PAGE))
        names = [name for name, _ in page]
        rows = await fields_of(cell, (cell.keys.session(text_of(name)) for name in names), "pins", "ran")
        for name, (pins, ran) in zip(names, rows, strict=True):
            if (pins or ran) and name not in seen:
                seen.add(name)
                with suppress(msgspec.MsgspecError, UnicodeError):
                    yield SessionRevisions(
                        *(msgspec.json.decode(one or b"{}", type=dict[str, str]) for one in (pins, ran))
                    )
        if not cursor:
            return


async def _revision(cell: Cell, app: str, agent: str, apps: dict[str, Mapping[str, Revision]]) -> str:
    if app not in apps:
        apps[app] = await revisions_of_app(cell, app) or {}
    known = apps[app]
    one = known.get(agent) if agent else next(iter(known.values())) if len(known) == 1 else None
    return one.id if one else ""


def _agent_name(cell: Cell, session: str, stored: bytes | None) -> str:
    """Return the name of an agent stored by name or as a whole; '' without one, or if it cannot be decrypted."""
    with suppress(CorruptRecord):
        return _named(cell.seal.open(session, "agent", stored or b""))
    return ""


def _named(stored: bytes | None) -> str:
    with suppress(msgspec.MsgspecError, UnicodeError):
        found: Any = msgspec.json.decode(stored or b"null")
        return found if isinstance(found, str) else found.get("name") or "" if isinstance(found, dict) else ""
    return ""
