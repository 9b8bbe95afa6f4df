"""The interface between sessions and the runtime that runs their turns: this process, or workers on Redis.

A runtime stores sessions by id and performs one operation at a time on each. Its methods are coroutines and
asynchronous generators; the synchronous calls of ``Session`` run them on the background loop.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from antiphon.errors import MissingPackage
from antiphon.events import Event
from antiphon.input.ids import SessionId, TurnId
from antiphon.input.values import Asked, IfBusyEdit, Keep, SessionWord
from antiphon.model import Decision, File, Message, Response, Status
from antiphon.model.files import FileEntry, StoredFile
from antiphon.model.recording import KeptRequest, Recording, SessionRecording, VariantRun
from antiphon.session.saved import FIELDS, ListedFields, OpeningFields, SavedSession
from antiphon.session.streams import EventIterator
from antiphon.session.turn_info import TurnInfo, TurnRun, TurnTree
from antiphon.session.work import AgentLike, Work

if TYPE_CHECKING:
    from antiphon.stores.base import SessionStore

DEFAULT_TTL_SECONDS = 30 * 24 * 3600.0


class SessionRef(Struct, frozen=True):
    """A session's id, the store it is saved to, and the seconds it is kept without being used.

    A ``ttl`` of None means forever; ``UNSET`` keeps that of the session, or the default. With a ``tenant``, every
    operation on an existing session raises ``WrongTenant`` unless the session belongs to that tenant.
    """

    id: SessionId
    store: SessionStore | None = None
    ttl: float | UnsetType | None = UNSET
    tenant: str | None = None

    @property
    def ttl_ms(self) -> int | None:
        """The ``ttl`` as the scripts expect it: 0 means forever, None means not set."""
        if self.ttl is UNSET:
            return None
        return 0 if self.ttl is None else max(1, int(self.ttl * 1000))


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
    def names_tenant_alone(self) -> bool:
        """True if reading does not need it: it names a tenant, but has no history and no parent."""
        brings = self.messages or self.saved is not None or self.parent is not None
        return self.tenant is not None and not brings

    @property
    def empty(self) -> bool:
        """True if the opening changes nothing."""
        return msgspec.structs.replace(self, token="", replace=False) == Opening(token="")

    def changes(self, known: Callable[[str], Any], of_parent: Callable[[str], Any] | None) -> dict[str, Any]:
        """Return the fields that the opening sets, by name.

        ``known`` and ``of_parent`` return the current value of a field in the session and in its parent. A given value
        replaces the current one, and a given dictionary is merged into it; variables that exist keep their values.
        """
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

    It waits for earlier turns; with ``if_busy="reject"`` it raises ``SessionBusy`` instead. A change that turns do
    not see does not wait (``beside_turns``). ``variables``, ``metadata`` and ``files`` are merged into the current
    ones. ``remove`` names the variables to remove, ``unnamed`` the files to remove from the list, and ``rewind`` the
    message that becomes the last one. ``ends_with`` is called with the last message or None, perhaps more than once,
    and returns the messages that replace it, if there is one. ``becomes`` is called with all messages, perhaps more
    than once, and returns the new history: copies of the messages that stay, and new ones with ids of their own.
    """

    add: list[Message] = field(default_factory=list)
    clear: bool = False
    rewind: str | None = None
    ends_with: Callable[[Message | None], list[Message]] | None = None
    becomes: Callable[[list[Message]], list[Message]] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    remove: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    unnamed: list[str] = field(default_factory=list)
    if_busy: IfBusyEdit = "enqueue"

    @property
    def beside_turns(self) -> bool:
        """Whether this changes nothing that a turn reads or writes: only metadata and names of files."""
        of_history = self.add or self.clear or self.rewind or self.ends_with or self.becomes
        return not (of_history or self.variables or self.remove)

    @property
    def needs_past(self) -> bool:
        """Whether the outcome depends on the session's content: an archived session is restored first."""
        return bool(self.rewind or self.ends_with or self.becomes or self.remove)

    def changes(self, known: Callable[[str], Any]) -> dict[str, Any]:
        """Return the fields that the edit sets, by name. ``known`` returns the current value of a field."""
        changes: dict[str, Any] = {}
        if self.variables or self.remove:
            left = {name: value for name, value in known("variables").items() if name not in self.remove}
            changes["variables"] = left | self.variables
        if self.metadata:
            changes["metadata"] = known("metadata") | self.metadata
        if self.files or self.unnamed:
            named = {name: file for name, file in known("files").items() if name not in self.unnamed}
            changes["files"] = named | self.files
        return changes


