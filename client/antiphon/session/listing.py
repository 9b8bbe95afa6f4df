"""Lists of sessions, with filters and pages, for every runtime.

A place is the position of a session in a list: a number (lists begin with the highest) and the session id. A cursor
is a place as text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias, Unpack, cast, get_args

from msgspec import Struct

from antiphon.errors import UsageError
from antiphon.input.ids import session_id
from antiphon.input.options import ListOptions
from antiphon.input.values import SessionWord
from antiphon.session.opening import checked_fields
from antiphon.session.runtime import ListPlace, SessionInfo
from antiphon.session.saved import ListedFields

Rows: TypeAlias = Callable[[ListPlace | None, int], AsyncGenerator[tuple[ListPlace, SessionInfo], None]]

MOST_LOOKED_AT = 1000
PAGE = 100


class ListQuery(Struct, frozen=True):
    """The checked arguments of a list: its filters, its limit and where it starts.

    ``search`` is case-folded. Without ``children``, and without a filter by their parent, child sessions are left
    out.
    """

    fields: dict[str, Any]
    limit: int | None = None
    after: ListPlace | None = None
    state: SessionWord | None = None
    search: str = ""
    children: bool = False

    def fits(self, info: SessionInfo) -> bool:
        """Return True if the session matches every filter. A dictionary matches if it contains the given entries."""
        return (
            (self.children or "parent" in self.fields or info.parent is None)
            and self.state in (None, info.status)
            and all(_fits(getattr(info, name), value) for name, value in self.fields.items())
            and (not self.search or any(self.search in text.casefold() for text in _texts(info)))
        )

    @property
    def page(self) -> int:
        """The number of sessions to read at once, including one more to detect the end of the list."""
        every = self.limit is None or any(self.fields.values()) or self.search or self.state
        return PAGE if every or self.limit is None else min(PAGE, self.limit + 1)

    @property
    def most(self) -> int:
        """The maximum number of sessions that a list with a limit reads."""
        return max(MOST_LOOKED_AT, self.limit or 0)


def list_query(**asked: Unpack[ListOptions]) -> ListQuery:
    """Check the arguments of a list. Raises ``UsageError``."""
    given: dict[str, Any] = dict(asked)
    limit, cursor = given.pop("limit", None), given.pop("cursor", None)
    state, search = given.pop("state", None), given.pop("search", None) or ""
    children = given.pop("children", False)
    if state not in (None, *get_args(SessionWord)):
        raise UsageError(f"state= must be one of {', '.join(get_args(SessionWord))}, not {state!r}.")
    if not isinstance(search, str):
        raise UsageError(f"search= must be text, not {search!r}.")
    if not isinstance(children, bool):
        raise UsageError(f"children= must be True or False, not {children!r}.")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise UsageError(f"limit= must be a positive whole number, not {limit!r}.")
    fields, after = checked_fields(given, ListedFields), None if cursor is None else _place(cursor)
    return ListQuery(fields, limit, after, state, search.casefold(), children)


def _texts(info: SessionInfo) -> Iterator[str]:
    """Yield the texts of a session that a search covers."""
    title = info.metadata.get("title")
    yield info.session_id
    yield from (text for text in (title, info.agent, info.tenant) if isinstance(text, str))


def _fits(found: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return all(
            name in found and found[name] == one for name, one in cast("dict[str, Any]", value).items()
        )
    return found == value


class AsyncSessionList:
    """A list of sessions to iterate over. Nothing is read before the iteration starts."""

    def __init__(self, rows: Rows, which: ListQuery) -> None:
        self._rows = rows
        self._wanted = which
        self._cursor: str | None = None

    @property
    def cursor(self) -> str | None:
        """The position of the iteration: pass it to ``sessions(cursor=…)`` to continue after it.

        It is None before the first session and at the end of the list.
        """
        return self._cursor

    async def __aiter__(self) -> AsyncGenerator[SessionInfo, None]:
        looked_at = given = 0
        which = self._wanted
        async with aclosing(self._rows(which.after, which.page)) as rows:
            async for place, info in rows:
                if which.limit is not None and (given == which.limit or looked_at == which.most):
                    return
                looked_at += 1
                self._cursor = f"{place[0]}:{place[1]}"
                if which.fits(info):
                    given += 1
                    yield info
        self._cursor = None


def _place(cursor: object) -> ListPlace:
    number, colon, known = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 15:
        raise UsageError(f"cursor= must be the cursor of a list of sessions, not {cursor!r}.")
    return int(number), session_id(known)
