"""Submits the turn of a response to its session, and waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any, NamedTuple, TypeVar

from antiphon.client import SessionSnapshot
from antiphon.errors import (
    AlreadyDecided,
    NotSuspended,
    SessionBusy,
    SessionChanged,
    SessionExists,
    TurnNotFound,
    UsageError,
)
from antiphon.input.ids import turn_id_of_key
from antiphon.redis.turn import AsyncTurn
from antiphon.session.turn_info import TurnInfo
from antiphon.wire.keys import PREFIX
from antiphon_gateway.http.operations import Call
from antiphon_gateway.openai.errors import NO_MODEL, NO_RETRY, RefusedField, refused, turn_failure
from antiphon_gateway.openai.items import Content, messages_of, results_of
from antiphon_gateway.openai.models import is_offered
from antiphon_gateway.openai.requests import CreateResponse, check, conversation_of, echo_of, options_of
from antiphon_gateway.openai.stored import dereferenced, is_stored, summary_of
from antiphon_gateway.openai.stream import ResponseStream, resource, response_id, turn_and_part
from antiphon_gateway.openai.whole import Whole, hand_out, handed_out, name_of_key, whole_of
from antiphon_gateway.problems import Draining, Refused

T = TypeVar("T")

LONGEST_SECONDS = 600.0
STATELESS_SECONDS = 3600.0
"""How long the session of an unstored request is kept after its last turn."""


class Submitted(NamedTuple):
    """A response that is being made: its turn, and its part: how often the caller's tools had answered before.

    ``whole`` is the conversation, if the request contains all of it.
    """

    turn: AsyncTurn
    part: int
    whole: Whole | None = None


async def submitted(
    call: Call[Any, Any], given: CreateResponse, unstored: Collection[str] | None = None
) -> Submitted:
    """Submit the turn of a response, or answer the calls at the end of the previous one.

    The previous response must be stored or be one of ``unstored``; with None, it may be any. Raises ``Refused`` and
    ``AgentError``.
    """
    check(given)
    name = given.previous_response_id
    before = None if name is None else await previous(call, name, unstored)
    session = conversation_of(given.conversation)
    if session is not None:
        call.caller.check_session(session)
    items = await dereferenced(call, given.input or "", session or (before and before[0].session_id))
    results = results_of(items)
    if results is not None:
        return await _answered(call, given, results, before or await _waiting_in(call, session))
    options = _options(call, given)
    messages = messages_of(items, summary_of(call))
    if before is not None:
        return Submitted(await _following(call, *before, messages, options), 0)
    if session is not None:
        return Submitted(await call.client.submit(session, messages, **options), 0)
    whole = whole_of(echo_of(given), items)
    if found := await _taken_up(call, whole, unstored):
        return found
    return Submitted(
        await call.client.submit(call.new_session(options["key"]), messages, **options), 0, whole
    )


async def _taken_up(call: Call[Any, Any], whole: Whole, unstored: Collection[str] | None) -> Submitted | None:
    """Answer the turn that waits for the results at the end of a conversation. Returns None if no turn does.

    With an ``Idempotency-Key``, a repeated request gets the same response.
    """
    results, key = whole.results(), key_of(call)
    if not results:
        return None
    of_whole = whole.name(call)
    of_key = None if key is None else name_of_key(call, key, of_whole)
    name = (of_key and await handed_out(call, of_key)) or await handed_out(call, of_whole)
    if not name:
        return None
    try:
        turn, part = await previous(call, name, unstored)
    except RefusedField:
        return None
    waiting = {one.call_id for one in (await turn.info()).calls if one.kind == "tool"}
    found = Submitted(turn, part + 1, whole)
    if not waiting or not waiting <= results.keys():
        return found if of_key and await handed_out(call, of_key) == name else None
    if of_key is not None:
        await hand_out(call, of_key, name)
    if await _given(call, turn, {one: results[one] for one in waiting}):
        return found
    if of_key is not None:
        await hand_out(call, of_key, "")
    return None


async def _given(call: Call[Any, Any], turn: AsyncTurn, results: dict[str, Content]) -> bool:
    """Give a turn the results that it waits for. Returns False if another request gave other results first."""
    try:
        for name, content in results.items():
            await turn.tool_result(name, content, by=call.caller.name)
    except (AlreadyDecided, NotSuspended):
        return _has(await turn.info(), results)
    return True


def _has(info: TurnInfo, results: dict[str, Content]) -> bool:
    """Return whether a turn was last given these results."""
    known = {one.call_id: one.content for one in info.decisions if one.kind == "result"}
    return all(known.get(name) == content for name, content in results.items())


async def handed_over(call: Call[Any, Any], asked: Submitted, made: ResponseStream) -> None:
    """Record which response the results belong to, if it ended with calls of the caller's tools."""
    if asked.whole is not None and made.handed_over:
        name = asked.whole.name(call, made.response()["output"])
        await hand_out(call, name, response_id(asked.turn.id, asked.part))