class Branch(Struct, frozen=True):
    """A session that was forked from another one.

    ``source`` is the session that it was forked from, and ``at`` the id of the last message that was copied from it,
    or None if none was.
    """

    session_id: str
    source: str
    at: str | None


class RunningTurn(Struct):
    """A running turn and the number of its current step (model call)."""

    turn_id: str
    status: Status
    step: int


class DelayedTurn(Struct):
    """A turn that waits for its time. ``due`` is in ms since 1970."""

    turn_id: str
    due: int


class SessionStatus(Struct):
    """The state of a session: its number of messages, its running turn and the ids of its waiting turns.

    ``failed`` are the ids of those of its last 100 turns that have failed, latest first; without workers, of the
    turns that this process ran. ``delayed`` are those of these turns that are not due yet, the next one first.
    ``created`` and ``updated`` are in ms since 1970.
    """

    state: Literal["idle", "busy", "closed"]
    messages: int
    running: RunningTurn | None = None
    waiting: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    delayed: list[DelayedTurn] = field(default_factory=list)
    created: int = 0
    updated: int = 0


class SessionInfo(ListedFields):
    """One entry of a list of sessions.

    ``status`` is ``running`` if a worker runs one of the session's turns, ``suspended`` if its next or last turn waits
    for decisions, ``waiting`` if its turns wait for a worker, ``delayed`` if its only open turns are not due yet,
    ``failed`` if its last turn failed, and otherwise ``done``. ``due`` is when its next delayed turn is due, in ms
    since 1970, or None. ``agent`` is the name of the agent that the session began with, ``queue`` the session's own
    queue, ``turns`` the number of turns in its inbox and ``parent`` the session that it is a child of. ``created`` and
    ``updated`` are in ms since 1970.
    """

    session_id: str
    status: SessionWord
    agent: str | None
    messages: int
    turns: int
    created: int
    updated: int
    closed: bool = False
    due: int | None = None


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
        ttl: float | UnsetType | None,
        store: SessionStore | None = ...,
    ) -> Any: ...


