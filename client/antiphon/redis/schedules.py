"""Schedules: turns that are submitted repeatedly, once for each due time or event."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Unpack
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from antiphon.errors import (
    AgentError,
    CorruptRecord,
    KeyMissing,
    MissingPackage,
    NotFound,
    StoreError,
    UsageError,
)
from antiphon.input.ids import (
    SessionId,
    TurnId,
    is_event_name,
    other_tenant,
    session_id,
    tenant_id,
    turn_id_of_key,
)
from antiphon.input.messages import Input
from antiphon.input.request import decode_request, encoded_turn, travelling_agent
from antiphon.input.values import Priority, duration, is_a
from antiphon.model import Message
from antiphon.redis.connections import Connections
from antiphon.redis.edits import found_in
from antiphon.redis.files import MOST_INLINE, SessionFiles, is_large
from antiphon.session.runtime import SessionRef
from antiphon.session.work import OPTIONS, ClientSubmitOptions, work_of_client
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.keys import PREFIX
from antiphon.wire.lists.schedules import (
    NEVER,
    PAUSED,
    StoredSchedule,
    advance,
    due_schedules,
    schedule_ids,
    schedules_of_event,
    stored,
    write_schedule,
)
from antiphon.wire.records import DEFAULT_QUEUE, NewTurn


def check_times(every: float | timedelta | None, cron: str | None, tz: str, on: str | None = None) -> int:
    """Check when a schedule is due, and return ``every`` in ms, 0 without it. Raises ``UsageError``."""
    if [every, cron, on].count(None) != 2:
        raise UsageError(
            "A schedule needs either every= (seconds or a timedelta), cron= (text) or on= (an event)."
        )
    if on is not None:
        _check_events(on)
        return 0
    if cron is not None:
        next_due(0, cron, tz, after=0, now=0)
        return 0
    seconds = duration(every, "every")
    if seconds is None or seconds < 1:
        raise UsageError(f"every= must be at least a second, not {every!r}.")
    return int(seconds * 1000)


def next_due(every_ms: int, cron: str, tz: str, *, after: int, now: int) -> int:
    """Return the first time after ``now`` at which a schedule is due, in ms. ``after`` is when it was due last."""
    if every_ms:
        return after + every_ms * max(1, (now - after) // every_ms + 1)
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise MissingPackage(
            "Cron expressions need the package cronsim: pip install 'antiphon[cron]'."
        ) from None
    try:
        zone = UTC if tz == "UTC" else ZoneInfo(tz)
        found = next(CronSim(cron, datetime.fromtimestamp(now / 1000, zone)))
    except (CronSimError, StopIteration) as exc:
        raise UsageError(f"cron= is not a valid cron expression, or is never due: {cron!r} ({exc}).") from exc
    except (KeyError, ValueError, OSError) as exc:
        raise UsageError(f"tz= is not a time zone known to this machine: {tz!r}.") from exc
    return int(found.timestamp() * 1000)


def _check_events(on: Any) -> None:
    if not is_a(on, str) or (on != "*" and not is_event_name(on.removesuffix("*"))):
        raise UsageError(f"on= must be the name of an event, or the beginning of names and *, not {on!r}.")


log = logging.getLogger("antiphon.schedules")

PAGE = 100
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REFUSED = [name for name, one in OPTIONS.items() if "schedule" in one.missing]


class _Plan(Struct, omit_defaults=True):
    """What a schedule submits, and when."""

    request: str
    every_ms: int = 0
    cron: str = ""
    tz: str = "UTC"
    agent: str = ""
    queue: str = ""
    agent_queue: str = ""
    default_queue: str = DEFAULT_QUEUE
    tenant: str = ""
    input_bytes: int = 0
    priority: Priority = "normal"
    user: str = ""
    on: str = ""

    def next_due(self, *, after: int, now: int) -> int:
        return NEVER if self.on else next_due(self.every_ms, self.cron, self.tz, after=after, now=now)


class Schedule(Struct):
    """A schedule. ``every`` is in seconds. ``due`` is when its next turn is submitted, in ms since 1970, or None
    while it is ``paused`` or waits for an event. ``last_turn`` is the id of the turn that was submitted last, or
    ``error`` is why it was refused.
    """

    name: str
    session_id: str
    every: float | None
    cron: str | None
    tz: str
    due: int | None
    tenant: str | None = None
    last_turn: str | None = None
    error: str | None = None
    user: str | None = None
    on: str | None = None
    paused: bool = False


class AsyncSchedules:
    """The schedules of a session or of all sessions, optionally of one tenant.

    >>> from antiphon import Agent, AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> schedules = client.schedules("user-123")
    >>> await schedules.set("daily", "Summarise my day", agent="assistant", cron="0 18 * * *", tz="Europe/Berlin")
    >>> [(one.name, one.cron) async for one in schedules]
    [('daily', '0 18 * * *')]
    """

    def __init__(self, connections: Connections, session: str | None, tenant: str | None) -> None:
        self._connections = connections
        self._session = None if session is None else session_id(session)
        self._tenant = None if tenant is None else tenant_id(tenant)

    async def set(
        self,
        name: str,
        text: Input,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        on: str | None = None,
        **options: Unpack[ClientSubmitOptions],
    ) -> None:
        """Submit a turn at an interval, at the times of a cron expression in a time zone, or for each event.

        With ``on``, each event of this name submits one turn if no turn waits for it when it is sent
        (``client.send_event``): ``"github:push"``, or ``"github:*"`` for all names with this beginning. The event
        must be sent to the schedule's tenant. The last message of the turn contains it as JSON:
        ``{"event": name, "data": …}``.

        A ``name`` of letters, digits, ``_``, ``.`` and ``-`` identifies one schedule of the session; setting it again
        replaces it. Each due time submits one turn. After a period without workers, one turn is submitted for all the
        times that were missed. Options as in ``submit``, without ``key``, ``retry_failed``, ``delay``, ``if_busy``,
        ``cursor`` and ``ttl``. A schedule stays until it or its session is deleted. A session that has expired begins
        again with the next turn. Raises ``UsageError`` if a time cannot be read, ``MissingPackage`` for cron text
        without the package ``cronsim``, ``WrongTenant``, ``LimitReached`` if the tenant has too many schedules, and
        ``StoreError``, after which it can safely be set again.

        >>> await schedules.set("hourly", "Any news?", agent="assistant", every=3600)
        """
        where, cell = self._home()
        if not is_a(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"A schedule's name must be 1 to 64 letters, digits, '_', '.' and '-', not {name!r}."
            )
        given: dict[str, Any] = dict(options)
        for wrong in given.keys() & {*_REFUSED}:
            raise UsageError(f"A schedule does not accept {wrong}=.")
        given.setdefault("tenant", self._tenant)
        plan = _plan(given, text, check_times(every, cron, tz, on), cron or "", tz, on or "")
        await self._check(cell, where, plan.tenant or None)
        for found in await stored(cell, [f"{name}:{where}"]):
            self._check_own(found)
        now = await cell.server_ms()
        due = plan.next_due(after=now, now=now)
        fields = {"session": where, "tenant": plan.tenant, "user": plan.user, "on": plan.on}
        await write_schedule(cell, where, name, str(due), fields, msgspec.json.encode(plan))

    async def pause(self, name: str) -> None:
        """Submit no turns until ``resume``. Raises ``NotFound``.

        >>> await schedules.pause("daily")
        """
        await self._write(name, PAUSED)

    async def resume(self, name: str) -> None:
        """Submit turns again, from the next due time on. Raises ``NotFound``.

        >>> await schedules.resume("daily")
        """
        cell, found = await self._one(name)
        plan, now = _read(cell, found), await cell.server_ms()
        due = plan.next_due(after=now, now=now)
        if found.due is None:
            await write_schedule(cell, self._home()[0], name, str(due), {})

    async def delete(self, name: str) -> None:
        """Remove a schedule. Turns that it has submitted stay. Raises ``NotFound``.

        >>> await schedules.delete("daily")
        """
        await self._write(name, "")

    async def __aiter__(self) -> AsyncGenerator[Schedule, None]:
        cells = self._connections.cells if self._session is None else [self._home()[1]]
        for cell in cells:
            ids = await schedule_ids(cell, self._session)
            for start in range(0, len(ids), PAGE):
                for found in await stored(cell, ids[start : start + PAGE]):
                    try:
                        shown = _shown(cell, found)
                    except CorruptRecord:
                        continue
                    if self._tenant in (None, shown.tenant):
                        yield shown

    def _home(self) -> tuple[SessionId, Cell]:
        if self._session is None:
            raise UsageError("Name the session: client.schedules(session).")
        return self._session, self._connections.cell_of_session(self._session)

    async def _check(self, cell: Cell, where: SessionId, tenant: str | None) -> None:
        (await found_in(cell, where)).check_tenant(SessionRef(where, tenant=tenant))

    async def _one(self, name: str) -> tuple[Cell, StoredSchedule]:
        where, cell = self._home()
        found = await stored(cell, [f"{name}:{where}"])
        if not found:
            raise NotFound(f"The session has no schedule {name!r}.", session_id=where)
        self._check_own(found[0])
        return cell, found[0]

    def _check_own(self, found: StoredSchedule) -> None:
        if self._tenant is not None and text_of(found.fields.get("tenant")) != self._tenant:
            raise other_tenant(found.id.partition(":")[2], self._tenant)

    async def _write(self, name: str, due: str) -> None:
        cell, _ = await self._one(name)
        await write_schedule(cell, self._home()[0], name, due, {})


class DueSchedules:
    """The schedules of a cell that are due. Each one that stays due is logged once.

    A schedule stays due if it cannot be read here (it is damaged, encrypted with a key that is not here, or the
    package for its cron text is missing): another worker may be able to read it. It also stays due if its turn is
    refused for now, for example by a limit of its tenant: it is tried again until its next due time.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._left: set[str] = set()

    async def submit(self, count: int = PAGE) -> int:
        """Submit the turns of due schedules, once for each time, even if other workers do the same. Returns how many.

        A turn's id is made from the schedule and its time, so that a worker that takes over submits the same turn.
        Schedules that stay due do not delay others. Raises ``StoreError``.
        """
        now = await self._cell.server_ms()
        submitted, left = 0, set[str]()
        while ids := await due_schedules(self._cell, now, count, len(left)):
            before = len(left)
            found = await stored(self._cell, ids)
            left |= {*ids} - {one.id for one in found}  # names without a schedule
            for one in found:
                if one.due is None or one.due > now:
                    continue
                try:
                    submitted += await _submit(self._cell, one, _read(self._cell, one), one.due, now)
                except AgentError as exc:
                    if isinstance(exc, StoreError) and exc.retryable:
                        raise
                    left.add(one.id)
                    self._tell(one.id, exc)
            if len(left) == before:
                break
        self._left = left
        return submitted

    def _tell(self, schedule: str, exc: AgentError) -> None:
        if schedule not in self._left:
            log.warning("schedule %s stays due: %s", schedule, exc, extra={"action": "schedule_stays_due"})


