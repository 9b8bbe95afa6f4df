"""A turn as callers read it: its input, state and runs, and how it is shown in a page of history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from antiphon.errors import user_message
from antiphon.model import TERMINAL, Decision, Message, OpenCall, ServiceAnswer, Status, Usage, Wait
from antiphon.model.feedback import Feedback
from antiphon.routing import Route


class TurnRun(Struct, omit_defaults=True):
    """One run of a turn: its first, or one that began when the failed turn was requeued.

    ``attempt`` is the number of its last attempt, 0 before the first. ``started`` is when the first attempt began,
    and ``ended`` when the run did, in ms since 1970. ``code`` and ``error`` are why it failed, why it was cancelled,
    or why it waits while it is ``retrying``; ``service`` is then the answer of the model service, if there was one.
    ``messages`` are the run's output and tool results.
    """

    run: int
    status: Status
    attempt: int = 0
    started: int | None = None
    ended: int | None = None
    code: str | None = None
    error: str | None = None
    messages: list[Message] = field(default_factory=list)
    service: ServiceAnswer | None = None


class TurnInfo(Struct, omit_defaults=True):
    """A turn at the moment of reading.

    ``input`` are the messages that were submitted. ``agent`` is the name of the agent that the turn asked for, or
    None. ``key`` is the key that it was submitted with; keys over 1,000 bytes are not kept. ``run``, ``attempt``,
    ``started``, ``ended``, ``code``, ``error`` and ``service`` are those of the turn's last run, as in ``TurnRun``.
    ``user_error`` is the error of a failed turn in a sentence for end users; ``error`` is for operators.

    ``created`` is when the turn was submitted, ``due`` when a delayed turn starts, both in ms since 1970.
    ``messages`` are the turn's output and tool results, and ``usage`` is its usage, once it has ended; also if it
    failed or was cancelled. Tool calls that did not return have a result that states this. If the turn was given up
    because its worker died too often, the answer that was being written is missing.

    ``calls`` are the tool calls that a suspended turn waits for, and ``decisions`` are the decisions about the calls
    of its last suspension. ``waits`` are the sleeps that it waits for.

    ``total_usage`` is the turn's ``usage`` with that of all child turns below it, each counted once; None for a turn
    without children. It lacks those of ``left_out``: the ids of turns below it whose records cannot be read. Lists of
    failed or suspended turns have neither.

    ``tenant`` is the owner of the turn's session, None for a session without one. ``user`` is the user whose turn it
    is, if its caller named one.

    ``steered_into`` is the turn that took the input of this one, if it was submitted with ``if_busy="steer"`` and
    that turn still had a model call to make. The answer is then that of the other turn. ``feedback`` is the latest
    feedback about the turn. ``route`` is the route that the App's router chose for its last run.
    """

    turn_id: str
    session_id: str
    status: Status
    input: list[Message] = field(default_factory=list)
    agent: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    created: int = 0
    due: int | None = None
    run: int = 1
    attempt: int = 0
    started: int | None = None
    ended: int | None = None
    code: str | None = None
    error: str | None = None
    usage: Usage = field(default_factory=Usage)
    messages: list[Message] = field(default_factory=list)
    calls: list[OpenCall] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    service: ServiceAnswer | None = None
    steered_into: str | None = None
    tenant: str | None = None
    user_error: str | None = None
    user: str | None = None
    waits: list[Wait] = field(default_factory=list)
    feedback: Feedback | None = None
    route: Route | None = None
    total_usage: Usage | None = None
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.user_error = user_message(self.code or "") if self.status == "failed" else None

    @property
    def cost(self) -> float | None:
        """The cost of ``usage`` in US dollars, or None if no model that was called has a price."""
        return self.usage.cost

    @property
    def last_run(self) -> TurnRun:
        """The last run, which these values describe."""
        return TurnRun(
            self.run, self.status, self.attempt, self.started, self.ended, self.code, self.error, self.messages,
            self.service,
        )  # fmt: skip


class TurnProperties:
    """The fields of ``info()`` as properties. Each one reads the turn again, which is a round trip to Redis."""

    def info(self) -> TurnInfo:
        """Read the turn."""
        raise NotImplementedError

    @property
    def input(self) -> list[Message]:
        """The messages that were submitted; usually one. One round trip.

        >>> turn.input[0].text
        'Hello'
        """
        return self.info().input

    @property
    def agent(self) -> str | None:
        """The name of the agent that the turn asked for, or None. One round trip.

        >>> turn.agent is None
        True
        """
        return self.info().agent

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the turn was submitted with. One round trip.

        >>> turn.metadata
        {}
        """
        return self.info().metadata

    @property
    def key(self) -> str | None:
        """The key that the turn was submitted with, or None. Keys over 1,000 bytes are not kept. One round trip.

        >>> turn.key is None
        True
        """
        return self.info().key

    @property
    def created(self) -> int:
        """When the turn was submitted, in ms since 1970. One round trip.

        >>> turn.created <= turn.started <= turn.ended
        True
        """
        return self.info().created

    @property
    def due(self) -> int | None:
        """When a delayed turn starts, in ms since 1970, or None for a turn without a delay. One round trip.

        >>> turn.due is None
        True
        """
        return self.info().due

    @property
    def started(self) -> int | None:
        """When the first attempt of the last run began, in ms since 1970, or None before it. One round trip.

        >>> turn.started > 0
        True
        """
        return self.info().started

    @property
    def ended(self) -> int | None:
        """When the last run ended, in ms since 1970, or None before it. One round trip.

        >>> turn.ended > 0
        True
        """
        return self.info().ended

    @property
    def attempt(self) -> int:
        """The number of the last attempt in the last run, 0 before the first. One round trip.

        >>> turn.attempt
        1
        """
        return self.info().attempt

    @property
    def error(self) -> str | None:
        """Why the turn failed, was cancelled, or waits while it is ``retrying``; or None. One round trip.

        >>> turn.error is None
        True
        """
        return self.info().error

    @property
    def usage(self) -> Usage:
        """The tokens of the turn's model calls, once it has ended, even if it failed. One round trip.

        >>> turn.usage.output_tokens
        4
        """
        return self.info().usage

    @property
    def cost(self) -> float | None:
        """The cost of these calls in US dollars, or None if none of their models has a price. One round trip.

        >>> turn.cost is None
        True
        """
        return self.info().cost


