"""Turns: submit, read, wait, cancel, decide, requeue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, cast

from msgspec import UNSET, Meta, Struct

from antiphon.client import FailedTurn
from antiphon.errors import AgentError, ResultTimeout, TurnCancelled, TurnNotFound, WrongTenant
from antiphon.model import TERMINAL
from antiphon.redis.turn import AsyncTurn
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon.wire.suspension import SuspendedTurn
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.interface.bodies import (
    Approve,
    Cancel,
    Cancelled,
    Edit,
    PageSize,
    Regenerate,
    Reject,
    Submit,
    Submitted,
    ToolAnswer,
    TurnFailure,
    TurnPage,
    TurnResult,
    TurnsQuery,
    WaitingPage,
    WaitingQuery,
    WaitQuery,
)
from antiphon_gateway.interface.sessions import idempotency_key, session_of
from antiphon_gateway.problems import Refused, problem_of

READ_SECONDS = 5.0  # for the result of a turn that has ended


@operation("POST", "/sessions/{session}/turns", right="write", status=202)
async def submit_turn(call: Call[None, Submit]) -> Answer[Submitted]:
    """Submit a turn

    When the response comes, the turn is stored and will run. With an `Idempotency-Key`, or `key`, a repeated request
    of the same session gets the first turn.
    """
    given = call.body
    options = _options(call, given)
    params = options.pop("params")
    if given.ttl is not UNSET:
        options["ttl"] = given.ttl
    turn = await call.client.submit(
        call.path["session"], cast("Any", given.input), agent=given.agent, params=params,
        retry_failed=given.retry_failed, tenant=call.caller.tenant_for(given.tenant), cursor=given.cursor, **options,
    )  # fmt: skip
    return _submitted(call, turn)


@operation("PUT", "/sessions/{session}/messages/{message}", right="write", status=202)
async def edit_message(call: Call[None, Edit]) -> Answer[Submitted]:
    """Replace a message of the user's, and answer the new one

    What came after it goes when the answer is there.
    """
    options = _options(call, call.body)
    session, given = session_of(call), cast("Any", call.body.input)
    params = options.pop("params")
    return _submitted(
        call,
        await session.edit_async(call.path["message"], given, agent=call.body.agent, **options, **params),
    )


@operation("POST", "/sessions/{session}/regenerate", right="write", status=202)
async def regenerate_answer(call: Call[None, Regenerate]) -> Answer[Submitted]:
    """Answer the last question again"""
    options = _options(call, call.body)
    params = options.pop("params")
    return _submitted(
        call, await session_of(call).regenerate_async(agent=call.body.agent, **options, **params)
    )


@operation("GET", "/sessions/{session}/turns", right="read")
async def list_turns(call: Call[TurnsQuery, None]) -> TurnPage:
    """List the turns of a session, the newest first; a turn is kept for a week after its end"""
    found: list[TurnInfo] = []
    turns = call.client.turns(call.path["session"], status=call.query.status, tenant=call.caller.tenant)
    async for turn in turns:
        found.append(await turn.info())
        if len(found) == call.query.limit:
            break
    await turns.aclose()
    return TurnPage(found)


@operation("GET", "/turns/{turn}", right="read")
async def show_turn(call: Call[None, None]) -> TurnInfo:
    """Read a turn: its input, its state, and what it has said"""
    return await (await call.turn()).info()


@operation("GET", "/turns/{turn}/runs", right="read")
async def show_runs(call: Call[None, None]) -> list[TurnRun]:
    """Read the runs of a turn, the first one first: a failed turn that is requeued has a further one"""
    return await (await call.turn()).runs()


@operation("GET", "/turns/{turn}/result", right="read")
async def show_result(call: Call[WaitQuery, None]) -> Answer[TurnResult]:
    """Wait for the end of a turn, and return its response or its error

    The status is 202 if the turn has not ended within `wait` seconds. Then ask again.
    """
    turn, wait = await call.turn(), call.query.wait
    status = await turn.status()
    if status in TERMINAL or wait:
        most = READ_SECONDS if status in TERMINAL else wait
        found = await call.services.stopping.first(result_of(turn, most), most)
        if found is not None:
            return Answer(found)
        status = await turn.status()
    return Answer(TurnResult(turn.id, turn.session_id, status), 202)


@operation("POST", "/turns/{turn}/cancel", right="write")
async def cancel_turn(call: Call[None, Cancel]) -> Cancelled:
    """Cancel a turn

    Its finished steps stay in the history, unless `keep` says otherwise. A turn that has ended stays as it is.
    """
    turn = await call.turn()
    return Cancelled(await turn.cancel(call.body.reason, keep=call.body.keep or "steps"))


@operation("POST", "/turns/{turn}/requeue", right="write", status=204)
async def requeue_turn(call: Call[None, None]) -> None:
    """Run a failed turn again"""
    await (await call.turn()).requeue()


async def result_of(turn: TurnHandle, seconds: float) -> TurnResult | None:
    """Return what became of a turn, or None if it has not ended within ``seconds``. Raises errors of Redis."""
    where = turn.id, turn.session_id
    try:
        return TurnResult(*where, "finished", await turn.result(seconds))
    except ResultTimeout:
        return None
    except AgentError as exc:
        if exc.turn_id != turn.id:
            raise
        failure = TurnFailure(str(exc.code), exc.message)
        return TurnResult(*where, "cancelled" if isinstance(exc, TurnCancelled) else "failed", error=failure)


def _options(call: Call[Any, Any], given: Any) -> dict[str, Any]:
    """The options of a turn that all calls share. Raises ``Refused``."""
    if given.queue is not None:
        call.caller.check_right("admin")
    return {
        "key": idempotency_key(call, given.key), "params": given.params, "schema": given.schema,
        "metadata": given.metadata, "timeout": given.timeout, "delay": given.delay, "if_busy": given.if_busy,
        "priority": given.priority, "queue": given.queue, "caller_tools": given.caller_tools or None,
        "while_suspended": given.while_suspended,
    }  # fmt: skip


def _submitted(call: Call[Any, Any], turn: TurnHandle) -> Answer[Submitted]:
    path = call.address("turns", turn.id)
    answer = Submitted(turn.id, turn.session_id, f"{path}/events", f"{path}/result")
    return Answer(answer, 202, {"location": path})


@operation("GET", "/waiting", right="read")
async def list_waiting(call: Call[WaitingQuery, None]) -> WaitingPage:
    """List the turns that wait for decisions, the one that waits longest first"""
    found: list[SuspendedTurn] = []
    turns = call.client.waiting(tenant=call.caller.tenant_for(call.query.tenant))
    async for turn in turns:
        if call.caller.may_use(turn.session_id):
            found.append(turn)
        if len(found) == call.query.limit:
            break
    await turns.aclose()
    return WaitingPage(found)


@operation("POST", "/turns/{turn}/calls/{call}/approve", right="write", status=204)
async def approve_call(call: Call[None, Approve]) -> None:
    """Approve a tool call that a turn waits for

    The first decision about a call counts; later ones are refused with 409.
    """
    turn, given = await call.turn(), call.body
    await turn.approve(call.path["call"], by=given.by or call.caller.name, arguments=given.arguments)


@operation("POST", "/turns/{turn}/calls/{call}/reject", right="write", status=204)
async def reject_call(call: Call[None, Reject]) -> None:
    """Reject a tool call that a turn waits for: it does not run, and the model is told"""
    turn, given = await call.turn(), call.body
    await turn.reject(call.path["call"], by=given.by or call.caller.name, reason=given.reason)


@operation("POST", "/turns/{turn}/calls/{call}/result", right="write", status=204)
async def answer_call(call: Call[None, ToolAnswer]) -> None:
    """Give the result of a call of a tool of the caller"""
    turn, given = await call.turn(), call.body
    by = given.by or call.caller.name
    await turn.tool_result(call.path["call"], given.result, is_error=given.is_error, by=by)


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


OPERATIONS = [
    submit_turn, edit_message, regenerate_answer, list_turns, show_turn, show_runs, show_result, cancel_turn,
    requeue_turn, list_waiting, approve_call, reject_call, answer_call, list_failed, requeue_failed,
]  # fmt: skip
