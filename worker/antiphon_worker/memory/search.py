"""Writes finished turns to the full-text index in the archive's database, and removes what was deleted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from antiphon.errors import SettingsError
from antiphon.memory.declaration import Memory
from antiphon.redis.search import SEARCH_CURSOR
from antiphon.stores.turns import IndexedTurn
from antiphon.wire.lists.memories import TakenSession
from antiphon_worker.memory.passages import Plan, TurnText

_SAYS = re.compile(r"(?m)^(User|Assistant): ")


class Searchable(Protocol):
    """The archive of workers, whose database has the index."""

    @property
    def searchable(self) -> bool: ...
    async def index(self, gone: Sequence[tuple[str, str]], new: Sequence[IndexedTurn]) -> None: ...


def check_search(archive: Searchable | None, *, sealed: bool) -> None:
    """Raise ``SettingsError`` if ``App(search=True)`` cannot be served."""
    if sealed:
        raise SettingsError(
            "App(search=True) cannot be encrypted, because an index reveals the words of its turns: omit search=, or "
            "unset ANTIPHON_ENCRYPTION_KEYS."
        )
    if archive is None:
        raise SettingsError(
            "App(search=True) keeps its index in the archive's database: set ANTIPHON_ARCHIVE (--archive) to "
            "sqlite:///path or postgresql://…, or use App(store=…)."
        )
    if not archive.searchable:
        raise SettingsError(
            "App(search=True) needs an archive in SQLite or PostgreSQL: the store of this App has no full-text index."
        )


class SearchIndex:
    """The ``Work`` of an ``Indexer`` for a search, in an existing index. It leaves out child sessions."""

    cursor = SEARCH_CURSOR
    at_once = 32
    lease_seconds = 60.0
    most_turns: int | None = None
    replaces: Memory | None = None

    def __init__(self, archive: Searchable) -> None:
        self._archive = archive

    def value(self, taken: TakenSession, text: TurnText) -> str:
        """Return what Redis keeps of a turn: it changes with its text, and is empty for a turn that is left out."""
        return "" if taken.child else text.digest

    async def former(self, taken: TakenSession, turn: str) -> TurnText | None:
        """Return None: this index replaces no other index."""
        return None

    async def write(self, plans: Sequence[Plan]) -> None:
        """Remove and write the turns of these plans. Raises ``StoreUnavailable``."""
        gone = [(plan.taken.session_id, turn) for plan in plans for turn in plan.replaced]
        new = [_indexed(plan.taken, text) for plan in plans if not plan.taken.child for text in plan.texts]
        await self._archive.index(gone, new)

    async def undo(self, plan: Plan, turns: Sequence[str]) -> None:
        """Remove turns that were written too late. Raises ``StoreUnavailable``."""
        await self._archive.index([(plan.taken.session_id, turn) for turn in turns], [])


def _indexed(taken: TakenSession, text: TurnText) -> IndexedTurn:
    whole = _SAYS.sub("", "\n".join(text.passages))
    return IndexedTurn(
        taken.session_id, text.turn_id, text.tenant or taken.tenant, text.agent, text.created, whole
    )
