"""Turns: submit, read, wait, cancel, decide, requeue."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.client import FailedTurn, RatedTurn
from antiphon.errors import AgentError, TurnCancelled
from antiphon.input.options import PageSize, given, json_fields
from antiphon.model import TERMINAL, Decision
from antiphon.model.feedback import MOST_NOTE
from antiphon.model.recording import KeptRequest, Recording, VariantRun
from antiphon.redis.failed import FILTERS
from antiphon.redis.trees import decide_in_tree, listed
from antiphon.redis.turn import AsyncTurn
from antiphon.redis.variants import MOST_RUNS
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo, TurnRun, TurnTree
from antiphon.session.work import options_of
from antiphon.tools import approval
from antiphon_gateway.http.operations import Answer, Call, idempotency_key, operation
from antiphon_gateway.interface.bodies import (
    Approve,
    Cancel,
    Cancelled,
    Edit,
    Given,
    PageQuery,
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
    WaitQuery,
)
from antiphon_gateway.interface.sessions import session_of
from antiphon_gateway.problems import Refused, problem_of

READ_SECONDS = 5.0  # for the result of a turn that has ended


@operation("POST", "/sessions/{session}/turns", right="write", status=202, body=Submit)
async def submit_turn(call: Call[None, Any]) -> Answer[Submitted]:
    """Submit a turn

    When the response comes, the turn is stored and will run. With an `Idempotency-Key`, or `key`, a repeated request
    of the same session gets the first turn.
    """
    options = _options(call, "http")
    tenant = call.caller.tenant_for(options.pop("tenant", None))
    return _submitted(
        call, await call.client.submit(call.path["session"], call.body.input, tenant=tenant, **options)
    )


@operation("PUT", "/sessions/{session}/messages/{message}", right="write", status=202, body=Edit)
async def edit_message(call: Call[None, Any]) -> Answer[Submitted]:
    """Replace a message of the user's, and answer the new one

    The messages after it are removed when the answer is complete.
    """
    options = _options(call, "revision")
    params = options.pop("params", {})
    turn = await session_of(call).edit(call.path["message"], call.body.input, **options, **params)
    return _submitted(call, turn)


@operation("POST", "/sessions/{session}/regenerate", right="write", status=202, body=Regenerate)
async def regenerate_answer(call: Call[None, Any]) -> Answer[Submitted]:
    """Answer the last question again"""
    options = _options(call, "revision")
    params = options.pop("params", {})
    return _submitted(call, await session_of(call).regenerate(**options, **params))


@operation("GET", "/sessions/{session}/turns", right="read")
async def list_turns(call: Call[TurnsQuery, None]) -> TurnPage:
    """List the turns of a session, the newest first; a turn is kept for a week after its end"""
    turns = call.client.turns(call.path["session"], status=call.query.status, tenant=call.caller.tenant)
    found = [await listed(turn) for turn in await call.page(turns, call.query.limit)]
    return TurnPage([one for one in found if one is not None])


@operation("GET", "/turns/{turn}", right="read")
async def show_turn(call: Call[None, None]) -> TurnInfo:
    """Read a turn: its input, its state and its output"""
    return await (await call.turn()).info()


@operation("GET", "/turns/{turn}/tree", right="read")
async def show_tree(call: Call[None, None]) -> TurnTree:
    """Read a turn with its child turns, and theirs: their states, times and usage"""
    return await (await call.turn()).tree()


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
        with suppress(TimeoutError):
            return Answer(await call.services.stopping.within(most, result_of(turn)))
        status = await turn.status()
    return Answer(TurnResult(turn.id, turn.session_id, status), 202)


@operation("POST", "/turns/{turn}/cancel", right="write")
async def cancel_turn(call: Call[None, Cancel]) -> Cancelled:
    """Cancel a turn

    Its finished steps stay in the history, unless `keep` is set. A turn that has ended stays as it is.
    """
    turn = await call.turn()
    return Cancelled(await turn.cancel(call.body.reason, keep=call.body.keep or "steps"))


class Rate(Struct, kw_only=True, forbid_unknown_fields=True):
    """How good the turn was, from -1 (bad) to 1 (good), and perhaps why."""

    score: Annotated[float, Meta(ge=-1, le=1)]
    note: Annotated[str, Meta(max_length=MOST_NOTE)] | None = None


@operation("PUT", "/turns/{turn}/feedback", right="write", status=204)
async def rate_turn(call: Call[None, Rate]) -> None:
    """Give feedback about a turn

    It replaces earlier feedback, and has the authenticated caller as `by`.
    """
    await (await call.turn()).feedback(call.body.score, call.body.note, by=call.caller.name)


@operation("GET", "/turns/{turn}/recording", right="admin")
async def record_turn(call: Call[None, None]) -> Recording:
    """Read an ended turn as a recording, to replay it in a test

    It contains the session's own system prompt and variables, which no other operation returns.
    """
    return await (await call.turn()).recording()


@operation("GET", "/turns/{turn}/requests", right="admin")
async def list_requests(call: Call[None, None]) -> list[KeptRequest]:
    """Read what the models received in a turn, if its App keeps that

    The requests contain the system prompt of the agent, which no other operation returns.
    """
    return await (await call.turn()).requests()


class Replay(Struct, kw_only=True, forbid_unknown_fields=True):
    """On which revision (``agent@revision`` or ``agent@label``) to run the turn again, and what to change."""

    revision: str
    runs: Annotated[int, Meta(ge=1, le=MOST_RUNS)] = 1
    step: Annotated[int, Meta(ge=1)] = 1
    model: str | None = None
    system: str | None = None


@operation("POST", "/turns/{turn}/variants", right="admin", status=202)
async def replay_turn(call: Call[None, Replay]) -> list[VariantRun]:
    """Let workers run an ended turn again on one of their revisions, without its tools

    With an `Idempotency-Key`, a repeated request starts nothing again.
    """
    turn, given = await call.turn(), call.body
    return await turn.replay(
        given.revision, runs=given.runs, step=given.step, model=given.model, system=given.system,
        key=idempotency_key(call, None),
    )  # fmt: skip


@operation("GET", "/turns/{turn}/variants", right="admin")
async def list_variants(call: Call[None, None]) -> list[VariantRun]:
    """Read what came of the variants of a turn, for 7 days"""
    return await (await call.turn()).variants()


class FeedbackQuery(Struct, kw_only=True):
    """The turns' ``agent``, and ``since`` when (ms since 1970). ``conversation`` adds the messages before each turn.

    ``tenant`` is for keys of every tenant.
    """

    agent: str | None = None
    since: Annotated[int, Meta(ge=0)] = 0
    conversation: bool = False
    tenant: str | None = None
    limit: PageSize = 50


class RatedPage(Struct):
    """Turns with feedback, the last feedback first."""

    turns: list[RatedTurn]


@operation("GET", "/feedback", right="read")
async def list_feedback(call: Call[FeedbackQuery, None]) -> RatedPage:
    """List the turns with feedback, as long as they are kept, the last feedback first"""
    asked = call.query
    found = call.client.agents().feedback(
        asked.agent,
        tenant=call.caller.tenant_for(asked.tenant),
        since=asked.since,
        conversation=asked.conversation,
    )
    return RatedPage(await call.page(found, asked.limit, MOST_LOOKED_AT))


@operation("POST", "/turns/{turn}/requeue", right="write", status=204)
async def requeue_turn(call: Call[None, None]) -> None:
    """Run a failed turn again"""
    await (await call.turn()).requeue()


async def result_of(turn: TurnHandle) -> TurnResult:
    """Wait for the end of a turn, and return its result or its failure. Raises errors of Redis."""
    where = turn.id, turn.session_id
    try:
        return TurnResult(*where, "finished", await turn.result())
    except AgentError as exc:
        if exc.turn_id != turn.id:
            raise
        failure = TurnFailure(str(exc.code), exc.message)
        return TurnResult(*where, "cancelled" if isinstance(exc, TurnCancelled) else "failed", error=failure)


def _options(call: Call[Any, Any], interface: str) -> dict[str, Any]:
    """Return the options of a turn in the body. Raises ``Refused``."""
    options = given(call.body, options_of(interface))
    if "queue" in options:
        call.caller.check_right("admin")
    if user := call.caller.user_for(options.get("user")):
        options["user"] = user
    return options | {"key": idempotency_key(call, options.get("key"))}


def _submitted(call: Call[Any, Any], turn: TurnHandle) -> Answer[Submitted]:
    path = call.address("turns", turn.id)
    answer = Submitted(turn.id, turn.session_id, f"{path}/events", f"{path}/result")
    return Answer(answer, 202, {"location": path})


@operation("GET", "/waiting", right="read")
async def list_waiting(call: Call[PageQuery, None]) -> WaitingPage:
    """List the suspended turns, oldest first"""
    turns = call.client.waiting(tenant=call.caller.tenant_for(call.query.tenant))
    return WaitingPage(await call.page(turns, call.query.limit))


@operation("POST", "/turns/{turn}/calls/{call}/approve", right="write", status=204)
async def approve_call(call: Call[None, Approve]) -> None:
    """Approve a tool call that a turn waits for

    The first decision about a call counts; later ones are refused with 409. The decision has the authenticated caller
    as `by`, and the person whom the caller names as `on_behalf_of`.
    """
    await _decide(call, approval.approval_of(call.path["call"], call.caller.name, call.body.arguments))


@operation("POST", "/turns/{turn}/calls/{call}/reject", right="write", status=204)
async def reject_call(call: Call[None, Reject]) -> None:
    """Reject a tool call that a turn waits for: it does not run, and the model receives the reason"""
    await _decide(call, approval.rejection_of(call.path["call"], call.caller.name, call.body.reason))


@operation("POST", "/turns/{turn}/calls/{call}/result", right="write", status=204)
async def answer_call(call: Call[None, ToolAnswer]) -> None:
    """Give the result of a client-side tool call"""
    given = call.body
    await _decide(
        call, approval.result_of(call.path["call"], given.result, call.caller.name, is_error=given.is_error)
    )


async def _decide(call: Call[None, Any], decision: Decision) -> None:
    """Decide as the authenticated caller. The person named in the body is recorded as a claim."""
    turn, claimed = await call.turn(), call.body.by or None
    await decide_in_tree(call.client.connections.cells, turn.id, replace(decision, on_behalf_of=claimed))


MOST_REQUEUED = 1000
MOST_LOOKED_AT = 10_000
"""The most turns that are searched for those of one caller."""


_Turns: TypeAlias = Annotated[list[str], Meta(max_length=MOST_REQUEUED)]
WHICH = "Which failed turns to run again: ``turns`` with their ids, or all that the other fields select."

FailedQuery = msgspec.defstruct("FailedQuery", [*json_fields(FILTERS), ("limit", PageSize, 50)], kw_only=True)
RequeueMany = msgspec.defstruct(
    "RequeueMany",
    [*json_fields(FILTERS), ("turns", _Turns | None, None)],
    bases=(Given,), kw_only=True, module=__name__,
    namespace={"__doc__": WHICH},
)  # fmt: skip


class FailedPage(Struct):
    """Failed turns with all their runs, the last one first."""

    turns: list[FailedTurn]


class Requeued(Struct):
    """The turns that run again, and why others do not."""

    turns: list[str]
    refused: dict[str, TurnFailure]


@operation("GET", "/failed", right="read", query=FailedQuery)
async def list_failed(call: Call[Any, None]) -> FailedPage:
    """List the turns that failed in the last week, most recent first, with their errors"""
    return FailedPage(await _failed(call, call.query, call.query.limit))


@operation("POST", "/failed/requeue", right="write", body=RequeueMany)
async def requeue_failed(call: Call[None, Any]) -> Requeued:
    """Run failed turns again: these, or all that a filter selects, at most 1,000

    If the request is repeated, the turns run once: a turn that is no longer failed is refused.
    """
    given = call.body
    if given.turns is not None and any(getattr(given, name) is not None for name in FILTERS):
        raise Refused(400, "invalid_body", "Name turns, or fields that select them, but not both.")
    refused: dict[str, TurnFailure] = {}
    wanted: list[str] = []
    if given.turns is None:
        if all(getattr(given, name) is None for name in FILTERS):
            raise Refused(400, "invalid_body", "Name turns, or fields that select them; since 0 selects all.")
        wanted = [turn.turn_id for turn in await _failed(call, given, MOST_REQUEUED)]
    for turn in given.turns or ():
        try:
            await call.turn(turn)
            wanted.append(turn)
        except AgentError as exc:
            refused[turn] = _told(exc)
    done = await call.client.requeue_many(wanted) if wanted else []
    for turn, answer in zip(wanted, done, strict=True):
        if isinstance(answer, AgentError):
            refused[turn] = _told(answer)
    return Requeued([one.id for one in done if isinstance(one, AsyncTurn)], refused)


async def _failed(call: Call[Any, Any], which: Any, most: int) -> list[FailedTurn]:
    """Return the failed turns that the caller may see, up to ``most``."""
    asked: Any = {name: getattr(which, name) for name in FILTERS}
    asked["tenant"] = call.caller.tenant_for(which.tenant)
    found = call.client.failed(**asked)
    return await call.page(found, most, MOST_LOOKED_AT)


def _told(error: AgentError) -> TurnFailure:
    problem = problem_of(error)
    return TurnFailure(problem.code, problem.detail)


OPERATIONS = [
    submit_turn, edit_message, regenerate_answer, list_turns, show_turn, show_tree, show_runs, show_result, cancel_turn,
    requeue_turn, rate_turn, list_feedback, record_turn, list_requests, replay_turn, list_variants, list_waiting,
    approve_call, reject_call, answer_call, list_failed, requeue_failed,
]  # fmt: skip
