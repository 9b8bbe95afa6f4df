"""The runtime on workers: sessions live in Redis, and turns run on whichever worker claims them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Any

import msgspec

from antiphon.errors import CorruptRecord, NotFound, ResultTimeout, TurnCancelled, TurnNotFound
from antiphon.events import Event, TurnCancelledEvent, TurnFailedEvent
from antiphon.input.ids import SessionId, TurnId, is_of_sub_agent
from antiphon.input.request import AgentSpec
from antiphon.input.values import Asked, Keep
from antiphon.model import Decision, Message, decode_history
from antiphon.model.files import FileEntry, StoredFile
from antiphon.model.recording import SessionRecording
from antiphon.redis.archived import archived_files, bring_back, whole_found
from antiphon.redis.connections import Connections
from antiphon.redis.edits import Edits, Found
from antiphon.redis.files import SessionFiles, is_unfilled
from antiphon.redis.forks import fork_in_redis
from antiphon.redis.listing import list_sessions
from antiphon.redis.recording import kept_turns, record_session
from antiphon.redis.sent_events import send_event
from antiphon.redis.trees import decide_in_tree, graph_of
from antiphon.redis.turn import AsyncTurn, error_of
from antiphon.redis.turn_records import read_page
from antiphon.redis.unserved import watched
from antiphon.session.background import own_turns, waits_for_itself
from antiphon.session.runtime import (
    DelayedTurn,
    Edit,
    ListPlace,
    Opening,
    RunningTurn,
    SessionInfo,
    SessionRef,
    SessionStatus,
)
from antiphon.session.saved import SavedSession
from antiphon.session.work import Work
from antiphon.stores.base import SessionStore
from antiphon.wire.cell import Cell
from antiphon.wire.editing import Busy, delete_session

NO_MESSAGES = (1, 0)
FARTHEST = 2**53
ROLL_BACK_SECONDS = 30.0
RUNS: dict[str, bool] = {"running": True, "retrying": True, "suspended": True}


class RedisRuntime:
    """Submits turns and reads sessions.

    ``connected`` returns the connections of the running event loop, for the sessions of a store or without one.
    """

    def __init__(
        self,
        connected: Callable[[SessionStore | None], Awaitable[Connections]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._connected = connected
        self._close = close

    async def aclose(self) -> None:
        """Close the connections of the running event loop, unless they belong to a client, which closes its own."""
        if self._close is not None:
            await self._close()

    async def open(self, session: SessionRef, opening: Opening) -> None:
        if opening.messages:
            await self._bring_back(session)
        await (await self._edits(session)).open(opening)

    async def work(self, session: SessionRef, work: Work) -> AsyncGenerator[Event, None]:
        await self._check_others_turn(session)
        turn, ended = await self._submit_owned(session, work), None
        try:
            with await self._watched(session, turn.id):
                async with aclosing(turn.stream()) as events:
                    async for event in events:
                        ended = event if event.terminal else None
                        yield event
        finally:
            if ended is None:
                await self._roll_back(session, turn)
        if isinstance(ended, TurnFailedEvent):
            raise error_of(ended)
        if isinstance(ended, TurnCancelledEvent):
            raise TurnCancelled(ended.reason or None, session_id=session.id, turn_id=turn.id)

    async def submit(self, session: SessionRef, work: Work) -> AsyncTurn:
        return await self._hand_in(session, work)

    async def _hand_in(self, session: SessionRef, work: Work, *, owned: bool = False) -> AsyncTurn:
        """Submit a turn. If it is ``owned``, only the caller waits for it."""
        connections = await self._connected(session.store)
        work, agent = _travelling(work)
        return AsyncTurn(connections, await connections.submit(session, work, agent), session.id, work.schema)

    async def turn(self, session: SessionRef, turn_id: TurnId, agent: Any) -> AsyncTurn:
        await self._check_tenant(session)
        turn = AsyncTurn(await self._connected(session.store), turn_id, session.id)
        await turn.status()
        return turn

    async def decide(self, session: SessionRef, turn_id: TurnId, decision: Decision) -> None:
        await decide_in_tree((await self._connected(session.store)).cells, turn_id, decision)

    async def read(
        self, session: SessionRef, start: int = 0, stop: int | None = None, *, turns: Asked = ""
    ) -> list[Message]:
        start, stop = _place(start), None if stop is None else _place(stop)
        if turns:
            archive = (await self._connected(session.store)).archive
            return await read_page(await self._cell(session), session, start, stop, turns, archive)
        if stop == 0:
            return []
        found = await self._found(session, start, -1 if stop is None else stop - 1)
        first = start if start >= 0 else max(0, found.length + start)
        return decode_history(found.history, first)

    async def cancel(self, session: SessionRef, reason: str, keep: Keep) -> str | None:
        inbox = (await self._found(session, *NO_MESSAGES)).inbox
        return await (await self._cell(session)).cancel(inbox[0], reason, keep) if inbox else None

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        found = await self._found(session, *((0, -1) if messages else NO_MESSAGES))
        saved = found.saved(session.id)
        if messages:
            live = await (await self._files(session)).whole() if "media" in found.fields else []
            past = await self._archived_files(session, found)
            saved.media = [*{one.id: one for one in [*past, *live]}.values()]
        return saved

    async def status(self, session: SessionRef) -> SessionStatus:
        found = await self._found(session, *NO_MESSAGES)
        waiting, running = [str(turn) for turn in found.inbox], None
        if found.inbox:
            head = await (await self._cell(session)).turn(found.inbox[0])
            if head.status in RUNS:
                step = int(head.fields.get("step") or 1)
                running = RunningTurn(waiting.pop(0), head.status, step)  # type: ignore[arg-type]
        cell = await self._cell(session)
        failed, delayed = await cell.newest_turns(session.id) if found.fields else ([], [])
        return SessionStatus(
            failed=[*failed],
            delayed=[DelayedTurn(turn_id, due) for due, turn_id in delayed],
            state="closed" if found.closed else "busy" if found.inbox else "idle",
            messages=found.length,
            running=running,
            waiting=waiting,
            created=found.created,
            updated=found.updated,
        )

    async def edit(self, session: SessionRef, edit: Edit) -> None:
        if edit.needs_past:
            await self._bring_back(session)
        await (await self._edits(session)).edit(edit)

    async def fork(self, session: SessionRef, fork: SessionRef, at: str | None) -> None:
        if at is None:
            await self._check_tenant(session)
        else:
            await self._bring_back(session)
        cells = (await self._connected(session.store)).cells
        await fork_in_redis(cells.of_session(session.id), cells.of_session(fork.id), session.id, fork, at)

    async def send_event(self, session: SessionRef, name: str, data: Any, key: str | None) -> int:
        found = await self._found(session, *NO_MESSAGES)
        cells = (await self._connected(session.store)).cells
        return await send_event(cells, name, data, key=key, tenant=found.value("tenant") or session.tenant)

    async def add_file(
        self, session: SessionRef, data: bytes, media_type: str | None, name: str | None
    ) -> FileEntry:
        await self._bring_back(session)
        return await (await self._files(session)).add(data, media_type, name)

    async def read_file(self, session: SessionRef, file_id: str) -> StoredFile:
        found = await self._found(session, *NO_MESSAGES)
        file = await (await self._files(session)).read(file_id) if "media" in found.fields else None
        for one in [] if file else await self._archived_files(session, found):
            file = one if one.id == file_id else file
        if file is None:
            raise NotFound("The session does not store this file.", session_id=session.id)
        return file

    async def stored_files(self, session: SessionRef) -> list[FileEntry]:
        found = await self._found(session, *NO_MESSAGES)
        files = await (await self._files(session)).entries() if "media" in found.fields else []
        known = {one.id for one in files}
        past = await self._archived_files(session, found)
        files += [
            FileEntry(one.id, one.size, one.media_type, one.name, one.by)
            for one in past
            if one.id not in known
        ]
        return sorted(files, key=lambda one: one.id)

    async def load_files(self, session: SessionRef, messages: list[Message]) -> list[Message]:
        if not is_unfilled(messages):
            return messages
        past = await self._archived_files(session, await self._found(session, *NO_MESSAGES))
        return await (await self._files(session)).filled(messages, past)

    async def remove_file(self, session: SessionRef, file_id: str) -> bool:
        await self._bring_back(session)
        return await (await self._files(session)).drop(file_id) > 0

    async def _files(self, session: SessionRef) -> SessionFiles:
        tenant, ttl_ms = session.tenant, session.ttl_ms
        return SessionFiles(await self._cell(session), session.id, tenant=tenant, ttl_ms=ttl_ms)

    async def _archived_files(self, session: SessionRef, found: Found) -> list[StoredFile]:
        """Return the files of a session that are only in the archive until it is restored."""
        archive = (await self._connected(session.store)).archive
        if archive is None or found.text("restored") == "1" or not found.fields:
            return []
        return await archived_files(await self._cell(session), archive.load, session.id, found)

    async def children(self, session: SessionRef) -> list[str]:
        return (await self._found(session, *NO_MESSAGES)).children

    async def graph(self, session: SessionRef) -> str:
        await self._check_tenant(session)
        return await graph_of(await self._cell(session), session.id)

    async def recording(self, session: SessionRef) -> SessionRecording:
        await self._check_tenant(session)
        connections = await self._connected(session.store)
        kept = await kept_turns(await self._cell(session), session.id)
        return await record_session(session.id, [AsyncTurn(connections, one, session.id) for one in kept])

    async def close(self, session: SessionRef) -> None:
        await (await self._edits(session)).close()

    async def delete(self, session: SessionRef) -> bool:
        await self._check_tenant(session)
        doomed, seen, answer = [session], {session.id}, False
        while doomed:
            await self._check_others_turn(one := doomed[-1])
            if new := [child for child in await self._sub_agents(one) if child not in seen]:
                await self._cancel_turns(one)
                seen.update(new)  # deleted first, so that a repetition after a crash finds them
                doomed += [msgspec.structs.replace(session, id=child) for child in new]
            elif isinstance(answer := await delete_session(await self._cell(one), one.id, one.tenant), Busy):
                await self._cancel_turns(one)
            else:
                doomed.pop()
        return bool(answer)

    async def _sub_agents(self, session: SessionRef) -> list[SessionId]:
        """Return the sessions in which sub-agents have run calls of a session, as far as they can be read.

        A session's list of children may be wrong: a child must have the same tenant and name this parent.
        """
        found = await self._found(session, *NO_MESSAGES)
        own, archive = (session.id, found.text("tenant")), (await self._connected(session.store)).archive
        children: list[SessionId] = []
        with suppress(CorruptRecord):
            for one in [SessionId(name) for name in found.children if is_of_sub_agent(name)]:
                cell = await self._cell(msgspec.structs.replace(session, id=one))
                child = await whole_found(cell, archive, one, *NO_MESSAGES)
                if (child.text("parent"), child.text("tenant")) == own:
                    children.append(one)
        return children

    async def _cancel_turns(self, session: SessionRef) -> None:
        for turn_id in reversed((await self._found(session, *NO_MESSAGES)).inbox):
            turn = AsyncTurn(await self._connected(session.store), turn_id, session.id)
            with suppress(TurnNotFound):  # another call has deleted it
                await turn.cancel("the session was deleted")
                await _ended(turn)

    async def sessions(
        self, store: Any, after: ListPlace | None, page: int
    ) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
        async with aclosing(list_sessions(await self._connected(store), after, page)) as rows:
            async for row in rows:
                yield row

    async def _submit_owned(self, session: SessionRef, work: Work) -> AsyncTurn:
        """Submit a turn. If cancelled in the meantime, wait for the answer and roll back an accepted turn."""
        submitting = asyncio.ensure_future(self._hand_in(session, work, owned=True))
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:
            await self._roll_back(session, await submitting)
            raise

    async def _roll_back(self, session: SessionRef, turn: AsyncTurn) -> None:
        """Cancel a turn whose caller has left, and remove its messages from the history."""
        if await turn.cancel("left by its caller", keep="nothing") != "cancelled":
            await _ended(turn, ROLL_BACK_SECONDS)
            await (await self._edits(session)).withdraw(turn.id)

    async def _watched(self, session: SessionRef, turn_id: TurnId) -> AbstractContextManager[None]:
        """Within the context, warn if no worker takes the turn."""
        return watched(await self._cell(session), turn_id)

    async def _cell(self, session: SessionRef) -> Cell:
        return (await self._connected(session.store)).cell_of_session(session.id)

    async def _edits(self, session: SessionRef) -> Edits:
        connections = await self._connected(session.store)

        async def ended(turn_id: Any) -> None:
            await self._check_others_turn(session)
            await _ended(AsyncTurn(connections, turn_id, session.id))

        return Edits(connections.cell_of_session, session, ended)

    async def _check_tenant(self, session: SessionRef) -> None:
        """Check the tenant before operations that do not read the session. Raises ``WrongTenant``."""
        if session.tenant is not None:
            await self._found(session, *NO_MESSAGES)

    async def _bring_back(self, session: SessionRef) -> None:
        """Restore an archived session. Raises ``WrongTenant``, ``StoreError`` and ``CorruptRecord``."""
        await self._check_tenant(session)
        archive = (await self._connected(session.store)).archive
        if archive is not None:
            await bring_back(await self._cell(session), archive.load, session)

    async def _check_others_turn(self, session: SessionRef) -> None:
        """Raise ``UsageError`` if a tool would wait for the session that runs the tool's own turn."""
        own = own_turns(session.id)
        if own and not own.isdisjoint((await self._found(session, *NO_MESSAGES)).inbox):
            raise waits_for_itself(session.id)

    async def _found(self, session: SessionRef, start: int, stop: int) -> Found:
        archive = (await self._connected(session.store)).archive
        found = await whole_found(await self._cell(session), archive, session.id, start, stop)
        found.check_tenant(session)
        return found


def _place(number: int) -> int:
    """Limit a place in a history to the range that Redis accepts: every history ends before its bounds."""
    return max(-FARTHEST, min(number, FARTHEST))


async def _ended(turn: AsyncTurn, timeout: float | None = None) -> None:
    """Wait until the turn has ended, with any outcome. Raises ``ResultTimeout``."""
    timer = asyncio.timeout(timeout)
    try:
        async with timer:
            await turn.ended()
    except TimeoutError:
        if not timer.expired():
            raise
        raise ResultTimeout(session_id=turn.session_id, turn_id=turn.id) from None


def _travelling(work: Work) -> tuple[Work, str | AgentSpec | None]:
    """Return the turn, and its serialized agent with the model that the call asks for."""
    if work.agent is None or isinstance(work.agent, str):
        return work, work.agent
    if "model" not in work.params:
        return work, work.agent.spec()
    spec, params = work.agent.spec(), dict(work.params)
    model = params.pop("model", None)
    return (
        msgspec.structs.replace(work, params=params),
        spec if model is None else msgspec.structs.replace(spec, model=model),
    )
