"""``Turn``: a submitted turn, with synchronous methods."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from antiphon.events import Event
from antiphon.model import Response, Status
from antiphon.session.background import call, iterate
from antiphon.session.runtime import TurnHandle

__all__ = ["Turn"]


class Turn:
    """A submitted turn. Has the methods of ``AsyncTurn``, without ``await``.

    >>> from antiphon import Agent, Client
    >>> client = Client("redis://localhost:6379/0")
    >>> turn = client.submit("user-123", "Hello", agent=Agent(provider="scripted", model="any"))
    >>> turn.result(timeout=10).text
    'You said: Hello'
    """

    def __init__(self, turn: TurnHandle) -> None:
        self._turn = turn

    @property
    def id(self) -> str:
        """The id of the turn. Any client can find the turn again with it.

        >>> client.turn(turn.id).result(timeout=10).text
        'You said: Hello'
        """
        return self._turn.id

    @property
    def session_id(self) -> str:
        """The session that the turn belongs to.

        >>> turn.session_id
        'user-123'
        """
        return self._turn.session_id

    def __repr__(self) -> str:
        return f"Turn(id={self.id!r}, session_id={self.session_id!r})"

    def status(self) -> Status:
        """Return the current status. Raises ``TurnNotFound`` from one week after the turn's end.

        >>> turn.status()
        'finished'
        """
        return call(self._turn.status())

    def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the turn to end and return its response. Raises the same errors as ``AsyncTurn.result``.

        ``timeout`` is in seconds or a timedelta; the turn keeps running when it expires.

        >>> turn.result(timeout=10).usage.output_tokens
        4
        """
        return call(self._turn.result(timeout))

    def stream(self, after: int | str | None = None) -> Iterator[Event]:
        """Iterate over the turn's events up to its terminal event. Raises the same errors as ``AsyncTurn.stream``.

        >>> "".join(event.text for event in turn.stream() if event.type == "text_delta")
        'You said: Hello'
        """
        return iterate(self._turn.stream(after))

    def cancel(self, reason: str = "cancelled by the client") -> str:
        """Cancel the turn; its finished steps stay in the history. Returns as ``AsyncTurn.cancel``.

        >>> turn.cancel()  # too late: it has ended
        'finished'
        """
        return call(self._turn.cancel(reason))
