"""Questions to a client's user about the calls that a turn waits for (elicitation), and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, cast

import msgspec
from mcp.server import ServerRequestContext
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antiphon.errors import AlreadyDecided, NotSuspended
from antiphon.model import Decision, OpenCall
from antiphon.redis.turn import AsyncTurn
from antiphon.tools import approval
from antiphon_gateway.http.operations import Call
from antiphon_gateway.mcp.tools import Outcome
from antiphon_gateway.mcp.turns import decide

_APPROVAL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve"},
        "reason": {"type": "string", "title": "Why not"},
    },
    "required": ["approve"],
}
_RESULT: dict[str, Any] = {
    "type": "object", "properties": {"result": {"type": "string", "title": "Result"}}, "required": ["result"]
}  # fmt: skip
DECLINED = "The user declined to answer."


def can_ask(call: Call[Any, Any], context: ServerRequestContext[Any]) -> bool:
    """Return whether the client shows questions to its user, and may send the answers."""
    known = context.session.client_capabilities
    asks = known is not None and known.elicitation is not None
    # A client that names no mode of questions supports forms.
    forms = asks and known.elicitation.model_dump(exclude_none=True).keys() != {"url"}  # type: ignore[union-attr]
    return forms and context.protocol_version in MODERN_PROTOCOL_VERSIONS and "write" in call.caller.rights


def questions_of(found: Outcome) -> dict[str, ElicitRequest]:
    """Return a question about each call that a turn waits for, by the id of the call."""
    return {one.call_id: _question(one) for one in found.calls}


def _question(one: OpenCall) -> ElicitRequest:
    arguments = msgspec.json.encode(one.arguments).decode()
    if one.kind == "approval":
        message, schema = f"May the tool {one.name} run with {arguments}?", _APPROVAL
    else:
        message, schema = f"What is the result of {one.name} with {arguments}?", _RESULT
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


async def give_answers(
    call: Call[Any, Any], turn: AsyncTurn, answers: Mapping[str, Any] | None
) -> Literal["decided", "put off"]:
    """Decide about the calls that a turn waits for, as the caller. Answers about other calls are ignored.

    Returns ``put off`` if the user dismissed a question. Raises ``AgentError``, and ``Refused``.
    """
    call.caller.check_right("write")
    pending = {one.call_id: one for one in (await turn.info()).calls}
    given = {name: one for name, one in (answers or {}).items() if isinstance(one, ElicitResult)}
    for name in given.keys() & pending.keys():
        decision = _decision(pending[name], given[name], call.caller.name)
        if decision is not None:
            with suppress(AlreadyDecided, NotSuspended):  # another answer or a time limit was quicker
                await decide(call, turn, decision)
    return "put off" if any(one.action == "cancel" for one in given.values()) else "decided"


def _decision(pending: OpenCall, answer: ElicitResult, by: str) -> Decision | None:
    said = cast("Mapping[str, Any]", answer.content or {})
    if answer.action == "cancel":
        return None
    if pending.kind == "tool":
        declined = answer.action == "decline"
        result = DECLINED if declined else said.get("result", "")
        return approval.result_of(pending.call_id, result, by, is_error=declined)
    if answer.action == "accept" and said.get("approve") is True:
        return approval.approval_of(pending.call_id, by, None)
    reason = DECLINED if answer.action == "decline" else str(said.get("reason") or "") or None
    return approval.rejection_of(pending.call_id, by, reason)
