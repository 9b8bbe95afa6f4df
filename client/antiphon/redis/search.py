"""Full-text search over finished turns, in the index that workers write to the archive's database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from msgspec import Struct, field

from antiphon.encryption.records import sealer_of
from antiphon.errors import UsageError
from antiphon.input.ids import SessionId, session_id, tenant_id
from antiphon.input.options import Option, PageSize, declared
from antiphon.input.values import is_a
from antiphon.redis.connections import Connections
from antiphon.stores.turns import IndexedTurn
from antiphon.stores.words import Excerpt, Query, excerpt_of, query_of
from antiphon.wire.lists.memories import Remembered, which_known

SEARCH_CURSOR = "=search"
"""The name under which turns wait to be indexed. No memory can have it."""
LONGEST_QUERY = 1000
MOST_FOUND = 1000
"""The most turns of a search that can be read, page by page."""


class SearchOptions(TypedDict, total=False):
    """The keywords of ``Client.search``."""

    tenant: Annotated[str | None, Option(doc="only turns of this tenant", check=tenant_id, json=str | None)]
    session: Annotated[
        str | None, Option(doc="only turns of this session", check=session_id, json=str | None)
    ]
    limit: Annotated[int, Option(doc="at most so many turns", json=PageSize, default=20)]
    cursor: Annotated[str | None, Option(doc="the cursor of the page before", json=str | None)]


SEARCH_OPTIONS = declared(SearchOptions)


class SearchHit(Struct):
    """A turn that was found. ``created`` is in ms since 1970, and ``excerpt`` the best match in its text."""

    session_id: str
    turn_id: str
    created: int
    tenant: str | None = None
    agent: str | None = None
    excerpt: list[Excerpt] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The excerpt as plain text."""
        return "".join(part.text for part in self.excerpt)


class SearchPage(Struct):
    """The turns that were found, the best one first. ``cursor`` is for the next page, None at the end."""

    hits: list[SearchHit]
    cursor: str | None = None


class Search(Struct, frozen=True):
    """A checked search."""

    query: Query
    tenant: str | None
    session: str | None
    limit: int
    start: int


def checked_search(text: str, given: SearchOptions) -> Search:
    """Check the arguments of a search. Raises ``UsageError`` and ``InvalidId``."""
    for name in given:
        if name not in SEARCH_OPTIONS:
            raise TypeError(f"Unknown keyword {name}=: search takes {', '.join(SEARCH_OPTIONS)}.")
    if not is_a(text, str) or len(text) > LONGEST_QUERY:
        raise UsageError(f"The text to search for must be a string of at most {LONGEST_QUERY:,} characters.")
    query = query_of(text)
    if query is None:
        raise UsageError(f"The text to search for must have a word, and {text[:40]!r} has none.")
    limit = given.get("limit", 20)
    if not is_a(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MOST_FOUND:
        raise UsageError(f"limit= must be a whole number from 1 to {MOST_FOUND:,}, not {limit!r}.")
    cursor, tenant, session = given.get("cursor"), given.get("tenant"), given.get("session")
    start = cursor or "0"
    if not is_a(start, str) or not (start.isascii() and start.isdigit()) or int(start[:9]) > MOST_FOUND:
        raise UsageError(f"cursor= must be the cursor of a page of a search, not {cursor!r}.")
    return Search(
        query,
        None if tenant is None else tenant_id(tenant),
        None if session is None else session_id(session),
        limit,
        int(start),
    )


async def can_search(connections: Connections) -> bool:
    """Return whether ``search_turns`` has an index to search."""
    archive = connections.archive
    return archive is not None and not sealer_of().on and await archive.searchable()


async def search_turns(connections: Connections, asked: Search) -> SearchPage:
    """Find turns. Those that were deleted or edited since they were indexed are left out.

    Raises ``UsageError`` without an index, ``StoreUnavailable``, and Redis' ``StoreError``.
    """
    archive = connections.archive
    if sealer_of().on:
        raise UsageError(
            "Encrypted turns cannot be searched, because an index would hold their words in plain text: search "
            "needs workers and clients without ANTIPHON_ENCRYPTION_KEYS."
        )
    if archive is None:
        raise UsageError(
            "search needs the workers' archive, whose database has the index: pass archive= to the client "
            "(--archive, ANTIPHON_ARCHIVE), such as sqlite:///archive.db or postgresql://…."
        )
    hits: list[SearchHit] = []
    start = asked.start
    while start < MOST_FOUND:
        count = min(asked.limit + 1, MOST_FOUND - start)
        found = await archive.find(
            asked.query, tenant=asked.tenant, session=asked.session, start=start, count=count
        )
        for one, known in zip(found, await _known(connections, found), strict=True):
            if len(hits) == asked.limit:
                return SearchPage(hits, str(start))
            start += 1
            if known:
                hits.append(_hit(one, asked.query))
        if len(found) < count:
            break
    return SearchPage(hits)


def _hit(one: IndexedTurn, query: Query) -> SearchHit:
    excerpt = excerpt_of(one.text, query)
    return SearchHit(one.session_id, one.turn_id, one.created, one.tenant, one.agent, excerpt)


async def _known(connections: Connections, found: Sequence[IndexedTurn]) -> list[bool]:
    """Return whether each turn is still as indexed: Redis notes deletions at once, and the index follows."""
    places = [Remembered(one.session_id, one.turn_id) for one in found]
    known = dict[Remembered, bool]()
    cells = {place: connections.cell_of_session(SessionId(place.session_id)) for place in places}
    for cell in {id(cell): cell for cell in cells.values()}.values():
        there = [place for place in places if cells[place] is cell]
        known |= zip(there, await which_known(cell, SEARCH_CURSOR, there), strict=True)
    return [known[place] for place in places]
