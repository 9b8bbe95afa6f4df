"""The two bindings of the protocol: JSON-RPC, and HTTP+JSON. Both call the same methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, cast

import msgspec
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE, VERSION_HEADER
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
    VersionNotSupportedError,
)
from a2a.utils.proto_utils import parse_params, validate_proto_required_fields
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message as Proto
from starlette.responses import Response

from antiphon.errors import AgentError
from antiphon.input.limits import check_values
from antiphon_gateway.a2a.card import VERSION, card_of, written_card
from antiphon_gateway.a2a.errors import ErrorBody, rpc_error
from antiphon_gateway.a2a.methods import Methods, Update
from antiphon_gateway.http.operations import Call, read_bytes, unpacked
from antiphon_gateway.published import A2AAgent

METHODS: dict[str, type[Proto]] = {
    "SendMessage": pb.SendMessageRequest,
    "SendStreamingMessage": pb.SendMessageRequest,
    "GetTask": pb.GetTaskRequest,
    "ListTasks": pb.ListTasksRequest,
    "CancelTask": pb.CancelTaskRequest,
    "SubscribeToTask": pb.SubscribeToTaskRequest,
    "CreateTaskPushNotificationConfig": pb.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": pb.GetTaskPushNotificationConfigRequest,
    "ListTaskPushNotificationConfigs": pb.ListTaskPushNotificationConfigsRequest,
    "DeleteTaskPushNotificationConfig": pb.DeleteTaskPushNotificationConfigRequest,
    "GetExtendedAgentCard": pb.GetExtendedAgentCardRequest,
}
"""The methods and their parameters."""
WITH_BODY = ("SendMessage", "SendStreamingMessage", "CreateTaskPushNotificationConfig")
MOST_SHOWN = 300
CARD_SECONDS = 300


class Binding:
    """A published agent, for one request."""

    def __init__(self, call: Call[Any, None], agent: A2AAgent) -> None:
        self._call, self._agent = call, agent
        url = call.request.url
        self._url = agent.url.rstrip("/") or f"{url.scheme}://{url.netloc}"
        self._methods = Methods(call, agent, self._url)

    def card(self) -> Response:
        """Return the agent's card, or 304 to a client that has it."""
        where = self._url + self._call.address("a2a", self._agent.name)
        body, tag = written_card(card_of(self._agent, where, closed=self._call.services.closed))
        headers = {"etag": tag, "cache-control": f"public, max-age={CARD_SECONDS}", "vary": "host"}
        if tag in self._call.request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        return Response(body, 200, headers, media_type="application/json")

    # HTTP+JSON.

    async def rest(self, method: str, **path: str) -> Response:
        """Answer a request whose route names the method. ``path`` are fields of its parameters."""
        self._check_version()
        asked = METHODS[method]()
        self._methods.check_supported(method)
        if method not in WITH_BODY:
            _check_status(asked, self._call.request.query_params)
            _parsed(lambda: parse_params(self._call.request.query_params, asked))
        else:
            _filled(asked, await self._json(InvalidRequestError))
        for name, value in path.items():
            setattr(asked, name, value)
        found = await self._called(method, asked)
        if not isinstance(found, Proto):
            return self._call.stream(
                cast("Any", found), _frames(found, lambda update: update, lambda body: body.rest())
            )
        return Response(
            msgspec.json.encode(_written(found, asked)), headers={"cache-control": "no-store"},
            media_type=A2A_JSON_MEDIA_TYPE,
        )  # fmt: skip

    # JSON-RPC.

    async def rpc(self) -> Response:
        """Answer a JSON-RPC request."""
        request_id: Any = None
        try:
            given = await self._json(JSONParseError)
            request: dict[str, Any] = given if isinstance(given, dict) else {}
            request_id = _id(request)
            method, params = request.get("method"), request.get("params", {})
            if request.get("jsonrpc") != "2.0" or not isinstance(method, str):
                raise InvalidRequestError(
                    "Send one request of JSON-RPC 2.0 with a method; batches are not supported."
                )
            if method not in METHODS:
                raise MethodNotFoundError(f"Unknown method {method[:100]!r}.")
            self._check_version()
            asked = METHODS[method]()
            self._methods.check_supported(method)
            _filled(asked, params)
            found = await self._called(method, asked)
        except Exception as exc:  # noqa: BLE001 - every error is answered, and logged if it is not ours
            self._call.services.refused(exc)
            return rpc_error(exc, request_id)

        def wrapped(result: Any) -> dict[str, Any]:
            return {"jsonrpc": "2.0", "id": request_id, "result": result}

        if not isinstance(found, Proto):
            return self._call.stream(
                cast("Any", found), _frames(found, wrapped, lambda body: body.rpc(request_id))
            )
        body = msgspec.json.encode(wrapped(_written(found, asked)))
        return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")

    # Both.

    async def _called(self, method: str, asked: Any) -> Proto | AsyncGenerator[Update]:
        validate_proto_required_fields(asked)
        match method:
            case "SendMessage":
                return await self._methods.send(asked)
            case "SendStreamingMessage":
                return await self._methods.stream(asked)
            case "GetTask":
                return await self._methods.get(asked)
            case "ListTasks":
                return await self._methods.list(asked)
            case "CancelTask":
                return await self._methods.cancel(asked)
            case "SubscribeToTask":
                seen = self._call.request.headers.get("last-event-id", "")
                known = seen.isascii() and seen.isdigit() and len(seen) < 16
                return await self._methods.subscribe(asked, int(seen) if known else None)
            case "CreateTaskPushNotificationConfig":
                return await self._methods.create_push(asked)
            case "GetTaskPushNotificationConfig":
                return await self._methods.get_push(asked)
            case "ListTaskPushNotificationConfigs":
                return await self._methods.list_push(asked)
            case "DeleteTaskPushNotificationConfig":
                return await self._methods.delete_push(asked)
            case _:
                raise AssertionError(method)

    async def _json(self, error: type[JSONParseError | InvalidRequestError]) -> Any:
        """Return the body's JSON. Raises ``Refused``, ``LimitReached``, and ``error`` if it is invalid."""
        request, most = self._call.request, self._call.services.limits.body_bytes
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("application/json", A2A_JSON_MEDIA_TYPE):
            raise ContentTypeNotSupportedError(
                f"Send JSON, with the header Content-Type: {A2A_JSON_MEDIA_TYPE}."
            )
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        try:
            found = msgspec.json.decode(unpacked(await read_bytes(request, most), coding, most))
        except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
            raise error(f"The body is not JSON: {exc}.") from None
        # The package of the protocol takes minutes for millions of values, and blocks all other requests.
        check_values("a2a_values", found, "The values of the body", "Send large data as a text or a file.")
        return found

    def _check_version(self) -> None:
        """Raise ``VersionNotSupportedError`` unless the client uses a version 1. Without the header, it uses 0.3."""
        spoken = self._call.request.headers.get(VERSION_HEADER, "").strip() or "0.3"
        if spoken.partition(".")[0] != VERSION.partition(".")[0]:
            raise VersionNotSupportedError(
                f"A2A {spoken[:20]} is not supported: send the header {VERSION_HEADER}: {VERSION}."
            )


