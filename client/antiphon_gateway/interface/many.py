"""One stream of many sessions: the ends of all turns that a caller may read, or all events of up to 100 sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec
from starlette.responses import Response

from antiphon import sse
from antiphon.client import AllEvents
from antiphon.errors import AgentError, UsageError
from antiphon.redis.subscription import Subscription
from antiphon.wire.published import Published
from antiphon_gateway.access.caller import Caller
from antiphon_gateway.access.seal import opened, sealed
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import ManyQuery
from antiphon_gateway.interface.events import last_event_id, types_shown
from antiphon_gateway.problems import Refused

__all__ = ["OPERATIONS"]

MOST_SESSIONS = 100
MOST_BYTES = 1 << 20
"""So much waits for a reader; further events wait in the log."""


@operation("GET", "/events", right="read", streams=True)
async def many_events(call: Call[ManyQuery, None]) -> Response:
    """Follow many sessions: the ends of all turns, or with `sessions` all events of these

    The ends are the events `turn_finished`, `turn_failed`, `turn_cancelled` and `turn_suspended` of all sessions that
    the key may read. With `sessions`, each event of each of them comes once and in the session's order. The id of a
    message is the place of the whole stream: a reader that comes back with it, and with the same `sessions`, goes on
    there. Without a place only new events come.
    """
    after = last_event_id(call) or call.query.after
    if call.query.sessions is None:
        return await _ends(call, after)
    return await _sessions(call, _ids(call.query.sessions), after)


async def _ends(call: Call[ManyQuery, None], after: str | None) -> Response:
    key, asked = call.services.access.seal_key, call.query.types
    events = call.client.subscribe_all(
        None if asked is None else asked.split(","), tenant=call.caller.tenant_for(call.query.tenant),
        after=after if after in (None, "0") else opened(key, after),
    )  # fmt: skip
    await events.start()
    return call.stream(events, _end_messages(events, call.caller, key))


async def _end_messages(events: AllEvents, caller: Caller, key: bytes) -> AsyncGenerator[bytes]:
    yield sse.BEGIN
    try:
        async for event, cursor in events:
            shown = caller.may_use(event.session_id) and caller.may_see(event.type)
            if shown:
                yield b"id: %b\ndata: %b\n\n" % (sealed(key, cursor).encode(), event.to_json())
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
    try:
        await many.start()
    except BaseException:
        await many.aclose()
        raise
    return call.stream(many, many.messages(types_shown(call)))


class _Many:
    """All events of some sessions as they come, as messages. Each message's id is where all of them stand."""

    def __init__(self, sessions: Sequence[Subscription]) -> None:
        self._sessions = sessions
        self._places: list[int] = []
        self._ready: list[bytes] = []
        self._bytes = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to follow all of them. Raises ``WrongTenant``."""
        await asyncio.gather(*(one.start() for one in self._sessions))
        self._places = [one.cursor or 0 for one in self._sessions]

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sessions:
            await one.aclose()

    async def messages(self, types: frozenset[str] | None) -> AsyncGenerator[bytes]:
        """Yield all messages that have come, in one piece."""
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
        """Make messages of what one session brings, as long as the reader takes them."""
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
        message = b"id: %b\ndata: %b\n\n" % (".".join(map(str, self._places)).encode(), event.json)
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


OPERATIONS = [many_events]
