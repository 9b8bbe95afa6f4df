"""``Turn``: a submitted turn, with synchronous methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from antiphon.events import Event, TurnFinished
from antiphon.input.schema import typed
from antiphon.input.values import Keep
from antiphon.model import Message, Response, Status, Usage
from antiphon.session.background import call, iterate
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo, TurnRun


def typed_event(event: Event, schema: Any) -> Event:
    """Return the event with its response read as the caller's type, where it has one. Raises ``InvalidOutput``."""
    if schema is None or not isinstance(event, TurnFinished) or event.response is None:
        return event
    return msgspec.structs.replace(event, response=typed(event.response, schema))


class Turn:
    """A submitted turn. Has the methods of ``AsyncTurn``, without ``await``.

    Each property of the turn's state reads it anew: use ``info()`` to read several at one moment.

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

    def info(self) -> TurnInfo:
        """Read all about the turn at once: what the properties below read one by one, and what it has said.

        Raises ``TurnNotFound`` from one week after the turn's end.

        >>> info = turn.info()
        >>> info.input[0].text, info.status, info.messages[-1].text
        ('Hello', 'finished', 'You said: Hello')
        """
        return call(self._turn.info())

    @property
    def input(self) -> list[Message]:
        """What was submitted, as messages; usually one.

        >>> turn.input[0].text
        'Hello'
        """
        return self.info().input

    @property
    def agent(self) -> str | None:
        """The name of the agent that the turn asked for, or None if it asked for none.

        >>> turn.agent is None
        True
        """
        return self.info().agent

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the turn was submitted with.

        >>> turn.metadata
        {}
        """
        return self.info().metadata

    @property
    def key(self) -> str | None:
        """The key that the turn was submitted with, or None. One of more than 1,000 bytes is not kept.

        >>> turn.key is None
        True
        """
        return self.info().key

    @property
    def created(self) -> int:
        """When the turn was submitted, in ms since 1970.

        >>> turn.created <= turn.started <= turn.ended
        True
        """
        return self.info().created

    @property
    def due(self) -> int | None:
        """When a delayed turn starts, in ms since 1970, or None for a turn without a delay.

        >>> turn.due is None
        True
        """
        return self.info().due

    @property
    def started(self) -> int | None:
        """When the first attempt of the last run began, in ms since 1970, or None before it.

        >>> turn.started > 0
        True
        """
        return self.info().started

    @property
    def ended(self) -> int | None:
        """When the last run ended, in ms since 1970, or None before it.

        >>> turn.ended > 0
        True
        """
        return self.info().ended

    @property
    def attempt(self) -> int:
        """The number of the last attempt in the last run, 0 before the first.

        >>> turn.attempt
        1
        """
        return self.info().attempt

    @property
    def error(self) -> str | None:
        """Why the turn failed or was cancelled, or why it waits while it is ``retrying``; or None.

        >>> turn.error is None
        True
        """
        return self.info().error

    @property
    def usage(self) -> Usage:
        """The tokens of the turn's model calls, once it has ended; also of a turn that failed.

        >>> turn.usage.output_tokens
        4
        """
        return self.info().usage

    @property
    def cost(self) -> float | None:
        """What these calls cost in US dollars, or None if no model that was called has a price.

        >>> turn.cost is None
        True
        """
        return self.info().cost

    def runs(self) -> list[TurnRun]:
        """Return the runs of the turn, the first one first: a failed turn that is requeued has a further one.

        >>> [(run.run, run.status, run.error) for run in turn.runs()]
        [(1, 'finished', None)]
        """
        return call(self._turn.runs())

    def result(self, timeout: float | timedelta | None = None) -> Response:
        """Wait for the turn to end and return its response. Raises the same errors as ``AsyncTurn.result``.

        ``timeout`` is in seconds or a timedelta; the turn keeps running when it expires.

        >>> turn.result(timeout=10).usage.output_tokens
        4
        """
        return call(self._turn.result(timeout))

    def stream(
        self, after: int | str | None = None, *, heartbeat: float | timedelta | None = None
    ) -> Iterator[Event]:
        """Iterate over the turn's events up to its terminal event, as ``AsyncTurn.stream`` does.

        >>> "".join(event.text for event in turn.stream() if event.type == "text_delta")
        'You said: Hello'
        """
        return iterate(self._turn.stream(after, heartbeat=heartbeat), instead="AsyncTurn.stream")

    def cancel(self, reason: str = "cancelled by the client", *, keep: Keep = "steps") -> str:
        """Cancel the turn. ``keep`` (``"partial"``, ``"steps"`` or ``"nothing"``) is what stays of it in the history.

        Details and results as in ``AsyncTurn.cancel``.

        >>> turn.cancel()  # too late: it has ended
        'finished'
        """
        return call(self._turn.cancel(reason, keep=keep))

    def approve(
        self, call_id: str, *, by: str | None = None, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a call that the turn waits for, as ``AsyncTurn.approve`` does.

        >>> turn.approve("call_1", by="ada")  # too late: it has ended
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        call(self._turn.approve(call_id, by=by, arguments=arguments))

    def reject(self, call_id: str, *, reason: str | None = None, by: str | None = None) -> None:
        """Reject a call that the turn waits for, as ``AsyncTurn.reject`` does.

        >>> turn.reject("call_1", reason="Too expensive.", by="ada")
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        call(self._turn.reject(call_id, reason=reason, by=by))

    def tool_result(
        self, call_id: str, result: Any = None, *, is_error: bool = False, by: str | None = None
    ) -> None:
        """Give the result of a client-side tool, as ``AsyncTurn.tool_result`` does.

        >>> turn.tool_result("call_1", {"title": "A page"})
        Traceback (most recent call last):
        antiphon.errors.NotSuspended: ...
        """
        call(self._turn.tool_result(call_id, result, is_error=is_error, by=by))

    def requeue(self) -> None:
        """Run the failed turn again, as ``AsyncTurn.requeue`` does.

        >>> failed = client.submit("user-456", "Hello", agent="nobody")
        >>> failed.result(timeout=10)
        Traceback (most recent call last):
        antiphon.errors.UnknownAgent: ...
        >>> failed.requeue()
        >>> [run.run for run in failed.runs()]
        [1, 2]
        """
        call(self._turn.requeue())
