"""Facts about a user, extracted by a model from finished turns or written by a person."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from itertools import compress
from typing import Any, Literal, TypeVar

from msgspec import Struct

from antiphon.errors import LimitReached, NotFound, SessionBusy, UsageError
from antiphon.input.ids import SessionId, check_tenant, session_id, tenant_id
from antiphon.input.values import is_a
from antiphon.memory.declaration import Scope, checked_fact_name, fact_cursor, scope_key
from antiphon.redis.cells import Cells
from antiphon.redis.connections import Connections
from antiphon.wire.cell import Cell
from antiphon.wire.lists.memories import (
    FactBook,
    Remembered,
    StoredFact,
    Wording,
    count_of,
    read_book,
    tenant_of_session,
    which_known,
    write_facts,
)

F = TypeVar("F", bound="StoredFact | None")

LONGEST_FACT = 1000
MOST_FACTS = 1000
TRIES = 50


class Fact(Struct):
    """A fact. ``by`` is the author of its current text: ``"model"`` or ``"person"``. ``sources`` are the ids of the
    sessions and turns that support it. Times are in ms since 1970. ``error`` is why a fact cannot be read: only its
    id is known then, and ``delete`` removes it.
    """

    id: str
    text: str
    by: Literal["model", "person"]
    created: int
    updated: int
    sources: list[tuple[str, str]]
    error: str | None = None


class AsyncFacts:
    """The facts of a memory about a tenant, about an agent's users, or from one session. Iterate to list them.

    >>> from antiphon import AsyncClient
    >>> client = AsyncClient("redis://localhost:6379/0")
    >>> facts = client.memory(tenant="acme")
    >>> nuts = await facts.add("Is allergic to nuts.")
    >>> [(fact.text, fact.by) async for fact in facts]
    [('Is allergic to nuts.', 'person')]
    """

    def __init__(
        self,
        connections: Connections,
        name: str = "memory",
        *,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> None:
        if agent is not None and session is not None:
            raise UsageError(
                "Pass either agent= or session=, not both: a scope of facts belongs to one of them."
            )
        self._connections = connections
        self._name = checked_fact_name(name)
        self._tenant = None if tenant is None else tenant_id(tenant)
        self._agent = agent
        self._session = None if session is None else session_id(session)

    async def __aiter__(self) -> AsyncGenerator[Fact, None]:
        scope, home = await self._place()
        book = await read_book(home, scope)
        known = await known_wordings(self._connections.cells, self._name, book)
        for name, wording in known.items():
            yield _shown(book.facts[name], wording)
        for name, error in book.damaged.items():
            yield Fact(name, "", "model", 0, 0, [], error.message)

    async def add(self, text: str) -> Fact:
        """Add a fact. Raises ``UsageError``, ``LimitReached`` beyond 1,000 facts, and ``StoreError``.

        >>> (await facts.add("Prefers tea.")).by
        'person'
        """
        said, name = _checked(text), secrets.token_hex(6)

        def added(book: FactBook, now: int) -> StoredFact:
            if count_of(book.facts) >= MOST_FACTS and name not in book.facts:
                raise LimitReached(f"A scope has at most {MOST_FACTS} facts: delete some.", limit="facts")
            return StoredFact(name, now, [Wording(said, now, "person")])

        return _shown(await self._changed(name, added))

    async def edit(self, fact_id: str, text: str) -> Fact:
        """Change the text of a fact. Turns from before the edit do not change it again.

        Raises ``NotFound``, ``UsageError`` and ``StoreError``, which is ``CorruptRecord`` if the fact cannot be read.

        >>> (await facts.edit(nuts.id, "Is allergic to hazelnuts.")).text
        'Is allergic to hazelnuts.'
        """
        said = _checked(text)

        def edited(book: FactBook, now: int) -> StoredFact:
            if fact_id in book.damaged:
                raise book.damaged[fact_id]
            fact = book.facts[fact_id]
            if fact.wordings[-1].by == "person":
                fact.wordings.pop()
            fact.wordings.append(Wording(said, now, "person"))
            return fact

        return _shown(await self._changed(fact_id, edited, must_exist=True))

    async def delete(self, fact_id: str) -> None:
        """Delete a fact. It is not extracted again from the same turns. Raises ``NotFound`` and ``StoreError``.

        This is not ensured for an unreadable fact, because its turns are unknown.

        >>> await facts.delete(nuts.id)
        """
        tried = False  # a try whose answer was lost may have deleted it

        def deleted(book: FactBook, now: int) -> StoredFact | None:
            nonlocal tried
            tried = True
            if fact_id in book.damaged:
                return None
            fact = book.facts[fact_id]
            sources = [source for wording in fact.wordings for source in wording.sources]
            if not sources:
                return None
            return StoredFact(fact_id, fact.created, [Wording("", now, "person", sources)])

        try:
            await self._changed(fact_id, deleted, must_exist=True)
        except NotFound:
            if not tried:
                raise

    async def _changed(
        self, name: str, change: Callable[[FactBook, int], F], *, must_exist: bool = False
    ) -> F:
        """Read and change a fact; start again if another change came first."""
        scope, home = await self._place()
        now = await home.server_ms()
        for _ in range(TRIES):
            book = await read_book(home, scope)
            if must_exist and name not in book.damaged | await known_wordings(
                self._connections.cells, self._name, book
            ):
                raise NotFound(f"Unknown fact: {name!r}.")
            fact = change(book, now)
            if await write_facts(home, scope, book, {name: fact}) == "OK":
                return fact
        raise SessionBusy("Other calls keep changing these facts: try again later.")

    async def _place(self) -> tuple[str, Cell]:
        """Return the scope and the cell of these facts. Raises ``WrongTenant``."""
        cells, tenant, where = self._connections.cells, self._tenant, self._session
        if where is not None:
            exists, found = await tenant_of_session(cells.of_session(where), where)
            check_tenant(where, tenant, exists, found)
            tenant = tenant or found
        kind: Scope = "session" if where is not None else "agent" if self._agent is not None else "tenant"
        prefix = next(iter(cells)).keys.deployment
        scope = scope_key(prefix, self._name, kind, tenant=tenant, agent=self._agent, session=where)
        return scope, facts_home(cells, scope)


def facts_home(cells: Cells, scope: str) -> Cell:
    """Return the cell of a scope's facts: the sessions of the scope may be on several cells."""
    return cells.of_hash(scope[:10])


