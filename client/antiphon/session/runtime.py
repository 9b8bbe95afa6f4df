"""The seam between sessions and what runs their turns: this process, or workers on Redis.

A runtime keeps sessions by id and does one thing at a time to each. All its methods are coroutines, except
``work``; the synchronous calls of ``Session`` run them on the background loop.
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
    """Which session, and how it is kept: the store it is saved to, and the seconds that it stays unused."""

    id: SessionId
    store: SessionStore | None = None
    ttl: float | None = DEFAULT_TTL_SECONDS


class Opening(OpeningFields, kw_only=True):
    """What ``agent.session(…)`` or ``Session.from_dict`` asked for, done when the session is first used.

    ``token`` names the opening, so that doing it again does nothing. With ``saved`` the whole session is put
    in place of an empty one, or of any with ``replace``.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    messages: list[Message] = field(default_factory=list)
    saved: SavedSession | None = None
    replace: bool = False

    @property
    def empty(self) -> bool:
        """True where a session is opened as it is."""
        return msgspec.structs.replace(self, token="", replace=False) == Opening(token="")

    def changes(
        self, session_id: str, known: Callable[[str], Any], of_parent: Callable[[str], Any] | None
    ) -> dict[str, Any]:
        """The fields that the opening sets, by name; ``known`` and ``of_parent`` give what there is of one.

        What is given takes the place of what is known and is merged into dictionaries, but for variables, which are
        only set where there is none of the name. Raises ``UsageError`` to another tenant.
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
    """A change of a session outside its turns. It waits for the turns before it, or is refused.

    ``variables`` and ``metadata`` and ``files`` are merged into those that are there; ``remove`` names
    variables to take away.
    """

    add: list[Message] = field(default_factory=list)
    clear: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    if_busy: IfBusy = "enqueue"

    def changes(self, known: Callable[[str], Any]) -> dict[str, Any]:
        """The fields that the edit sets, by name; ``known`` gives what there is of one."""
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
    """A turn at work, and the step (model call) that it has come to."""

    turn_id: str
    status: Status
    step: int


class SessionStatus(Struct):
    """What is done, what is running and what is waiting."""

    state: Literal["idle", "busy", "closed"]
    messages: int
    running: RunningTurn | None = None
    waiting: list[str] = field(default_factory=list)
    created: int = 0
    updated: int = 0


class SessionInfo(ListedFields):
    """One line of a list of sessions.

    ``status``: a worker is at one of its turns (``running``), it has turns that wait (``waiting``), or nothing is
    left to do (``done``). ``agent`` is the name of the agent that it began with, ``queue`` its own one, ``turns``
    the number of turns in its inbox. ``created`` and ``updated`` are ms since 1970.
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
"""Where a session stands in a list: a number, the highest first, and its id."""


def agent_name(agent: Mapping[str, Any] | str | None) -> str | None:
    """The name of an agent as a session keeps it."""
    return agent if agent is None or isinstance(agent, str) else agent.get("name")


class SessionAgent(AgentLike, Protocol):
    """What sessions know of an ``Agent``."""

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
    """A submitted turn, for callers that await."""

    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    async def status(self) -> Status: ...
    async def result(self, timeout: float | timedelta | None = None) -> Response: ...
    def stream(self, after: int | str | None = None) -> AsyncGenerator[Event, None]: ...
    async def cancel(self, reason: str = ...) -> str: ...


class Runtime(Protocol):
    """Keeps sessions and runs their turns."""

    async def open(self, session: SessionRef, opening: Opening) -> None:
        """Make the session what the opening says. Raises ``SessionExists``."""
        ...

    def work(self, session: SessionRef, work: Work) -> AsyncGenerator[list[Event], None]:
        """Run a turn and give its events as they come, the terminal one last; then raise as it ended.

        The caller owns the turn: closing the generator before its terminal event rolls the turn back.
        """
        ...

    async def submit(self, session: SessionRef, work: Work) -> TurnHandle:
        """Hand in a turn that does not depend on the caller."""
        ...

    async def read(self, session: SessionRef, start: int = 0, stop: int | None = None) -> list[Message]:
        """Messages ``start`` to before ``stop`` of the history, negative ones counted from its end."""
        ...

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        """The whole session at one moment; without its messages where they are not asked for."""
        ...

    async def status(self, session: SessionRef) -> SessionStatus: ...

    async def edit(self, session: SessionRef, edit: Edit) -> None:
        """Change the session between two turns. Raises ``SessionBusy`` where asked to."""
        ...

    async def amend(self, session: SessionRef, turns: Sequence[str], messages: Sequence[Message]) -> bool:
        """Put ``messages`` in place of what these turns left, if that is still the history's end."""
        ...

    async def fork(self, session: SessionRef, fork: SessionRef) -> None:
        """Copy the session, its finished turns only, to a new id. Raises ``SessionExists``."""
        ...

    async def children(self, session: SessionRef) -> list[str]:
        """The ids of the sessions whose parent this one is."""
        ...

    async def close(self, session: SessionRef) -> None:
        """End the session: it can be read, and takes no more turns."""
        ...

    async def delete(self, session: SessionRef) -> bool:
        """Forget the session, in its store too. True where there was one. Running turns are cancelled."""
        ...

    def sessions(
        self, store: SessionStore | None, after: ListPlace | None, page: int
    ) -> AsyncGenerator[tuple[ListPlace, SessionInfo], None]:
        """The sessions that are kept after this place, ``page`` of them at a time as they are asked for."""
        ...

    async def aclose(self) -> None:
        """Close the connections of the running event loop. They also close when it ends."""
        ...


_local: Any = None
_lock = threading.Lock()


def local_runtime() -> Any:
    """The runtime of this process, made when it is first needed. Raises ``MissingPackage``."""
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
                    "To run turns in this process, the worker's packages are needed: pip install 'antiphon[worker]'."
                ) from exc
        return _local
