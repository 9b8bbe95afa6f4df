"""The local runtime, which stores sessions and runs their turns in this process, without a server.

A turn runs on the event loop of its caller (the background loop for synchronous calls), so that asynchronous tools can
use connections that the caller opened on that loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from msgspec import UNSET

from antiphon.errors import (
    AgentError,
    KeyReused,
    SessionExists,
    TurnNotFound,
    UnknownAgent,
    UnknownProvider,
    UsageError,
)
from antiphon.events import Event
from antiphon.input.history_cuts import kept_behind
from antiphon.input.ids import SessionId, TurnId, check_tenant, other_tenant
from antiphon.input.values import Asked, Keep, now_ms
from antiphon.model import Decision, FallbackModel, Message
from antiphon.session.background import when_loop_ends
from antiphon.session.runtime import (
    Edit,
    ListPlace,
    Opening,
    SessionInfo,
    SessionRef,
    SessionStatus,
    TurnHandle,
)
from antiphon.session.saved import SavedSession, same_messages
from antiphon.session.work import AgentLike, Work, work_of_request
from antiphon.stores.base import SessionStore
from antiphon.testing import Script
from antiphon.tools.threads import Threads
from antiphon_worker.local.accepted import request_of, turn_of
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.open_turn import OpenTurn
from antiphon_worker.local.session import LocalSession, commit, edited, in_store, refresh
from antiphon_worker.local.sessions import LocalSessions
from antiphon_worker.local.submitted import SubmittedTurn
from antiphon_worker.local.turn import LocalTurn
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.registry import BUILT_IN
from antiphon_worker.providers.scripted import ScriptedProvider


class LocalRuntime:
    """Stores sessions in memory or in the stores of their agents, and runs their turns in this process."""

    def __init__(self) -> None:
        self._sessions = LocalSessions()
        self._agents: WeakValueDictionary[str, AgentLike] = WeakValueDictionary()
        self._providers: WeakKeyDictionary[Any, dict[str, Provider]] = WeakKeyDictionary()  # by event loop
        self._threads = Threads()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    async def open(self, session: SessionRef, opening: Opening) -> None:
        live = await self._read(session)
        if opening.token in live.openings:
            return
        if opening.saved is None and not opening.messages:
            await self._begin(live, opening, [], hold=live.inbox.current is None)
            return
        async with live.inbox.place(Place()):
            await refresh(live)
            if opening.token not in live.openings:
                await self._replace(live, opening)

    async def work(self, session: SessionRef, work: Work) -> AsyncGenerator[list[Event], None]:
        live, info = self._sessions.get(session), turn_of(session, work)
        place = Place(info)
        live.book.enter(info)
        try:
            async with live.inbox.place(place, work.if_busy):
                turn = await self._prepared(session, work, place)
                try:
                    async with aclosing(turn.run()) as batches:
                        async for batch in batches:
                            if batch[-1].terminal:
                                live.inbox.leave(place)  # the reader of the last event may use the session
                            yield batch
                finally:
                    await turn.abandon()
        except AgentError as exc:
            if place.joined:
                live.book.fail(info, exc, len(live.state.messages))
            raise
        finally:
            live.book.forget(info)

    async def submit(self, session: SessionRef, work: Work) -> SubmittedTurn:
        live = await self._read(session)
        _check_open(live)
        known = live.keys.get(work.key) if work.key is not None else None
        if known is not None:
            if known.request != request_of(work):
                raise KeyReused(session_id=session.id, turn_id=known.id)
            if work.retry_failed and await known.status() == "failed":
                known.run_again(work.if_busy)
            return known
        info = turn_of(session, work)
        turn = SubmittedTurn(
            live, info, lambda place: self._prepared(session, work, place), work.delay, work.schema
        )
        turn.start(work.if_busy)
        if work.key is not None:
            turn.request = request_of(work)
            live.keys[work.key] = turn
        return turn

    async def turn(self, session: SessionRef, turn_id: TurnId, agent: AgentLike | str | None) -> TurnHandle:
        live = await self._read(session)
        known = live.turns.get(turn_id)
        if known is not None:
            return known
        if turn_id in live.book:
            return OpenTurn(live, live.book.open(turn_id))
        saved = next((one for one in live.state.suspended if one.turn.turn_id == turn_id), None)
        if saved is None:
            raise TurnNotFound(session_id=session.id, turn_id=turn_id)
        _check_open(live)
        work = work_of_request(saved.request, agent)
        turn = SubmittedTurn(live, saved.turn, lambda place: self._prepared(session, work, place))
        turn.take_up(saved)
        return turn

    async def decide(self, session: SessionRef, turn_id: TurnId, decision: Decision) -> None:
        (await self._read(session)).decide(turn_id, decision)

    async def read(
        self, session: SessionRef, start: int = 0, stop: int | None = None, *, turns: Asked = ""
    ) -> list[Message]:
        live = await self._read(session)
        page = live.book.page(live.state.messages, start, stop, turns, live.inbox.turn_ids)
        return [message.copied() for message in page]

    async def cancel(self, session: SessionRef, reason: str, keep: Keep) -> str | None:
        live = await self._read(session)
        place = live.inbox.current
        if place is None or not place.turn_id:
            return None
        if place.turn_id in live.turns:
            return await live.turns[place.turn_id].cancel(reason, keep=keep)
        return await place.cancel(reason, keep)

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        live = await self._read(session)
        state = live.state.shallow(messages=messages).copied()
        if not live.used:
            state.created = state.updated = 0
        return state

    async def status(self, session: SessionRef) -> SessionStatus:
        return (await self._read(session)).status()

    async def edit(self, session: SessionRef, edit: Edit) -> None:
        live = self._sessions.get(session)
        if edit.beside_turns and live.store is None:
            await _change(live, session, edit)
            return
        async with live.inbox.place(
            Place(), edit.if_busy
        ):  # a store is given the session whole, one state at a time
            await refresh(live)
            await _change(live, session, edit)

    async def fork(self, session: SessionRef, fork: SessionRef, at: str | None) -> None:
        source = await self._read(session)
        target = await self._read(
            msgspec.structs.replace(fork, ttl=source.ttl) if fork.ttl is UNSET else fork
        )
        state = source.state.shallow()
        if at is not None:
            state.keep(kept_behind(state.messages, at))
        async with target.inbox.place(Place()):
            if target.exists:
                raise SessionExists(f"The session {fork.id!r} already exists.", session_id=fork.id)
            state.session_id, state.created = fork.id, now_ms()
            state.parent, state.children, state.closed = None, [], False
            state.branches, state.fork_of, state.suspended, state.usage = {}, session.id, [], None
            state.fork_at = state.messages[-1].id if state.messages else None
            target.openings.add("fork")
            await commit(target, state)
        source.state.branches[fork.id] = state.fork_at or ""
        await _save_family(source)

    async def children(self, session: SessionRef) -> list[str]:
        return list((await self._read(session)).state.children)

    async def close(self, session: SessionRef) -> None:
        live = self._sessions.get(session)
        async with live.inbox.place(Place()):
            await refresh(live)
            _check_tenant(live, session)
            state = live.state.shallow()
            state.closed = True
            await commit(live, state)

    async def delete(self, session: SessionRef) -> bool:
        live = await self._read(session)
        existed = live.used
        await live.inbox.check_others_turn()
        for turn in list(live.turns.values()):
            await turn.cancel("the session was deleted")
        async with live.inbox.place(Place()):
            self._sessions.remove(session)
            if session.store is not None:
                existed = await in_store(session.store.delete, session.id) or existed
        return existed

    async def sessions(
        self, store: SessionStore | None, after: ListPlace | None, page: int
    ) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
        """Yield the sessions of this process, most recently used first, or those of a store in reverse id order."""
        if store is None:
            live = {(one.state.updated, one.session_id): one for one in self._sessions.kept()}
            for place in sorted(live, reverse=True):
                if after is None or place < after:
                    yield place, live[place].info()
            return
        for session_id in sorted(await in_store(store.list_sessions), reverse=True):
            if after is None or (0, session_id) < after:
                one = await self._read(SessionRef(SessionId(session_id), store))
                if one.exists:
                    yield (0, session_id), one.info()

    def forget(self) -> None:
        """Remove all sessions from the memory of this process, for tests. Sessions in stores stay."""
        self._sessions.clear()

    async def aclose(self) -> None:
        """Close the connections to the model services that were opened on this event loop."""
        providers = self._providers.pop(asyncio.get_running_loop(), {})
        for provider in providers.values():
            await provider.aclose()

    async def _prepared(self, session: SessionRef, work: Work, place: Place) -> LocalTurn:
        """Return the turn, ready to run. It must be current in the inbox of its session."""
        live = self._sessions.get(session)
        await refresh(live)
        _claim(live, session)
        _check_open(live)
        agent = self._agent(work.agent)
        toolbox = ToolBox(agent.tools, threads=self._threads)
        assert place.turn is not None
        provider = await self._provider(agent)
        return LocalTurn(live, place, place.turn, agent, work, provider, toolbox, self._provider)

    async def _read(self, session: SessionRef) -> LocalSession:
        """Return the current session. While a turn runs, this is the state before the turn."""
        live = self._sessions.get(session)
        if live.inbox.current is None:
            await refresh(live)
        _check_tenant(live, session)
        return live

    async def _begin(
        self, live: LocalSession, opening: Opening, messages: list[Message], *, hold: bool
    ) -> None:
        """Apply an opening. With ``hold`` save the session too; otherwise the running turn saves it at its end."""
        parent = await self._parent(opening, live)
        if parent is not None and live.session_id not in parent.state.children:
            _check_open(parent)
        before = live.state.shallow()
        live.begin(opening, parent)
        live.state.messages += messages
        after = live.state.shallow()
        if after != before and live.state.closed:
            live.openings.discard(opening.token)
            live.restore(before)
            _check_open(live)
        if after != before and live.store is not None and hold:
            await commit(live, after)
        if parent is not None and live.session_id not in parent.state.children:
            parent.state.children.append(live.session_id)
            await _save_family(parent)

    async def _replace(self, live: LocalSession, opening: Opening) -> None:
        """Replace the history by that of the opening. Raises ``SessionExists`` if there is another history."""
        saved = opening.saved
        if saved is None:
            if live.state.messages:
                raise SessionExists(session_id=live.session_id)
            await self._begin(live, opening, opening.messages, hold=True)
            return
        if (
            live.state.messages
            and not same_messages(live.state.messages, saved.messages)
            and not opening.replace
        ):
            raise SessionExists(
                "The session already has another history: pass replace=True to replace it with the saved one.",
                session_id=live.session_id,
            )
        if saved.tenant is not None and (live.state.tenant or saved.tenant) != saved.tenant:
            raise other_tenant(live.session_id, saved.tenant)
        live.openings.add(opening.token)
        if not live.state.messages or opening.replace:
            saved.tenant = saved.tenant or live.state.tenant
            await commit(live, saved)
            live.state.updated = saved.updated or live.state.updated

    async def _parent(self, opening: Opening, child: LocalSession) -> LocalSession | None:
        if opening.parent is None:
            return None
        return await self._read(SessionRef(SessionId(opening.parent), child.store, tenant=opening.tenant))

    def _agent(self, asked: AgentLike | str | None) -> AgentLike:
        if asked is not None and not isinstance(asked, str):
            if asked.name:
                self._agents[asked.name] = asked
            return asked
        found = self._agents.get(asked or "")
        if found is None:
            raise UnknownAgent(
                f"No agent named {asked!r} has been used in this process: pass the Agent itself."
            )
        return found

    async def _provider(self, agent: AgentLike | FallbackModel) -> Provider:
        """Return the provider of an agent or a fallback for this event loop: connections are not shared by loops."""
        if isinstance(agent.provider, Script):
            return ScriptedProvider(agent.provider)
        if not isinstance(agent.provider, str):
            return agent.provider
        loop, name = asyncio.get_running_loop(), agent.provider
        opened = self._providers.get(loop)
        if opened is None:
            opened = self._providers[loop] = {}
            await when_loop_ends(self.aclose)
        if name not in opened:
            make = BUILT_IN.get(name)
            if make is None:
                raise UnknownProvider(
                    f"There is no provider {name!r}. Known here: {', '.join(sorted(BUILT_IN))}."
                )
            made = await asyncio.to_thread(make)  # loading an SDK takes about a second
            opened.setdefault(name, made)
        return opened[name]

    def _after_fork(self) -> None:
        """Reset the child of a fork. It keeps the sessions, but not the running turns and their connections."""
        self._providers = WeakKeyDictionary()
        self._sessions.after_fork()


def _check_tenant(live: LocalSession, session: SessionRef) -> None:
    check_tenant(session.id, session.tenant, live.exists, live.state.tenant)


def _claim(live: LocalSession, session: SessionRef) -> None:
    """Check the tenant before a write, which makes a session that does not exist yet its own."""
    _check_tenant(live, session)
    if session.tenant is not None:
        live.state.tenant = session.tenant


async def _change(live: LocalSession, session: SessionRef, edit: Edit) -> None:
    _claim(live, session)
    _check_open(live)
    await commit(live, edited(live.state, edit))


def _check_open(live: LocalSession) -> None:
    if live.state.closed:
        raise UsageError("The session is closed.", session_id=live.session_id)


async def _save_family(session: LocalSession) -> None:
    """Save a session that has a new child or fork. If one of its turns runs, the end of that turn saves it."""
    if session.store is not None and session.inbox.current is None:
        async with session.inbox.place(Place()):
            await refresh(session)
            await commit(session, session.state.shallow())
