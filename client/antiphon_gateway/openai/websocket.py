"""Responses over a WebSocket: one after the other, each with the same events as over server-sent events.

As over HTTP, responses can be resumed: a response continues when its caller leaves, and can be read and followed at any
gateway. A connection ends after an hour, with the caller's rights, or when this process drains, whichever is first.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from antiphon.errors import AgentError
from antiphon.input.wrong_values import wrong_value
from antiphon_gateway.http.operations import Call
from antiphon_gateway.openai.errors import RefusedField, error_of, refused
from antiphon_gateway.openai.requests import CreateResponse
from antiphon_gateway.openai.responses import response_events
from antiphon_gateway.openai.stored import stream_of
from antiphon_gateway.openai.stream import response_id
from antiphon_gateway.openai.submission import submitted
from antiphon_gateway.problems import Draining, Refused

LONGEST_SECONDS = 3600.0
STALL_SECONDS = 60.0
MOST_WAITING = 16
GOING_AWAY, RESTART = 1001, 1012
NOT_HERE = ("stream", "stream_options", "background")


async def serve(peer: WebSocket, call: Call[Any, Any]) -> None:
    """Make the responses that a caller asks for, until the caller or the gateway closes the connection."""
    caller = call.caller
    most = call.services.limits.streams if caller.streams is None else caller.streams
    with call.services.quotas.stream(caller.name, most):
        await peer.accept()
        with suppress(WebSocketDisconnect, TimeoutError):
            await _until_the_end(peer, call)


async def _until_the_end(peer: WebSocket, call: Call[Any, Any]) -> None:
    asked = asyncio.Queue[str | bytes](MOST_WAITING)
    left, drains = (
        asyncio.ensure_future(_listen(peer, asked)),
        asyncio.ensure_future(call.services.stopping.wait()),
    )
    tasks = [left, drains, asyncio.ensure_future(_answer(peer, call, asked))]
    until = call.caller.until
    seconds = LONGEST_SECONDS if until is None else min(LONGEST_SECONDS, max(0.0, until - time.time()))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ended = next((one for one in tasks if one.done()), None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if ended is drains:
        await _close(peer, RESTART, Draining("This gateway is draining: connect again."))
    elif ended is None:
        sentence = "A connection lasts an hour at most, and no longer than its token: connect again."
        await _close(peer, GOING_AWAY, Refused(408, "websocket_connection_limit_reached", sentence))
    elif ended is not left:
        ended.result()


async def _listen(peer: WebSocket, asked: asyncio.Queue[str | bytes]) -> None:
    while (message := await peer.receive())["type"] == "websocket.receive":
        text = message.get("text")
        await asked.put(message.get("bytes") or b"" if text is None else text)


async def _answer(peer: WebSocket, call: Call[Any, Any], asked: asyncio.Queue[str | bytes]) -> None:
    unstored = set[str]()  # responses of this connection with store=False: only it may continue them
    while True:
        message = await asked.get()
        try:
            await _respond(peer, replace(call, path={}, body=_read(message, call)), unstored)
        except (Refused, AgentError) as exc:
            call.services.refused(exc)
            await _send(peer, _error(exc))
        except WebSocketDisconnect:
            raise
        except Exception as exc:  # noqa: BLE001 - every error is answered, and logged by what makes the answer
            await _send(peer, _error(exc))


async def _respond(peer: WebSocket, call: Call[Any, CreateResponse], unstored: set[str]) -> None:
    """Send the events of a response. One that is not stored can be continued until a continuation fails."""
    call.services.quotas.take(call.caller.name, call.caller.rate or call.services.limits.rate)
    before, completed = call.body.previous_response_id or "", False
    try:
        asked = await submitted(call, call.body, unstored)
        made = await stream_of(call, asked.turn, asked.part)
        async with (
            asked.turn.stream() as events,
            aclosing(response_events(call, asked, events, made)) as told,
        ):
            async for one in told:
                completed = one["type"] in ("response.completed", "response.incomplete")
                if completed and call.body.store is False:
                    unstored.add(one["response"]["id"])
                await _send(peer, one)
    finally:
        if not completed:
            unstored.discard(before)
    if not made.over:
        name = response_id(asked.turn.id, asked.part)
        raise Refused(
            503, "store_unavailable", f"Read the rest of the response with GET /v1/responses/{name}."
        )


def _read(message: str | bytes, call: Call[Any, Any]) -> CreateResponse:
    """Return the response that a message asks for. Raises ``Refused``."""
    if len(message) > call.services.limits.body_bytes:
        raise Refused(
            413, "body_too_large", f"The message has more than {call.services.limits.body_bytes} bytes."
        )
    try:
        given = msgspec.json.decode(message, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise Refused(400, "invalid_body", f"The message is not a JSON object: {exc}.") from None
    if given.pop("type", None) != "response.create":
        raise RefusedField("type", "The type of a message must be response.create.", code="invalid_type")
    for name in NOT_HERE:
        if name in given:
            raise refused(name, f"{name} is not supported over a WebSocket: omit it.")
    try:
        return msgspec.convert(given, CreateResponse)
    except msgspec.ValidationError as exc:
        sentence, field = wrong_value(exc, CreateResponse)
        raise Refused(400, "invalid_body", sentence, param=field or None) from None


def _error(error: Exception) -> dict[str, Any]:
    status, told = error_of(error)
    return {"type": "error", "status": status, "error": told}


async def _send(peer: WebSocket, event: dict[str, Any]) -> None:
    async with asyncio.timeout(STALL_SECONDS):
        await peer.send_text(msgspec.json.encode(event).decode())


async def _close(peer: WebSocket, code: int, why: Refused) -> None:
    await _send(peer, _error(why))
    await peer.close(code)
