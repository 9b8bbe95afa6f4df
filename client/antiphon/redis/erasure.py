"""Searches all keys for what is left of an erased session, tenant or user."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from antiphon.errors import StoreUnavailable, TurnNotFound
from antiphon.input.ids import SessionId, is_of_sub_agent
from antiphon.model import Message
from antiphon.model.budget import BUDGET_SCOPES
from antiphon.model.revisions import Promotion, without
from antiphon.redis.connections import Connections
from antiphon.redis.files import stored_ids
from antiphon.redis.turn_records import finished_steps, turn_info
from antiphon.session.turn_info import TurnInfo
from antiphon.text import text_of
from antiphon.wire.cell import Cell
from antiphon.wire.editing import erase_turns
from antiphon.wire.errors import asked
from antiphon.wire.files import list_files
from antiphon.wire.keys import Key
from antiphon.wire.lists.inspection import turn_ids
from antiphon.wire.placed import clear, is_placed, store_of
from antiphon.wire.promotions import change_promotions

SCANNED = 1000  # keys per round trip
OF_A_SESSION = ("inbox", "history", "media", "events", "turns", "scheduled")
RECORDS = ("session", "turn", "schedule", "webhook")
FIELDS = ("session", "tenant", "deleted", "created", "description", "ant_prefix", "user", "users")


class Forgotten(Struct):
    """What was erased, and what a search of all keys found afterwards.

    ``sessions`` were deleted; ``turns`` are ended turns of earlier sessions with these ids, or of sessions that had
    expired. ``events`` were kept for turns that would wait for them. ``searched`` counts the keys examined, and
    ``left`` names those that still have content: it should be empty. ``pending`` are copies that workers remove:
    ``archive:…`` within two minutes, ``memory:…`` from the memory's index. ``unsearched`` contains ``archive`` if
    workers use an archive and the client has no ``archive=``: archived sessions may still have content. It contains
    ``files`` if contents of files are in a byte store and this process has none: set ``ANTIPHON_FILES``. Then repeat
    the call.
    """

    sessions: list[str] = field(default_factory=list[str])
    turns: int = 0
    schedules: int = 0
    webhooks: int = 0
    facts: int = 0
    events: int = 0
    searched: int = 0
    left: list[str] = field(default_factory=list[str])
    pending: list[str] = field(default_factory=list[str])
    unsearched: list[str] = field(default_factory=list[str])


class OfUser(Struct):
    """A user's part of a session: the ids of the user's kept turns. ``users`` are all users of the session."""

    turns: list[str] = field(default_factory=list[str])
    users: set[str] = field(default_factory=set[str])


class Search:
    """Searches all keys of a cell for what belongs to these sessions, to a tenant, or to a user (of a tenant).

    ``of_user`` are the sessions with turns of the user; ``shared`` are those where only such turns were erased.
    """

    def __init__(
        self,
        cell: Cell,
        sessions: Collection[str],
        tenant: str | None,
        user: str | None = None,
        shared: Collection[str] = (),
    ) -> None:
        self._cell = cell
        self._sessions = sessions
        self._tenant = tenant
        self._user = user
        self._touched = {*sessions, *shared}
        self.of_user: dict[str, OfUser] = {}
        self._erased: list[str] = []
        self._threads: list[Key] = []  # and ledgers
        self.searched = 0
        self.left: list[str] = []
        self.pending: list[str] = []

    async def run(self) -> None:
        """Search all keys, and remove graph threads, whose names only a search finds. Raises ``StoreError``."""
        cursor, keys = 0, self._cell.keys
        while True:
            answer: Any = await asked(self._cell.redis.scan(cursor, count=SCANNED))
            cursor = int(answer[0])
            found: list[bytes] = answer[1]
            await self._look_at([Key(key) for key in map(text_of, found) if self._kind(key)[0]])
            if self._cell.keys is not keys:
                raise StoreUnavailable("The cell has moved during the search: repeat the call.")
            if not cursor:
                break
        await self._look_for_remains()

    async def _look_at(self, keys: list[Key]) -> None:
        self.searched += len(keys)
        pipe, records = self._cell.redis.pipeline(transaction=False), list[tuple[str, str, str]]()
        for key in keys:
            kind, name = self._kind(key)
            if kind in RECORDS or kind == "job":
                pipe.hmget(key, *FIELDS)
                records.append((key, kind, name))
            elif kind in OF_A_SESSION and name in self._sessions:
                self.left.append(key)
            elif kind == "remembered" and name in self._sessions:
                self.pending.append(f"memory:{name}")
            elif self._goes(kind, name):
                self._threads.append(key)
        found: list[list[bytes | None] | Exception] = await asked(pipe.execute(raise_on_error=False))
        for record, values in zip(records, found, strict=True):
            if isinstance(values, list):
                self._judge(*record, *map(text_of, values))

    def _judge(
        self, key: str, kind: str, name: str, session: str, tenant: str, deleted: str, created: str,
        description: str, prefix: str, user: str, users: str,
    ) -> None:  # fmt: skip
        if self._user and self._tenant in (None, tenant) and self._user in (user, *users.split("\n")):
            if not deleted:
                self._note_user(key, kind, name, session, users)
            return
        if self._user and session not in self._sessions:
            return
        session = {"session": name, "job": description}.get(kind, session)
        if kind == "job" and prefix != self._cell.keys.deployment:
            return
        if session not in self._sessions and (not tenant or tenant != self._tenant):
            return
        if kind == "turn" and deleted:
            self._erased.append(name)
        elif kind != "session" or created:
            self.left.append(key)

    def _note_user(self, key: str, kind: str, name: str, session: str, users: str) -> None:
        self.left.append(key)
        of = self.of_user.setdefault(name if kind == "session" else session, OfUser())
        if kind == "session":
            of.users = set(users.split("\n"))
        elif kind == "turn":
            of.turns.append(name)

    def _goes(self, kind: str, name: str) -> bool:
        """Return whether this is a thread or a ledger of erased data."""
        if kind == "graph":
            return _session_of_thread(name) in self._touched
        scope, _, ledger = name.partition(":")
        return kind == "spent" and self._pays(scope, ledger.partition(":")[2])

    def _pays(self, scope: str, name: str) -> bool:
        """Return whether a budget or ledger is the user's, the tenant's or one of its users', or a session's."""
        whole = self._tenant if self._user is None else None
        if scope == "session":
            return name in self._sessions
        if scope == "tenant":
            return bool(name) and name == whole
        tenant, _, user = name.rpartition("\x1f")
        if scope != "user" or not name:
            return False
        return (
            user == self._user and self._tenant in (None, tenant)
            if self._user
            else bool(tenant) and tenant == whole
        )

    async def _remove_budgets(self) -> None:
        for scope in BUDGET_SCOPES:
            names = await asked(self._cell.redis.hkeys(self._cell.keys.budgets(scope)))
            doomed = [name for name in names if self._pays(scope, text_of(name))]
            if doomed:
                await asked(self._cell.redis.hdel(self._cell.keys.budgets(scope), *doomed))

    async def _remove_promotions(self) -> None:
        tenant = self._tenant if self._user is None else None

        def change(known: dict[str, Promotion]) -> dict[str, Promotion]:
            return {
                agent: without(one, tenant=tenant, sessions=self._sessions) for agent, one in known.items()
            }

        await change_promotions(self._cell, change)

    async def _look_for_remains(self) -> None:
        """Remove budgets, promotions, threads and ledgers; note remains of erased turns and copies elsewhere."""
        await self._remove_budgets()
        await self._remove_promotions()
        if self._threads:
            await asked(self._cell.redis.unlink(*self._threads))
        for turn in self._erased:
            of_rq = self._cell.keys.of_rq
            keys = [self._cell.keys.journal(turn), of_rq("rq_job", turn), of_rq("rq_results", turn)]
            pipe = self._cell.redis.pipeline(transaction=False)
            for key in keys:
                pipe.exists(key)
            there = await asked(pipe.execute())
            self.left += [key for key, exists in zip(keys, there, strict=True) if exists]
        await self._look_at_memories()
        archived = await asked(self._cell.redis.zrange(self._cell.keys.forget, 0, -1))
        known = {*self._touched, *(session[:80] for session in self._touched)}
        names = sorted(text_of(name) for name in archived)
        self.pending += [f"archive:{name}" for name in names if name.partition("\x1f")[0] in known]

    async def _look_at_memories(self) -> None:
        """Note the memories that are still to forget turns of sessions that stay, from a field of each session."""
        stay = sorted(self._touched.difference(self._sessions))
        if not stay:
            return
        pipe = self._cell.redis.pipeline(transaction=False)
        for session in stay:
            pipe.hkeys(self._cell.keys.remembered(session))
        found: list[list[bytes]] = await asked(pipe.execute())
        for session, names in zip(stay, found, strict=True):
            if any(text_of(name).startswith("@cut/") for name in names):
                self.pending.append(f"memory:{session}")

    def _kind(self, key: str) -> tuple[str, str]:
        """Return the kind of a key and its id. The kind is empty if the key belongs to another deployment."""
        for stem in (self._cell.keys.prefix, self._cell.keys.rq):
            if key.startswith(f"{stem}:"):
                kind, _, name = key.removeprefix(f"{stem}:").partition(":")
                return kind, name
        return "", ""


def _session_of_thread(name: str) -> str:
    """Return the session of ``data:{session}:{turn}:{run}``, the thread in which a graph has run a turn."""
    return name.partition(":")[2].rpartition(":")[0].rpartition(":")[0]


async def search(
    cells: Iterable[Cell],
    sessions: Collection[str],
    tenant: str | None,
    found: Forgotten,
    user: str | None = None,
    shared: Collection[str] = (),
) -> None:
    """Search all keys of these cells, and note in the report what was found. Raises ``StoreError``."""
    for cell in cells:
        for session in sessions:
            await clear(cell, SessionId(session))
        if await is_placed(cell) and store_of(cell) is None:
            found.unsearched = ["files"]
        one = Search(cell, sessions, tenant, user, shared)
        await one.run()
        found.searched += one.searched
        found.left += one.left
        found.pending += one.pending


async def forget_session(
    connections: Connections, session: str, tenant: str | None, open_session: Callable[..., Any]
) -> Forgotten:
    """Delete a session and those of its sub-agents, and search for what is left. Raises ``StoreError``."""
    found = Forgotten()
    doomed = [*await sub_agents_of(connections, session, tenant), session]
    for one in reversed(doomed):  # the session deletes those of its sub-agents, unless it has expired
        if await open_session(one, tenant=tenant).delete() or one != session:
            found.sessions.append(one)
    cells = list(dict.fromkeys(connections.cell_of_session(SessionId(one)) for one in doomed))
    for cell in cells:
        found.turns += await erase_turns(cell) or 0
    await search(cells, doomed, None, found)
    return found


async def sub_agents_of(connections: Connections, session: str, tenant: str | None) -> list[str]:
    """Return the sessions of a session's sub-agents and of theirs, even if it has expired. Raises ``StoreError``.

    Only those of its tenant are returned: any tenant may use such a name and this parent.
    """
    own = connections.cell_of_session(SessionId(session))
    kept: Any = await asked(own.redis.hmget(own.keys.session(session), ["created", "tenant"]))
    whose = text_of(kept[1]) if kept[0] else tenant
    parents: dict[str, str] = {}
    for cell in connections.cells:
        cursor = 0
        while True:
            pattern = cell.keys.session("child-*")
            answer: Any = await asked(cell.redis.scan(cursor, pattern, SCANNED))
            cursor = int(answer[0])
            pipe = cell.redis.pipeline(transaction=False)
            for key in answer[1]:
                pipe.hmget(key, ["parent", "tenant"])
            found: list[Any] = await asked(pipe.execute(raise_on_error=False)) if answer[1] else []
            for key, values in zip(answer[1], found, strict=True):
                name = text_of(key).partition(":session:")[2]
                if not isinstance(values, list) or not is_of_sub_agent(name):
                    continue
                parent, of = (text_of(one) for one in cast("list[Any]", values))
                if parent and whose in (None, of):
                    parents[name] = parent
            if not cursor:
                break
    known = {session}
    while new := {child for child, parent in parents.items() if parent in known} - known:
        known |= new
    return sorted(known - {session})


async def note_archive(cells: Iterable[Cell], found: Forgotten) -> None:
    """Note in the report that there is an archive, which this client cannot search. Raises ``StoreError``."""
    for cell in cells:
        if await asked(cell.redis.exists(cell.keys.seq_floor)):
            found.unsearched.append("archive")
            return


async def sessions_of_user(cells: Iterable[Cell], user: str, tenant: str | None) -> dict[str, OfUser]:
    """Return the sessions with turns of a user, by a search of all keys. Raises ``StoreError``."""
    found: dict[str, OfUser] = {}
    for cell in cells:
        one = Search(cell, (), tenant, user)
        await one.run()
        found |= one.of_user
    return found


def part_of_user(saved: dict[str, Any], user: str) -> dict[str, Any]:
    """Return a user's part of a saved session: the messages of all turns that the user has submitted or steered."""
    turns = {one.get("turn_id") for one in saved["messages"] if one.get("by") == user}
    messages = [one for one in saved["messages"] if one.get("turn_id") in turns or one.get("by") == user]
    named = {*stored_ids(msgspec.convert(messages, list[Message]))}
    files = [one for one in saved.get("media", []) if one["id"] in named or one.get("by") == user]
    found = {"session_id": saved["session_id"], "messages": messages, "users": [user]}
    return {**found, "media": files} if files else found