async def known_wordings(cells: Cells, name: str, book: FactBook) -> dict[str, Wording]:
    """Return the current revision of each fact: the newest one by a person, or supported by a turn that still exists.

    Facts without one are left out. Raises ``StoreError``.
    """
    wordings = [one for fact in book.facts.values() for one in fact.wordings]
    known = await remembered(cells, fact_cursor(name), (turn for one in wordings for turn in _turns(one)))
    found: dict[str, Wording] = {}
    for fact in book.facts.values():
        for wording in reversed(fact.wordings):
            if wording.by == "person" or not known.isdisjoint(_turns(wording)):
                if wording.text:
                    found[fact.id] = wording
                break
    return found


def _turns(wording: Wording) -> list[Remembered]:
    return [Remembered(one.session_id, one.turn_id) for one in wording.sources]


def _shown(fact: StoredFact, wording: Wording | None = None) -> Fact:
    wording = wording or fact.wordings[-1]
    sources = [(one.session_id, one.turn_id) for one in wording.sources]
    return Fact(fact.id, wording.text, wording.by, fact.created, wording.at, sources)


def _checked(text: Any) -> str:
    said = text.strip() if is_a(text, str) else ""
    if not said or len(said) > LONGEST_FACT:
        raise UsageError(f"A fact is a text of 1 to {LONGEST_FACT} characters, not {text!r:.80}.")
    return said


async def remembered(cells: Cells, memory: str, turns: Iterable[Remembered]) -> set[Remembered]:
    """Return the turns without those that were deleted, cut off or never indexed. Raises ``StoreError``."""
    homes: dict[Cell, list[Remembered]] = {}
    for turn in dict.fromkeys(turns):
        homes.setdefault(cells.of_session(SessionId(turn.session_id)), []).append(turn)
    found: set[Remembered] = set()
    for cell, here in homes.items():
        found.update(compress(here, await which_known(cell, memory, here)))
    return found
