"""The answers in a message to a waiting task: approvals, results of client-side tools, answers to questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError
from msgspec import Struct

from antiphon.model import Decision, OpenCall, Text, Wait
from antiphon.tools.approval import approval_of, rejection_of, result_of
from antiphon_gateway.a2a.parts import ours, plain
from antiphon_gateway.a2a.tasks import Open

APPROVE = "approve"


class Given(Struct):
    """Decisions about calls, and answers to questions by the event that delivers each."""

    decisions: list[Decision]
    events: dict[str, Any]


def read_answers(
    waits: Open, parts: Sequence[pb.Part], by: str, given_before: frozenset[str] = frozenset()
) -> Given:
    """Read the answers of a message to all that a task waits for. Raises ``InvalidParamsError``, and ``UsageError``.

    ``given_before`` are the ids that the same message answered before: those that no longer wait are left out.
    """
    found = Given([], {})
    rest: list[pb.Part] = []
    for part in parts:
        data: Any = plain(part.data) if part.WhichOneof("content") == "data" else None
        match data:
            case {"decisions": list(given)}:
                decided = (_decision(waits.calls, one, by, given_before) for one in cast("list[Any]", given))
                found.decisions += [one for one in decided if one is not None]
            case {"answers": dict(given)}:
                found.events |= _answers(waits.waits, cast("dict[str, Any]", given), given_before)
            case _:
                rest.append(part)
    _check_once(found.decisions)
    if not found.decisions and not found.events:
        return _only(waits, rest, by)
    return found


def _check_once(decisions: Sequence[Decision]) -> None:
    """Raise ``InvalidParamsError`` for a second decision about a call: only one of them could count."""
    seen = set[str]()
    for one in decisions:
        if one.call_id in seen:
            raise InvalidParamsError(f"The call {one.call_id[:100]!r} is decided twice: decide it once.")
        seen.add(one.call_id)


def _decision(
    calls: Sequence[OpenCall], given: Any, by: str, given_before: frozenset[str]
) -> Decision | None:
    fields: dict[str, Any] = given if isinstance(given, dict) else {}
    named = fields.get("callId")
    call = next((one for one in calls if one.call_id == named), None)
    if call is None:
        if isinstance(named, str) and named in given_before:
            return None
        raise InvalidParamsError(
            f"No call {str(named)[:100]!r} waits: status.message lists the pending calls."
        )
    return _about(call, fields, by)


def _about(call: OpenCall, given: dict[str, Any], by: str) -> Decision:
    if call.kind == "tool":
        if "result" not in given:
            raise InvalidParamsError(f"The call {call.call_id!r} waits for a result.")
        return result_of(call.call_id, given["result"], by, is_error=given.get("isError") is True)
    if given.get("approved") is True:
        return approval_of(call.call_id, by, given.get("arguments"))
    if given.get("approved") is not False:
        raise InvalidParamsError(f"The call {call.call_id!r} waits for approved: true or false.")
    return rejection_of(call.call_id, by, given.get("reason"))


def _answers(waits: Sequence[Wait], given: dict[str, Any], given_before: frozenset[str]) -> dict[str, Any]:
    """Return the answers by event: for the only wait, or by the ids of several."""
    if len(waits) == 1 and waits[0].id not in given:
        return {waits[0].event: given}
    known = {one.id: one.event for one in waits}
    if not given or not given.keys() <= known.keys() | given_before:
        raise InvalidParamsError(
            f"answers must be by the ids of the questions: {', '.join(known) or 'none wait'}."
        )
    return {known[name]: answer for name, answer in given.items() if name in known}


def _only(waits: Open, parts: Sequence[pb.Part], by: str) -> Given:
    """Return the answer of a message without ids, for the only call or question that the task waits for."""
    if len(waits.calls) + len(waits.waits) != 1:
        raise InvalidParamsError(
            'Several answers are needed: send a data part {"decisions": […]} with the callId of each call.'
        )
    said = ours(parts)
    text = "\n".join(one.text for one in said if isinstance(one, Text)).strip()
    if waits.waits:
        return Given([], {waits.waits[0].event: _plain_answer(waits.waits[0], text)})
    call = waits.calls[0]
    data: Any = plain(parts[0].data) if len(parts) == 1 and parts[0].WhichOneof("content") == "data" else None
    if call.kind == "tool":
        texts = all(isinstance(one, Text) for one in said)
        result = data if data is not None else text if texts else said
        return Given([result_of(call.call_id, result, by, is_error=False)], {})
    if isinstance(data, dict):
        return Given([_about(call, cast("dict[str, Any]", data), by)], {})
    if text.rstrip(".!").lower() in (APPROVE, "approved"):
        return Given([approval_of(call.call_id, by, None)], {})
    return Given([rejection_of(call.call_id, by, text or None)], {})


def _plain_answer(wait: Wait, text: str) -> Any:
    """Return a text as the answer to the only question, if that has one field of text."""
    questions: dict[str, Any] = (wait.about or {}).get("questions", {})
    match [*questions.items()]:
        case [(name, {"schema": {"properties": dict(fields)}})] if [
            field.get("type") for field in cast("dict[str, Any]", fields).values()
        ] == ["string"]:
            return {name: {"action": "accept", "content": {next(iter(cast("dict[str, Any]", fields))): text}}}
        case _:
            raise InvalidParamsError('The task waits for a data part {"answers": {…}}: see status.message.')