async def awaited(call: Call[Any, Any], turn: AsyncTurn, work: Awaitable[T]) -> T:
    """Return what a request waits for. Raises ``Refused`` if the gateway drains or the turn takes too long.

    Without a key, the same request would run a second turn: a header keeps clients from repeating it.
    """
    where = (
        f"GET /turns/{turn.id}/result returns its answer. With an Idempotency-Key, a request can be repeated."
    )
    repeats = key_of(call) is not None
    detail = (
        "The turn continues: repeat the request to get its answer."
        if repeats
        else f"The turn continues: {where}"
    )
    headers = {} if repeats else NO_RETRY
    try:
        return await call.services.stopping.within(LONGEST_SECONDS, work)
    except Draining:
        raise Draining(detail, headers=headers) from None
    except TimeoutError:
        raise Refused(504, "still_running", detail, headers=headers) from None


async def check_model(call: Call[Any, Any], failed: Any, model: str) -> None:
    """Raise ``Refused`` with 404 if a turn has failed because no worker offers its model."""
    code = str(failed.code)
    if code in NO_MODEL or (code == "not_allowed" and "/" in model and not await is_offered(call, model)):
        raise turn_failure(NO_MODEL[0], "", model)


def key_of(call: Call[Any, Any]) -> str | None:
    """Return the ``Idempotency-Key`` of a request, None without one. Raises ``Refused``."""
    keys = call.request.headers.getlist("idempotency-key")
    if len(keys) > 1 or (keys and not 1 <= len(keys[0]) <= 1000):
        raise RefusedField("idempotency_key", "Send one Idempotency-Key of 1 to 1,000 characters.")
    return keys[0] if keys else None


async def turn_of(call: Call[Any, Any], name: str) -> tuple[AsyncTurn, int]:
    """Return the turn of a response, and its part. Raises ``TurnNotFound``."""
    found = turn_and_part(name)
    if found is None:
        raise TurnNotFound(f"Unknown response {name[:100]!r}.")
    call.path["turn"], part = found
    try:
        return await call.turn(), part
    except (TurnNotFound, UsageError):
        raise TurnNotFound(f"Unknown response {name[:100]!r}.") from None


async def previous(
    call: Call[Any, Any], name: str, unstored: Collection[str] | None = None
) -> tuple[AsyncTurn, int]:
    """Return the turn of the response that a request follows. Raises ``Refused``."""
    try:
        turn, part = await turn_of(call, name)
        if unstored is not None and name not in unstored and not is_stored(await turn.info()):
            raise TurnNotFound
        return turn, part
    except TurnNotFound:
        raise RefusedField(
            "previous_response_id", f"Unknown response {name[:100]!r}: send the whole conversation as input.",
            status=404, code="previous_response_not_found",
        ) from None  # fmt: skip


async def history_until(call: Call[Any, Any], before: AsyncTurn, part: int) -> tuple[SessionSnapshot, int]:
    """Return the session of a response, and how many of its messages end with it. Raises ``Refused``."""
    info = await before.info()
    if info.status == "suspended":
        named = ", ".join(one.call_id for one in info.calls)
        raise _wrong(f"The previous response waits: send a function_call_output for {named} alone.")
    if info.status != "finished":
        raise _wrong("The previous response is not completed: wait for it.")
    if info.decisions and await _went_on(call, before, part):
        raise _wrong(
            "The previous response has already continued with the results of its calls: name the last response."
        )
    found = await call.client.snapshot(before.session_id, tenant=call.caller.tenant)
    ends = [number for number, one in enumerate(found.messages, 1) if one.turn_id == before.id]
    if not ends:
        raise _wrong("The previous response is no longer in its conversation.")
    return found, ends[-1]


