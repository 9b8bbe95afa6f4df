"""``Caller``: who makes a request, and what they may see and do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct

from antiphon_gateway.problems import Refused

__all__ = ["RIGHTS", "Caller", "Right", "rights_of"]

Right: TypeAlias = Literal["read", "write", "admin"]
"""What a caller may do: read sessions and turns; submit, edit and cancel; delete, choose queues and see workers."""

RIGHTS: frozenset[Right] = frozenset(get_args(Right))


class Caller(Struct, frozen=True, kw_only=True):
    """Who makes a request, and what they may see and do.

    ``tenant`` is the tenant of all sessions that the caller may use, None for all tenants. ``sessions`` names them:
    ids, and beginnings of ids that end with ``*``; None for all. With ``session`` it is this one alone.

    ``rights`` do not include each other. ``events`` are the types of events that streams show; None for all. ``until``
    is when all this ends, in seconds since 1970. ``rate`` (requests a second) and ``streams`` (open at once) replace
    the gateway's own limits.

    >>> caller = Caller(name="shop", tenant="acme", sessions=("order-*",), rights=frozenset({"read"}))
    >>> caller.may_use("order-7"), caller.may_use("invoice-7")
    (True, False)
    """

    name: str
    tenant: str | None
    sessions: tuple[str, ...] | None = None
    session: str | None = None
    rights: frozenset[Right] = RIGHTS
    events: frozenset[str] | None = None
    until: float | None = None
    rate: float | None = None
    streams: int | None = None

    def may_use(self, session: str) -> bool:
        """Return whether the session's id is one of those that the caller may use.

        >>> caller.may_use("order-8")
        True
        """
        if self.session is not None:
            return session == self.session
        return self.sessions is None or any(_fits(session, one) for one in self.sessions)

    def may_see(self, kind: str) -> bool:
        """Return whether streams show events of this type to the caller.

        >>> caller.may_see("text_delta")
        True
        """
        return self.events is None or kind in self.events

    def check_right(self, right: Right) -> None:
        """Raise ``Refused`` with 403 unless the caller has this right.

        >>> caller.check_right("write")
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This key has no right to write.
        """
        if right not in self.rights:
            raise Refused(403, "forbidden", f"This key has no right to {right}.")

    def check_session(self, session: str) -> None:
        """Raise ``Refused`` with 403 unless the caller may use a session of this id.

        >>> caller.check_session("order-7")
        """
        if not self.may_use(session):
            raise Refused(403, "forbidden", "This key may not use a session of this id.")

    def check_every_session(self) -> None:
        """Raise ``Refused`` with 403 unless the caller may use every session of its tenant.

        >>> caller.check_every_session()
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This is for keys of every session.
        """
        if self.sessions is not None or self.session is not None:
            raise Refused(403, "forbidden", "This is for keys of every session.")

    def check_everywhere(self) -> None:
        """Raise ``Refused`` with 403 unless the caller may use every session of every tenant.

        >>> caller.check_everywhere()
        Traceback (most recent call last):
        antiphon_gateway.problems.Refused: This is for keys of every session of every tenant.
        """
        if self.tenant is not None or self.sessions is not None or self.session is not None:
            raise Refused(403, "forbidden", "This is for keys of every session of every tenant.")

    def tenant_for(self, asked: str | None) -> str | None:
        """Return the tenant of a request that may name one. Raises ``Refused`` with 403 if it is not the caller's.

        >>> caller.tenant_for(None)
        'acme'
        """
        if self.tenant is None:
            return asked
        if asked not in (None, self.tenant):
            raise Refused(403, "wrong_tenant", "This key belongs to another tenant: leave tenant out.")
        return self.tenant


def rights_of(names: Any) -> frozenset[Right]:
    """Return the rights with these names: a list, or text with spaces. Raises ``ValueError``."""
    given: Iterable[Any] = names.split() if isinstance(names, str) else names
    found = frozenset(given)
    if not found <= RIGHTS:
        raise ValueError(f"rights are {', '.join(sorted(RIGHTS))}, not {', '.join(map(str, found - RIGHTS))}")
    return found


def _fits(session: str, pattern: str) -> bool:
    return session.startswith(pattern[:-1]) if pattern.endswith("*") else session == pattern