class LeftNothing(Struct):
    """A turn that ended and left nothing in the history. ``place`` is the number of messages before it."""

    place: int
    turn: TurnInfo


def shown(turn: TurnInfo) -> list[Message]:
    """Return a turn that is not in the history as messages of a page: its input, and its output if it has ended."""
    said = turn.messages if turn.status in TERMINAL else []
    return [
        msgspec.structs.replace(
            one,
            turn_id=turn.turn_id,
            created=one.created or turn.created,
            status=turn.status,
            error=turn.error,
            user_error=turn.user_error,
        )
        for one in [*turn.input, *said]
    ]


def in_place(
    page: Sequence[Message], start: int, left: Sequence[LeftNothing], order: Sequence[str]
) -> list[Message]:
    """Return a page of history, which begins at ``start``, with the turns that left nothing where they ended.

    ``order`` are the ids of the session's turns in the order of submission: a turn that was cancelled while it waited
    follows the turns submitted before it.
    """
    at: defaultdict[int, list[Message]] = defaultdict(list)
    for one in left:
        place = max(one.place - start, 0)
        if one.turn.started is None and one.turn.turn_id in order:
            earlier = {*order[: order.index(one.turn.turn_id)]}
            while place < len(page) and page[place].turn_id in earlier:
                place += 1
        at[place] += shown(one.turn)
    found = [*at[0]]
    for number, message in enumerate(page, 1):
        found += [message, *at[number]]
    return found


class TurnTree(Struct, omit_defaults=True):
    """A turn at the moment of reading, with the child turns of its last run, each with its own ``session_id``.

    ``agent`` is the name of the agent that it asked for, and ``call_id`` the call of the turn above that waits for
    it. ``started`` is when its first attempt began and ``ended`` when it ended, in ms since 1970; ``code`` is why it
    failed.

    ``usage`` is its own; for a child that has not ended, that of its finished model calls. ``total_usage`` counts it
    and each turn below once, except those in ``left_out``: the ids of turns below whose records cannot be read.
    Children are found for a week after their end, unless their session is deleted.
    """

    turn_id: str
    session_id: str
    status: Status
    agent: str | None = None
    call_id: str = ""
    started: int | None = None
    ended: int | None = None
    code: str | None = None
    usage: Usage = field(default_factory=Usage)
    total_usage: Usage = field(default_factory=Usage)
    children: list[TurnTree] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