async def _without_contents(cell: Cell, new: NewTurn) -> NewTurn:
    """Store large contents of a turn's messages in its session. Raises as ``add_file`` does."""
    if len(new.request) <= MOST_INLINE:
        return new
    request = decode_request(new.request)
    if not any(map(is_large, request.messages)):
        return new
    files = SessionFiles(cell, new.session_id, tenant=new.tenant, user=new.user or None)
    request.messages = await files.moved(request.messages)
    turn = encoded_turn(request)
    return msgspec.structs.replace(new, request=turn.request, input_bytes=turn.input_bytes)


async def _submit(cell: Cell, found: StoredSchedule, plan: _Plan, due: int, now: int) -> bool:
    """Submit the turn of this time. Raises the error that refuses it for now, until the schedule is due again."""

    def due_after(time: int) -> int:
        return plan.next_due(after=due, now=time)

    name = found.id.partition(":")[0]
    request, error, later = plan.request.encode(), "", due_after(now)
    digest = hashlib.sha256(request).hexdigest()
    new = _turn_of(cell, found, plan, f"schedule {name} {due}", digest, request, plan.input_bytes)
    try:
        await cell.submit(await _without_contents(cell, new))
    except StoreError:
        raise
    except AgentError as exc:
        if exc.retryable:
            later = due_after(due)
            if now < later:
                raise
        error = _refused(found, exc)
    return await _noted(cell, found, new.turn_id, due, later, error)


