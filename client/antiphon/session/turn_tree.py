"""A turn with the child turns below it, as callers read it."""

from __future__ import annotations

from msgspec import Struct, field

from antiphon.model import Status, Usage


class TurnTree(Struct, omit_defaults=True):
    """A turn at the moment of reading, with the child turns of its last run, each with its own ``session_id``.

    ``agent`` is the name of the agent that it asked for, and ``call_id`` the call of the turn above that waits for
    it. ``started`` is when its first attempt began and ``ended`` when it ended, in ms since 1970; ``code`` is why it
    failed.

    ``usage`` is its own. That of a child that has not ended is what its finished model calls have used. ``total_usage``
    counts it and each turn below once, except for those of ``left_out``: the ids of turns below whose records cannot be
    read. Children are found for a week after their end, unless their session is deleted.
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
