"""The local runtime, which stores sessions and runs their turns in this process, without a server.

A turn runs on the event loop of its caller (the background loop for synchronous calls), so that asynchronous tools can
use connections that the caller opened on that loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from antiphon.errors import KeyReused, SessionExists, UnknownAgent, UnknownProvider, UsageError
from antiphon.events import Event
from antiphon.input.ids import SessionId, new_turn_id, other_tenant
from antiphon.model import Message, encode
from antiphon.session.background import when_loop_ends
from antiphon.session.runtime import (
    Edit,
    ListPlace,
    Opening,
    SessionInfo,
    SessionRef,
    SessionStatus,
)
from antiphon.session.saved import SavedSession
from antiphon.session.work import AgentLike, Work
from antiphon.stores.base import SessionStore
from antiphon.testing import Script
from antiphon_worker.local.inbox import Place
from antiphon_worker.local.session import LocalSession, commit, in_store, now_ms, refresh
from antiphon_worker.local.sessions import LocalSessions
from antiphon_worker.local.submitted import SubmittedTurn
from antiphon_worker.local.turn import LocalTurn
from antiphon_worker.loop.threads import Threads
from antiphon_worker.loop.toolbox import ToolBox
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.registry import BUILT_IN
from antiphon_worker.providers.scripted import ScriptedProvider

__all__ = ["LocalRuntime"]


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
        live, place = self._sessions.get(session), Place(new_turn_id(session.id))
        async with live.inbox.place(place, reject=work.if_busy == "reject"):
            turn = await self._prepared(session, work, place)
            async with aclosing(turn.run()) as batches:
                async for batch in batches:
                    if batch[-1].terminal:
                        live.inbox.leave(place)  # the reader of the last event may use the session
                    yield batch

    async def submit(self, session: SessionRef, work: Work) -> SubmittedTurn:
        live = await self._read(session)
        _check_open(live)
        known = live.keys.get(work.key) if work.key is not None else None
        if known is not None:
            if known.request != _request(work):
                raise KeyReused(session_id=session.id, turn_id=known.id)
            return known
        place = Place(new_turn_id(session.id))
        turn = SubmittedTurn(live, place, lambda place: self._prepared(session, work, place), work.delay)
        turn.start(reject=work.if_busy == "reject")
        if work.key is not None:
            turn.request = _request(work)
            live.keys[work.key] = turn
        return turn

    async def read(self, session: SessionRef, start: int = 0, stop: int | None = None) -> list[Message]:
        return [message.copied() for message in (await self._read(session)).state.messages[start:stop]]

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
        async with live.inbox.place(Place(), reject=edit.if_busy == "reject"):
            await refresh(live)
            _check_open(live)
            state = live.state.shallow()
            if edit.clear:
                state.keep(0)
            state.messages += [_created(message) for message in edit.add]
            for name, value in edit.changes(partial(getattr, state)).items():
                setattr(state, name, value)
            await commit(live, state)

    async def amend(self, session: SessionRef, turns: Sequence[str], messages: Sequence[Message]) -> bool:
        live = self._sessions.get(session)
        async with live.inbox.place(Place()):
            await refresh(live)
            state, end = live.state.shallow(), len(live.state.messages)
            while end and state.messages[end - 1].turn_id in turns:
                end -= 1
            if end == len(state.messages) or any(one.turn_id in turns for one in state.messages[:end]):
                return False
            state.keep(end)
            state.messages += [message.copied() for message in messages]
            await commit(live, state)
            return True

    async def fork(self, session: SessionRef, fork: SessionRef) -> None:
        source = await self._read(session)
        target = await self._read(fork)
        async with target.inbox.place(Place()):
            if target.exists:
                raise SessionExists(f"The session {fork.id!r} already exists.", session_id=fork.id)
            state = source.state.shallow()
            state.session_id, state.created = fork.id, now_ms()
            state.parent, state.children, state.closed = None, [], False
            target.openings.add("fork")
            await commit(target, state)

    async def children(self, session: SessionRef) -> list[str]:
        return list((await self._read(session)).state.children)

    async def close(self, session: SessionRef) -> None:
        live = self._sessions.get(session)
        async with live.inbox.place(Place()):
            await refresh(live)
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
        _check_open(live)
        agent = self._agent(work.agent)
        toolbox = ToolBox(agent.tools, threads=self._threads)
        return LocalTurn(live, place, agent, work, await self._provider(agent), toolbox)

    async def _read(self, session: SessionRef) -> LocalSession:
        """Return the current session. While a turn runs, this is the state before the turn."""
        live = self._sessions.get(session)
        if live.inbox.current is None:
            await refresh(live)
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
            await _add_child(parent, live.session_id)

    async def _replace(self, live: LocalSession, opening: Opening) -> None:
        """Replace the history by that of the opening. Raises ``SessionExists`` if there is another history."""
        saved = opening.saved
        if saved is None:
            if live.state.messages:
                raise SessionExists(session_id=live.session_id)
            await self._begin(live, opening, [_created(one) for one in opening.messages], hold=True)
            return
        if live.state.messages and live.state.messages != saved.messages and not opening.replace:
            raise SessionExists(
                "The session already has another history: use replace=True to replace it by the saved one.",
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
        return await self._read(SessionRef(SessionId(opening.parent), child.store))

    def _agent(self, asked: AgentLike | str | None) -> AgentLike:
        if asked is not None and not isinstance(asked, str):
            if asked.name:
                self._agents[asked.name] = asked
            return asked
        found = self._agents.get(asked or "")
        if found is None:
            raise UnknownAgent(
                f"No agent named {asked!r} was used in this process yet: pass the Agent itself."
            )
        return found

    async def _provider(self, agent: AgentLike) -> Provider:
        """Return the agent's provider for this event loop. Connections cannot be shared between loops."""
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


def _check_open(live: LocalSession) -> None:
    if live.state.closed:
        raise UsageError("The session is closed.", session_id=live.session_id)


async def _add_child(parent: LocalSession, child: str) -> None:
    """Add a child to its parent. If a turn of the parent runs, the end of that turn saves it."""
    parent.state.children.append(child)
    if parent.store is not None and parent.inbox.current is None:
        async with parent.inbox.place(Place()):
            await refresh(parent)
            await commit(parent, parent.state.shallow())


def _request(work: Work) -> bytes:
    """Return the contents of a request, to detect a key that is used for another request."""
    agent = work.agent if work.agent is None or isinstance(work.agent, str) else work.agent.described()
    return encode((work.messages, agent, work.params, work.output, work.metadata, work.timeout))


def _created(message: Message) -> Message:
    message.created = message.created or now_ms()
    return message
