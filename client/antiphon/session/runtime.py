"""The interface between sessions and the runtime that runs their turns: this process, or workers on Redis.

A runtime stores sessions by id and performs one operation at a time on each. Its methods are coroutines and
asynchronous generators; the synchronous calls of ``Session`` run them on the background loop.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import MissingPackage
from antiphon.events import Event
from antiphon.input.ids import SessionId, other_tenant
from antiphon.input.values import IfBusy
from antiphon.model import File, Message, Response, Status
from antiphon.session.saved import FIELDS, ListedFields, OpeningFields, SavedSession
from antiphon.session.work import AgentLike, Work

if TYPE_CHECKING:
    from antiphon.stores.base import SessionStore

__all__ = [
    "DEFAULT_TTL_SECONDS",
    "Edit",
    "ListPlace",
    "Opening",
    "RunningTurn",
    "Runtime",
    "SessionAgent",
    "SessionInfo",
    "SessionRef",
    "SessionStatus",
    "TurnHandle",
    "agent_name",
    "local_runtime",
]

DEFAULT_TTL_SECONDS = 30 * 24 * 3600.0


class SessionRef(Struct, frozen=True):
    """A session's id, the store it is saved to, and the seconds it is kept without being used (None: forever)."""

    id: SessionId
    store: SessionStore | None = None
    ttl: float | None = DEFAULT_TTL_SECONDS


