"""Turns: submit them, read them, wait for them, cancel them and run them again."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from antiphon.errors import AgentError, ResultTimeout, TurnCancelled
from antiphon.model import TERMINAL
from antiphon.session.runtime import TurnHandle
from antiphon.session.turn_info import TurnInfo, TurnRun
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.interface.bodies import (
    Cancel,
    Cancelled,
    Edit,
    Regenerate,
    Submit,
    Submitted,
    TurnFailure,
    TurnPage,
    TurnResult,
    TurnsQuery,
    WaitQuery,
)
from antiphon_gateway.interface.sessions import idempotency_key, session_of

__all__ = ["OPERATIONS", "result_of"]

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


OPERATIONS = [
    submit_turn, edit_message, regenerate_answer, list_turns, show_turn, show_runs, show_result, cancel_turn,
    requeue_turn,
]  # fmt: skip
