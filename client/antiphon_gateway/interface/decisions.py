"""Decisions about the tool calls that a suspended turn waits for."""

from __future__ import annotations

from antiphon.wire.suspension import SuspendedTurn
from antiphon_gateway.http.operations import Call, operation
from antiphon_gateway.interface.bodies import Approve, Reject, ToolAnswer, WaitingPage, WaitingQuery

__all__ = ["OPERATIONS"]


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


OPERATIONS = [list_waiting, approve_call, reject_call, answer_call]
