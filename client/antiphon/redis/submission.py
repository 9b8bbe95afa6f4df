"""Turns that a client submits, from the arguments of the call: one, or many in a pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

from msgspec import UNSET

from antiphon.errors import AgentError, StoreUnavailable
from antiphon.input.ids import session_id
from antiphon.input.messages import Input
from antiphon.input.request import travelling_agent
from antiphon.input.values import lifetime
from antiphon.redis.connections import Connections
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import SessionRef
from antiphon.session.work import ClientSubmitOptions, work_of_client

WINDOW = 200
"""So many turns are under way to Redis at once: more would wait too long for their answers."""


class Submission:
    """One turn for ``submit_many``, checked but not submitted. Takes and raises what ``submit`` does."""

    def __init__(self, session: str, text: Input, **options: Unpack[ClientSubmitOptions]) -> None:
        given: dict[str, Any] = dict(options)
        self._agent = travelling_agent(given.pop("agent", None))
        ttl = given.pop("ttl", UNSET)
        self._session = SessionRef(session_id(session), ttl=lifetime(ttl))
        self._work = work_of_client(text, given)

    async def submit(self, connections: Connections) -> AsyncTurn:
        """Submit the turn over these connections."""
        turn = await connections.submit(self._session, self._work, self._agent)
        return AsyncTurn(connections, turn, self._session.id, self._work.schema)


async def submit_all(connections: Connections, wanted: Sequence[Submission]) -> list[AsyncTurn | AgentError]:
    """Submit these in order; each becomes its turn, or the error with which it was refused.

    When Redis can no longer be reached, the rest is not tried.
    """
    told: list[AsyncTurn | AgentError] = []
    while len(told) < len(wanted):
        start = len(told)
        # The first one goes alone: a server that does not know the script is sent it once.
        some = wanted[start : start + (WINDOW if start else 1)]
        answers = await asyncio.gather(*(one.submit(connections) for one in some), return_exceptions=True)
        for answer in answers:
            if not isinstance(answer, AsyncTurn | AgentError):
                raise answer
            told.append(answer)
        if all(isinstance(answer, StoreUnavailable) for answer in answers):
            told += [told[-1]] * (len(wanted) - len(told))
    return told