class TurnHandle(Protocol):
    """A submitted turn, with asynchronous methods."""

    @property
    def id(self) -> str: ...
    @property
    def session_id(self) -> str: ...
    def step_id(self, step: int) -> str: ...
    async def status(self) -> Status: ...
    async def info(self) -> TurnInfo: ...
    async def tree(self) -> TurnTree: ...
    async def runs(self) -> list[TurnRun]: ...
    async def result(self, timeout: float | timedelta | None = None) -> Response: ...
    def stream(
        self, after: int | str | None = None, *, heartbeat: float | timedelta | None = None
    ) -> EventIterator: ...
    async def cancel(self, reason: str = ..., *, keep: Keep = ...) -> str: ...
    async def feedback(self, score: float, note: str | None = None, *, by: str | None = None) -> None: ...
    async def recording(self) -> Recording: ...
    async def requests(self) -> list[KeptRequest]: ...
    async def replay(
        self, revision: str, *, runs: int = 1, step: int = 1, model: str | None = None, system: str | None = None,
        key: str | None = None,
    ) -> list[VariantRun]: ...  # fmt: skip
    async def variants(self) -> list[VariantRun]: ...
    async def requeue(self) -> None: ...
    async def approve(
        self, call_id: str, *, by: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None: ...
    async def reject(self, call_id: str, *, reason: str | None = None, by: str | None = None) -> None: ...
    async def tool_result(
        self, call_id: str, result: Any = None, *, is_error: bool = False, by: str | None = None
    ) -> None: ...


class Runtime(Protocol):
    """Stores sessions and runs their turns."""

    async def open(self, session: SessionRef, opening: Opening) -> None:
        """Apply the opening to the session. Raises ``SessionExists``."""
        ...

    def work(self, session: SessionRef, work: Work) -> AsyncGenerator[Event, None]:
        """Run a turn and yield its events as they arrive. The last one is the terminal event.

        If the turn failed, the error is raised after that event. The caller owns the turn: closing the generator
        before the terminal event rolls the turn back.
        """
        ...

    async def turn(self, session: SessionRef, turn_id: TurnId, agent: AgentLike | str | None) -> TurnHandle:
        """Return a turn of the session. ``agent`` continues it if another process suspended it.

        Raises ``TurnNotFound``.
        """
        ...

    async def decide(self, session: SessionRef, turn_id: TurnId, decision: Decision) -> None:
        """Decide about a pending tool call. Raises ``AlreadyDecided``, ``NotSuspended`` and ``TurnNotFound``."""
        ...

    async def send_event(self, session: SessionRef, name: str, data: Any, key: str | None) -> int:
        """Send an event to the waiting turns of the session's tenant. Return how many it has reached."""
        ...

    async def submit(self, session: SessionRef, work: Work) -> TurnHandle:
        """Submit a turn that runs independently of the caller."""
        ...

    async def read(
        self, session: SessionRef, start: int = 0, stop: int | None = None, *, turns: Asked = ""
    ) -> list[Message]:
        """Return the messages from ``start`` up to, but not including, ``stop``, as in a slice of the history.

        ``turns`` names further turns to show: failed ones in their place, pending ones at the end.
        """
        ...

    async def cancel(self, session: SessionRef, reason: str, keep: Keep) -> str | None:
        """Cancel the turn that runs, or runs next. Return the result, or None if there is no turn."""
        ...

    async def save(self, session: SessionRef, *, messages: bool = True) -> SavedSession:
        """Return a consistent copy of the session, without its messages if ``messages`` is false."""
        ...

    async def status(self, session: SessionRef) -> SessionStatus: ...

    async def edit(self, session: SessionRef, edit: Edit) -> None:
        """Change the session between two turns. Raises ``SessionBusy`` if the edit has ``if_busy="reject"``."""
        ...

    async def fork(self, session: SessionRef, fork: SessionRef, at: str | None) -> None:
        """Copy the session with its finished turns, or those up to a message, to a new id.

        Raises ``SessionExists``, ``MessageNotFound`` and ``UsageError``.
        """
        ...

    async def add_file(
        self, session: SessionRef, data: bytes, media_type: str | None, name: str | None
    ) -> FileEntry:
        """Store a file in the session. Raises ``LimitReached``."""
        ...

    async def read_file(self, session: SessionRef, file_id: str) -> StoredFile:
        """Return a stored file with its content. Raises ``NotFound``."""
        ...

    async def stored_files(self, session: SessionRef) -> list[FileEntry]:
        """Return the stored files without their contents, by id."""
        ...

    async def load_files(self, session: SessionRef, messages: list[Message]) -> list[Message]:
        """Return the messages with the contents of stored files."""
        ...

    async def remove_file(self, session: SessionRef, file_id: str) -> bool:
        """Remove a stored file. Return True if the session had it."""
        ...

    async def children(self, session: SessionRef) -> list[str]:
        """Return the ids of the session's children."""
        ...

    async def graph(self, session: SessionRef) -> str:
        """Return the session's turns as a Mermaid diagram."""
        ...

    async def recording(self, session: SessionRef) -> SessionRecording:
        """Return the session's ended turns as a recording."""
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