class ErasedPart:
    """The part of a session that is erased with a user: turns, and files that only these turns name."""

    def __init__(self, user: str, turns: Iterable[str]) -> None:
        self._user = user
        self.turns = {*turns}
        self._files = set[str]()
        self._others = set[str]()

    def add(self, turn: TurnInfo) -> None:
        """Note an ended turn of the user, or the turn that it steered, and the files of its input."""
        self.turns |= {turn.steered_into or turn.turn_id}
        self._files.update(stored_ids(turn.input))

    def without(self, messages: list[Message]) -> list[Message]:
        """Return the messages that stay."""
        self.turns.update(one.turn_id for one in messages if one.by == self._user and one.turn_id)
        kept = [one for one in messages if one.turn_id not in self.turns and one.by != self._user]
        self._files.update(stored_ids(messages))
        self._others = {*stored_ids(kept)}
        return kept

    async def files(self, cell: Cell, session: SessionId) -> set[str]:
        """Return the files to remove, including those of tools in turns that left no messages.

        Files that other turns name stay, including turns that have yet to run or may be retried. Raises
        ``StoreError``.
        """
        entries = await list_files(cell, session)
        doomed = self._files | {one.id for one in entries if one.by == self._user}
        doomed = {one.id for one in entries if one.id in doomed} - self._others
        turns = (await turn_ids(cell, session))[0] if doomed else []
        for turn in [one for one in turns if one not in self.turns]:
            with suppress(TurnNotFound):
                info = turn_info(await cell.turn(turn))
                doomed.difference_update(stored_ids([*info.input, *info.messages]))
                doomed.difference_update(stored_ids(await finished_steps(cell, session, turn)))
        return doomed
