"""The seam between sessions and what runs their turns: this process, or workers on Redis.

A runtime keeps sessions by id and does one thing at a time to each. All its methods are coroutines, except
``work``; the synchronous calls of ``Session`` run them on the background loop.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct, field

from antiphon.errors import MissingPackage, UsageError
from antiphon.events import Event
from antiphon.input.ids import SessionId
from antiphon.input.limits import check_plain
from antiphon.input.request import AgentSpec, OutputSpec
from antiphon.model import File, Message, Response, Status
from antiphon.session.saved import SavedSession

if TYPE_CHECKING:
    from antiphon.stores.base import SessionStore
    from antiphon.tools import Tool
    from antiphon.window import Window

__all__ = [
    "DEFAULT_TTL_SECONDS",
    "AgentLike",
    "Edit",
    "IfBusy",
    "ListPlace",
    "Opening",
    "RunningTurn",
    "Runtime",
    "SessionInfo",
    "SessionRef",
    "SessionStatus",
    "TurnHandle",
    "Work",
    "agent_name",
    "duration",
    "local_runtime",
    "plain",
]

IfBusy: TypeAlias = Literal["enqueue", "reject"]

DEFAULT_TTL_SECONDS = 30 * 24 * 3600.0
LONGEST_SECONDS = 100 * 365 * 24 * 3600.0


class SessionRef(Struct, frozen=True):
    """Which session, and how it is kept: the store it is saved to, and the seconds that it stays unused."""

    id: SessionId
    store: SessionStore | None = None
    ttl: float | None = DEFAULT_TTL_SECONDS


class Opening(Struct):
    """What ``agent.session(…)`` or ``Session.from_dict`` asked for, done when the session is first used.

    ``token`` names the opening, so that doing it again does nothing. With ``saved`` the whole session is put
    in place of an empty one, or of any with ``replace``.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    queue: str | None = None
    parent: str | None = None
    saved: SavedSession | None = None
    replace: bool = False

    @property
    def empty(self) -> bool:
        """True where a session is opened as it is."""
        asked = (
            self.system, self.messages, self.variables, self.metadata, self.tenant, self.queue, self.parent, self.saved,
        )  # fmt: skip
        return not any(value is not None and value not in ([], {}) for value in asked)


class Work(Struct):
    """One turn to run: the input, who works on it (None: the session's agent), and how."""

    messages: list[Message]
    agent: AgentLike | str | None
    params: dict[str, Any] = field(default_factory=dict)
    output: OutputSpec | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    if_busy: IfBusy = "enqueue"
    queue: str | None = None
    key: str | None = None
    delay: float | None = None


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


class SessionInfo(Struct, kw_only=True):
    """One line of a list of sessions.

    ``status``: a worker is at one of its turns (``running``), it has turns that wait (``waiting``), or nothing is
    left to do (``done``). ``agent`` is the name of the agent that it began with, ``queue`` its own one, ``turns``
    the number of turns in its inbox. ``created`` and ``updated`` are ms since 1970.
    """

    session_id: str
    status: Literal["done", "running", "waiting"]
    tenant: str | None
    agent: str | None
    queue: str | None
    messages: int
    turns: int
    metadata: dict[str, Any]
    created: int
    updated: int
    closed: bool = False


ListPlace: TypeAlias = tuple[int, str]
"""Where a session stands in a list: a number, the highest first, and its id."""


def agent_name(agent: Mapping[str, Any] | str | None) -> str | None:
    """The name of an agent as a session keeps it."""
    return agent if agent is None or isinstance(agent, str) else agent.get("name")


class AgentLike(Protocol):
    """What runtimes and sessions know of an ``Agent``."""

    provider: Any
    model: str
    name: str | None
    system: str | None
    tools: list[Tool[..., Any]]
    params: dict[str, Any]
    max_steps: int | None
    window: int | Window | None

    def spec(self) -> AgentSpec: ...
    def described(self) -> AgentSpec: ...
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


def duration(value: float | timedelta | None, name: str) -> float | None:
    """Seconds of what a caller gives as a duration. Raises ``UsageError`` that names the argument."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise UsageError(f"{name}= is a positive number of seconds or a timedelta, not {value!r}.")
    if seconds > LONGEST_SECONDS:
        raise UsageError(f"{name}= is at most {LONGEST_SECONDS:.0f} seconds (100 years), not {value!r}.")
    return float(seconds)


def plain(values: Mapping[str, Any] | None, name: str) -> dict[str, Any]:
    """A copy of a dictionary that JSON can say. Raises ``UsageError`` that names the argument."""
    values = values or {}
    if not isinstance(values, Mapping):
        raise UsageError(f"{name}= is a dictionary, not {type(values).__name__}.")
    try:
        found = _decode_plain(msgspec.json.encode(dict(values))) if values else {}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as exc:
        raise UsageError(f"{name}= holds what JSON cannot say: {exc}.") from exc
    check_plain(name, found)
    return found


_decode_plain = msgspec.json.Decoder(dict[str, Any]).decode

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
