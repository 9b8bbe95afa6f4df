"""What the tools of the MCP server do: submit turns, follow them, answer their calls, and cancel them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from antiphon.errors import StreamGap
from antiphon.events import (
    ChildEvent,
    Event,
    Handoff,
    ToolCallEvent,
    ToolProgress,
    TurnRetrying,
    TurnStarted,
)
from antiphon.model import Decision
from antiphon.redis.trees import decide_in_tree
from antiphon.redis.turn import AsyncTurn
from antiphon.tools import approval
from antiphon_gateway.http.operations import Call
from antiphon_gateway.mcp.tools import AnswerCall, Ask, CancelTurn, GetTurn, Outcome
from antiphon_gateway.problems import Draining

Report: TypeAlias = Callable[[int, str], Awaitable[None]]
"""Reports progress: a number that increases, and a text."""


async def run_tool(call: Call[Any, Any], agent: str, given: Any, report: Report) -> Outcome:
    """Run a tool, and return the turn afterwards. Raises ``Refused`` and ``AgentError``.

    A call that waits counts as a stream. If that is refused, the call does nothing and can be repeated.
    """
    if isinstance(given, CancelTurn):
        turn = await call.turn(given.turn_id)
        await turn.cancel(given.reason)
        return await outcome_of(call, turn)
    with call.held():
        match given:
            case Ask():
                turn = await submitted(call, agent, given)
            case GetTurn():
                turn = await call.turn(given.turn_id)
            case AnswerCall():
                turn = await call.turn(given.turn_id)
                await _answer(call, turn, given)
            case _:
                raise AssertionError(given)
        return await followed(call, turn, given.wait, report)


async def submitted(call: Call[Any, Any], agent: str, given: Ask) -> AsyncTurn:
    """Submit a turn of an agent, in the named session or a new one."""
    session = given.session_id
    if session is None:
        await call.services.secret.learn()
        session = call.new_session(given.key)
    call.caller.check_session(session)
    return await call.client.submit(
        session, given.message, agent=agent, key=given.key, tenant=call.caller.tenant, user=call.caller.user_for(None)
    )  # fmt: skip


async def followed(call: Call[Any, Any], turn: AsyncTurn, seconds: float, report: Report) -> Outcome:
    """Wait at most this long until a turn ends or needs an answer, and return it.

    A gateway that drains does not wait: the turn continues, and another gateway can return it.
    """
    if call.caller.until is not None:
        seconds = min(seconds, max(0.0, call.caller.until - time.time()))
    with suppress(TimeoutError, Draining):
        await call.services.stopping.within(seconds, _follow(call, turn, report))
    return await outcome_of(call, turn)


async def _follow(call: Call[Any, Any], turn: AsyncTurn, report: Report) -> None:
    try:
        async with aclosing(turn.stream()) as events:
            async for event in events:
                text = _told(event)
                if text and call.caller.may_see(event.type):
                    await report(event.seq, text)
                if approval.asked_by(event) and (await turn.info()).calls:
                    return
    except StreamGap:  # the turn has published more than is kept
        await turn.ended()


def _told(event: Event) -> str:
    """Return the progress text of an event, or ''."""
    match event:
        case TurnStarted():
            return "started"
        case ToolCallEvent():
            return f"calls {event.name}"
        case ToolProgress():
            return event.text
        case TurnRetrying():
            return "tries again"
        case Handoff():
            return f"{event.target} takes over"
        case ChildEvent() if event.event.get("type") in ("turn_started", "turn_finished"):
            return f"{event.agent} has {event.event['type'].removeprefix('turn_')}"
        case _:
            return ""


async def _answer(call: Call[Any, Any], turn: AsyncTurn, given: AnswerCall) -> None:
    """Decide as the authenticated caller. Raises ``AgentError``."""
    by = call.caller.name
    match given.decision:
        case "approve":
            decision = approval.approval_of(given.call_id, by, given.arguments)
        case "reject":
            decision = approval.rejection_of(given.call_id, by, given.reason)
        case "result":
            decision = approval.result_of(given.call_id, given.result, by, is_error=given.is_error)
    await decide(call, turn, decision)


async def decide(call: Call[Any, Any], turn: AsyncTurn, decision: Decision) -> None:
    """Decide about a call of a turn or of its child turns. Raises ``AgentError``."""
    await decide_in_tree(call.client.connections.cells, turn.id, decision)


async def outcome_of(call: Call[Any, Any], turn: AsyncTurn) -> Outcome:
    """Return the current state of a turn, or of the turn that it has steered. Raises ``TurnNotFound``."""
    info = await turn.info()
    if info.steered_into is not None:
        return await outcome_of(call, await call.turn(info.steered_into))
    found = Outcome(
        turn.id, turn.session_id, info.status, code=info.code or "", error=info.error or "", calls=info.calls
    )
    if info.status == "finished":
        response = await turn.result()
        return replace(found, text=response.text, output=response.output)
    return found


def sentence_of(found: Outcome) -> str:
    """Return the text about a turn for a model: its answer, or what to do."""
    match found.status:
        case "finished":
            return found.text if found.output is None else msgspec.json.encode(found.output).decode()
        case "failed" | "cancelled":
            how = "has failed" if found.status == "failed" else "was cancelled"
            return f"The turn {how}: {found.error} ({found.code})" if found.code else found.error
        case "suspended" if found.calls:
            calls = "\n".join(
                f"- {one.call_id} ({one.kind}): {one.name} {msgspec.json.encode(one.arguments).decode()}"
                for one in found.calls
            )
            return f"The turn waits for an answer to these calls; use answer_call:\n{calls}"
        case _:
            return "The turn has not ended; use get_turn to wait for its answer."
