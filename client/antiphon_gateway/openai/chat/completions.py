"""The route of the Chat Completions interface."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

from starlette.responses import Response

from antiphon.errors import AgentError
from antiphon.redis.turn import AsyncTurn
from antiphon.session.streams import EventIterator
from antiphon_gateway.http.operations import Answer, Call, operation
from antiphon_gateway.openai.chat.requests import CreateCompletion, completion_options
from antiphon_gateway.openai.chat.stream import DONE, Completion, encode
from antiphon_gateway.openai.errors import error_of
from antiphon_gateway.openai.following import LONGEST_SECONDS, STATELESS_SECONDS, key_of, later
from antiphon_gateway.openai.inputs import read_messages

__all__ = ["OPERATIONS"]

OVER = "its calls were handed to the caller"


@operation("POST", "/v1/chat/completions", right="write")
async def create_completion(call: Call[None, CreateCompletion]) -> Answer[dict[str, Any]]:
    """Answer a conversation that comes whole, as OpenAI's Chat Completions interface does

    The request is a turn in a session of its own, which is kept for an hour. With `stream` its chunks come.
    """
    given, key = call.body, key_of(call)
    options = completion_options(given)
    turn = await call.client.submit(
        call.new_session(key), read_messages(given.messages, "messages"), tenant=call.caller.tenant, key=key,
        ttl=STATELESS_SECONDS, **options,
    )  # fmt: skip
    info, usage = (
        await turn.info(),
        given.stream_options is not None and bool(given.stream_options.include_usage),
    )
    made = Completion(
        turn.id, given.model, info.created // 1000, streamed=bool(given.stream),
        checked=options["schema"] is not None, usage=usage,
    )  # fmt: skip
    if given.stream:
        events = turn.stream()
        return cast("Answer[dict[str, Any]]", _stream(call, events, turn, made))
    if not await call.services.stopping.first(_follow(turn, made), LONGEST_SECONDS):
        raise later()
    return Answer(made.whole())


async def _follow(turn: AsyncTurn, made: Completion) -> bool:
    async with turn.stream() as events:
        async for event in events:
            made.chunks(event)
            if made.over:
                await _let_go(turn, made)
                return True
    return False


def _stream(call: Call[Any, Any], events: EventIterator, turn: AsyncTurn, made: Completion) -> Response:
    return call.stream(events, _chunks(events, turn, made))


async def _chunks(events: EventIterator, turn: AsyncTurn, made: Completion) -> AsyncGenerator[bytes]:
    try:
        async for event in events:
            found = made.chunks(event)
            if made.over:
                await _let_go(turn, made)
            for one in found:
                yield encode(one)
            if made.over:
                break
    except AgentError as exc:
        if exc.retryable:
            return
        yield encode({"error": error_of(exc)[1]})
    if made.failure is not None:
        yield encode(made.error())
    yield DONE


async def _let_go(turn: AsyncTurn, made: Completion) -> None:
    """The results of calls come with another request: nobody will give them to this turn."""
    if made.waits:
        await turn.cancel(OVER, keep="nothing")


OPERATIONS = [create_completion]
