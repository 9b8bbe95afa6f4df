"""The routes of the Responses interface. A response is a turn; its id is the turn's with the prefix ``resp_``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import suppress
from typing import Annotated, Any, cast

from msgspec import Meta, Struct
from starlette.responses import Response

from antiphon.errors import AgentError, TurnNotFound
from antiphon.model import TERMINAL
from antiphon.redis.turn import AsyncTurn
from antiphon.session.streams import EventIterator
from antiphon.wire.editing import forget_turn
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.openai.errors import error_of
from antiphon_gateway.openai.fields import NEITHER, check_fields, refuses
from antiphon_gateway.openai.items import (
    IncludeQuery,
    ItemList,
    ItemQuery,
    input_items,
    output_item,
    page_of,
)
from antiphon_gateway.openai.requests import CreateResponse
from antiphon_gateway.openai.stored import is_stored, seal_for, seal_of, so_far, stream_of
from antiphon_gateway.openai.stream import DONE, ResponseStream, encode, resource, response_id
from antiphon_gateway.openai.submission import (
    Submitted,
    awaited,
    check_model,
    handed_over,
    submitted,
    turn_of,
)

READ_SECONDS = 5.0
CANCEL_SECONDS = 10.0


class ResponseQuery(IncludeQuery, kw_only=True):
    """With ``stream``, the events are sent, after the one with the number ``starting_after`` if that is given."""

    stream: bool = False
    starting_after: Annotated[int, Meta(ge=0)] | None = None
    include_obfuscation: Annotated[bool | None, refuses(NEITHER, False)] = None


class Deleted(Struct):
    """A deleted response."""

    id: str
    deleted: bool = True
    object: str = "response.deleted"


@operation("POST", "/v1/responses", right="write")
async def create_response(call: Call[None, CreateResponse]) -> Answer[dict[str, Any]]:
    """Make a response, as OpenAI's Responses interface does

    With `stream` its events come. With `background` it is returned at once, and made by a worker all the same.
    """
    given = call.body
    asked = await submitted(call, given)
    if given.stream:
        return cast("Answer[dict[str, Any]]", await _stream(call, asked, None))
    if given.background:
        return Answer(await _resource(call, asked.turn, asked.part))
    return Answer(await awaited(call, asked.turn, _made(call, asked)))


@operation("GET", "/v1/responses/{response}", right="read")
async def show_response(call: Call[ResponseQuery, None]) -> Answer[dict[str, Any]]:
    """Read a response, or follow its events from any place"""
    asked = call.query
    check_fields(asked)
    turn, part = await _stored(call, call.path["response"])
    if asked.stream:
        stream = await _stream(call, Submitted(turn, part), asked.starting_after, asked.include)
        return cast("Answer[dict[str, Any]]", stream)
    return Answer(await _resource(call, turn, part, asked.include))


@operation("POST", "/v1/responses/{response}/cancel", right="write")
async def cancel_response(call: Call[None, None]) -> Answer[dict[str, Any]]:
    """Cancel a response that is being made"""
    turn, part = await _stored(call, call.path["response"])
    await _cancelled(call, turn)
    return Answer(await _resource(call, turn, part))


@operation("DELETE", "/v1/responses/{response}", right="write")
async def delete_response(call: Call[None, None]) -> Deleted:
    """Delete a response: it can be read and followed no more

    One that is being made is cancelled first. What it has said stays in its conversation. A response that goes on with
    results of the caller's tools is deleted together with the one before it, as both are one turn.
    """
    name = call.path["response"]
    turn, _ = await _stored(call, name)
    if await turn.status() not in TERMINAL:
        await _cancelled(call, turn)
    await forget_turn(call.client.connections.cell_of_turn(turn.id), turn.id)
    return Deleted(name)


@operation("GET", "/v1/responses/{response}/input_items", right="read")
async def show_input_items(call: Call[ItemQuery, None]) -> ItemList:
    """Read the input of a response, the last item first"""
    turn, part = await _stored(call, call.path["response"])
    info = await turn.info()
    if part:
        return page_of(await _results(turn, part), call.query)
    seal = seal_for(call, call.query.include)
    return page_of(input_items(info.input, info.turn_id, seal), call.query)


async def _cancelled(call: Call[Any, Any], turn: AsyncTurn) -> None:
    """Cancel a turn, and wait briefly for its end."""
    await turn.cancel(keep="partial")
    with suppress(TimeoutError):
        await call.services.stopping.within(CANCEL_SECONDS, turn.ended())


async def _results(turn: AsyncTurn, part: int) -> list[dict[str, Any]]:
    """Return the tool results from which a response continues."""
    async with turn.stream() as events:
        async for event in events:
            if event.type == "turn_resumed" and any(one.kind == "result" for one in event.decisions):
                part -= 1
                if not part:
                    return [output_item(one.call_id, one.content, turn.id) for one in event.decisions]
            if event.terminal:
                break
    return []


async def _stored(call: Call[Any, Any], name: str) -> tuple[AsyncTurn, int]:
    """Return the turn of a response that was stored, and its part. Raises ``TurnNotFound``."""
    turn, part = await turn_of(call, name)
    if not is_stored(await turn.info()):
        raise TurnNotFound(f"The response {name[:100]!r} was not stored.")
    return turn, part


async def _resource(
    call: Call[Any, Any], turn: AsyncTurn, part: int, include: Collection[str] = ()
) -> dict[str, Any]:
    """Return a response as it is now. ``include`` is that of ``seal_of``."""
    info = await turn.info()
    if part or info.calls or info.decisions:  # the turn has waited: its events show where the response ends
        made = await so_far(call, turn, info, part, include)
        if not made.begun:
            raise TurnNotFound(f"Unknown response {response_id(turn.id, part)!r}.")
        return made.response()
    outcome = await turn.result(READ_SECONDS) if info.status == "finished" else None
    return resource(info, outcome, seal_of(call, info, include))


async def _made(call: Call[Any, Any], asked: Submitted) -> dict[str, Any]:
    """Wait until a response ends or waits for an approval, and return it. Raises ``Refused``."""
    made = await stream_of(call, asked.turn, asked.part)
    async with asked.turn.stream() as events:
        async for event in events:
            made.of(event)
            if event.type == "turn_failed":
                await check_model(call, event, made.model)
            if made.over or made.for_approval:
                await handed_over(call, asked, made)
                return made.response()
    return await _resource(call, asked.turn, asked.part)


async def _stream(
    call: Call[Any, Any], asked: Submitted, after: int | None, include: Collection[str] = ()
) -> Response:
    stream = await stream_of(call, asked.turn, asked.part, include)
    events = asked.turn.stream()
    told = response_events(call, asked, events, stream)
    return call.stream(events, _messages(told, stream, -1 if after is None else after))


async def _messages(
    told: AsyncIterator[dict[str, Any]], made: ResponseStream, after: int
) -> AsyncGenerator[bytes]:
    async for one in told:
        if one["sequence_number"] > after:
            yield encode(one)
    if made.over:
        yield DONE


async def response_events(
    call: Call[Any, Any], asked: Submitted, events: EventIterator, made: ResponseStream
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of a response. If it is not ``over`` after them, the reader must reconnect."""
    try:
        async for event in events:
            found = made.of(event)
            await handed_over(call, asked, made)
            for one in found:
                yield one
            if made.over:
                return
        made.over = True
    except AgentError as exc:
        if not exc.retryable:
            yield made.broken(error_of(exc)[1])


OPERATIONS = [create_response, show_response, delete_response, cancel_response, show_input_items]