def _id(request: dict[str, Any]) -> str | int | None:
    """Return the id of a request. Raises ``InvalidRequestError``."""
    found = request.get("id")
    if found is None or (isinstance(found, str | int) and not isinstance(found, bool)):
        return found
    raise InvalidRequestError("The id of a request must be text, a whole number or null.")


def _filled(asked: Proto, fields: Any) -> None:
    """Fill in the parameters of a method. Raises ``InvalidParamsError``."""
    if not isinstance(fields, dict):
        raise InvalidParamsError("The parameters must be an object.")
    _check_status(asked, cast("dict[str, Any]", fields))
    _parsed(lambda: ParseDict(cast("dict[str, Any]", fields), asked, ignore_unknown_fields=True))


def _check_status(asked: Proto, fields: Mapping[str, Any]) -> None:
    """Raise ``InvalidParamsError`` for a list of tasks with a status that the protocol does not have.

    The package of the protocol ignores unknown values: all tasks would be listed.
    """
    status = fields.get("status")
    known = status in (None, "", *pb.TaskState.keys(), *pb.TaskState.values())
    if isinstance(asked, pb.ListTasksRequest) and not known:
        raise InvalidParamsError("status must be that of a task, such as TASK_STATE_COMPLETED.")


def _parsed(parse: Callable[[], Any]) -> None:
    try:
        parse()
    except (ParseError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise InvalidParamsError(f"The parameters are not valid: {str(exc)[:MOST_SHOWN]}") from None


def _written(found: Proto, asked: Any) -> dict[str, Any]:
    """Return the JSON of an answer. A list always has all of its fields."""
    if not isinstance(found, pb.ListTasksResponse):
        return MessageToDict(found)
    written = MessageToDict(found, always_print_fields_with_no_presence=True)
    if not asked.include_artifacts:
        for task in written["tasks"]:
            del task["artifacts"]
    return written


async def _frames(
    updates: AsyncGenerator[Update], wrap: Callable[[Any], Any], refused: Callable[[ErrorBody], Any]
) -> AsyncGenerator[bytes]:
    """Yield updates as server-sent events. If a retry may succeed, an error ends the stream without an update."""
    try:
        async for one in updates:
            place = b"" if one.seq is None else b"id: %d\n" % one.seq
            yield b"%bdata: %b\n\n" % (place, msgspec.json.encode(wrap(MessageToDict(one.value))))
    except AgentError as exc:
        body = ErrorBody(exc)  # logs an outage
        if not exc.retryable:
            yield b"data: %b\n\n" % msgspec.json.encode(refused(body))