class Opening(OpeningFields, kw_only=True):
    """The arguments of ``agent.session(…)`` or ``Session.from_dict``, applied when the session is first used.

    ``token`` identifies the opening, so that applying it again has no effect. ``saved`` is a whole session to
    restore: it replaces an empty session, or any session if ``replace`` is true.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    messages: list[Message] = field(default_factory=list)
    saved: SavedSession | None = None
    replace: bool = False

    @property
    def empty(self) -> bool:
        """True if the opening changes nothing."""
        return msgspec.structs.replace(self, token="", replace=False) == Opening(token="")

    def changes(
        self, session_id: str, known: Callable[[str], Any], of_parent: Callable[[str], Any] | None
    ) -> dict[str, Any]:
        """Return the fields that the opening sets, by name.

        ``known`` and ``of_parent`` return the current value of a field in the session and in its parent. A given value
        replaces the current one, and a given dictionary is merged into it; variables that exist keep their values.
        Raises ``UsageError`` for another tenant.
        """
        if self.tenant is not None and known("tenant") not in (None, self.tenant):
            raise other_tenant(session_id, self.tenant)
        changes: dict[str, Any] = {}
        for name in OpeningFields.__struct_fields__:
            given = getattr(self, name)
            if given is None and of_parent is not None and FIELDS[name].inherited and known(name) is None:
                given = of_parent(name)
            if isinstance(given, dict) and given:
                changes[name] = known(name) | given if name != "variables" else given | known(name)
            elif given is not None and given != {}:
                changes[name] = given or None
        return changes


class Edit(Struct):
    """A change of a session outside its turns.

    It waits for earlier turns; with ``if_busy="reject"`` it raises ``SessionBusy`` instead. ``variables``,
    ``metadata`` and ``files`` are merged into the current ones. ``remove`` names the variables to remove.
    """

    add: list[Message] = field(default_factory=list)
    clear: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    if_busy: IfBusy = "enqueue"

    def changes(self, known: Callable[[str], Any]) -> dict[str, Any]:
        """Return the fields that the edit sets, by name. ``known`` returns the current value of a field."""
        changes: dict[str, Any] = {}
        if self.variables or self.remove:
            left = {name: value for name, value in known("variables").items() if name not in self.remove}
            changes["variables"] = left | self.variables
        if self.metadata:
            changes["metadata"] = known("metadata") | self.metadata
        if self.files:
            changes["files"] = known("files") | self.files
        return changes


class RunningTurn(Struct):
    """A running turn and the number of its current step (model call)."""

    turn_id: str
    status: Status
    step: int


class SessionStatus(Struct):
    """The state of a session: its number of messages, its running turn and the ids of its waiting turns.

    ``created`` and ``updated`` are in ms since 1970.
    """

    state: Literal["idle", "busy", "closed"]
    messages: int
    running: RunningTurn | None = None
    waiting: list[str] = field(default_factory=list)
    created: int = 0
    updated: int = 0


class SessionInfo(ListedFields):
    """One entry of a list of sessions.

    ``status`` is ``running`` if a worker runs one of the session's turns, ``waiting`` if its turns wait for a worker,
    and ``done`` if it has no open turns. ``agent`` is the name of the agent that the session began with, ``queue``
    the session's own queue and ``turns`` the number of turns in its inbox. ``created`` and ``updated`` are in ms
    since 1970.
    """

    session_id: str
    status: Literal["done", "running", "waiting"]
    agent: str | None
    messages: int
    turns: int
    created: int
    updated: int
    closed: bool = False


ListPlace: TypeAlias = tuple[int, str]
"""The position of a session in a list: a number (lists begin with the highest) and the session id."""


def agent_name(agent: Mapping[str, Any] | str | None) -> str | None:
    """Return the name of an agent that a session has stored."""
    return agent if agent is None or isinstance(agent, str) else agent.get("name")


class SessionAgent(AgentLike, Protocol):
    """The part of ``Agent`` that sessions use."""

    @property
    def runtime(self) -> Runtime: ...
    def open_session(
        self,
        session_id: str | None,
        opening: Opening,
        *,
        ttl: float | None,
        store: SessionStore | None = ...,
    ) -> Any: ...


class TurnHandle(Protocol):
    """A submitted turn, with asynchronous methods."""

    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    async def status(self) -> Status: ...
    async def result(self, timeout: float | timedelta | None = None) -> Response: ...
    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event, None]: ...
    async def cancel(self, reason: str = ...) -> str: ...


class Runtime(Protocol):
    """Stores sessions and runs their turns."""

    async def open(self, session: SessionRef, opening: Opening) -> None:
        """Apply the opening to the session. Raises ``SessionExists``."""
        ...

    def work(self, session: SessionRef, work: Work) -> AsyncGenerator[list[Event], None]:
        """Run a turn and yield its events as they arrive. The last one is the terminal event.

        If the turn failed, the error is raised after that event. The caller owns the turn: closing the generator
        before the terminal event rolls the turn back.
        """
        ...

    async def submit(self, session: SessionRef, work: Work) -> TurnHandle:
        """Submit a turn that runs independently of the caller."""
        ...

    async def read(self, session: SessionRef, start: int = 0, stop: int | None = None) -> list[Message]:
        """Return the messages from ``start`` up to, but not including, ``stop``, as in a slice of the history."""
        ...

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        """Return a consistent copy of the session, without its messages if ``messages`` is false."""
        ...

    async def status(self, session: SessionRef) -> SessionStatus: ...

    async def edit(self, session: SessionRef, edit: Edit) -> None:
        """Change the session between two turns. Raises ``SessionBusy`` if the edit has ``if_busy="reject"``."""
        ...

    async def amend(self, session: SessionRef, turns: Sequence[str], messages: Sequence[Message]) -> bool:
        """Replace the messages of these turns if they are still the last ones. Return True if it did."""
        ...

    async def fork(self, session: SessionRef, fork: SessionRef) -> None:
        """Copy the session with its finished turns to a new id. Raises ``SessionExists``."""
        ...

    async def children(self, session: SessionRef) -> list[str]:
        """Return the ids of the session's children."""
        ...

    async def close(self, session: SessionRef) -> None:
        """Close the session: it can still be read, but accepts no more turns."""
        ...

    async def delete(self, session: SessionRef) -> bool:
        """Delete the session, also from its store, and cancel its turns. Return True if it existed."""
        ...

    def sessions(
        self, store: SessionStore | None, after: ListPlace | None, page: int
    ) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
        """Yield the sessions after this place. They are read from the runtime ``page`` at a time."""
        ...

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They also close when the loop ends."""
        ...


_local: Any = None
_lock = threading.Lock()


def local_runtime() -> Any:
    """Return the runtime of this process, created on first use. Raises ``MissingPackage``."""
    global _local  # noqa: PLW0603 - one local runtime per process, because sessions are shared by id
    with _lock:
        if _local is None:
            found = entry_points(group="antiphon.runtime", name="local")
            try:
                _local = next(iter(found)).load()()
            except (StopIteration, ModuleNotFoundError) as exc:
                if isinstance(exc, ModuleNotFoundError) and (exc.name or "").startswith("antiphon."):
                    raise
                raise MissingPackage(
                    "Running turns in this process needs the worker's packages: pip install 'antiphon[worker]'."
                ) from exc
        return _local
