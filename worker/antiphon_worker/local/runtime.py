"""The local runtime: sessions and turns of this process, without a server, on the worker's engine and a memory cell.

A turn runs on the event loop of its caller (the background loop for synchronous calls and submitted turns), so that
asynchronous tools can use connections that the caller opened on that loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from msgspec import Struct

from antiphon.errors import TurnNotFound, UnknownProvider
from antiphon.input.ids import SessionId, TurnId
from antiphon.model import FallbackModel
from antiphon.redis.cells import Cells
from antiphon.redis.connections import Connections
from antiphon.redis.listing import LISTED, info_of
from antiphon.redis.runtime import RedisRuntime
from antiphon.redis.turn import AsyncTurn
from antiphon.session.background import spawn, when_loop_ends
from antiphon.session.runtime import ListPlace, Opening, SessionInfo, SessionRef
from antiphon.session.saved import SavedSession
from antiphon.session.work import AgentLike, Work
from antiphon.stores.base import SessionStore
from antiphon.testing import Script
from antiphon.tools.threads import Threads
from antiphon.wire.lists.inspection import SessionRow
from antiphon.wire.records import DEFAULT_QUEUE
from antiphon_worker.local.cell import MemoryCell
from antiphon_worker.local.moves import ENDED
from antiphon_worker.local.own_app import OwnApp
from antiphon_worker.local.records import Session, Turn
from antiphon_worker.local.serving import Server
from antiphon_worker.local.stored import StoredCell
from antiphon_worker.providers.base import Provider
from antiphon_worker.providers.registry import BUILT_IN
from antiphon_worker.providers.scripted import ScriptedProvider

RECENT_STORES = 32
_UNWATCHED = nullcontext()


class MemoryConnections(Connections):
    """A memory cell in place of a deployment's cells. It is used from every event loop."""

    def __init__(self, cell: MemoryCell) -> None:
        self.cell = cell
        self.archive = None
        self._queue = DEFAULT_QUEUE

    @property
    def cells(self) -> Cells:
        return Cells([self.cell])

    def cell_of_session(self, session: SessionId) -> MemoryCell:
        return self.cell

    def cell_of_turn(self, turn: TurnId) -> MemoryCell:
        return self.cell

    def feed_of(self, cell: Any) -> Any:
        return self.cell

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


class Carried(Struct):
    """The parts of a turn that cannot be stored: its agent with its functions, and the event loop that it runs on."""

    agent: AgentLike | str | None = None
    loop: asyncio.AbstractEventLoop | None = None


_submitting: ContextVar[Sequence[Carried]] = ContextVar("submitting", default=())


@contextmanager
def _carrying(agent: Any, loop: asyncio.AbstractEventLoop | None = None) -> Generator[None]:
    """Attach an agent of this process to a turn accepted inside this context."""
    carried = [Carried(agent, loop)]
    token = _submitting.set(carried)
    try:
        yield
    finally:
        carried.clear()  # tasks that began inside it keep its context
        _submitting.reset(token)


def _carry(turn: Turn) -> None:
    turn.carried = next(iter(_submitting.get()), None)


