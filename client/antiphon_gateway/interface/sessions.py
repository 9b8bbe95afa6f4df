"""Sessions: create, list, read, change, fork, close and delete them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.client import SessionSnapshot
from antiphon.errors import SessionBusy, SessionNotFound
from antiphon.input.options import SESSION_OPTIONS, given
from antiphon.model.recording import SessionRecording
from antiphon.redis.deployment import count_sessions as counted
from antiphon.redis.search import SEARCH_OPTIONS, SearchPage, can_search
from antiphon.session.async_session import AsyncSession
from antiphon.wire.lists.workers import SessionCounts
from antiphon_gateway.access.secret import opened, sealed
from antiphon_gateway.http.operations import Answer, Call, idempotency_key, operation
from antiphon_gateway.interface.bodies import (
    MOST_MESSAGES,
    AddMessages,
    Cancel,
    Cancelled,
    Changes,
    CreateSession,
    Fork,
    HistoryPage,
    HistoryQuery,
    ListQuery,
    NewSession,
    OfTenant,
    Rewind,
    SearchQuery,
    SessionPage,
    SessionView,
    SnapshotQuery,
)
from antiphon_gateway.problems import Refused


def session_of(call: Call[Any, Any]) -> AsyncSession:
    """Return the session of the path. Every use of it is checked against the caller's tenant."""
    return call.client.session(call.path["session"], tenant=call.caller.tenant)


@operation("GET", "/sessions/{session}/recording", right="admin")
async def record_session(call: Call[None, None]) -> SessionRecording:
    """Read the ended turns of a session as recordings, to replay them in a test"""
    return await session_of(call).recording()


class SessionGraph(Struct):
    """The turns of a session as a diagram in the language Mermaid."""

    mermaid: str


@operation("GET", "/sessions/{session}/graph", right="read")
async def graph_session(call: Call[None, None]) -> SessionGraph:
    """Draw the last 100 turns of a session with their agents, hand-offs and child turns, as a Mermaid diagram

    It contains no text of users, models or tools.
    """
    return SessionGraph(await session_of(call).graph())


@operation("POST", "/sessions", right="write", status=201, body=CreateSession)
async def create_session(call: Call[None, Any]) -> Answer[NewSession]:
    """Create a session

    A session also begins with its first turn. With an `Idempotency-Key`, a repeated request gets the same new id.
    A session that exists keeps its variables and gets the other values; with `messages` it is refused (409).
    """
    asked, options = call.body, given(call.body, SESSION_OPTIONS)
    if "queue" in options:
        call.caller.check_right("admin")
    known = asked.session_id if asked.session_id is not None else call.new_session(idempotency_key(call))
    call.caller.check_session(known)
    options["tenant"] = call.caller.tenant_for(asked.tenant)
    session = call.client.session(known, **options)
    with suppress(SessionBusy):  # it is stored, and has turns already
        await session.add_message(if_busy="reject")  # its first use stores it
    return Answer(NewSession(known), 201, {"location": call.address("sessions", known)})


@operation("GET", "/sessions", right="read", query=ListQuery)
async def list_sessions(call: Call[Any, None]) -> SessionPage:
    """List sessions, most recently used first"""
    asked, key = call.query, call.services.secret.cursor_key
    found = call.client.sessions(
        tenant=call.caller.tenant_for(asked.tenant), metadata=_json_object(asked.metadata), state=asked.state,
        search=asked.search, parent=asked.parent, children=asked.children, limit=asked.limit,
        cursor=None if asked.cursor is None else opened(key, asked.cursor),
    )  # fmt: skip
    sessions = [info async for info in found if call.caller.may_use(info.session_id)]
    return SessionPage(sessions, None if found.cursor is None else sealed(key, found.cursor))


MOST_COUNTED = 1000


@operation("GET", "/counts", right="read")
async def count_sessions(call: Call[OfTenant, None]) -> SessionCounts:
    """Count sessions, and turns that run, are suspended or have failed in the last week

    ``searchable`` is whether `GET /search` has an index to look in.
    For a tenant, or a key of some sessions, sessions with such turns are counted, at most 1,000 of each state.
    """
    tenant, caller = call.caller.tenant_for(call.query.tenant), call.caller
    searchable = await can_search(call.client.connections)
    if tenant is None and caller.sessions is None and caller.session is None:
        found = await counted(call.client.connections)
        found.searchable = searchable
        return found
    found = SessionCounts(None, limit=MOST_COUNTED, searchable=searchable)
    for state in ("running", "suspended", "failed"):
        listed = call.client.sessions(tenant=tenant, state=state, children=True, limit=MOST_COUNTED)
        setattr(found, state, sum([caller.may_use(one.session_id) async for one in listed]))
    return found


@operation("GET", "/search", right="read", query=SearchQuery)
async def search(call: Call[Any, None]) -> SearchPage:
    """Search the finished turns of the sessions that the key may use, the best one first

    It needs the archive of workers with `App(search=True)`. A page may have fewer turns before the last page.
    """
    asked, caller = call.query, call.caller
    options = given(asked, SEARCH_OPTIONS)
    tenant = caller.tenant_for(options.pop("tenant", None))
    if asked.session is not None:
        caller.check_session(asked.session)
    found = await call.client.search(asked.text, tenant=tenant, **options)
    hits = [one for one in found.hits if caller.may_use(one.session_id)]
    return SearchPage(hits, found.cursor)