async def _following(
    call: Call[Any, Any], before: AsyncTurn, part: int, messages: Any, options: dict[str, Any]
) -> AsyncTurn:
    """Continue a conversation after a response: in its session if that ends there, and otherwise in a copy of it."""
    key, fork = options["key"], call.new_session(options["key"])
    if key is not None and await _known(call, before, key):
        return await call.client.submit(before.session_id, messages, **options)  # the same request again
    found, end = await history_until(call, before, part)
    if end == len(found.messages) and "ttl" not in options:
        try:
            return await call.client.submit(
                before.session_id, messages, if_busy="reject", cursor=found.cursor, **options
            )
        except (SessionBusy, SessionChanged):
            pass  # another request continues there, or has done so
    session = call.client.session(before.session_id, tenant=call.caller.tenant)
    try:
        await session.fork(fork, at=found.messages[end - 1].id)
    except SessionExists:
        if key is None:
            raise
    return await call.client.submit(fork, messages, **options)


async def _known(call: Call[Any, Any], before: AsyncTurn, key: str) -> bool:
    """Return whether the session of a turn has a turn with this key."""
    prefix = call.client.connections.cell_of_session(before.session_id).keys.deployment
    turn = turn_id_of_key(before.session_id, key, "" if prefix == PREFIX else prefix)
    try:
        await call.client.turn(turn, tenant=call.caller.tenant)
    except TurnNotFound:
        return False
    return True


async def _went_on(call: Call[Any, Any], turn: AsyncTurn, part: int) -> bool:
    """Return whether a response ended with calls, and another response of the same turn followed."""
    made = ResponseStream(resource(await turn.info()), turn.id, part)
    async with turn.stream() as events:
        async for event in events:
            made.of(event)
            if made.over:
                return not event.terminal
    return False


async def _waiting_in(call: Call[Any, Any], session: str | None) -> tuple[AsyncTurn, int]:
    """Return the turn of a conversation that waits for results, and its part. Raises ``Refused``."""
    if session is not None:
        found = await call.client.snapshot(session, tenant=call.caller.tenant, last=0)
        for info in found.pending:
            if info.status == "suspended" and any(one.kind == "tool" for one in info.calls):
                turn = await call.client.turn(info.turn_id, tenant=call.caller.tenant)
                return turn, await _parts(turn, info)
    raise refused("input", "No tool call waits for these results: name the previous_response_id.")


async def _parts(turn: AsyncTurn, info: TurnInfo) -> int:
    """Count how often the caller's tools have answered a turn that waits for them."""
    calls, count = {one.call_id for one in info.calls}, 0
    async with turn.stream() as events:
        async for event in events:
            if event.type == "turn_suspended" and any(one.kind == "tool" for one in event.calls):
                if calls <= {one.call_id for one in event.calls}:
                    break
                count += 1
    return count


async def _answered(
    call: Call[Any, Any], given: CreateResponse, results: dict[str, Content], before: tuple[AsyncTurn, int]
) -> Submitted:
    """Give the results of tool calls to the turn that waits for them. Raises ``Refused``."""
    turn, part = before
    info = await turn.info()
    _check_same(given, info)
    waiting = {one.call_id for one in info.calls if one.kind == "tool"}
    if waiting:
        if unknown := sorted(results.keys() - waiting):
            raise refused("input", f"The previous response has no pending tool call {unknown[0][:80]!r}.")
        if missing := sorted(waiting - results.keys()):
            raise refused(
                "input", f"No function_call_output for the call {missing[0]!r}: send all of them together."
            )
        for name, content in results.items():
            await turn.tool_result(name, content, by=call.caller.name)
        return Submitted(turn, part + 1)
    if _has(info, results):
        return Submitted(turn, part + 1)  # the same request again
    raise refused("input", "No tool call of the previous response waits for this result.")


def _check_same(given: CreateResponse, info: TurnInfo) -> None:
    """Refuse changes of a turn that already waits for results. Raises ``Refused``."""
    before: dict[str, Any] = info.metadata.get("openai") or {}
    for name, value in echo_of(given).items():
        if name in ("previous_response_id", "background") or (name == "tool_choice" and value == "auto"):
            continue
        if before.get(name) != value:
            raise refused(
                name,
                f"{name}: a response that continues with tool results must keep this field: send the "
                "same value, or omit it.",
            )


def _options(call: Call[Any, Any], given: CreateResponse) -> dict[str, Any]:
    options: dict[str, Any] = {
        **options_of(given), "metadata": {"openai": echo_of(given)}, "tenant": call.caller.tenant, "key": key_of(call),
    }  # fmt: skip
    options["user"] = call.caller.user_for(options.get("user"))
    return options if given.store is not False else {**options, "ttl": STATELESS_SECONDS}


def _wrong(sentence: str) -> RefusedField:
    return RefusedField("previous_response_id", sentence, code="invalid_previous_response")
