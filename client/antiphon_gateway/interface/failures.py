"""Turns that have failed: listed with why, and run again, one or many."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from msgspec import Meta, Struct

from antiphon.client import FailedTurn
from antiphon.errors import AgentError, TurnNotFound, WrongTenant
from antiphon.redis.turn import AsyncTurn
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import PageSize, TurnFailure
from antiphon_gateway.problems import Refused, problem_of

__all__ = ["OPERATIONS"]

MOST_REQUEUED = 1000
MOST_LOOKED_AT = 10_000
"""So many failed turns are looked at for those of one caller."""


class _Which(Struct, kw_only=True, forbid_unknown_fields=True):
    tenant: str | None = None
    agent: str | None = None
    code: str | None = None
    queue: str | None = None
    since: Annotated[int, Meta(ge=0)] | None = None
    until: Annotated[int, Meta(ge=0)] | None = None


class FailedQuery(_Which, kw_only=True):
    """``agent`` is a name, ``code`` that of an error; ``since`` and ``until`` (its end is left out) are ms since 1970.

    ``tenant`` is for keys of every tenant.
    """

    limit: PageSize = 50


class FailedPage(Struct):
    """Failed turns with all their runs, the last one first."""

    turns: list[FailedTurn]


class RequeueMany(_Which, kw_only=True):
    """Which failed turns to run again: ``turns`` with their ids, or all that the other fields select."""

    turns: Annotated[list[str], Meta(max_length=MOST_REQUEUED)] | None = None


class Requeued(Struct):
    """The turns that run again, and why others do not."""

    turns: list[str]
    refused: dict[str, TurnFailure]


@operation("GET", "/failed", right="read")
async def list_failed(call: Call[FailedQuery, None]) -> FailedPage:
    """List the turns that have failed in the last week, the last one first, with why"""
    return FailedPage([turn async for turn in _failed(call, call.query, call.query.limit)])


@operation("POST", "/failed/requeue", right="write")
async def requeue_failed(call: Call[None, RequeueMany]) -> Requeued:
    """Run failed turns again: these, or all that a filter selects, at most 1,000

    Sent twice, it runs them once: a turn that no longer is failed is refused.
    """
    given = call.body
    if given.turns is not None and any(getattr(given, name) is not None for name in _Which.__struct_fields__):
        raise Refused(400, "invalid_body", "Name turns, or fields that select them, but not both.")
    refused: dict[str, TurnFailure] = {}
    wanted: list[str] = []
    if given.turns is None:
        if all(getattr(given, name) is None for name in _Which.__struct_fields__):
            raise Refused(400, "invalid_body", "Name turns, or fields that select them; since 0 selects all.")
        wanted = [turn.turn_id async for turn in _failed(call, given, MOST_REQUEUED)]
    for turn in given.turns or ():
        try:
            await _allowed(call, turn)
            wanted.append(turn)
        except AgentError as exc:
            refused[turn] = _told(exc)
    done = await call.client.requeue_many(wanted) if wanted else []
    for turn, answer in zip(wanted, done, strict=True):
        if isinstance(answer, AgentError):
            refused[turn] = _told(answer)
    return Requeued([one.id for one in done if isinstance(one, AsyncTurn)], refused)


async def _failed(
    call: Call[FailedQuery, None] | Call[None, RequeueMany], which: _Which, most: int
) -> AsyncIterator[FailedTurn]:
    """The failed turns that the caller may see, up to ``most``."""
    found = call.client.failed(
        tenant=call.caller.tenant_for(which.tenant), agent=which.agent, code=which.code, queue=which.queue,
        since=which.since, until=which.until,
    )  # fmt: skip
    looked_at = given = 0
    async with aclosing(found):
        async for turn in found:
            looked_at += 1
            if call.caller.may_use(turn.session_id):
                given += 1
                yield turn
            if given == most or looked_at == MOST_LOOKED_AT:
                return


async def _allowed(call: Call[None, RequeueMany], turn: str) -> None:
    """Raise ``TurnNotFound`` unless the caller may use the turn."""
    try:
        found = await call.client.turn(turn, tenant=call.caller.tenant)
    except WrongTenant:
        raise TurnNotFound from None
    if not call.caller.may_use(found.session_id):
        raise TurnNotFound


def _told(error: AgentError) -> TurnFailure:
    problem = problem_of(error)
    return TurnFailure(problem.code, problem.detail)


OPERATIONS = [list_failed, requeue_failed]