class LocalRuntime(RedisRuntime):
    """Keeps sessions in memory, including those of a store, and runs their turns in this process."""

    def __init__(self) -> None:
        super().__init__(self._connections)
        self._lock = threading.Lock()
        self._deployments: dict[int, MemoryConnections] = {}  # by store; 0 has the sessions without one
        self._servers: dict[str, Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._agents: WeakValueDictionary[str, AgentLike] = WeakValueDictionary()
        self._providers: WeakKeyDictionary[Any, dict[str, Provider]] = WeakKeyDictionary()  # by event loop
        self._threads = Threads()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def cell(self, store: SessionStore | None = None) -> MemoryCell:
        """Return the cell for the sessions of a store, or for those without a store."""
        return self._deployment(store).cell

    async def _connections(self, store: SessionStore | None = None) -> Connections:
        return self._deployment(store)

    def _deployment(self, store: SessionStore | None) -> MemoryConnections:
        place = 0 if store is None else id(store)
        with self._lock:
            known = self._deployments.pop(place, None)
            if known is None:
                known = MemoryConnections(self._opened(MemoryCell() if store is None else StoredCell(store)))
                self._drop_idle()
            self._deployments[place] = known  # ordered by last use
            return known

    def _opened(self, cell: MemoryCell) -> MemoryCell:
        cell.transitions.accepted = _carry
        cell.transitions.woken = lambda turn: self._wake(cell, turn)
        cell.transitions.stopping = self._stop
        return cell

    def _drop_idle(self) -> None:
        """Drop the sessions of the least recently used store from memory: they can be loaded again."""
        idle = [place for place, one in self._deployments.items() if place and one.cell.is_idle]
        if len(idle) >= RECENT_STORES:
            del self._deployments[idle[0]]

    # Turns

    async def _hand_in(self, session: SessionRef, work: Work, *, owned: bool = False) -> AsyncTurn:
        connections = await self._connected(session.store)
        turn_id, agent = connections.turn_id_of(session, work), work.agent
        if agent is not None and not isinstance(agent, str) and agent.name:
            self._agents[agent.name] = agent
        described = agent if agent is None or isinstance(agent, str) else agent.described()
        with _carrying(agent, asyncio.get_running_loop() if owned else None):
            await connections.submit(session, work, described, turn_id)
        return AsyncTurn(connections, turn_id, session.id, work.schema)

    async def turn(self, session: SessionRef, turn_id: TurnId, agent: Any) -> AsyncTurn:
        cell = self.cell(session.store)
        await self._found(session, 1, 0)
        if turn_id not in cell.transitions.turns and isinstance(cell, StoredCell):
            with _carrying(agent):
                cell.take_up(session.id, turn_id)
        found = cell.transitions.turns.get(turn_id)
        if found is None or found.session.id != session.id:
            raise TurnNotFound(session_id=session.id, turn_id=turn_id)
        return AsyncTurn(await self._connected(session.store), turn_id, session.id)

    async def _watched(self, session: SessionRef, turn_id: TurnId) -> AbstractContextManager[None]:
        """Return an empty context: turns of this process do not wait for workers."""
        return _UNWATCHED

    def _wake(self, cell: MemoryCell, turn: Turn) -> None:
        """Wake the turn's server. If it has none, start one on the event loop of the turn's caller."""
        server = self._servers.get(turn.id)
        if server is not None:
            server.wake()
            return
        if turn.status in ENDED:
            return
        carried: Carried = turn.carried or Carried()
        app = OwnApp(self._agent(carried.agent), self._provider, self._threads, self._agents.get, _carrying)
        server = self._servers[turn.id] = Server(cell, turn, app)
        if carried.loop is None:
            spawn(self._serve(cell, turn, server))
        else:
            task = carried.loop.create_task(self._serve(cell, turn, server), name=f"turn {turn.id}")
            carried.loop = None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, cell: MemoryCell, turn: Turn, server: Server) -> None:
        try:
            await server.run()
        finally:
            with cell.lock:
                if self._servers.get(turn.id) is server:
                    del self._servers[turn.id]
        with cell.lock:
            if turn.status not in ENDED and turn.id not in self._servers:
                self._wake(cell, turn)  # it was requeued in the meantime

    def _stop(self, turn_id: str, reason: str, keep: Any) -> None:
        if (server := self._servers.get(turn_id)) is not None:
            server.stop(reason, keep)

    def _agent(self, asked: AgentLike | str | None) -> AgentLike | None:
        return self._agents.get(asked or "") if asked is None or isinstance(asked, str) else asked

    async def _provider(self, agent: AgentLike | FallbackModel) -> Provider:
        """Return the provider of an agent or a fallback for this event loop: loops do not share connections."""
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

    # Sessions

    async def open(self, session: SessionRef, opening: Opening) -> None:
        await super().open(session, opening)
        cell = self.cell(session.store)
        if opening.saved is not None and opening.saved.suspended and isinstance(cell, StoredCell):
            cell.suspended[session.id] = opening.saved.suspended

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        saved = await super().save(session, messages=messages)
        cell = self.cell(session.store)
        if isinstance(cell, StoredCell):
            saved.suspended = cell.suspended_turns(session.id)
        return saved

    async def sessions(
        self, store: SessionStore | None, after: ListPlace | None, page: int
    ) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
        """Yield the sessions of this process, most recently used first, or those of a store in reverse id order."""
        cell = self.cell(store)
        if isinstance(cell, StoredCell):
            for session_id in await cell.ids():
                if after is None or (0, session_id) < after:
                    await self._found(SessionRef(SessionId(session_id), store), 1, 0)
                    if (found := cell.session(session_id)) is not None:
                        yield (0, session_id), _info(found)
            return
        known = {(one.record.number("updated"), one.id): one for one in cell.known_sessions()}
        for place in sorted(known, reverse=True):
            if after is None or place < after:
                yield place, _info(known[place])

    def forget(self) -> None:
        """Remove all sessions from the memory of this process, for tests. Stores keep their sessions."""
        self._deployments.clear()
        self._servers.clear()

    async def aclose(self) -> None:
        """Close the connections to the model services that were opened on this event loop."""
        providers = self._providers.pop(asyncio.get_running_loop(), {})
        for provider in providers.values():
            await provider.aclose()

    def _after_fork(self) -> None:
        """Reset the child of a fork. It keeps the sessions, but not the running turns and their connections."""
        self._lock = threading.Lock()
        self._providers = WeakKeyDictionary()
        self._servers.clear()
        for known in self._deployments.values():
            known.cell.after_fork()


def _info(session: Session) -> SessionInfo:
    record, turns = session.record, session.turns
    created, updated = record.number("created"), record.number("updated")
    return info_of(
        SessionRow(
            session.id, {name: record.get(name, b"") for name in LISTED}, record.get("agent", b""),
            created or updated, updated or created, "closed" in record, bool(record.get("fence")),
            len(session.inbox), len(session.history),
            due=min((turn.due for turn in turns if turn.due is not None), default=0),
            failed=bool(turns) and turns[-1].status == "failed",
            suspended=any(turn.status == "suspended" for turn in turns),
        )
    )  # fmt: skip
