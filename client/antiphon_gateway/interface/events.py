"""Events of a session or of a turn as server-sent events, and the tokens with which a browser reads them."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from antiphon.errors import UsageError
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.http.streams import PublishedEvents, messages_of
from antiphon_gateway.interface.bodies import EventsQuery, MakeToken, NewToken
from antiphon_gateway.problems import Refused

__all__ = ["OPERATIONS", "last_event_id", "types_shown"]


@operation("GET", "/sessions/{session}/events", right="read", streams=True)
async def session_events(call: Call[EventsQuery, None]) -> Response:
    """Follow a session: its events after a cursor, each once and in order, without end

    Without a cursor only new events come. The id of each message is the event's `seq`. A comment comes after 15
    seconds of silence. After a message of the type `end` do not come back; its data has the `code` of an error.
    """
    found = call.client.subscribe(call.path["session"], _cursor(call), tenant=call.caller.tenant)
    await found.start()
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
    read events. The streams that it opened end when it does.
    """
    if call.services.access.streams is None:
        raise Refused(409, "no_secret", "This gateway makes no tokens: set ANTIPHON_GATEWAY_SECRET.")
    await call.client.snapshot(call.path["session"], tenant=call.caller.tenant, last=0)  # raises WrongTenant
    made = call.services.access.streams.make(
        call.caller, call.path["session"], call.body.seconds, call.body.types
    )
    return NewToken(*made)


def _cursor(call: Call[EventsQuery, None]) -> int | str | None:
    """The cursor of a browser that comes back, or of the query. Raises ``UsageError``."""
    return last_event_id(call) or call.query.after


def types_shown(call: Call[Any, None]) -> frozenset[str] | None:
    """The types of events to show: those that the query names and the caller may see; None for all."""
    asked = None if call.query.types is None else frozenset(call.query.types.split(","))
    allowed = call.caller.events
    return asked if allowed is None else allowed if asked is None else asked & allowed


def last_event_id(call: Call[Any, None]) -> str | None:
    """The id with which a reader comes back. Raises ``UsageError``."""
    named = call.request.headers.getlist("last-event-id")
    if len(named) > 1:
        raise UsageError("The request names Last-Event-ID twice.")
    return named[0] if named and named[0] else None


def _stream(call: Call[EventsQuery, None], events: PublishedEvents) -> Response:
    return call.stream(events, messages_of(events, types_shown(call)))


OPERATIONS = [session_events, turn_events, make_token]
