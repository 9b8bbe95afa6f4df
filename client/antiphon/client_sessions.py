"""Sessions that are opened on a client, and use its connections."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from antiphon.errors import UsageError
from antiphon.input.ids import new_session_id
from antiphon.input.ids import session_id as checked_session_id
from antiphon.input.options import OpeningOptions
from antiphon.input.request import Travelling
from antiphon.redis.runtime import RedisRuntime, SessionClient
from antiphon.session.background import on_background
from antiphon.session.opening import opening_of
from antiphon.session.runtime import SessionRef, duration
from antiphon.session.session import Session

__all__ = ["client_session"]


def client_session(
    client: Callable[[], SessionClient],
    session_id: str | None,
    agent: Any,
    ttl: float | timedelta | None,
    opening: OpeningOptions,
    *,
    background: bool,
) -> Session:
    """A session on this client, whose connections belong to the background loop, or to the loop of its caller."""
    if agent is not None and not isinstance(agent, str | Travelling):
        raise UsageError(f"agent= takes an agent's name or an Agent, not {type(agent).__name__}.")
    known = new_session_id() if session_id is None else checked_session_id(session_id)
    ref = SessionRef(known, ttl=duration(ttl, "ttl"))
    given: Any = agent
    return Session(given, ref, opening_of(**opening), _ClientRuntime(client, background))


class _ClientRuntime(RedisRuntime):
    """The runtime of one client's sessions, on the one event loop that its connections belong to."""

    def __init__(self, client: Callable[[], SessionClient], background: bool) -> None:
        self._given = client
        self._background = background

    async def client(self) -> SessionClient:
        if on_background() is not self._background:
            raise UsageError(
                "A session of an AsyncClient is used with its _async methods, one of a Client with the others."
            )
        return self._given()

    async def aclose(self) -> None:
        """The client is closed by whoever opened it."""