async def start_turns(cells: Iterable[Cell], name: str, tenant: str, event_id: str, data: Any) -> int:
    """Submit the turns of the schedules that an event starts, once for each event id. Returns how many.

    Raises the error that refuses a turn for now, such as a tenant limit, and ``StoreError``: send the event again.
    """
    started = 0
    for cell in cells:
        for found in await schedules_of_event(cell, name, tenant) if cell.has_disk else ():
            try:
                plan = _read(cell, found)
            except (CorruptRecord, KeyMissing) as exc:
                log.warning("schedule %s: %s", found.id, exc, extra={"action": "schedule_unreadable"})
            else:
                started += await _start(cell, found, plan, event_id, {"event": name, "data": data})
    return started


async def _start(
    cell: Cell, found: StoredSchedule, plan: _Plan, event_id: str, event: dict[str, Any]
) -> bool:
    request, error = decode_request(plan.request.encode()), ""
    said = Message.user(msgspec.json.encode(event).decode())
    said.by = plan.user or None
    request.messages = [*request.messages, said]
    turn, key = encoded_turn(request), f"event {found.id.partition(':')[0]} {event_id}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    new = _turn_of(cell, found, plan, key, digest, turn.request, turn.input_bytes)
    try:
        await cell.submit(await _without_contents(cell, new))
    except AgentError as exc:
        if exc.retryable or isinstance(exc, StoreError):
            raise
        error = _refused(found, exc)
    return await _noted(cell, found, new.turn_id, NEVER, NEVER, error) and not error


