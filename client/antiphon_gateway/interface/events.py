"""Events of a turn, a session or many sessions as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from antiphon import sse
from antiphon.client import AllEvents
from antiphon.errors import AgentError, SessionNotFound, UsageError
from antiphon.input.ids import session_id
from antiphon.redis.archived import bring_back
from antiphon.redis.edits import found_in
from antiphon.redis.subscription import Subscription
from antiphon.session.runtime import SessionRef
from antiphon.wire.records import Published
from antiphon_gateway.access.secret import opened, sealed
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.http.streams import PublishedEvents, json_of, messages_of
from antiphon_gateway.interface.bodies import EventsQuery, MakeToken, ManyQuery, NewToken
from antiphon_gateway.problems import Refused


@operation("GET", "/sessions/{session}/events", right="read", streams=True)
async def session_events(call: Call[EventsQuery, None]) -> Response:
    """Follow a session: its events after a cursor, each once and in order, without end

    Without a cursor only new events come. The id of each message is the event's `seq`. A comment is sent after
    15 seconds of silence. After a message of the type `end`, do not reconnect; its data has the `code` of an error.
    """
    found = call.client.subscribe(call.path["session"], _cursor(call), tenant=call.caller.tenant)
    await _start(call, found)
    return _stream(call, found)


@operation("GET", "/turns/{turn}/events", right="read", streams=True)
async def turn_events(call: Call[EventsQuery, None]) -> Response:
    """Follow a turn: its events from the first one, or after a cursor, up to the one that ends it

    As for a session; a message of the type `end` comes after the turn's last event.
    """
    turn = await call.turn()
    return _stream(call, turn.stream(_cursor(call)))


@operation("POST", "/sessions/{session}/tokens", right="write", status=201)
async def make_token(call: Call[None, MakeToken]) -> NewToken:
    """Make a short-lived token for the streams of this session and of its turns

    A browser's `EventSource` cannot send headers: it puts the token into the query, `?token=…`. The token may only
    read events, and of a failure only the sentence for end users. The streams that it opened end when it does. It is
    for this session alone, and not for a later one with the same id.
    """
    if call.services.access.streams is None:
        raise Refused(
            409, "no_secret", "This gateway does not issue stream tokens: set ANTIPHON_GATEWAY_SECRET."
        )
    session = SessionRef(session_id(call.path["session"]), tenant=call.caller.tenant)
    connections = call.client.connections
    cell, archive = connections.cell_of_session(session.id), connections.archive
    found = await found_in(cell, session.id)
    found.check_tenant(session)
    if not found.life and archive is not None:
        await bring_back(cell, archive.load, session)
        found = await found_in(cell, session.id)
        found.check_tenant(session)
    if not found.life:
        raise SessionNotFound(
            "A token is for one session, which must exist: create it or submit a turn first.",
            session_id=session.id,
        )
    made = call.services.access.streams.make(
        call.caller, session.id, call.body.seconds, call.body.types, found.life
    )
    return NewToken(*made)


async def _start(call: Call[Any, None], events: Subscription | AllEvents | _Many) -> None:
    """Start to follow events, and check that the caller may still read them. Raises ``WrongTenant`` and ``Refused``."""
    try:
        await events.start()
        await call.check_life()
    except BaseException:
        await events.aclose()
        raise


def _cursor(call: Call[EventsQuery, None]) -> int | str | None:
    """Return the cursor of a browser that reconnects, or of the query. Raises ``UsageError``."""
    return last_event_id(call) or call.query.after


def types_shown(call: Call[Any, None]) -> frozenset[str] | None:
    """Return the types of events to show: those that the query names and the caller may see; None for all."""
    asked = None if call.query.types is None else frozenset(call.query.types.split(","))
    allowed = call.caller.events
    return asked if allowed is None else allowed if asked is None else asked & allowed


def last_event_id(call: Call[Any, None]) -> str | None:
    """Return the id with which a reader reconnects. Raises ``UsageError``."""
    named = call.request.headers.getlist("last-event-id")
    if len(named) > 1:
        raise UsageError("The request names Last-Event-ID twice.")
    return named[0] if named and named[0] else None


def _stream(call: Call[EventsQuery, None], events: PublishedEvents) -> Response:
    for_users = call.caller.session is not None  # a stream token, which a browser has
    return call.stream(events, messages_of(events, types_shown(call), for_users=for_users))


MOST_SESSIONS = 100
MOST_BYTES = 1 << 20
"""The most that is buffered for a reader; further events wait in the log."""


@operation("GET", "/events", right="read", streams=True)
async def many_events(call: Call[ManyQuery, None]) -> Response:
    """Follow many sessions: the ends of all turns, or with `sessions` all events of these

    The ends are the events `turn_finished`, `turn_failed`, `turn_cancelled` and `turn_suspended` of all sessions that
    the key may read. With `sessions`, each event of each of them comes once and in the session's order. The id of a
    message is the position in the whole stream: a reader that reconnects with it, and with the same `sessions`,
    continues there. Without a position, only new events are sent.
    """
    after = last_event_id(call) or call.query.after
    if call.query.sessions is None:
        return await _ends(call, after)
    return await _sessions(call, _ids(call.query.sessions), after)


async def _ends(call: Call[ManyQuery, None], after: str | None) -> Response:
    key, asked = call.services.secret.cursor_key, call.query.types
    events = call.client.subscribe_all(
        None if asked is None else asked.split(","), tenant=call.caller.tenant_for(call.query.tenant),
        after=after if after in (None, "0") else opened(key, after),
    )  # fmt: skip
    await _start(call, events)
    return call.stream(events, _end_messages(events, call, key))


async def _end_messages(events: AllEvents, call: Call[ManyQuery, None], key: bytes) -> AsyncGenerator[bytes]:
    yield sse.BEGIN
    try:
        async for event, cursor in events:
            if call.caller.may_use(event.session_id) and call.caller.may_see(event.type):
                await call.check_life()
                yield b"id: %b\ndata: %b\n\n" % (sealed(key, cursor).encode(), event.to_json())
    except Refused:
        yield sse.END
    except AgentError as exc:
        if last := sse.ended_by(exc):
            yield last


async def _sessions(call: Call[ManyQuery, None], ids: Sequence[str], after: str | None) -> Response:
    for one in ids:
        call.caller.check_session(one)
    tenant = call.caller.tenant_for(call.query.tenant)
    places = [None] * len(ids) if after is None else _places(after, len(ids))
    many = _Many(
        [call.client.subscribe(one, place, tenant=tenant) for one, place in zip(ids, places, strict=True)]
    )
    await _start(call, many)
    return call.stream(many, many.messages(types_shown(call)))


class _Many:
    """Merges the events of several sessions into one stream of messages. Each id is the position in all of them."""

    def __init__(self, sessions: Sequence[Subscription]) -> None:
        self._sessions = sessions
        self._places: list[int] = []
        self._ready: list[bytes] = []
        self._bytes = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to follow all sessions. Raises ``WrongTenant``."""
        await asyncio.gather(*(one.start() for one in self._sessions))
        self._places = [one.cursor or 0 for one in self._sessions]

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sessions:
            await one.aclose()

    async def messages(self, types: frozenset[str] | None) -> AsyncGenerator[bytes]:
        """Yield the messages that have arrived, joined into one chunk."""
        self._tasks = [asyncio.create_task(self._read(at, types)) for at in range(len(self._sessions))]
        yield sse.BEGIN
        while True:
            await self._news.wait()
            self._news.clear()
            ready, self._ready, self._bytes = self._ready, [], 0
            self._room.set()
            ended = next((task for task in self._tasks if task.done()), None)
            if ready:
                yield b"".join(ready)
            if ended is not None:
                error = ended.exception()
                if not isinstance(error, AgentError):
                    raise error or RuntimeError("A session's events ended.")
                if last := sse.ended_by(error):
                    yield last
                return

    async def _read(self, at: int, types: frozenset[str] | None) -> None:
        """Convert the events of one session to messages, at the pace of the reader."""
        try:
            while True:
                for event in await self._sessions[at].published():
                    self._places[at] = event.seq
                    if types is None or event.type in types:
                        self._add(event)
                while self._bytes > MOST_BYTES:
                    self._room.clear()
                    await self._room.wait()
        finally:
            self._news.set()

    def _add(self, event: Published) -> None:
        message = b"id: %b\ndata: %b\n\n" % (".".join(map(str, self._places)).encode(), json_of(event))
        self._ready.append(message)
        self._bytes += len(message)
        self._news.set()


def _ids(text: str) -> list[str]:
    try:
        found = msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Refused(400, "invalid_query", "sessions must be a JSON list of session ids.") from None
    if not 1 <= len(found) <= MOST_SESSIONS or len(set(found)) != len(found):
        raise Refused(400, "invalid_query", f"sessions must name 1 to {MOST_SESSIONS} sessions, each once.")
    return found


def _places(text: str, number: int) -> list[int | None]:
    """Read the id of a message, or 0 for the beginning. Raises ``UsageError``."""
    if text == "0":
        return [0] * number
    found = text.split(".")
    if len(found) != number or not all(one.isascii() and one.isdigit() and len(one) < 20 for one in found):
        raise UsageError("after= must be the id of a message of a stream of the same sessions, or 0.")
    return [int(one) for one in found]


OPERATIONS = [
    session_events,
    turn_events,
    make_token,
    many_events,
]