@operation("GET", "/sessions/{session}", right="read")
async def show_session(call: Call[None, None]) -> SessionView:
    """Read a session: its state, its turns and its metadata"""
    session = session_of(call)
    status = await session.status()
    if not status.created:
        raise SessionNotFound(session_id=session.session_id)
    return SessionView(
        session.session_id, status.state, status.messages, status.running, status.waiting, status.delayed,
        status.failed, status.created, status.updated, await session.tenant(), await session.metadata(),
        await session.branch(),
    )  # fmt: skip


@operation("PATCH", "/sessions/{session}", right="write", status=204)
async def change_session(call: Call[None, Changes]) -> None:
    """Change metadata and variables

    Waits for the session's turns, at most 30 seconds: then it is refused with 409.
    """
    session, asked = session_of(call), call.body
    if not (asked.metadata or asked.variables or asked.remove):
        raise Refused(400, "invalid_body", "The body changes nothing: name metadata, variables or remove.")
    if asked.metadata:
        await call.patiently(session.set_metadata(asked.metadata))
    if asked.variables or asked.remove:
        await call.patiently(session.set_variables(asked.variables, remove=asked.remove))


@operation("DELETE", "/sessions/{session}", right="admin", status=204)
async def delete_session(call: Call[None, None]) -> None:
    """Delete a session, and cancel its turns"""
    session = session_of(call)
    if not await call.patiently(session.delete()):
        raise SessionNotFound(session_id=session.session_id)


@operation("POST", "/sessions/{session}/close", right="write", status=204)
async def close_session(call: Call[None, None]) -> None:
    """Close a session: it can be read and forked, and accepts no more turns

    Waits for the session's turns, at most 30 seconds: then it is refused with 409.
    """
    await call.patiently(session_of(call).close())


@operation("POST", "/sessions/{session}/fork", right="write", status=201)
async def fork_session(call: Call[None, Fork]) -> Answer[NewSession]:
    """Copy a session, or its beginning, to a new one"""
    known = (
        call.body.session_id if call.body.session_id is not None else call.new_session(idempotency_key(call))
    )
    call.caller.check_session(known)
    await session_of(call).fork(known, at=call.body.at)
    return Answer(NewSession(known), 201, {"location": call.address("sessions", known)})


@operation("POST", "/sessions/{session}/cancel", right="write")
async def cancel_session(call: Call[None, Cancel]) -> Cancelled:
    """Cancel the running turn, like a stop button

    Its output so far stays in the history, unless `keep` is set. Waiting turns continue.
    """
    return Cancelled(await session_of(call).cancel(call.body.reason, keep=call.body.keep or "partial"))


@operation("GET", "/sessions/{session}/snapshot", right="read")
async def show_snapshot(call: Call[SnapshotQuery, None]) -> SessionSnapshot:
    """Read the last messages, the pending turns and the cursor to continue from, at one moment

    Follow the events after the cursor to see all that comes later.
    """
    return await call.client.snapshot(call.path["session"], tenant=call.caller.tenant, last=call.query.last)


@operation("GET", "/sessions/{session}/messages", right="read")
async def show_history(call: Call[HistoryQuery, None]) -> HistoryPage:
    """Read a page of the history"""
    session, asked = session_of(call), call.query
    status = await session.status()
    if not status.created:
        raise SessionNotFound(session_id=session.session_id)
    start = max(0, status.messages + asked.start) if asked.start < 0 else asked.start
    end = start + MOST_MESSAGES
    stop = asked.stop if asked.stop is None or asked.stop >= 0 else max(0, status.messages + asked.stop)
    if stop is None and end > status.messages:
        messages = await session.history(start, None, pending=asked.pending, failed=asked.failed)
    else:
        last = end if stop is None else min(stop, end)
        messages = await session.history(start, max(last, start), pending=asked.pending, failed=asked.failed)
    return HistoryPage(messages, status.messages)


@operation("POST", "/sessions/{session}/messages", right="write", status=204)
async def add_messages(call: Call[None, AddMessages]) -> None:
    """Add messages to the history without running a turn; refused with 409 while a turn runs"""
    await session_of(call).add_message(*call.body.messages, if_busy="reject")


@operation("DELETE", "/sessions/{session}/messages", right="write", status=204)
async def clear_history(call: Call[None, None]) -> None:
    """Delete the history; refused with 409 while a turn runs"""
    await session_of(call).clear(if_busy="reject")


@operation("POST", "/sessions/{session}/rewind", right="write", status=204)
async def rewind_session(call: Call[None, Rewind]) -> None:
    """Remove all messages after a given one; refused with 409 while a turn runs"""
    await session_of(call).rewind(call.body.to, if_busy="reject")


def _json_object(text: str | None) -> dict[str, Any] | None:
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refused(400, "invalid_query", "metadata must be a JSON object.") from None


OPERATIONS = [
    create_session, list_sessions, count_sessions, search, show_session, change_session, delete_session, close_session,
    fork_session, cancel_session, show_snapshot, show_history, add_messages, clear_history, rewind_session,
    record_session, graph_session,
]  # fmt: skip