def _turn_of(
    cell: Cell, found: StoredSchedule, plan: _Plan, key: str, digest: str, request: bytes, input_bytes: int
) -> NewTurn:
    """Return the turn with this key: a schedule has one for each due time, and one for each event."""
    session = SessionId(found.session_id)
    turn = turn_id_of_key(session, key, "" if cell.keys.deployment == PREFIX else cell.keys.deployment)
    return NewTurn(
        session, turn, request, digest=digest, queue=plan.queue,
        agent_queue=plan.agent_queue, default_queue=plan.default_queue, agent=plan.agent.encode(),
        tenant=plan.tenant, key=key, input_bytes=input_bytes, priority=plan.priority, user=plan.user,
    )  # fmt: skip


def _refused(found: StoredSchedule, exc: AgentError) -> str:
    """Log and return why a turn was refused for good."""
    log.warning(
        "schedule %s: its turn was refused: %s", found.id, exc.message, extra={"action": "schedule_refused"}
    )
    return exc.message


async def _noted(cell: Cell, found: StoredSchedule, turn: TurnId, due: int, later: int, error: str) -> bool:
    """Note the turn that a schedule has submitted. Returns False if its due time has changed by then."""
    done = await advance(cell, found.id, due, later, TurnId("") if error else turn, error)
    if not done and not error and not await stored(cell, [found.id]):
        await cell.cancel(turn, "Its schedule was deleted.", "nothing")  # at this very moment
    return done


def _plan(given: dict[str, Any], text: Input, every_ms: int, cron: str, tz: str, on: str) -> _Plan:
    agent = travelling_agent(given.pop("agent", None))
    work = work_of_client(text, given)
    turn = encoded_turn(work.request(agent))
    return _Plan(
        turn.request.decode(), every_ms, cron, tz, turn.agent.decode(), work.queue or "", turn.agent_queue,
        DEFAULT_QUEUE, work.tenant or "", turn.input_bytes, work.priority, work.user or "", on,
    )  # fmt: skip


def _read(cell: Cell, found: StoredSchedule) -> _Plan:
    try:
        return msgspec.json.decode(found.plan(cell), type=_Plan)
    except (KeyError, msgspec.DecodeError, UnicodeError) as exc:
        raise CorruptRecord(f"The schedule {found.id!r} cannot be read: {exc}.") from exc


def _shown(cell: Cell, found: StoredSchedule) -> Schedule:
    plan = _read(cell, found)
    name, _, where = found.id.partition(":")
    every = plan.every_ms / 1000 if plan.every_ms else None
    return Schedule(
        name,
        where,
        every,
        plan.cron or None,
        plan.tz,
        None if plan.on else found.due,
        plan.tenant or None,
        text_of(found.fields.get("turn")) or None,
        found.error(cell) or None,
        plan.user or None,
        plan.on or None,
        found.due is None,
    )
